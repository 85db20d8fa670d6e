"""The grammar of a paper's ``claims:`` and ``findings:``; imports nothing heavy.

A claim is judged with one of eight statistics (``statistic: {<name>: {...}}``):

=============  =========================================================================================
value          ``{metric, of}``: centre of the metric over units (``value: <metric>`` for short)
difference     ``{metric, of, to}``: ``of`` minus ``to``
ratio          ``{metric, of, to}``: ``of`` over ``to``, on the log scale
slope          ``{metric, x, of, to, axes, window}``: rate in ``x``; ``axes: log`` (default) or
               ``linear``. ``x`` is a column in which several runs or rows of a unit differ, or
               ``step``: along each run's curve. With ``to``: the slope of the ratio (log) or of the
               difference (linear)
rank           ``{metric, of, among, goal}``: rank of ``of`` in each unit (1 = best, ties share ranks)
win_rate       ``{metric, of, to, goal, ties, tolerance}``: share of units in which ``of`` beats ``to``;
               ``ties`` count ``half`` (default), ``win``, ``lose`` or ``drop``; a difference of at most
               ``tolerance`` is a tie
correlation    ``{metric, x, of, kind, across}``: ``spearman`` (default) or ``pearson``, across
               ``units`` (default) or over the ``levels`` of ``x`` within each unit
within         ``{metric, of, target, rel | abs}``: the centre is that close to a number or to a metric
=============  =========================================================================================

``metric``, ``x`` and ``target`` are columns or measures, ``{_target_: tasks.<kind>.<module>.<function>,
**arguments}``. ``of`` and ``to`` are a method, a mapping of columns to values (``{method: a, method.lr:
0.1}``), the best of several in each unit (``{min: [a, b]}``, ``{max: [...]}``), or a list of these, all of
which must hold. ``of_metric`` and ``to_metric`` replace ``metric`` on one side: with them alone, two metrics
of the same runs are compared. ``goal`` is ``min`` or ``max``. ``window`` is ``[from, to]`` in ``x``, or
``{relative: [from, to]}`` in shares of the largest ``x``; null leaves an end open.

``unit`` is what the statistic counts as one independent observation: ``seed``, another run column, a kind of
row (``image``: identified by the rows' column of that name, else by seed and ``i``), or a list of these that
together name a unit (``[task, task.data]``).

``expect`` is ``">= a"``, ``"> a"``, ``"<= a"``, ``"< a"`` or ``"in [a, b]"``, held against the 95% interval;
or ``{exact: ">= a"}`` (also ``"== a"``): deterministic, every unit must satisfy it; or ``exact``: every
metric true, difference 0, ratio 1, a win, rank 1, or within the tolerance; or ``{population: ">= a"}``: the
units are all there are, not a sample, so their centre is compared as it is.

``censored`` is what "never" (None, or a diverged run without the metric) counts as: a number or a column; or
``{as: <number or column>, drop: both | any}``: units in which every arm (any arm) never gets there are left
out, and counted. ``center``: ``mean``, ``geometric``, ``median`` or ``proportion``; ``interval``:
``student_t`` or ``bootstrap_t``; ``paired``: true or false (default: where the arms share all units).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runners.expectation import Expect

KEYS: tuple[str, ...]
KEYS = (
    "says",
    "source",
    "reported",
    "experiment",
    "statistic",
    "over",
    "unit",
    "censored",
    "expect",
    "set_by",
)
KEYS += ("scales", "note", "where", "center", "interval", "paired", "shown")
STATISTICS: dict[str, tuple[str, ...]] = {
    "value": ("metric", "of"),
    "difference": ("metric", "of", "to", "of_metric", "to_metric"),
    "ratio": ("metric", "of", "to", "of_metric", "to_metric"),
    "slope": ("metric", "x", "of", "to", "axes", "window"),
    "rank": ("metric", "of", "among", "goal"),
    "win_rate": ("metric", "of", "to", "of_metric", "to_metric", "goal", "ties", "tolerance"),
    "correlation": ("metric", "x", "of", "kind", "across"),
    "within": ("metric", "of", "target", "rel", "abs"),
}
# The first centre is the default, except that booleans default to a proportion where one is offered.
CENTERS: dict[str, tuple[str, ...]] = {
    "value": ("mean", "geometric", "median", "proportion"),
    "difference": ("mean", "median", "proportion"),
    "ratio": ("geometric", "mean", "median"),
    "slope": ("geometric", "mean", "median"),
    "rank": ("median", "mean"),
    "win_rate": ("proportion",),
    "correlation": ("median", "mean"),
    "within": ("mean", "geometric", "median", "proportion"),
}
TWO_SIDED = ("difference", "ratio", "win_rate")
BARE_EXACT = {"value": 1.0, "difference": 0.0, "ratio": 1.0, "win_rate": 1.0, "rank": 1.0}
MIN_UNITS = 5  # fewer never decide, exact and population claims aside
SCALES = ("smoke", "laptop", "paper")
RUN_COLUMNS = ("experiment", "method", "task", "seed", "device", "dtype")


@dataclass(frozen=True)
class Measure:
    """A pure function of a frame, by dotted name, with keyword arguments."""

    target: str
    args: Mapping[str, Any]

    def __str__(self) -> str:
        args = ", ".join(f"{key}={value}" for key, value in self.args.items())
        return self.target.rpartition(".")[2] + (f"({args})" if args else "")


Metric = str | Measure


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: rows whose columns have these values, or each unit's best of several arms."""

    where: tuple[tuple[str, Any], ...] = ()
    best: str | None = None  # min | max over ``arms``
    arms: tuple[Arm, ...] = ()

    def __str__(self) -> str:
        if self.best:
            return f"{self.best} of ({', '.join(map(str, self.arms))})"
        if len(self.where) == 1 and self.where[0][0] == "method":
            return str(self.where[0][1])
        return ", ".join(f"{column}={value}" for column, value in self.where)

    def leaves(self) -> tuple[Arm, ...]:
        """The arms without ``best`` that this one is made of."""
        return tuple(leaf for arm in self.arms for leaf in arm.leaves()) if self.best else (self,)


@dataclass(frozen=True)
class Claim:
    """A parsed claim; fields that its statistic lacks keep their defaults. No ``to``: ``of`` itself."""

    id: str
    entry: Mapping[str, Any]
    statistic: str = ""
    of: tuple[Arm, ...] = (Arm(),)
    to: tuple[Arm, ...] = ()
    of_metric: Metric = ""
    to_metric: Metric = ""
    x: Metric = ""
    window: tuple[float, float] = (-math.inf, math.inf)
    window_relative: bool = False
    axes: str = "log"
    goal: str = "min"
    ties: str = "half"
    tolerance: float = 0.0
    among: tuple[Arm, ...] = ()
    kind: str = "spearman"
    across: str = "units"
    target: float | Metric = 0.0
    relative: bool = False
    tolerated: float = 0.0
    over: tuple[str, ...] = ()
    unit: tuple[str, ...] = ("seed",)
    censored: float | str | None = None
    drop: str | None = None
    center: str | None = None
    interval: str | None = None
    paired: bool | None = None
    expect: Expect | None = None

    @property
    def at(self) -> str:
        """How messages name the claim."""
        return f"claim {self.id}"

    @property
    def rows_unit(self) -> str | None:
        """The name of the table of rows that hold the units, None where units are runs."""
        return next((name for name in self.unit if not is_run_column(name)), None)


def is_run_column(name: str) -> bool:
    """Whether a name is a column of a run's config (not a kind of row, a metric or a summary value)."""
    return name in RUN_COLUMNS or name.startswith(("method.", "task."))


def as_list(node: Any) -> list[Any]:
    """A list as it is, None as [], anything else as [it]."""
    return [] if node is None else list(node) if isinstance(node, list | tuple) else [node]
