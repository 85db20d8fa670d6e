"""From runs to the lines of a figure: grouping, alignment of steps, centres and intervals."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from runners import build, intervals
from runners.canvas import Line
from runners.curves import numbers
from runners.errors import ConfigError, nearest

MAX_POINTS = 120
FIGURE_POINTS = 4000  # of a figure with many lines, which share them: files stay small
SEPARATOR = " · "
Curves = Callable[[str], pd.DataFrame]
Groups = Iterator[tuple[str, str, pd.DataFrame]]


def curve_lines(at: str, spec: dict[str, Any], frame: pd.DataFrame, curves: Curves) -> list[Line]:
    """Lines of metrics along runs: one per panel, line and metric.

    Runs may have logged at different x: they are interpolated (in the axes' own scales) onto points that
    some run logged. A run that ended as planned before the others holds its last value. A diverged run
    counts until it diverges; other unfinished runs are left out, and the legend says how many.
    """
    metrics = spec["y"] if isinstance(spec["y"], list) else [spec["y"]]
    x_name, x_log, y_log = spec.get("x", "step"), spec.get("xscale") == "log", spec.get("yscale") == "log"
    center = spec.get("center") or ("geometric mean" if y_log else "mean")
    lines = []
    groups = list(_groups(at, spec, frame))
    points = max(20, min(MAX_POINTS, FIGURE_POINTS // max(1, len(groups) * len(metrics))))
    for panel, name, group in groups:
        runs, unfinished = _usable(group)
        tables = {str(run): columns(curves, str(run)) for run in runs["id"]}
        for metric in metrics:
            text = name if len(metrics) == 1 else SEPARATOR.join(part for part in (name, metric) if part)
            line = _curve(at, tables, x_name, metric, center, x_log, y_log, _diverged(runs), points)
            line.panel, line.line, line.runs = panel, text, len(group)
            line.notes |= unfinished
            lines.append(line)
    return lines


def columns(curves: Curves, run: str) -> dict[str, np.ndarray]:
    """A run's metrics as arrays of floats: from ``curves.columns`` where there is one, else from its frame."""
    if hasattr(curves, "columns"):
        return dict(curves.columns(run))
    frame = curves(run)
    return {str(name): numbers(list(frame[name])) for name in frame.columns if len(frame)}


def _curve(
    at: str,
    tables: dict[str, dict[str, np.ndarray]],
    x_name: str,
    metric: str,
    center: str,
    x_log: bool,
    y_log: bool,
    diverged: set[str],
    points: int,
) -> Line:
    series, breaks, clipped, silent = [], [], 0, 0
    logged = {name for arrays in tables.values() for name in arrays}
    for column in (x_name, metric):
        if logged and column not in logged:
            raise ConfigError(f"{at}: no run logs '{column}'{nearest(column, logged)}")
    for run, arrays in tables.items():
        if x_name not in arrays or metric not in arrays:
            silent += run not in diverged
            continue
        x, y = arrays[x_name], arrays[metric]
        rises = len(x) and (x[1:] > x[:-1]).all() and np.isfinite(x[-1]) and (x[0] > 0 if x_log else True)
        if not (rises and np.isfinite(x[0]) and np.isfinite(y).all()):
            kept = np.isfinite(x) & np.isfinite(y) & ((x > 0) if x_log else True)
            x, y = x[kept], y[kept]
            order = np.argsort(x, kind="stable")
            x, y = x[order], y[order]
            last = np.append(x[1:] > x[:-1], True)[: len(x)]  # of several at one x
            x, y = x[last], y[last]
        if len(x):
            series.append((run, x, y))
            if run in diverged:
                breaks.append(float(x[-1]))
    notes = {"diverged": len(diverged & set(tables)), f"without {metric}": silent}
    empty = np.array([])
    if not series:
        return Line("", "", [], empty, empty, empty, empty, notes=notes)
    if y_log:
        positive = [y[y > 0] for _, _, y in series if (y > 0).any()]
        floor = min((float(part.min()) for part in positive), default=1.0)
        clipped = sum(bool((y <= 0).any()) for _, _, y in series)
        series = [(run, x, np.maximum(y, floor)) for run, x, y in series]
        notes[f"reach ≤ 0, drawn at {floor:.2g}"] = clipped
    grid = _grid([x for _, x, _ in series], x_log, points)
    values = np.stack([_on_grid(grid, x, y, x_log, y_log, held=run not in diverged) for run, x, y in series])
    rows = [_center(values[:, j], center) for j in range(len(grid))]
    middle, low, high = (np.array(part, dtype=float) for part in zip(*rows, strict=True))
    count = np.isfinite(values).sum(axis=0)
    keep = count > 0
    return Line(
        "", "", list(grid[keep]), middle[keep], low[keep], high[keep], count[keep], sorted(breaks), notes
    )


def _grid(series: Sequence[np.ndarray], log: bool, points: int = MAX_POINTS) -> np.ndarray:
    """At most ``points`` x that some run logged, spread evenly over the axis."""
    union = np.unique(np.concatenate(series))
    start = max(float(x[0]) for x in series)
    union = union[union >= start]
    if len(union) <= points:
        return union
    scaled = np.log(union) if log else union
    wanted = np.linspace(scaled[0], scaled[-1], points)
    right = np.clip(np.searchsorted(scaled, wanted), 1, len(scaled) - 1)
    closer = np.where(wanted - scaled[right - 1] < scaled[right] - wanted, right - 1, right)
    return union[np.unique(closer)]


def _on_grid(
    grid: np.ndarray, x: np.ndarray, y: np.ndarray, x_log: bool, y_log: bool, held: bool
) -> np.ndarray:
    if len(x) == len(grid) and (x == grid).all():  # as where every run logs at the same steps
        return y
    forward = np.log if x_log else np.asarray
    values = np.interp(forward(grid), forward(x), np.log(y) if y_log else y)
    values = np.exp(values) if y_log else values
    # A logged value is itself, not its logarithm there and back.
    at, where = np.intersect1d(grid, x, return_indices=True)[1:]
    values[at] = y[where]
    if not held:
        values[grid > x[-1]] = np.nan
    return values


def bars(at: str, spec: dict[str, Any], frame: pd.DataFrame, curves: Curves) -> list[Line]:
    """One value with its interval per panel, line and place on the x axis (default: the task)."""
    center = spec.get("center") or ("geometric mean" if spec.get("yscale") == "log" else "mean")
    x_name = spec.get("x", "task")
    lines = []
    for panel, name, group in _groups(at, spec, frame):
        runs, notes = _usable(group)
        places = _text(at, runs, x_name, "x")
        rows: list[tuple[Any, ...]] = []
        missing: dict[Any, str] = {}
        lost = 0
        for place in dict.fromkeys(places):
            values = metric(at, spec, runs[places == place], curves)
            finite = values[np.isfinite(values)]
            if len(finite) < len(values):
                lost += len(values) - len(finite)
                missing[place] = f"{len(values) - len(finite)}/{len(values)} none"
            rows.append((place, *_center(finite, center), len(finite)))
        middle, low, high = (np.array([row[k] for row in rows], dtype=float) for k in (1, 2, 3))
        n = np.array([row[4] for row in rows], dtype=int)
        notes = {"without a value": lost, **notes}
        lines.append(
            Line(panel, name, [row[0] for row in rows], middle, low, high, n, [], notes, len(group), missing)
        )
    return lines


def scatter(at: str, spec: dict[str, Any], frame: pd.DataFrame, curves: Curves) -> list[Line]:
    """One point a run or row; of more than 150 a line, every k-th in order of x (the legend says so)."""
    lines = []
    for panel, name, everything in _groups(at, spec, frame):
        group, unfinished = _usable(everything)
        x = metric(at, {**spec, "y": spec["x"], "censored": None}, group, curves)
        y = metric(at, spec, group, curves)
        ok = np.isfinite(x) & np.isfinite(y)
        for axis, values in (("xscale", x), ("yscale", y)):
            if spec.get(axis) == "log":
                ok &= values > 0
        notes = {"without a value": int((~ok).sum()), **unfinished}
        order = np.flatnonzero(ok)[np.argsort(x[ok], kind="stable")]
        if len(order) > MAX_POINTS:
            notes["drawn"] = MAX_POINTS
            order = order[np.round(np.linspace(0, len(order) - 1, MAX_POINTS)).astype(int)]
        blank = np.full(len(order), np.nan)
        ones = np.ones(len(order), dtype=int)
        lines.append(
            Line(panel, name, list(x[order]), y[order], blank, blank, ones, notes=notes, runs=len(everything))
        )
    return lines


def profile(at: str, spec: dict[str, Any], frame: pd.DataFrame, curves: Curves) -> list[Line]:
    """Per line the share of instances solved at a cost of at most x times the best line's.

    An instance is a combination of the columns ``instance`` (default: task, seed, and the replicate of a
    row). Missing and infinite costs are unsolved; instances nobody solves stay in the denominator. Wilson
    intervals.
    """
    key = spec.get("instance") or [name for name in ("task", "seed", "i") if name in frame]
    lines: list[Line] = []
    groups = list(_groups(at, spec, frame))
    for panel in dict.fromkeys(panel for panel, _, _ in groups):
        costs: dict[str, pd.Series] = {}
        notes: dict[str, dict[str, int]] = {}
        for _, name, group in (entry for entry in groups if entry[0] == panel):
            notes[name] = _usable(group)[1]
            values = metric(at, spec, group, curves)
            values = np.where(np.isfinite(values) & (values >= 0), values, np.inf)
            instance = _text(at, group, key, "instance")
            costs[name] = pd.Series(values, index=list(instance)).groupby(level=0).mean()
        matrix = pd.DataFrame(costs).fillna(np.inf)
        best = matrix.min(axis=1)
        ratios = matrix.div(best.where(best > 0, 1.0), axis=0).where(np.isfinite(matrix), np.inf)
        ratios = ratios.mask(matrix.eq(best, axis=0) & np.isfinite(matrix), 1.0)
        finite = np.unique(ratios.to_numpy()[np.isfinite(ratios.to_numpy())])
        top = float(finite[-1]) * 1.05 if len(finite) else 2.0
        steps = np.unique(np.append(finite, [1.0, top]))
        grid = _grid([steps], log=True)
        for name in costs:
            solved = ratios[name].to_numpy()
            rows = [_center((solved <= x).astype(float), "proportion") for x in grid]
            middle, low, high = (np.array(part, dtype=float) for part in zip(*rows, strict=True))
            count = np.full(len(grid), len(solved))
            lines.append(
                Line(panel, name, list(grid), middle, low, high, count, notes=notes[name], runs=len(solved))
            )
    return lines


def metric(at: str, spec: dict[str, Any], frame: pd.DataFrame, curves: Curves) -> np.ndarray:
    """Values of ``spec['y']`` for each row of ``frame``: a column, or a measure of the run's curve."""
    y = spec["y"]
    if isinstance(y, dict):
        values = measure(at, y, frame, curves)
    elif y not in frame:
        raise ConfigError(f"{at}: unknown metric '{y}'{nearest(str(y), frame.columns)}")
    else:
        values = pd.to_numeric(frame[y].astype(object), errors="coerce").to_numpy(dtype=float, copy=True)
    censored = spec.get("censored")
    if censored is not None:
        if isinstance(censored, str):
            filler = metric(at, {"y": censored}, frame, curves)
        else:
            filler = np.full(len(values), float(censored))
        values = np.where(np.isnan(values), filler, values)
    return values


def measure(at: str, node: dict[str, Any], frame: pd.DataFrame, curves: Curves) -> np.ndarray:
    """A measure function applied to the curve of each run in ``frame``; NaN for runs without a result."""
    function = build.locate(str(node.get("_target_")), at)
    arguments = {key: value for key, value in node.items() if key != "_target_"}
    try:
        inspect.signature(function).bind(None, **arguments)
    except TypeError as error:
        raise ConfigError(f"{at}: {node['_target_']}: {error}") from None
    kept = set(_usable(frame)[0]["id"])
    return np.array(
        [float(function(curves(str(run)), **arguments)) if run in kept else np.nan for run in frame["id"]]
    )


def _groups(at: str, spec: dict[str, Any], frame: pd.DataFrame) -> Groups:
    """(panel, line, rows) in order of appearance."""
    if not len(frame):
        return
    panels = _text(at, frame, spec["panels"], "panels") if spec.get("panels") else pd.Series("", frame.index)
    default = "method" if "method" in frame else []
    lines = _text(at, frame, spec.get("lines", default), "lines")
    for panel in _ordered(panels):
        for line in _ordered(lines[panels == panel], lines):
            yield panel, line, frame[(panels == panel) & (lines == line)]


def _ordered(values: pd.Series, everything: pd.Series | None = None) -> list[str]:
    """Distinct values: numbers ascending, names in order of appearance in the whole figure."""
    here = set(values)
    seen = [
        value for value in dict.fromkeys(everything if everything is not None else values) if value in here
    ]
    try:
        return sorted(seen, key=float)
    except ValueError:
        return seen


def _text(at: str, frame: pd.DataFrame, columns: str | list[str], what: str) -> pd.Series:
    """The columns' values as one text per row."""
    columns = [columns] if isinstance(columns, str) else columns
    for name in columns:
        if name not in frame:
            raise ConfigError(f"{at}: {what}: unknown column '{name}'{nearest(str(name), frame.columns)}")
    if not columns:
        return pd.Series("", frame.index)
    parts = [
        [f"{value:g}" if isinstance(value, float) else str(value) for value in frame[name]]
        for name in columns
    ]
    return pd.Series(list(map(SEPARATOR.join, zip(*parts, strict=True))), frame.index, dtype=object)


def _usable(group: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """Runs that came to a result, and how many did not, by status."""
    if "status" not in group:
        return group, {}
    kept = group["status"].isin(["done", "diverged"])
    return group[kept], {
        str(status): int(count) for status, count in group["status"][~kept].value_counts().items()
    }


def _diverged(group: pd.DataFrame) -> set[str]:
    return set(group["id"][group["status"] == "diverged"].astype(str)) if "status" in group else set()


def _center(values: np.ndarray, center: str) -> tuple[float, float, float]:
    """Centre and 95% interval of the finite values; NaN where there are too few for one."""
    x = np.asarray(values, dtype=float)
    x = x[np.isfinite(x)]
    if center == "geometric mean":
        x = x[x > 0]
    if not len(x):
        return np.nan, np.nan, np.nan
    if center == "median":
        interval = intervals.median(x)
    elif center == "proportion":
        interval = intervals.proportion(x)
    elif center == "mean":
        interval = intervals.contrast([x], [1.0])
    else:
        with np.errstate(over="ignore"):
            interval = intervals.contrast([np.log(x)], [1.0]).exp()
    low, high = (interval.low, interval.high) if len(x) > 1 else (np.nan, np.nan)
    return interval.value, low, high
