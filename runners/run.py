"""Runs one config, a paper's cells, or (with -m) a Hydra sweep; all share the same store."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from runners import cli, places
from runners.errors import ConfigError, nearest
from runners.identity import ID_DIGITS

USAGE = """
usage: python -m runners.run method=<kind>/<name> task=<kind>/<name> [seed=3] [key=value ...]
       python -m runners.run -m method=a,b task=c seed=0,1,2       a sweep through Hydra (any Hydra launcher)
       python -m runners.run paper=<slug> experiment=<name> scale=smoke    a paper's cells
       python -m runners.run id=<id>                               one stored run again

  method.lr=0.1 task.dim=50    any leaf; +method.key=value adds one the YAML does not list
  task.data=<group option>     another dataset or model of the same group
  again=true                   run even if the store has it
  stale=rerun|keep             what to do with a result of older code
  launcher=local tracker=none|wandb
"""
GPUS = "task.resources.gpus"
OPTIONS = (
    "method",
    "task",
    "seed",
    "device",
    "dtype",
    "ranks",
    "again",
    "stale",
    "tracker",
    "launcher",
    "id",
    "paper",
)


def run(arguments: list[str]) -> int:
    """The command line."""
    if "-m" in arguments or "--multirun" in arguments:
        from runners import multirun

        return multirun.run(arguments)
    if any(argument.startswith("paper=") for argument in arguments):
        from runners import reproduce

        return reproduce.run(arguments)
    return one(dict(cli.pairs(arguments)))


def one(options: dict[str, str]) -> int:
    """One run (also what a job of a Hydra sweep is); returns the exit code."""
    config, settings = checked(options)
    return _execute(config, **settings)


def checked(options: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Config of a run and how to run it; ConfigError for every mistake that shows without running."""
    from runners import build
    from runners.group import check_devices, check_gpus_used

    again = cli.flag(options, "again")
    stale = cli.take(options, "stale", "rerun", ("rerun", "keep"))
    tracker = _tracker(options)
    ranks = _ranks(options)
    stored = "id" in options
    config = _stored(options) if stored else _compose(options, ranks)
    if not stored:
        check_gpus_used([config], cli.value_of(gpus, GPUS) if (gpus := options.get(GPUS)) else None)
    check_devices(config)
    build.check_pair(config)
    build.check(config["method"], "method", top=True)
    build.check(config["task"], "task", top=True)
    return config, {"again": again or stored, "stale": stale, "tracker": tracker}


def _execute(config: dict[str, Any], *, again: bool, stale: str, tracker: dict[str, Any]) -> int:
    from runners import provenance
    from runners.execute import Executor

    provenance.limit_threads(1)
    executor = Executor(places.outputs(), tracker=tracker, stale=stale, progress=False)
    try:
        outcome = executor.run(config, again=again)
    except OSError as problem:
        from runners.errors import StoreError

        raise StoreError(f"cannot write under {places.outputs()}: {problem.strerror or problem}") from problem
    folder = executor.store.folder(config, outcome.id)
    if outcome.status == "busy":
        print(f"{outcome.id}: another process is at it ({folder})", file=sys.stderr)
        return 1
    if outcome.refused:
        print(f"error: {outcome.error}", file=sys.stderr)
        return 2
    stored = " (stored)" if outcome.cached else ""
    print(f"{outcome.status}{stored} {outcome.id} in {outcome.seconds:.2f} s: {folder}")
    if outcome.status in ("done", "diverged"):
        for key, value in json.loads((folder / "result.json").read_bytes())["summary"].items():
            print(f"  {key}: {value:.6g}" if isinstance(value, float) else f"  {key}: {value}")
    if outcome.error:
        print(f"  {outcome.error}", file=sys.stderr)
    return 0 if outcome.status in ("done", "diverged") else 1


def _ranks(options: dict[str, str]) -> int | None:
    """Ranks that a launcher gives to a task that can be distributed."""
    from runners.compose import check_option
    from runners.reproduce import group_config

    name = check_option("launcher", options.pop("launcher", "local"))
    leaves = {key: options.pop(key) for key in list(options) if key.startswith("launcher.")}
    ranks: int | None = group_config("launcher", name, leaves).get("nproc")
    return ranks


def _compose(options: dict[str, str], ranks: int | None) -> dict[str, Any]:
    from runners.compose import compose_run

    cli.check_names(options, OPTIONS)
    for key in ("method", "task"):
        if key not in options:
            raise ConfigError(f"which {key}? {key}=<kind>/<name>; python -m runners.list {key}s shows them")
    method, task = options.pop("method"), options.pop("task")
    members: Any = (
        [part for part in method.strip("[]").split(",") if part] if method.startswith("[") else method
    )
    triples = []
    for key, text in options.items():
        head = key.lstrip("+").split(".")[0]
        if head not in ("method", "task", "seed", "device", "dtype", "ranks") or (
            head in ("method", "task") and "." not in key
        ):
            raise ConfigError(f"unknown option '{key}'{nearest(key, (*OPTIONS, 'method.', 'task.'))}")
        triples.append((key, cli.value_of(text, key), ""))
    return compose_run(members, task, lambda _: triples, ranks=ranks)


def _stored(options: dict[str, str]) -> dict[str, Any]:
    from runners import yamls
    from runners.store import Store

    wanted = options.pop("id")
    if options:
        raise ConfigError(f"id={wanted} repeats a stored run: '{next(iter(options))}' does not go with it")
    if not re.fullmatch(f"[0-9a-f]{{{ID_DIGITS}}}", wanted):
        raise ConfigError(f"id={wanted}: expected {ID_DIGITS} hexadecimal digits")
    folder = Store(places.outputs()).find(wanted)
    if folder is None or not (folder / "config.yaml").is_file():
        raise ConfigError(f"no stored run with id {wanted}")
    config: dict[str, Any] = yamls.load(folder / "config.yaml")
    return config


def _tracker(options: dict[str, str]) -> dict[str, Any]:
    from runners.compose import check_option
    from runners.reproduce import group_config

    name = check_option("tracker", options.pop("tracker", "none"))
    leaves = {key: options.pop(key) for key in list(options) if key.startswith("tracker.")}
    return group_config("tracker", name, leaves)


if __name__ == "__main__":
    cli.main(run, USAGE)
