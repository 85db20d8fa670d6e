"""A paper on a Slurm cluster: submit what is missing, see how far it is, cancel it."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from runners import cli, places
from runners.errors import ConfigError, Pending, nearest
from runners.estimate import count
from runners.execute import Outcome
from runners.launchers import Job, Settings, Watcher

USAGE = """
usage: python -m runners.cluster submit paper=<slug> [scale=paper] [dry_run=true] [tracker=wandb]
                                      [launcher.partition=... key=value ...]
       python -m runners.cluster status paper=<slug> [scale=paper]
       python -m runners.cluster cancel paper=<slug>

  submit sends what is neither finished nor in the queue, and returns. Where tuning or another experiment must be
  done first, submit again then; when all is done, reproduce draws and judges. Without Slurm's commands on this
  machine only dry_run=true and status work.
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
    from runners.paper import SCALES, Paper
    from runners.reproduce import OPTIONS

    paper = Paper(cli.paper(options, (*OPTIONS, "seeds")))
    if command == "cancel":
        return _cancel(paper.slug, options)
    scale = cli.take(options, "scale", "paper", SCALES)
    return _submit(paper, scale, options) if command == "submit" else _status(paper, scale, options)


def _submit(paper: Any, scale: str, options: dict[str, str]) -> int:
    from runners.compose import check_option
    from runners.reproduce import group_config, parse_overrides

    dry_run = cli.flag(options, "dry_run")
    leaves = {key: options.pop(key) for key in list(options) if key.startswith("launcher.")}
    launcher = group_config("launcher", "slurm", leaves | {"launcher.wait": "false"})
    name = check_option("tracker", options.pop("tracker", "none"))
    leaves = {key: options.pop(key) for key in list(options) if key.startswith("tracker.")}
    tracker = group_config("tracker", name, leaves)
    overrides = parse_overrides(options)
    if dry_run:
        sweep = _sweep(paper, scale, {"_target_": "runners.cluster.Peek"}, overrides)
        _print_plan(sweep, launcher)
        return 0
    sweep = _sweep(paper, scale, launcher, overrides, tracker)
    print(sweep.estimate())
    try:
        sweep.run()
        waiting = False
    except Pending:
        waiting = True
    if sweep.failures:
        print(
            f"{len(sweep.failures)} runs cannot be made:", *sweep.failures[:20], sep="\n  ", file=sys.stderr
        )
    runs, jobs = sweep.launcher.sent
    if waiting or runs:
        before = count(sweep.launcher.on_their_way, "run")
        print(f"sent {count(runs, 'run')} in {count(jobs, 'job')}; {before} on their way already")
        print(f"make status-{paper.slug} shows how far they are; submit again for what follows them")
    else:
        print(f"all that can be done is done: make reproduce-{paper.slug} scale={scale} judges and draws")
    return 1 if sweep.failures else 0


def _sweep(
    paper: Any,
    scale: str,
    launcher: dict[str, Any],
    overrides: Any = None,
    tracker: dict[str, Any] | None = None,
) -> Any:
    from runners.sweep import Sweep

    sweep = Sweep(paper, scale, launcher=launcher, overrides=overrides, tracker=tracker)
    sweep.check()
    return sweep


def _print_plan(sweep: Any, launcher: dict[str, Any]) -> None:
    from runners.launchers.slurm import Slurm

    missing = _peek(sweep)
    slurm = Slurm(**{key: value for key, value in launcher.items() if key != "_target_"})
    queued = _queued(sweep)
    chunks = slurm.plan([job for job in missing if job.id not in queued])
    print(sweep.estimate())
    if queued:
        print(f"{count(sum(job.id in queued for job in missing), 'run')} on their way already")
    hours = 0.0
    kinds: Counter[str] = Counter()
    for chunk in chunks:
        asked = slurm.parameters(chunk)
        hours += asked["time"] / 60 * asked["nodes"]
        hidden = ("setup", "job_name", "additional_parameters", "ntasks_per_node", "array_parallelism")
        needs = ", ".join(f"{key}={value}" for key, value in asked.items() if key not in hidden)
        kinds[f"of {count(len(chunk), 'run')}: {needs}"] += 1
    for kind, number in kinds.items():
        print(f"{count(number, 'job')} {kind}")
    print(
        f"{count(len(chunks), 'job')} now, at most {hours:.1f} node-hours; later stages follow their results"
    )


def _peek(sweep: Any) -> list[Job]:
    """Runs of the coming stage that the store does not have."""
    with contextlib.suppress(Pending):
        sweep.run()
    return list(sweep.jobs.values())


def _status(paper: Any, scale: str, options: dict[str, str]) -> int:
    if options:
        raise ConfigError(
            f"unknown option '{next(iter(options))}'{nearest(next(iter(options)), ['paper', 'scale'])}"
        )
    sweep = _sweep(paper, scale, {"_target_": "runners.cluster.Peek"})
    missing = _peek(sweep)
    queued = _queued(sweep)
    counts: dict[str, Counter[str]] = {}
    for job in missing:
        counts.setdefault(job.label.partition(":")[0], Counter())[_state(job, sweep, queued)] += 1
    for name, group in sweep.board.groups.items():
        for key, state in (("stored", "done"), ("shared", "shared with another experiment")):
            if group[key]:
                counts.setdefault(name, Counter())[state] += int(group[key])
    for name, states in counts.items():
        print(f"{name}: " + ", ".join(f"{number} {state}" for state, number in sorted(states.items())))
    for name in sweep.order:
        if name not in sweep.cells and not any(key.startswith(name) for key in counts):
            print(f"{name}: follows what it needs")
    for name, reason in sweep.skipped.items():
        print(f"{name}: not run ({reason})")
    return 0


def _queued(sweep: Any) -> dict[str, str]:
    from runners.launchers.slurm_ledger import Ledger

    return Ledger(sweep.root).queued() if shutil.which("squeue") else {}


def _state(job: Job, sweep: Any, queued: dict[str, str]) -> str:
    """How far a run without a result is, in a word."""
    from runners.launchers.slurm import vanished

    if job.id in queued:
        held = not job.artifact and (sweep.store.folder(job.config, job.id) / "claim").exists()
        return "running" if queued[job.id] == "RUNNING" and (held or job.artifact) else "waiting"
    failure = None if job.artifact else sweep.store.failure(job.config, job.id)
    if failure is not None:
        return str(failure["status"])
    return "vanished" if vanished(job, sweep.store) else "not sent"


def _cancel(slug: str, options: dict[str, str]) -> int:
    from runners.launchers.slurm_ledger import Ledger, cancel

    options.pop("scale", None)
    if options:
        raise ConfigError(f"unknown option '{next(iter(options))}'")
    if shutil.which("scancel") is None:
        raise ConfigError("no scancel on this machine; run it on the cluster's login node")
    ledger = Ledger(places.outputs())
    ledger.queued()  # forgets those that have ended
    ours = [
        job
        for job, runs in ledger.jobs().items()
        if any(labels.get("paper") == slug for labels in runs.values())
    ]
    cancel(ours)
    for job in ours:
        ledger.forget(job)
    print(f"{count(len(ours), 'job')} of {slug} cancelled")
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
