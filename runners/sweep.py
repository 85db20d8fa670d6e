"""A sweep: every run of a paper at a scale, in stages, through one launcher.

Experiments go in waves: a wave's artifacts are prepared, its tuning runs made, then its judged configs frozen and
run; the next wave are the experiments that needed those. Workers live through all of it.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from runners import build, figure_spec, places, provenance
from runners.artifacts import ArtifactStore
from runners.errors import ConfigError, Pending, StoppedEarly, StoreError, nearest
from runners.estimate import Known, count
from runners.execute import Outcome
from runners.expand import Cell, Expander, Overrides, choose
from runners.fingerprint import Fingerprinter
from runners.group import check_devices, check_gpus_used
from runners.identity import digest
from runners.launchers import Job, Settings
from runners.lease import Claims
from runners.live import Board
from runners.paper import Paper, needed
from runners.preparations import needs, prepare
from runners.store import Store, uncollected, write_atomic


class Sweep:
    """All runs of one paper at one scale."""

    def __init__(
        self,
        paper: Paper,
        scale: str,
        *,
        launcher: dict[str, Any],
        tracker: dict[str, Any] | None = None,
        overrides: Overrides | None = None,
        experiments: list[str] | None = None,
        stale: str = "rerun",
        fail_fast: bool = False,
        root: Path | None = None,
    ):
        self.paper, self.scale = paper, scale
        self.overrides = overrides or Overrides()
        self.expander = Expander(paper, scale, self.overrides, ranks=launcher.get("nproc"))
        self.root = root or places.outputs()
        self.store = Store(self.root)
        self.settings = Settings(self.root, tracker, stale, fail_fast=fail_fast)
        self.launcher_config = launcher
        self.fingerprints = Fingerprinter()
        self.planned: dict[str, list[Cell]] = {}  # what check() has expanded and no run can change any more
        self.expected: dict[str, list[Cell]] = {}  # what check() has expanded; tuning may still change it
        self.cells: dict[str, list[Cell]] = {}
        self.pending: set[str] = set()  # experiments with runs on their way, under launchers that do not wait
        self.results: dict[str, dict[str, Any]] = {}
        self._kept: dict[tuple[int, int], tuple[Any, Any, dict[str, Any]]] = {}
        self._provenance: dict[str, Any] = {}
        self.tables: dict[str, list[dict[str, Any]]] = {}  # experiment -> tuning table
        self.jobs: dict[str, Job] = {}  # runs that the store did not have when their stage came
        self.failures: list[str] = []
        self.problems: list[str] = []
        self.skipped: dict[str, str] = {}
        self.elapsed = 0.0
        self.artifact_seconds = 0.0
        self.order = self._selected(experiments or [])

    def _selected(self, names: list[str]) -> list[str]:
        order = self.paper.order()
        wanted = set(names or order)
        for name in reversed(order):
            if name in wanted:
                wanted |= set(needed(self.paper.experiments[name]))
        chosen = []
        for name in order:
            reason = self.paper.not_run(name, self.scale)
            if reason is None:
                for need in needed(self.paper.experiments[name]):
                    if need in self.skipped:
                        reason = f"needs {need}: {self.skipped[need]}"
            if reason is not None:
                self.skipped[name] = reason
            elif name in wanted:
                chosen.append(name)
            else:
                self.skipped[name] = "not asked for"
        return chosen

    @property
    def report_folder(self) -> Path:
        """Where the report goes; what the command line changed has a place of its own."""
        scale = f"{self.scale}-modified" if self.overrides.modified else self.scale
        return self.root / "report" / self.paper.slug / scale

    # -- before the first run ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Find every mistake that can be found without running: names, keys, types, arguments, claims."""
        from runners.claims import validate

        self._make_launcher()
        validate(self.paper.claims | self.paper.findings, self.paper.experiments)
        for name, figure in self.paper.figures.items():
            figure_spec.check(name, figure, self.paper.experiments)
        local = self.launcher_config.get("_target_", "").startswith("runners.launchers.local")
        machines: set[tuple[Any, Any, int]] = set()
        checked: set[str] = set()
        seen: dict[int, Any] = {}  # parts that runs share, by id
        planned: dict[str, list[Cell]] = {}
        for name in list(self.order):
            needs = needed(self.paper.experiments[name])
            # Tuning may still change which runs are needed, but not whether their names, keys and types are right.
            cells = self.expander.judged(name, finished={need: planned.get(need, []) for need in needs})
            planned[name] = cells
            if not cells:
                self.order.remove(name)
                self.skipped[name] = "no cell with these choices"
                continue
            tuning = [cell for cell, _, _ in self.expander.tuning(name)]
            self.expected[name] = tuning + cells
            if not tuning and not needs:
                self.planned[name] = cells
            for cell in tuning + cells:
                machine = (cell.config["device"], cell.config["ranks"], id(cell.config["task"]))
                if local and machine not in machines:
                    machines.add(machine)
                    gpus = self.launcher_config.get("gpus")
                    check_devices(cell.config, len(gpus) if isinstance(gpus, list) else None)
                for part in ("method", "task"):
                    if id(cell.config[part]) in seen:
                        continue
                    seen[id(cell.config[part])] = cell.config[part]
                    shape = digest(_shape(cell.config[part]))
                    if shape not in checked:
                        checked.add(shape)
                        build.check(cell.config[part], part, top=True)
        if not self.order:
            chosen = " ".join(f"{key}={','.join(names)}" for key, names in self.overrides.only.items())
            raise ConfigError(
                f"{chosen or self.paper.slug}: no cell of {self.paper.slug} at scale {self.scale}"
            )
        if self.overrides.leaves:
            self.expander.check_overrides()
            asked = {path: value for path, value, _ in self.overrides.leaves}.get("task.resources.gpus")
            check_gpus_used((cell.config for cells in self.expected.values() for cell in cells), asked)

    def estimate(self) -> str:
        """How many runs there are and what they cost, from what the store knows and the YAML says."""
        from runners import estimate

        return estimate.describe(self, self.expected)

    # -- running -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Make every run that the store does not have yet.

        Raises Pending where the launcher does not wait: the stages so far are sent, later ones need their results.
        """
        started = time.monotonic()
        try:
            Claims(self.root).tidy()
        except OSError as problem:
            raise StoreError(f"cannot write under {self.root}: {problem.strerror or problem}") from problem
        waiting = list(self.order)
        with (
            self._make_launcher() as launcher,
            Board(
                f"{self.paper.slug} {self.scale}",
                getattr(launcher, "workers", 1),
                quiet=getattr(launcher, "quiet", False),
            ) as board,
        ):
            self.board, self.launcher = board, launcher
            while waiting:
                done = set(self.cells) - self.pending
                ready = [
                    n for n in waiting if all(need in done for need in needed(self.paper.experiments[n]))
                ]
                if not ready:
                    break
                try:
                    self._wave(ready)
                except StoppedEarly:
                    for name in waiting:
                        if name not in self.cells:
                            self.skipped[name] = "stopped at the first failure"
                    break
                waiting = [name for name in waiting if name not in ready]
        self.elapsed = time.monotonic() - started
        if self.pending:
            raise Pending(f"runs of {', '.join(sorted(self.pending))} are not finished yet")

    def _make_launcher(self) -> Any:
        return build.build(self.launcher_config | {"_partial_": True}, "launcher", resolve_run=_never)()

    def _wave(self, names: list[str]) -> None:
        tuning = {name: self.expander.tuning(name) for name in names}
        untuned = [name for name in names if not tuning[name]]
        for name in untuned:
            self._freeze(name, {})
        tune_cells = {name: [cell for cell, _, _ in runs] for name, runs in tuning.items() if runs}
        labels = {f"{name} (tuning)": name for name in tune_cells} | {name: name for name in untuned}
        pending = self._launch(
            {label: tune_cells.get(name) or self.cells[name] for label, name in labels.items()}
        )
        self.pending |= {labels[label] for label in pending}
        tuned = [name for name in tune_cells if name not in self.pending]
        for name in tuned:
            winners, table = choose(tuning[name], self._score)
            self.tables[name] = table
            self._freeze(name, winners)
        self.pending |= self._launch({name: self.cells[name] for name in tuned})

    def _freeze(self, name: str, winners: dict[Any, dict[str, Any]]) -> None:
        """Fix an experiment's configs: later edits of a YAML change nothing in this sweep."""
        # A run whose opponent has no result fails by itself and says so.
        finished = {need: self.cells[need] for need in needed(self.paper.experiments[name])}
        planned = self.planned.pop(name, None)
        self.cells[name] = planned or self.expander.judged(name, tuned=winners, finished=finished)
        record = [
            {"id": cell.id, "coordinates": cell.coordinates, "config": cell.config, "sources": cell.sources}
            for cell in self.cells[name]
        ]
        folder = self.report_folder / "frozen"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(
                folder / f"{name}.json", json.dumps({"cells": record, "tuning": self.tables.get(name, [])})
            )
        except OSError as problem:
            raise StoreError(f"cannot write {folder}: {problem.strerror or problem}") from problem

    def _launch(self, groups: dict[str, list[Cell]]) -> set[str]:
        """Run groups of cells; returns the groups of which some are on their way and nobody waits for them."""
        jobs: dict[str, Job] = {}
        known = Known(self.store.results() if hasattr(self.launcher, "plan") else [])
        prints: dict[tuple[int, int], str] = {}  # by the parts that runs share
        for name, cells in groups.items():
            own = []
            before = len(self.results)
            missing = self._without_result([cell for cell in cells if cell.id not in jobs], prints)
            stored = len(self.results) - before
            for cell in missing:
                labels = {"paper": self.paper.slug, "scale": self.scale, "experiment": cell.experiment}
                label = " ".join(str(value) for value in cell.coordinates.values())
                own.append(
                    Job(
                        cell.id,
                        cell.config,
                        cell.fingerprint,
                        f"{name}: {label}",
                        labels,
                        seconds=known.seconds(cell.config),
                    )
                )
                jobs[cell.id] = own[-1]
            self.board.add(name, own, stored=stored, shared=len(cells) - len(own) - stored)
        for problem in self.problems:
            self.board._say(problem)
        self.problems.clear()
        shelf = ArtifactStore(self.root, self.fingerprints)
        labels = {"paper": self.paper.slug, "scale": self.scale}
        prepared = prepare(jobs, shelf, self.launcher, self.settings, self.board, labels)
        self.artifact_seconds += prepared.seconds
        ready = []
        for job in [job for job in jobs.values() if job.id not in prepared.sent]:
            asked = needs(job)
            if lost := asked & prepared.failed:
                self._give_up(jobs.pop(job.id), f"its artifact {min(lost)} could not be built")
            elif not asked & prepared.awaited:
                ready.append(job)
        self.jobs |= prepared.jobs | jobs
        outcomes = prepared.outcomes
        if not (self.settings.fail_fast and self.board.failures):
            outcomes |= self.launcher.launch(ready, self.settings, self.board)
        self.failures += self.board.failures
        self.board.failures = []
        for job in jobs.values():
            outcome = outcomes.get(job.id)
            if outcome is not None and outcome.status in ("done", "diverged"):
                hit = self.store.look(job.config, job.id, None)
                if hit.result is not None:
                    self.results[job.id] = hit.result
                    if not hit.result["fingerprint"]:
                        self.board._say(
                            f"{job.label} {job.id}: its code was edited as it ran; counts as stale"
                        )
        if self.settings.fail_fast and self.failures:
            raise StoppedEarly
        if getattr(self.launcher, "wait", True):
            return set()
        open_ends = {key for key in jobs if key not in self.results and key not in outcomes}
        return {name for name, cells in groups.items() if any(cell.id in open_ends for cell in cells)}

    @uncollected()
    def _without_result(self, cells: list[Cell], prints: dict[tuple[int, int], str]) -> list[Cell]:
        """Fingerprint cells and take up what the store has of them; returns those without a result."""
        missing: dict[str, Cell] = {}
        for cell in cells:
            parts = id(cell.config["method"]), id(cell.config["task"])
            cell.fingerprint = prints.get(parts) or self.fingerprints.of(cell.config)
            prints[parts] = cell.fingerprint
            if cell.id in self.results or cell.id in missing:
                continue
            asked = (cell.config, cell.id, cell.fingerprint)
            hit = self.store.look(*asked, stale=self.settings.stale, folder=cell.folder)
            self.problems += hit.problems
            if hit.state == "finished" and hit.result is not None:
                self.results[cell.id] = self._shared(hit.result, cell)
            else:
                missing[cell.id] = cell
        return list(missing.values())

    def _give_up(self, job: Job, error: str) -> None:
        """Record a run that cannot be made."""
        self.store.record_failure(job.config, job.id, "failed", error)
        self.board.ended(job, Outcome(job.id, "failed", error=error))

    def _score(self, cell: Cell, rule: dict[str, Any]) -> float:
        """A tuning run's mark; what never happened counts as ``censored``, else as the worst there is."""
        worst = math.inf if rule.get("goal", "min") == "min" else -math.inf
        result = self.results.get(cell.id)
        value = result["summary"].get(rule["metric"]) if result else None
        if result and result["status"] == "done" and rule["metric"] not in result["summary"]:
            known, near = ", ".join(result["summary"]), nearest(rule["metric"], result["summary"])
            raise ConfigError(
                f"{self.paper.place}: tune.metric '{rule['metric']}' is not in the summary ({known}){near}"
            )
        if value is None:
            censored = rule.get("censored")
            if isinstance(censored, str):
                from runners.compose import walk

                censored = walk(cell.config, censored)
            value = censored if censored is not None else worst
        return float(value)

    def exit_code(self) -> int:
        """0 if no run failed, 2 if all that failed did by bad input, else 1; says which."""
        if not self.failures:
            return 0
        refused = self.board.refused
        if sum(refused.values()) < len(self.failures):
            print(f"{len(self.failures)} runs failed:", *self.failures[:20], sep="\n  ", file=sys.stderr)
            return 1
        for error, runs in refused.items():
            print(f"error: {error} ({count(runs, 'run')})", file=sys.stderr)
        return 2

    # -- reading back --------------------------------------------------------------------------------------------

    def records(self, name: str) -> list[dict[str, Any]]:
        """Every cell's record of an experiment: results, and failures with an empty summary."""
        from runners.identity import canonical

        found = []
        for cell in self.cells.get(name, []):
            result = self.results.get(cell.id)
            if result is None:
                failure = self.store.failure(cell.config, cell.id) or {"status": "missing"}
                result = {
                    "id": cell.id,
                    "status": failure["status"],
                    "config": canonical(cell.config),
                    "summary": {},
                    "wall_seconds": None,
                }
            found.append(result)
        return found

    def _shared(self, result: dict[str, Any], cell: Cell) -> dict[str, Any]:
        """A result whose large parts are those of others: equal in value (``look`` has compared), once in memory."""
        parts = id(cell.config["method"]), id(cell.config["task"])
        if parts not in self._kept:  # with the cell's parts themselves, so that their ids stay theirs
            shared = {key: result["config"][key] for key in ("method", "task")}
            self._kept[parts] = (cell.config["method"], cell.config["task"], shared)
        result["config"] |= self._kept[parts][2]
        if result["provenance"] == self._provenance:
            result["provenance"] = self._provenance
        self._provenance = result["provenance"]
        return result

    def folder_of(self, run_id: str) -> str:
        """Folder of a run of this sweep."""
        if not hasattr(self, "_folders"):
            self._folders = {cell.id: cell.folder for cells in self.cells.values() for cell in cells}
        return f"{self.root}/{self._folders[run_id]}"

    def provenance(self) -> dict[str, Any]:
        """Where the numbers come from, over all runs."""
        results = list(self.results.values())
        found = provenance.describe()
        found["packages"] = {}
        for result in results:
            found["packages"].update(result["provenance"]["packages"])
        found["run_commits"] = sorted(
            {r["provenance"]["commit"] + "+" * r["provenance"]["dirty"] for r in results}
        )
        for key in ("cpu_seconds", "gpu_seconds"):
            found[key] = round(sum(result[key] for result in results), 1)
        found["peak_memory_mb"] = max((result["peak_memory_mb"] for result in results), default=0)
        found["artifact_seconds"] = round(self.artifact_seconds, 1)
        return found


def _shape(node: Any) -> Any:
    """A config without its values: equal shapes need one check of their arguments."""
    if isinstance(node, dict):
        return {
            key: value if key in ("_target_", "_partial_") else _shape(value) for key, value in node.items()
        }
    return [_shape(value) for value in node] if isinstance(node, list) else None


def _never(node: dict[str, Any]) -> Any:
    raise ConfigError(f"a launcher takes no finished run ({node['_run_']})")
