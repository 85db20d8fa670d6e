"""Executes one run: look in the store, seed, build, let the task examine the method, record the result."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from runners import build, identity, peers, provenance, yamls
from runners.artifacts import ArtifactStore
from runners.errors import ConfigError, unwritable
from runners.fingerprint import Fingerprinter, targets
from runners.lease import Claims
from runners.recorder import STOP_FILE, DeadlineReached, Recorder, SilentRecorder, Stopped
from runners.refusal import refusal
from runners.store import Store, sizes, write_atomic

Config = dict[str, Any]


@dataclass
class Outcome:
    """How a run ended (``busy``: another process has it)."""

    id: str
    status: str  # done | diverged | failed | timeout | interrupted | busy
    seconds: float = 0.0
    cached: bool = False
    error: str = ""
    refused: bool = False  # failed by a value that a constructor does not take: bad input

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionary, for crossing a process boundary."""
        return asdict(self)


class Executor:
    """Runs configs in this process, one after another."""

    def __init__(
        self, root: Path, *, tracker: Config | None = None, stale: str = "rerun", progress: bool = True
    ):
        self.root = Path(root)
        self.store = Store(self.root)
        self.source = self.root  # where the finished runs that a run needs are
        self.claims = Claims(self.root)
        self.code = Fingerprinter()
        self.artifacts = ArtifactStore(self.root, self.code)
        self.tracker = tracker
        self.stale = stale
        self.progress = progress
        self.progress_file: Path | None = None

    def run(
        self,
        config: Config,
        *,
        run_id: str | None = None,
        fingerprint: str | None = None,
        again: bool = False,
        labels: dict[str, str] | None = None,
        gpus: Sequence[int | str] = (),
    ) -> Outcome:
        """Execute one run unless the store has it. Never raises for what a method or task does wrong.

        A run of several ranks, or one that is given GPUs, goes into processes of its own (``runners.group``).
        """
        run_id = run_id or identity.run_id(config)
        fingerprint = fingerprint or self.code.of(config)
        hit = self.store.look(config, run_id, fingerprint, stale=self.stale)
        if hit.state == "finished" and hit.result and not again:
            return Outcome(run_id, hit.result["status"], hit.result["wall_seconds"], cached=True)
        folder = self.store.folder(config, run_id)
        folder.mkdir(parents=True, exist_ok=True)
        if self.progress:
            self.progress_file = self.claims.folder / f"{self.claims.token}.progress"
        with self.claims.claim(folder) as ours:
            if not ours:
                return Outcome(run_id, "busy")
            hit = self.store.look(config, run_id, fingerprint, stale=self.stale)
            if hit.state == "finished" and hit.result and not again:  # finished while we waited for the claim
                return Outcome(run_id, hit.result["status"], hit.result["wall_seconds"], cached=True)
            for path in [
                *folder.glob(".*.*"),
                *(folder / n for n in ("result.json", "failure.json", STOP_FILE)),
            ]:
                path.unlink(missing_ok=True)  # the first ones: half-written files of killed attempts
            write_atomic(folder / "config.yaml", dump_yaml(config))
            hours = (config["task"].get("resources") or {}).get("hours")
            seconds = 3600.0 * hours if hours else None
            if int(config.get("ranks") or 1) > 1 or gpus:
                return self._group(config, run_id, folder, fingerprint, labels or {}, seconds, gpus)
            return self.examine(config, run_id, folder, fingerprint, labels or {}, deadline_seconds=seconds)

    def _group(
        self,
        config: Config,
        run_id: str,
        folder: Path,
        fingerprint: str,
        labels: dict[str, str],
        seconds: float | None,
        gpus: Sequence[int | str],
    ) -> Outcome:
        from runners.group import end_of, run_group

        run_group(
            config,
            run_id,
            folder,
            root=self.root,
            fingerprint=fingerprint,
            labels=labels,
            tracker=self.tracker,
            deadline_seconds=seconds,
            gpus=gpus,
            progress_file=self.progress_file,
        )
        hit = self.store.look(config, run_id, None)
        if hit.result is not None:
            return Outcome(
                run_id, hit.result["status"], hit.result["wall_seconds"], error=hit.result["error"]
            )
        failure = self.store.failure(config, run_id)
        if failure is None:
            error = f"{end_of(folder / 'group.log')} ({folder / 'group.log'})"
            self.store.record_failure(config, run_id, "failed", error)
            failure = {"status": "failed", "error": error}
        return Outcome(
            run_id, failure["status"], error=failure["error"], refused=failure.get("refused", False)
        )

    def examine(
        self,
        config: Config,
        run_id: str,
        folder: Path,
        fingerprint: str,
        labels: dict[str, str],
        *,
        deadline_seconds: float | None = None,
        rank: int = 0,
        ranks: int = 1,
    ) -> Outcome:
        """Let the task examine the method, here and now; rank 0 records."""
        deadline = time.monotonic() + deadline_seconds if deadline_seconds else None
        tracker = self._tracker(config, run_id, labels, folder)
        recorder = (Recorder if rank == 0 else SilentRecorder)(
            folder,
            config,
            fingerprint=fingerprint,
            artifacts=self.artifacts,
            tracker=tracker,
            deadline=deadline,
            progress_file=self.progress_file if rank == 0 else None,
            rank=rank,
            ranks=ranks,
        )
        started = time.time()
        status, error, detail, refused = "done", "", "", False
        with provenance.Meter() as meter:
            try:
                for target in targets({"method": config["method"], "task": config["task"]}):
                    build.locate(
                        target
                    )  # imported before seeding, so that every library loaded gets the seed
                with provenance.seeded(int(config["seed"])):
                    method = build.build(config["method"], "method", resolve_run=self._finished_run, top=True)
                    task = build.build(config["task"], "task", resolve_run=self._finished_run, top=True)
                    task.evaluate(method, recorder)
                if ranks > 1:
                    peers.all_arrived()
            except FloatingPointError as problem:  # a metric (Diverged), or a gradient that a method refuses
                status, error = "diverged", str(problem)
            except DeadlineReached as problem:
                status, error = "timeout", str(problem)
            except Stopped as problem:
                status, error = "interrupted", str(problem)
            except (Exception, SystemExit) as problem:
                if isinstance(problem, OSError) and unwritable(problem):  # no fault of this run
                    raise
                status, detail = "failed", traceback.format_exc()
                line = refusal(problem, config)
                refused = line is not None
                if line is None:
                    name = "" if isinstance(problem, ConfigError) else f"{type(problem).__name__}: "
                    line = f"{name}{problem}"
                error = line.replace("<paper>", labels.get("paper", "<paper>"))  # in what missing data says
        recorder.close(ended=status in ("done", "diverged"))
        cost = meter.cost
        if ranks > 1:
            cost = peers.whole_cost(cost, status, ranks)
            if status == "failed" and peers.is_gone(detail):
                print(detail, file=sys.stderr)
                return Outcome(run_id, status, error=error)
            if status == "diverged" and rank > 0 and not peers.recorded(folder):
                status, error = "failed", f"{error} on this rank alone: all ranks must log the same values"
        if status in ("done", "diverged") and rank == 0:
            result = {
                "id": run_id,
                "status": status,
                "error": error,
                "config": identity.canonical(config),
                "summary": recorder.values,
                "artifacts": recorder.artifacts_used,
                "fingerprint": fingerprint if self._is_of(config, fingerprint) else "",
                "needs": self.store.needs(config),
                "sizes": sizes(folder),
                "started": round(started, 3),
                **cost,
                "provenance": provenance.describe(),
            }
            write_atomic(folder / "result.json", json.dumps(result))
            recorder.finish()
        elif status not in ("done", "diverged") and not peers.settled(folder):
            where = f"rank {rank}: " if ranks > 1 else ""
            self.store.record_failure(config, run_id, status, where + error, detail, refused=refused)
        if tracker is not None:
            tracker.finish(status, recorder.values)
        return Outcome(run_id, status, cost["wall_seconds"], error=error, refused=refused)

    def _is_of(self, config: Config, fingerprint: str) -> bool:
        """Whether the code that this process has loaded is the fingerprinted one, and still is on the disk."""
        return self.code.of(config) == fingerprint and self.code.unchanged(config)

    def _finished_run(self, node: Config) -> build.FinishedRun:
        folder = self.source / node["folder"]
        try:
            record = json.loads((folder / "result.json").read_bytes())
        except FileNotFoundError:
            raise ConfigError(
                f"needs the run {node['_name_']} ({node['_run_']}), which has no result"
            ) from None
        return build.FinishedRun(node["_run_"], folder, record["config"], record["summary"])

    def _tracker(self, config: Config, run_id: str, labels: dict[str, str], folder: Path) -> Any:
        if not self.tracker or not self.tracker.get("_target_"):
            return None
        factory = build.build(self.tracker | {"_partial_": True}, "tracker", resolve_run=self._finished_run)
        return factory(config=config, run_id=run_id, labels=labels, folder=folder)


def dump_yaml(tree: Any) -> str:
    """YAML text of a plain tree, keys in their order."""
    return "".join(_yaml_section(json.dumps({key: value})) for key, value in tree.items())


@lru_cache(maxsize=256)
def _yaml_section(section: str) -> str:
    """YAML text of one top-level key, known from its JSON text: the runs of a sweep share most of theirs."""
    return yamls.dump(json.loads(section))
