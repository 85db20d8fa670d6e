"""The eight statistics: from the units of a claim to a point, its interval, and what speaks against judging it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from runners import intervals
from runners.claim_samples import Blocked, Sample, align
from runners.claim_spec import CENTERS, Arm, Claim, Measure
from runners.claim_units import Units, matches
from runners.intervals import Interval

BIG_SKEW = 1.0


@dataclass
class Outcome:
    """A statistic in one cell. ``blocked`` says why it cannot be judged, ``each`` are the values per unit."""

    interval: Interval | None = None
    units: int = 0
    minimum: int = intervals.MIN_UNITS
    each: np.ndarray | None = None
    log: bool = False
    method: str = ""
    notes: list[str] = field(default_factory=list)
    blocked: str | None = None


@dataclass(frozen=True)
class _Case:
    """What a statistic is computed from: a claim's units in one cell, and two arms."""

    claim: Claim
    units: Units
    cell: Mapping[str, Any]
    of: Arm
    to: Arm | None

    def of_table(self) -> pd.DataFrame:
        return self.units.take(self.cell, self.of, self.claim.of_metric)

    def pair(self, shared: bool = False) -> Sample:
        """The units of both sides; ``shared``: no statistic without pairing."""
        to, claim = self.to or self.of, self.claim
        tables = [self.of_table(), self.units.take(self.cell, to, claim.to_metric)]
        same = self.of == to
        names = [str(claim.of_metric), str(claim.to_metric)] if same else [str(self.of), str(to)]
        return align(claim, tables, names, pair=shared)


def compute(claim: Claim, units: Units, cell: Mapping[str, Any], of: Arm, to: Arm | None) -> Outcome:
    """Compute a claim's statistic for one cell and pair of arms. Shortcomings of the data are ``blocked``."""
    outcome = Outcome()
    try:
        _STATISTICS[claim.statistic](_Case(claim, units, cell, of, to), outcome)
    except Blocked as reason:
        outcome.blocked = str(reason)
    mode = claim.expect.mode if claim.expect else "interval"
    if mode == "exact":
        if outcome.each is not None:
            # Every unit is looked at by itself, so that there is no centre is no obstacle.
            outcome.blocked = None
            low, high = float(outcome.each.min()), float(outcome.each.max())
            middle = outcome.interval.value if outcome.interval else float(np.median(outcome.each))
            outcome.interval, outcome.units = Interval(middle, low, high, ""), len(outcome.each)
            outcome.method = f"every one of {len(outcome.each)} units, with their extremes"
        elif outcome.blocked is None:
            outcome.blocked = "a claim about every unit needs units shared by both arms"
    elif mode == "population" and outcome.interval:
        value = outcome.interval.value
        outcome.interval = Interval(value, value, value, "")
        outcome.method = f"{outcome.method.split(',')[0]} of all {outcome.units} units there are: no interval"
    return outcome


def curve_slope(
    frame: pd.DataFrame, *, y: str, x: str, axes: str, window: Sequence[float], relative: bool
) -> float:
    """Least-squares slope of column ``y`` in column ``x`` of a curve, on log-log or linear axes.

    NaN where fewer than 2 points lie in the window or one of them has no logarithm. Raises KeyError for an
    unknown column.
    """
    points = frame[[x, y]].dropna()
    low, high = (end * points[x].max() if relative else end for end in window)
    points = points[(points[x] >= low) & (points[x] <= high)]
    if axes == "log":
        points = points[points[x] > 0]  # curves start at step 0
    at, values = points[x].to_numpy(dtype=float), points[y].to_numpy(dtype=float)
    if len(np.unique(at)) < 2 or (axes == "log" and (values <= 0).any()):
        return math.nan
    if axes == "log":
        at, values = np.log(at), np.log(values)
    return float(stats.linregress(at, values).slope)


def _finish(outcome: Outcome, claim: Claim, sample: Sample, center: str, interval: Interval) -> None:
    """Fill in the interval, the unit count and the sentence that says how the interval is made."""
    outcome.interval, outcome.units = interval, sample.units
    sizes = " and ".join(str(len(values)) for values in sample.values[:2])
    paired = "units" if len(sample.values) == 1 else f"paired by {', '.join(claim.unit)}"
    how = paired if sample.paired else f"unpaired ({sizes} units)" if len(sample.values) == 2 else "unpaired"
    count = f"{sample.units} " if sample.paired and len(sample.values) == 1 else ""
    named = "geometric mean" if center == "geometric" else center
    outcome.method = f"{named}, {count}{how}, {interval.method}, {intervals.LEVEL:.0%}"


def _center(claim: Claim, boolean: bool = False) -> str:
    allowed = CENTERS[claim.statistic]
    if claim.center:
        return claim.center
    if claim.statistic == "slope" and claim.axes == "linear":
        return "mean"
    return "proportion" if boolean and "proportion" in allowed else allowed[0]


def _finite(values: Sequence[np.ndarray], center: str) -> None:
    infinite = sum(int((~np.isfinite(x)).sum()) for x in values)
    if infinite:
        raise Blocked(f"{infinite} infinite values have no {center} (`center: median` has)")


def _positive(values: np.ndarray, what: str = "values") -> None:
    wrong = int((values <= 0).sum())
    if wrong:
        raise Blocked(f"{wrong} of {len(values)} {what} are not positive: no logarithm")


def _median(outcome: Outcome) -> Interval:
    outcome.minimum = intervals.MIN_UNITS_MEDIAN
    if outcome.each is None:
        raise Blocked("a median needs units shared by both arms")
    return intervals.median(outcome.each)


def _t(
    claim: Claim, groups: Sequence[np.ndarray], weights: Sequence[float], paired: bool, **how: Any
) -> Interval:
    """A contrast of means; on skewed units it says that the interval may cover less than it claims."""
    kind = claim.interval or ("bootstrap_t" if how.get("log_means") else "student_t")
    interval = intervals.contrast(groups, weights, paired=paired, kind=kind, **how)
    if not (np.isfinite(interval.low) and interval.low < interval.high):
        return interval
    parts = [np.stack(list(groups), axis=1) @ np.asarray(weights)] if paired and len(groups) > 1 else groups
    if any(abs(_skewness(x)) > BIG_SKEW for x in parts if len(x) >= intervals.MIN_UNITS):
        words = f"{interval.method} (skewed units: may cover less)"
        interval = Interval(interval.value, interval.low, interval.high, words)
    return interval


def _skewness(x: np.ndarray) -> float:
    centred = x - x.mean()
    widest = np.abs(centred).max()
    if widest <= 1e-12 * np.abs(x).max():
        return 0.0
    centred = centred / widest  # neither tiny nor huge numbers under- or overflow
    return float((centred**3).mean() / (centred**2).mean() ** 1.5)


def _bounded(outcome: Outcome, center: str, least: float, most: float) -> Interval:
    assert outcome.each is not None
    return _median(outcome) if center == "median" else intervals.bounded_mean(outcome.each, least, most)


def _one(outcome: Outcome, claim: Claim, sample: Sample) -> None:
    """Centre of one value per unit."""
    (each,) = sample.values
    outcome.each, outcome.notes = each, sample.notes
    center = _center(claim, sample.boolean)
    if center == "median":
        interval = _median(outcome)
    elif center == "proportion":
        if not ((each >= 0) & (each <= 1)).all():
            raise Blocked("a proportion needs values from 0 to 1")
        interval = intervals.proportion(each)
    elif center == "geometric" and claim.statistic != "slope":
        _positive(each)
        _finite([each], "geometric mean")
        outcome.log = True
        interval = _t(claim, [np.log(each)], [1.0], True).exp()
    else:
        _finite([each], "mean")
        interval = _t(claim, [each], [1.0], True)
    words = "mean slope" if claim.statistic == "slope" and center != "median" else center
    _finish(outcome, claim, sample, words, interval)


def _value(case: _Case, outcome: Outcome) -> None:
    _one(outcome, case.claim, align(case.claim, [case.of_table()], [str(case.of)]))


def _within(case: _Case, outcome: Outcome) -> None:
    claim = case.claim
    if isinstance(claim.target, float):
        _value(case, outcome)
        return
    tables = [case.of_table(), case.units.take(case.cell, case.of, claim.target, censor=False)]
    both = align(claim, tables, [str(claim.of_metric), str(claim.target)], pair=True)
    value, target = both.values
    with np.errstate(divide="ignore", invalid="ignore"):
        if claim.relative:
            close = np.where(value == target, 1.0, value / target)
        else:
            close = np.where(value == target, 0.0, value - target)
    _one(outcome, claim, Sample([close], True, False, both.notes))


def _difference(case: _Case, outcome: Outcome) -> None:
    _subtract(outcome, case.claim, case.pair())


def _subtract(outcome: Outcome, claim: Claim, sample: Sample) -> None:
    a, b = sample.values
    outcome.notes = sample.notes
    if sample.paired:
        with np.errstate(invalid="ignore"):
            outcome.each = np.where(a == b, 0.0, a - b)
    center = _center(claim, sample.boolean)
    if center == "median":
        interval = _median(outcome)
    elif center == "proportion":
        if not all(np.isin(x, (0, 1)).all() for x in sample.values):
            raise Blocked("a difference of proportions needs values that are true or false")
        interval = intervals.proportion_difference(a, b, paired=sample.paired)
    else:
        _finite(sample.values, "mean")
        interval = _t(claim, [a, b], [1.0, -1.0], sample.paired)
    words = f"{'mean' if center == 'geometric' else center} difference"
    _finish(outcome, claim, sample, words, interval)


def _ratio(case: _Case, outcome: Outcome) -> None:
    claim, sample = case.claim, case.pair()
    a, b = sample.values
    outcome.notes, outcome.log = sample.notes, True
    if sample.paired:
        with np.errstate(divide="ignore", invalid="ignore"):
            outcome.each = np.where(a == b, 1.0, a / b)
    center = _center(claim)
    if center == "median":
        if (a < 0).any() or (b < 0).any() or (sample.paired and ((a == 0) & (b == 0)).any()):
            raise Blocked("ratios of negative values, or of two zeros, have no meaning")
        interval = _median(outcome)
    elif center == "mean":
        _finite(sample.values, "mean")
        _positive(np.array([x.mean() for x in sample.values]), "means")
        interval = _t(claim, [a, b], [1.0, -1.0], sample.paired, log_means=True).exp()
    else:
        _positive(np.concatenate(sample.values))
        _finite(sample.values, "geometric mean")
        interval = _t(claim, [np.log(a), np.log(b)], [1.0, -1.0], sample.paired).exp()
    words = {"mean": "ratio of means", "median": "median ratio", "geometric": "geometric mean of ratios"}[
        center
    ]
    _finish(outcome, claim, sample, words, interval)


def _slope(case: _Case, outcome: Outcome) -> None:
    claim, units = case.claim, case.units
    arms = [case.of] if case.to is None else [case.of, case.to]
    if isinstance(claim.x, str) and claim.x not in units.data and claim.rows_unit is None and units.any_done:
        args: dict[str, Any] = {"y": str(claim.of_metric), "x": claim.x, "axes": claim.axes}
        args |= {"window": claim.window, "relative": claim.window_relative}
        measure = Measure(f"{__name__}.curve_slope", args)
        tables = [units.take(case.cell, arm, measure, censor=False) for arm in arms]
        sample = align(claim, tables, [str(arm) for arm in arms])
        if case.to is None:
            _one(outcome, claim, sample)
        else:
            _subtract(outcome, claim, sample)
        return
    tables, names, weights = [], [], []
    for arm, sign in zip(arms, (1.0, -1.0), strict=False):
        table = units.take(case.cell, arm, claim.of_metric, x=claim.x)
        levels = _levels(claim, table, str(arm), claim.axes == "log")
        x = np.log(levels) if claim.axes == "log" else levels
        centred = x - x.mean()
        weights += list(sign * centred / (centred @ centred))
        tables += _parts(table, levels)
        names += [f"{arm}{' at ' if str(arm) else ''}{claim.x}={level:g}" for level in levels]
    sample = align(claim, tables, names)
    outcome.notes, center, values = sample.notes, _center(claim), sample.values
    log_means = claim.axes == "log" and center == "mean"
    if claim.axes == "log" and not log_means:
        _positive(np.concatenate(values))
        values = [np.log(x) for x in values]
    if sample.paired and not log_means:
        with np.errstate(invalid="ignore"):
            outcome.each = np.stack(values, axis=1) @ np.array(weights)
    _finite(values, "slope")
    if center == "median":
        interval = _median(outcome)
    else:
        if log_means:
            _positive(np.array([x.mean() for x in values]), "means")
        interval = _t(claim, values, weights, sample.paired, log_means=log_means)
    words = {"median": "median slope", "mean": "slope of means", "geometric": "slope of geometric means"}[
        center
    ]
    _finish(outcome, claim, sample, words, interval)


def _levels(claim: Claim, table: pd.DataFrame, name: str, log: bool) -> np.ndarray:
    if not len(table):
        raise Blocked(f"no runs{f' of {name}' if name else ''}")
    levels = np.unique(table["x"].dropna().to_numpy(dtype=float))
    low, high = claim.window
    if claim.window_relative and len(levels):
        low, high = low * levels[-1], high * levels[-1]
    levels = levels[(levels >= low) & (levels <= high)]
    if log:
        _positive(levels, f"values of {claim.x}")
    if len(levels) < 2:
        raise Blocked(
            f"{claim.x} has {len(levels)} value{'s' if len(levels) != 1 else ''} where 2 are needed"
        )
    return levels


def _parts(table: pd.DataFrame, levels: np.ndarray) -> list[pd.DataFrame]:
    """One table per level of x."""
    return [table[table["x"] == level] for level in levels]


def _rank(case: _Case, outcome: Outcome) -> None:
    claim, of = case.claim, case.of
    among = claim.among or case.units.methods(case.cell)
    rivals = [arm for arm in among if not _same(arm, of)]
    if not rivals:
        raise Blocked("there is no other method to rank among")
    tables = [case.of_table(), *(case.units.take(case.cell, arm, claim.of_metric) for arm in rivals)]
    sample = align(claim, tables, [str(of), *map(str, rivals)], pair=True)
    matrix = np.stack(sample.values, axis=1) * (1.0 if claim.goal == "min" else -1.0)
    outcome.each, outcome.notes = stats.rankdata(matrix, axis=1)[:, 0], sample.notes
    center = _center(claim)
    interval = _bounded(outcome, center, 1.0, float(len(tables)))
    _finish(outcome, claim, sample, f"{center} rank among {len(tables)}", interval)


def _same(a: Arm, b: Arm) -> bool:
    """Whether two arms name the same rows (``radazo`` as ``zeroth_order/radazo``)."""
    if a.best or b.best:
        return a == b
    first, second = dict(a.where), dict(b.where)
    return first.keys() == second.keys() and all(matches(first[key], second[key]) for key in first)


def _win_rate(case: _Case, outcome: Outcome) -> None:
    claim, sample = case.claim, case.pair(shared=True)
    a, b = sample.values
    with np.errstate(invalid="ignore"):
        tie = (a == b) | (np.abs(a - b) <= claim.tolerance)
    win = (a < b if claim.goal == "min" else a > b) & ~tie
    share = {"half": 0.5, "win": 1.0, "lose": 0.0}.get(claim.ties, math.nan)
    each = np.where(tie, share, win.astype(float))
    outcome.notes = list(sample.notes)
    if tie.any():
        treatment = "left out" if claim.ties == "drop" else f"count as {share:g}"
        outcome.notes.append(f"{int(tie.sum())} of {len(each)} units tie ({treatment})")
    each = each[~np.isnan(each)]
    if not len(each):
        raise Blocked("all units tie")
    outcome.each = each
    _finish(outcome, claim, sample, "share of wins", intervals.proportion(each))
    outcome.units = len(each)


def _correlation(case: _Case, outcome: Outcome) -> None:
    claim, of = case.claim, case.of
    if claim.across == "units":
        tables = [case.of_table(), case.units.take(case.cell, of, claim.x, censor=False)]
        sample = align(claim, tables, [str(claim.of_metric), str(claim.x)], pair=True)
        _finite(sample.values, "correlation")
        outcome.notes = sample.notes
        try:
            interval = intervals.correlation(sample.values[1], sample.values[0], claim.kind)
        except ValueError as error:
            raise Blocked(str(error)) from None
        _finish(outcome, claim, sample, f"{claim.kind} correlation", interval)
        return
    table = case.units.take(case.cell, of, claim.of_metric, x=claim.x)
    levels = _levels(claim, table, str(of), log=False)
    sample = align(claim, _parts(table, levels), [f"{claim.x}={level:g}" for level in levels], pair=True)
    rank = stats.rankdata if claim.kind == "spearman" else np.asarray
    matrix = np.stack(sample.values, axis=1)
    flat = int((matrix == matrix[:, :1]).all(axis=1).sum())
    if flat:
        raise Blocked(f"in {flat} of {len(matrix)} units the metric does not vary: no correlation")
    if claim.kind == "pearson":
        _finite(sample.values, "correlation")
    each = np.array([np.corrcoef(rank(levels), rank(row))[0, 1] for row in matrix])
    outcome.each, outcome.notes = np.clip(each, -1.0, 1.0), sample.notes
    center = _center(claim)
    interval = _bounded(outcome, center, -1.0, 1.0)
    _finish(outcome, claim, sample, f"{center} {claim.kind} correlation over {len(levels)} levels", interval)


_STATISTICS: dict[str, Callable[[_Case, Outcome], None]] = {
    "value": _value,
    "difference": _difference,
    "ratio": _ratio,
    "slope": _slope,
    "rank": _rank,
    "win_rate": _win_rate,
    "correlation": _correlation,
    "within": _within,
}
