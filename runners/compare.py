"""Compares every method of a kind on its tasks, with one tuning budget for all: one table, one picture.

A task's YAML says what decides: ``compare: {metric: final_gap, goal: min, scale: log, censored: steps}``. ``metric`` is
a summary value, ``goal`` min (default) or max, ``scale`` log (geometric means) or linear (default), ``censored`` what a
missing value counts as while tuning (a number, or a key of the task). With ``heavy: true`` it takes part only where
``tasks=`` asks for it. A method's YAML may say what is tuned:
``tunable: {lr: [0.01, 0.1]}``, or ``tunable: false``; by default it is its learning rate, on a log grid around it.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from runners import build, cli, places
from runners.errors import ConfigError, nearest

USAGE = """
usage: python -m runners.compare kind=<kind> [tasks=a,b] [methods=a,b] [key=value ...]

  tasks=levy,quad*        only these tasks of the kind (names or patterns); methods= likewise
  budget=3                settings tried for each method on each task, on seeds of their own (1: no tuning)
  tune_seeds=1            seeds of each of them
  seeds=5                 seeds of the judged runs
  task.dim=50 ...         any leaf of every run that has it
  launcher=local|...      where runs execute; launcher.workers=4 sets its options
  tracker=none|wandb      where metrics go besides our own records
  stale=rerun|keep  fail_fast=true  dry_run=true   as in runners.reproduce
"""
OPTIONS = ("kind", "tasks", "methods", "budget", "tune_seeds", "seeds", "launcher", "tracker", "stale", "fail_fast",
           "dry_run", "device", "dtype")  # fmt: skip
RATES = ("lr", "learning_rate", "step_size", "stepsize")
KEYS = ("metric", "goal", "scale", "censored", "heavy")
COUNTS = {
    "budget": "3",
    "seeds": "5",
    "tune_seeds": "1",
}  # a run fewer of 20 methods on 10 tasks is 200 fewer
FIRST_TUNING_SEED = 1000


@dataclass(frozen=True)
class Goal:
    """What is compared on a task."""

    metric: str
    goal: str = "min"
    scale: str = "linear"
    censored: float | str | None = None
    heavy: bool = False


@dataclass
class Plan:
    """What is compared with what."""

    kind: str
    budget: int
    seeds: int
    tune_seeds: int
    goals: dict[str, Goal] = field(default_factory=dict)
    methods: dict[str, list[str]] = field(default_factory=dict)  # task -> methods that fit it
    grids: dict[str, dict[str, list[Any]]] = field(
        default_factory=dict
    )  # method -> leaf -> values; {}: as it is
    left_out: list[str] = field(default_factory=list)

    def experiment(self) -> dict[str, Any]:
        """The comparison as an experiment of a paper."""
        grid = [
            {"task": task, "method": methods, "seed": f"range({self.seeds})"}
            for task, methods in self.methods.items()
        ]
        tune = [
            {
                "when": {"task": task, "method": method},
                "grid": {f"method.{leaf}": values for leaf, values in self.grids[method].items()},
                "metric": goal.metric,
                "goal": goal.goal,
                "seeds": f"range({FIRST_TUNING_SEED}, {FIRST_TUNING_SEED + self.tune_seeds})",
            }
            | ({} if goal.censored is None else {"censored": _path(goal.censored)})
            for task, goal in self.goals.items()
            for method in self.methods[task]
            if self.grids[method]
        ]
        asks = f"Which method of the kind {self.kind} does best, with equal tuning budgets?"
        return {"asks": asks, "grid": grid, "tune": tune}

    def candidates(self, method: str) -> int:
        """Settings tried for a method on each task."""
        return math.prod(len(values) for values in self.grids[method].values())


def _path(censored: float | str) -> float | str:
    return f"task.{censored}" if isinstance(censored, str) and not censored.startswith("task.") else censored


def run(arguments: list[str]) -> int:
    """The command line."""
    from runners.compose import check_option

    options = dict(cli.pairs(arguments))
    cli.check_names(options, OPTIONS)
    kind = options.pop("kind", "")
    kinds = sorted({name.partition("/")[0] for name in places.options("method") if "/" in name})
    if kind not in kinds:
        raise ConfigError(f"kind={kind}: expected one of {', '.join(kinds)}{nearest(kind, kinds)}")
    launcher = check_option("launcher", options.pop("launcher", "local"))
    tracker = check_option("tracker", options.pop("tracker", "none"))
    fail_fast, dry_run = cli.flag(options, "fail_fast"), cli.flag(options, "dry_run")
    stale = cli.take(options, "stale", "rerun", ("rerun", "keep"))
    counts = {key: _count(options, key, text) for key, text in COUNTS.items()}
    plan = Plan(kind, counts["budget"], counts["seeds"], counts["tune_seeds"])
    tasks, methods = options.pop("tasks", ""), options.pop("methods", "")
    groups = {
        group: {key: options.pop(key) for key in list(options) if key.startswith(f"{group}.")}
        for group in ("launcher", "tracker")
    }
    fill(plan, tasks, methods)

    from runners.paper import Paper
    from runners.reproduce import group_config, parse_overrides
    from runners.sweep import Sweep

    paper = Paper(
        f"compare-{kind}",
        {"title": f"Methods of the kind {kind}", "experiments": {"compare": plan.experiment()}},
    )
    sweep = Sweep(
        paper,
        "laptop",
        overrides=parse_overrides(options),
        launcher=group_config("launcher", launcher, groups["launcher"]),
        tracker=group_config("tracker", tracker, groups["tracker"]),
        stale=stale,
        fail_fast=fail_fast,
    )
    sweep.check()
    print(sweep.estimate(), file=sys.stderr)
    for line in plan.left_out:
        print(f"left out: {line}", file=sys.stderr)
    if dry_run:
        return 0
    sweep.run()

    from runners import comparison

    folder = places.outputs() / "compare" / kind
    comparison.show(comparison.write(sweep, plan, folder), plan, folder)
    return sweep.exit_code()


def _count(options: dict[str, str], key: str, default: str) -> int:
    text = options.pop(key, default)
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{key}={text}: expected a whole number of at least 1")
    return int(text)


def fill(plan: Plan, tasks: str, methods: str) -> None:
    """Pair methods with tasks by interface; find what is compared and what is tuned. Says what is left out and why."""
    from runners import compose

    offered: dict[str, str] = {}
    for method in _chosen("method", plan.kind, methods):
        node = compose.base({"method": method}).tree["method"]
        problem = _problem(node, "method")
        if problem and methods:
            raise ConfigError(f"{method}: {problem}")
        if problem:
            plan.left_out.append(f"{method}: {problem}")
            continue
        offered[method] = build.interface(node, method)
        plan.grids[method] = tunable(node, method, plan.budget)
    for task in _chosen("task", plan.kind, tasks):
        node = compose.base({"task": task}).tree["task"]
        fitting = [name for name, interface in offered.items() if interface == build.interface(node, task)]
        goal, problem = None, _problem(node, "task")
        if not problem:
            goal = comparable(node, task)
            problem = "" if goal else "its YAML does not say what to compare (compare: {metric: ...})"
            if goal and goal.heavy and not tasks:
                problem = "its runs take long (heavy: true); tasks= may name it"
        if not problem and not fitting:
            problem = f"no method offers its interface {build.interface(node, task)}"
        if problem and tasks and not any(c in tasks for c in "*?["):
            raise ConfigError(f"{task}: {problem}")
        if problem or goal is None:
            plan.left_out.append(f"{task}: {problem}")
            continue
        plan.goals[task], plan.methods[task] = goal, fitting
    used = {name for fitting in plan.methods.values() for name in fitting}
    plan.left_out += [
        f"{name}: no task here has its interface {offered[name]}" for name in offered if name not in used
    ]
    if not plan.goals:
        raise ConfigError(f"kind={plan.kind}: nothing to compare: " + "; ".join(plan.left_out))


def _chosen(group: str, kind: str, asked: str) -> list[str]:
    """Names of a kind's methods or tasks that a comma-separated list of names and patterns means."""
    known = [name for name in places.options(group) if name.startswith(f"{kind}/")]
    if not asked:
        return known
    found: dict[str, None] = {}
    for part in filter(None, asked.split(",")):
        pattern = part if "/" in part else f"{kind}/{part}"
        hits = [name for name in known if fnmatchcase(name, pattern)]
        if not hits:
            raise ConfigError(f"unknown {group} '{part}' of kind {kind}{nearest(pattern, known)}")
        found |= dict.fromkeys(hits)
    return list(found)


def _problem(node: dict[str, Any], part: str) -> str:
    """Why a method or task cannot take part: it needs a run, or a package that is not installed."""
    from runners.compose import leaves

    for leaf, value in leaves(node).items():
        if isinstance(value, str) and value == "???":
            return f"{leaf} has no default"
    try:
        build.check(node, part, top=True)
    except ConfigError as error:
        return str(error)
    return ""


def comparable(node: dict[str, Any], task: str) -> Goal | None:
    """What a task's YAML says about comparing, checked; None if it says nothing."""
    declared = node.get("compare")
    if declared is None:
        return None
    at = f"{task}: compare"
    if not isinstance(declared, dict) or not isinstance(declared.get("metric"), str):
        raise ConfigError(f"{at}: expected a mapping with metric, found {declared!r}")
    for key in declared:
        if key not in KEYS:
            raise ConfigError(f"{at}: unknown key '{key}'{nearest(str(key), KEYS)}")
    for key, known in (("goal", ("min", "max")), ("scale", ("linear", "log"))):
        if declared.get(key, known[0]) not in known:
            raise ConfigError(f"{at}.{key}: {known[0]} or {known[1]}, not {declared[key]!r}")
    if not isinstance(declared.get("heavy", False), bool):
        raise ConfigError(f"{at}.heavy: true or false, not {declared['heavy']!r}")
    return Goal(**declared)


def tunable(node: dict[str, Any], method: str, budget: int) -> dict[str, list[Any]]:
    """Leaves and their values to try for a method, at most ``budget`` settings in all; {}: it runs as it is."""
    from runners.compose import leaves, walk

    declared = node.get("tunable")
    if budget == 1 or declared is False:
        return {}
    if declared is None:
        rates = {leaf: value for leaf, value in leaves(node).items() if leaf.rpartition(".")[2] in RATES}
        for leaf, value in rates.items():
            around = [scaled(value, factor) for factor in factors(budget)]
            if None not in around:
                return {leaf: around}
        return {}
    if not isinstance(declared, dict) or not all(isinstance(v, list) and v for v in declared.values()):
        raise ConfigError(f"{method}: tunable: expected {{leaf: [values]}} or false, found {declared!r}")
    known = [leaf for leaf in leaves(node) if not leaf.startswith("tunable.")]
    for leaf in declared:
        if walk(node, leaf, declared) is declared:
            raise ConfigError(f"{method}: tunable: unknown key '{leaf}'{nearest(str(leaf), known)}")
    return thinned(declared, budget)


def factors(budget: int) -> list[float]:
    """``budget`` factors from 0.1 to 10, evenly spread on the log axis, to one digit: 0.1, 0.3, 1, 3, 10."""
    exponents = [-1 + 2 * k / (budget - 1) for k in range(budget)]
    return [float(f"{10**exponent:.1g}" if budget <= 5 else f"{10**exponent:.2g}") for exponent in exponents]


def scaled(value: Any, factor: float) -> Any:
    """A learning rate times a factor; texts like ``1/L`` keep what follows the number. None if it is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(f"{value * factor:.6g}") if value > 0 else None
    match = re.fullmatch(r"(\d+\.?\d*(?:[eE][-+]?\d+)?)(.*)", value) if isinstance(value, str) else None
    return f"{float(match[1]) * factor:.6g}{match[2]}" if match else None


def thinned(grid: dict[str, list[Any]], budget: int) -> dict[str, list[Any]]:
    """A grid of at most ``budget`` settings: its longest axis loses values, evenly, until it fits."""
    sizes = {leaf: len(values) for leaf, values in grid.items()}
    while math.prod(sizes.values()) > budget:
        longest = max(sizes, key=lambda leaf: sizes[leaf])
        sizes[longest] -= 1
    return {leaf: _evenly(values, sizes[leaf]) for leaf, values in grid.items()}


def _evenly(values: list[Any], count: int) -> list[Any]:
    if count == 1:
        return [values[len(values) // 2]]
    return [values[round(k * (len(values) - 1) / (count - 1))] for k in range(count)]


if __name__ == "__main__":
    cli.main(run, USAGE)
