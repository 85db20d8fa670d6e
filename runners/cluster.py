"""A paper on a Slurm cluster: submit what is missing, see how far it is, cancel it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from runners import cli, places
from runners.errors import ConfigError, Pending, nearest
from runners.execute import Outcome
from runners.launchers import Job, Settings, Watcher

USAGE = """
usage: python -m runners.cluster submit paper=<slug> [scale=paper] [dry_run=true] [launcher.partition=... key=value ...]
       python -m runners.cluster status paper=<slug> [scale=paper]
       python -m runners.cluster cancel paper=<slug>

  submit sends what is neither finished nor in the queue, and returns. Where tuning or another experiment must be
  done first, submit again then; when all is done, reproduce draws and judges.
  dry_run=true prints jobs and cost and sends nothing.
"""
COMMANDS = ("submit", "status", "cancel")


def run(arguments: list[str]) -> int:
    """The command line."""
    if not arguments or "=" in arguments[0]:
        raise ConfigError(f"which command? {', '.join(COMMANDS)}")
    command, *rest = arguments
    if command not in COMMANDS:
        raise ConfigError(f"unknown command '{command}'{nearest(command, COMMANDS)}")
    options = dict(cli.pairs(rest))
    if "paper" not in options:
        raise ConfigError("which paper? paper=<slug>; python -m runners.list shows them")
    from runners.paper import SCALES, Paper

    paper = Paper(options.pop("paper"))
    if command == "cancel":
        return _cancel(paper.slug, options)
    scale = cli.take(options, "scale", "paper", SCALES)
    return _submit(paper, scale, options) if command == "submit" else _status(paper, scale, options)


def _submit(paper: Any, scale: str, options: dict[str, str]) -> int:
    from runners.reproduce import group_config, parse_overrides

    dry_run = cli.flag(options, "dry_run")
    leaves = {key: options.pop(key) for key in list(options) if key.startswith("launcher.")}
    launcher = group_config("launcher", "slurm", leaves | {"launcher.wait": "false"})
    overrides = parse_overrides(options)
    if dry_run:
        sweep = _sweep(paper, scale, {"_target_": "runners.cluster.Peek"}, overrides)
        _print_plan(sweep, launcher)
        return 0
    sweep = _sweep(paper, scale, launcher, overrides)
    try:
        sweep.run()
    except Pending:
        print(
            f"{len(sweep.jobs)} runs of {paper.slug} are on their way; make status-{paper.slug} shows how far"
        )
        return 0
    print(f"everything is done: make reproduce-{paper.slug} scale={scale} judges and draws")
    return 0


def _sweep(paper: Any, scale: str, launcher: dict[str, Any], overrides: Any = None) -> Any:
    from runners.sweep import Sweep

    sweep = Sweep(paper, scale, launcher=launcher, overrides=overrides)
    sweep.check()
    return sweep


def _print_plan(sweep: Any, launcher: dict[str, Any]) -> None:
    from runners.launchers.slurm import Slurm

    stage = _peek(sweep)
    slurm = Slurm(**{key: value for key, value in launcher.items() if key != "_target_"})
    chunks = slurm.plan([job for job in stage if job.id not in sweep.results])
    print(sweep.estimate())
    minutes = 0
    for chunk in chunks:
        asked = slurm.parameters(chunk)
        minutes += asked["time"]
        shown = {
            key: asked[key] for key in asked if key not in ("setup", "job_name", "additional_parameters")
        }
        print(f"job of {len(chunk)} runs: " + ", ".join(f"{key}={value}" for key, value in shown.items()))
    print(f"{len(chunks)} jobs now, at most {minutes / 60:.1f} job-hours; later stages follow their results")


def _peek(sweep: Any) -> list[Job]:
    """Runs of the coming stage that the store does not have."""
    with contextlib.suppress(Pending):
        sweep.run()
    return list(sweep.jobs.values())


def _status(paper: Any, scale: str, options: dict[str, str]) -> int:
    from runners.launchers.slurm import Ledger

    if options:
        raise ConfigError(
            f"unknown option '{next(iter(options))}'{nearest(next(iter(options)), ['paper', 'scale'])}"
        )
    sweep = _sweep(paper, scale, {"_target_": "runners.cluster.Peek"})
    missing = _peek(sweep)
    queued = Ledger(sweep.root).queued()
    counts: dict[str, Counter[str]] = {}
    for job in missing:
        failure = None if job.artifact else sweep.store.failure(job.config, job.id)
        state = {"RUNNING": "running"}.get(queued[job.id], "waiting") if job.id in queued else "not sent"
        if job.id not in queued and failure is not None:
            state = failure["status"]
        counts.setdefault(job.label.partition(":")[0], Counter())[state] += 1
    for name, group in sweep.board.groups.items():
        if group["cached"]:
            counts.setdefault(name, Counter())["done"] += int(group["cached"])
    for name, count in counts.items():
        print(f"{name}: " + ", ".join(f"{number} {state}" for state, number in sorted(count.items())))
    for name in sweep.order:
        if name not in sweep.cells and not any(key.startswith(name) for key in counts):
            print(f"{name}: follows what it needs")
    for name, reason in sweep.skipped.items():
        print(f"{name}: not run ({reason})")
    return 0


def _cancel(slug: str, options: dict[str, str]) -> int:
    from runners.launchers.slurm import Ledger, cancel, queue

    options.pop("scale", None)
    if options:
        raise ConfigError(f"unknown option '{next(iter(options))}'")
    states = queue()
    ours = [
        job
        for job, runs in Ledger(places.outputs()).jobs().items()
        if job in states and any(labels.get("paper") == slug for labels in runs.values())
    ]
    cancel(ours)
    print(f"{len(ours)} jobs of {slug} cancelled")
    return 0


class Peek:
    """A launcher that launches nothing: it shows which runs come next."""

    wait = False
    quiet = True

    def __enter__(self) -> Peek:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def launch(self, jobs: Sequence[Job], settings: Settings, watcher: Watcher) -> dict[str, Outcome]:
        """Launch nothing."""
        return {}


if __name__ == "__main__":
    cli.main(run, USAGE)
