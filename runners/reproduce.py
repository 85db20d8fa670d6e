"""Reproduces one paper: expand, prepare, tune, launch, judge, draw, report."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners import cli, places
from runners.errors import ConfigError, StoreError, nearest

if TYPE_CHECKING:
    from runners.expand import Overrides
    from runners.sweep import Sweep

USAGE = """
usage: python -m runners.reproduce paper=<slug> [scale=laptop] [key=value ...]

  paper=<slug>            the paper (python -m runners.list shows them)
  scale=smoke|laptop|paper
  seeds=<n>               seeds 0..n-1 in place of the paper's
  experiment=<a,b>        only these experiments (and those they need)
  method=<pattern> task=<pattern>   only these cells; labels the results modified
  launcher=local|...      where runs execute; launcher.workers=4 sets its options
  tracker=none|wandb      where metrics go besides our own records
  publish=true            also write results/<slug>/<scale>/
  stale=rerun|keep        what to do with results of older code
  fail_fast=true          stop at the first failure
  method.lr=0.1 task.dim=50 ...     any leaf of every cell that has it; labels the results modified
"""
OPTIONS = (
    "paper", "scale", "seeds", "experiment", "method", "task", "launcher", "tracker", "publish", "stale",
    "fail_fast", "device", "dtype", "dry_run",
)  # fmt: skip


def run(arguments: list[str]) -> int:
    """The command line."""
    from runners.compose import check_option
    from runners.paper import SCALES, Paper

    options = dict(cli.pairs(arguments))
    paper = Paper(cli.paper(options, (*OPTIONS, "seeds", "seed", "ranks")))
    scale = cli.take(options, "scale", "laptop", SCALES)
    launcher = check_option("launcher", options.pop("launcher", "local"))
    tracker = check_option("tracker", options.pop("tracker", "none"))
    publish, fail_fast = cli.flag(options, "publish"), cli.flag(options, "fail_fast")
    dry_run = cli.flag(options, "dry_run")
    stale = cli.take(options, "stale", "rerun", ("rerun", "keep"))
    names = options.pop("experiment", "")
    experiments = [name for name in names.split(",") if name]
    for name in experiments:
        if name not in paper.experiments:
            raise ConfigError(
                f"unknown experiment '{name}' of {paper.slug}{nearest(name, paper.experiments)}"
            )
    group_leaves = {
        group: {key: options.pop(key) for key in list(options) if key.startswith(f"{group}.")}
        for group in ("launcher", "tracker")
    }
    overrides = parse_overrides(options)
    if publish and overrides.modified:
        raise ConfigError(
            "publish=true takes no overrides: published results are the paper's own experiments"
        )
    if publish and experiments:
        raise ConfigError("publish=true takes no experiment=: a paper and scale are published as a whole")

    from runners.sweep import Sweep

    sweep = Sweep(
        paper,
        scale,
        overrides=overrides,
        experiments=experiments,
        launcher=group_config("launcher", launcher, group_leaves["launcher"]),
        tracker=group_config("tracker", tracker, group_leaves["tracker"]),
        stale=stale,
        fail_fast=fail_fast,
    )
    sweep.check()
    if dry_run or scale == "paper":
        print(sweep.estimate(), file=sys.stderr)
    if dry_run:
        return 0
    sweep.run()
    return report(sweep, publish=publish)


def parse_overrides(options: dict[str, str]) -> Overrides:
    """What is left of the command line: seeds, choices of cells, leaves."""
    from runners.compose import check_value
    from runners.expand import Overrides

    overrides = Overrides()
    for key, text in options.items():
        if key == "seeds":
            if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
                raise ConfigError(f"seeds={text}: expected a whole number of at least 1")
            overrides.seeds = list(range(int(text)))
        elif key in ("method", "task"):
            overrides.only[key] = _patterns(key, text)
        elif (key.lstrip("+").split(".")[0] in ("method", "task") and "." in key) or key in (
            "device",
            "dtype",
            "ranks",
            "seed",
        ):
            value = cli.value_of(text, key)
            check_value(key, value)
            overrides.leaves.append((key, value, "command line"))
        else:
            raise ConfigError(f"unknown option '{key}'{nearest(key, (*OPTIONS, 'seeds'))}")
    return overrides


def _patterns(key: str, text: str) -> list[str]:
    import fnmatch

    patterns = [part for part in text.split(",") if part]
    for pattern in patterns:
        if not fnmatch.filter(places.options(key), pattern):
            raise ConfigError(f"unknown {key} '{pattern}'{nearest(pattern, places.options(key))}")
    return patterns


def group_config(group: str, name: str, leaves: dict[str, str]) -> dict[str, Any]:
    """Config of a launcher or tracker, with its leaves from the command line."""
    from runners import yamls
    from runners.compose import set_leaf

    path = places.option_file(group, name)
    assert path is not None
    tree = {group: yamls.load(path)}
    if group == "launcher":
        for key, value in _cluster_profile(name).items():
            set_leaf(tree, f"launcher.{key}", value, str(cluster_file()))
    for key, text in leaves.items():
        set_leaf(tree, key, cli.value_of(text, key), "command line")
    node: dict[str, Any] = tree[group]
    return node


def cluster_file() -> Path:
    """The user's own launcher values: ``$REPRISE_CLUSTER``, else ``~/.config/reprise/cluster.yaml``."""
    import os

    return Path(os.environ.get("REPRISE_CLUSTER") or "~/.config/reprise/cluster.yaml").expanduser()


def _cluster_profile(name: str) -> dict[str, Any]:
    from runners import yamls

    path = cluster_file()
    profile = (yamls.load(path) or {}) if path.is_file() else {}
    known = places.options("launcher")
    for key, values in profile.items() if isinstance(profile, dict) else [(repr(profile), None)]:
        if key not in known:
            raise ConfigError(f"{path}: unknown launcher '{key}'{nearest(str(key), known)}")
        if not isinstance(values or {}, dict):
            raise ConfigError(f"{path}: {key}: expected a mapping, found {values!r}")
    return dict(profile.get(name) or {})


def report(sweep: Sweep, *, publish: bool) -> int:
    """Judge, draw, write and print; returns the exit code."""
    from runners import judge, trackers

    folder = sweep.report_folder
    try:
        verdicts = judge.write(sweep, folder)
        if publish:
            copy_results(folder, places.results() / sweep.paper.slug / sweep.scale)
    except OSError as problem:
        raise StoreError(
            f"cannot write {problem.filename or folder}: {problem.strerror or problem}"
        ) from problem
    trackers.report(sweep.settings.tracker, verdicts, folder)
    judge.show(verdicts, places.results() / sweep.paper.slug / sweep.scale)
    print(f"report: {_relative(folder / 'index.html')}")
    return sweep.exit_code()


def copy_results(folder: Path, target: Path) -> None:
    """Put a report's files where published results live (all of them or none)."""
    spare = target.with_name(f".{target.name}.new")
    shutil.rmtree(spare, ignore_errors=True)
    spare.mkdir(parents=True)
    for path in sorted(folder.rglob("*")):
        place = spare / path.relative_to(folder)
        if "frozen" in place.parts or path.name.startswith("."):
            continue
        if path.is_file() and path.suffix in (".csv", ".json", ".svg", ".md", ".parquet"):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    size = sum(path.stat().st_size for path in spare.rglob("*") if path.is_file())
    if size > 2**20:
        shutil.rmtree(spare)
        raise ConfigError(f"{size / 2**20:.1f} MB to publish, more than 1 MB: thin the figures or tables")
    shutil.rmtree(target, ignore_errors=True)
    spare.rename(target)


def _relative(path: Path) -> str:
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


if __name__ == "__main__":
    cli.main(run, USAGE)
