"""From a paper's ``figures:`` to tidy tables and SVG files.

`draw` aggregates runs over their seeds (centre and 95% interval, the same intervals that judge claims),
draws the picture and returns the table of exactly what was drawn. Kinds:

* ``curves``: metrics along a run, e.g. gap against steps;
* ``bars``: one value per method and cell;
* ``scatter``: one point per run or row;
* ``profile``: performance profile over instances (Dolan and Moré, 2002, *Math. Program.* 91, eq. 1).

A figure that none of them fits is a function: ``{_target_: tasks.<kind>.<module>.<function>, **arguments}``.
It is called with ``frame``, ``curves``, ``rows``, ``look`` and its arguments and returns a matplotlib
``Figure``, or a pair of that and the table; the harness saves it.
"""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from runners import build, canvas, places
from runners.aggregate import bars, curve_lines, profile, scatter
from runners.canvas import Line, Look
from runners.errors import ConfigError, nearest
from runners.figure_spec import CUSTOM, check

Curves = Callable[[str], pd.DataFrame]
Rows = Callable[[str], pd.DataFrame]

TABLE = ["figure", "panel", "line", "x", "center", "low", "high", "n"]


def draw(
    figure_id: str,
    spec: dict[str, Any],
    frame: pd.DataFrame,
    curves: Curves,
    out: Path,
    rows: Rows | None = None,
    methods: Sequence[str] = (),
) -> pd.DataFrame:
    """Draw one figure of a paper into ``out/<figure_id>.svg``.

    Args:
        figure_id: its name in the paper's YAML and the file's stem.
        spec: its entry there (keys by kind: `figure_spec.KEYS`).
        frame: one row a run (columns as in a run frame).
        curves: gives a run's metrics: ``step`` and one column a metric.
        out: the folder, made if it is missing.
        rows: gives the row frame of a unit (for ``unit:``).
        methods: every method of the paper in its own order; colours follow it. Without it, the frame's.

    Returns:
        What was drawn, one row a point: figure, panel, line, x, center, low, high, n. At most 150 points
        a line. n counts the runs (rows, instances) behind the point; interval ends are NaN for fewer than 2.

    Raises:
        ConfigError: an unknown key, column or metric, with the nearest valid name.
    """
    check(figure_id, spec)
    at = f"figure {figure_id}"
    title = str(spec.get("title") or "")
    path = Path(out) / f"{figure_id}.svg"
    where = spec.get("where") or {}
    of_rows = "_target_" not in spec and spec.get("unit", "seed") != "seed"
    # Columns that only the rows have are looked at there.
    frame = select(frame, {k: v for k, v in where.items() if k in frame or not of_rows}, at)
    order = list(dict.fromkeys([*methods, *(frame["method"].astype(str) if "method" in frame else ())]))
    if "_target_" in spec:
        return _custom(figure_id, spec, frame, curves, rows, order, path)

    kind = spec.get("kind", "curves")
    if kind == "curves":
        lines = curve_lines(at, spec, frame, curves)
    else:
        if of_rows:
            if rows is None:
                raise ConfigError(f"{at}: 'unit: {spec['unit']}' needs rows, and this figure is given none")
            frame = select(rows(spec["unit"]), where, at)
        lines = {"bars": bars, "scatter": scatter, "profile": profile}[kind](at, spec, frame, curves)
    labels = names([line.line for line in lines], spec)
    looks = line_looks(list(labels), order)
    _paint(kind, spec, lines, labels, looks, path, title)
    return table(figure_id, lines)


def table(figure_id: str, lines: Sequence[Line]) -> pd.DataFrame:
    """The tidy table of drawn lines."""
    parts = [
        pd.DataFrame(
            {"figure": figure_id, "panel": line.panel, "line": line.line, "x": line.x, "center": line.center}
            | {"low": line.low, "high": line.high, "n": line.n}
        )
        for line in lines
        if len(line.x)
    ]
    return pd.concat(parts, ignore_index=True)[TABLE] if parts else pd.DataFrame(columns=TABLE)


def select(frame: pd.DataFrame, where: dict[str, Any], at: str) -> pd.DataFrame:
    """Rows of ``frame`` for which every column has the wanted value: a value, a list, or a glob pattern."""
    for name, wanted in where.items():
        if name not in frame:
            raise ConfigError(f"{at}: where: unknown column '{name}'{nearest(name, frame.columns)}")
        pool = wanted if isinstance(wanted, list) else [wanted]
        globs = [item for item in pool if isinstance(item, str) and any(c in item for c in "*?[")]
        keep = frame[name].isin(pool)
        for glob in globs:
            keep |= frame[name].map(lambda value, glob=glob: fnmatch.fnmatchcase(str(value), glob))
        # A scale may leave out what is asked for; a name that exists nowhere is a slip.
        known = set(places.options(name)) if name in ("method", "task") else set()
        slips = [item for item in pool if known and item not in globs and not (frame[name] == item).any()]
        for item in slips:
            if item not in known:
                seen = known | {str(value) for value in frame[name]}
                raise ConfigError(f"{at}: where: unknown {name} '{item}'{nearest(str(item), seen)}")
        frame = frame[keep]
    return frame


def names(values: Sequence[str], spec: dict[str, Any]) -> dict[str, str]:
    """What is written for each value: its label, else the last part of its name where that is unique."""
    labels = spec.get("labels") or {}
    seen = list(dict.fromkeys(values))
    short = {value: " · ".join(part.rsplit("/", 1)[-1] for part in value.split(" · ")) for value in seen}
    clash = {text for text in short.values() if list(short.values()).count(text) > 1}
    plain = {value: value if text in clash else text for value, text in short.items()}
    # A dollar sign in a name is a dollar sign; in a label it opens mathematics.
    return {
        value: str(labels[value]) if value in labels else plain[value].replace("$", r"\$") for value in seen
    }


def line_looks(lines: Sequence[str], methods: Sequence[str]) -> dict[str, Look]:
    """Looks by line: a method's own colour; a ramp for numbers; else the order of appearance.

    Of a line that is several columns (``method · lr``) the first gives the colour, the rest the dash.
    """
    heads = list(dict.fromkeys(line.split(" · ", 1)[0] for line in lines))
    if not set(heads) <= set(methods):
        try:
            values = sorted(heads, key=float)
        except ValueError:
            return {line: canvas.look(i) for i, line in enumerate(lines)}
        shades = dict(zip(values, canvas.ramp(len(values)), strict=True))
        return {line: shades[line.split(" · ", 1)[0]] for line in lines}
    turn: dict[str, int] = {}
    looks = {}
    for line in lines:
        head = line.split(" · ", 1)[0]
        looks[line] = canvas.look(methods.index(head), turn.get(head, 0))
        turn[head] = turn.get(head, 0) + 1
    return looks


def _paint(
    kind: str,
    spec: dict[str, Any],
    lines: list[Line],
    labels: dict[str, str],
    looks: dict[str, Look],
    path: Path,
    title: str,
) -> None:
    panels = list(dict.fromkeys(line.panel for line in lines)) or [""]
    panel_text = names(panels, spec)
    xscale = spec.get("xscale", "log" if kind == "profile" else "linear")
    yscale = spec.get("yscale", "linear")
    texts = {name: labels[name] + _notes([line for line in lines if line.line == name]) for name in labels}
    columns = _legend_columns(texts, 95 if len(panels) > 1 else 70)
    keyed = len(texts) > 1 or any(text != labels[name] for name, text in texts.items())
    per_row = min(spec.get("columns") or canvas.per_row(len(panels)), len(panels))
    with canvas.style():
        figure, axes = canvas.new_figure(
            len(panels), per_row, title, -(-len(texts) // columns) if keyed else 0
        )
        for place, (panel, ax) in enumerate(zip(panels, axes, strict=True)):
            here = [line for line in lines if line.panel == panel]
            if kind == "bars":
                text = names([str(x) for line in here for x in line.x], spec)
                shown = [_renamed(line, text) for line in here]
                canvas.paint_bars(ax, shown, looks, as_points=yscale != "linear")
            else:
                paint = {"curves": canvas.paint_curve, "scatter": canvas.paint_points}.get(
                    kind, canvas.paint_steps
                )
                for line in here:
                    paint(ax, line, looks[line.line])
            if not any(np.isfinite(line.center).any() for line in here):
                ax.text(0.5, 0.5, "nothing to draw", transform=ax.transAxes, ha="center", color="#777777")
            _finish(ax, spec, kind, here, xscale, yscale, panel)
            if len(panels) > 1:
                ax.set_title(panel_text[panel])
            if place % per_row == 0:
                ax.set_ylabel(_axis_text(spec, "y", "share of instances" if kind == "profile" else spec["y"]))
            if place + per_row >= len(panels):
                ax.set_xlabel(_x_text(spec, kind))
        if spec.get("sharey"):
            ends = [ax.get_ylim() for ax in axes]
            for ax in axes:
                ax.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
        if keyed:
            canvas.key(figure, texts, looks, kind, columns, title)
        try:
            canvas.save(figure, path, title)
        except ValueError as error:  # matplotlib's parser of $mathematics$
            raise ConfigError(
                f"figure {path.stem}: a label cannot be drawn: {str(error).splitlines()[0]}"
            ) from None


def _finish(
    ax: Any, spec: dict[str, Any], kind: str, here: list[Line], xscale: str, yscale: str, panel: str
) -> None:
    """Scales, limits and reference lines of one panel."""
    if kind != "bars":
        canvas.scale_axis(ax, "x", xscale)
        if spec.get("xlim"):
            ax.set_xlim(*spec["xlim"])
    if yscale != "linear":
        ax.set_yscale(yscale)
    if kind == "bars" and yscale == "linear":
        ax.set_ylim(*(spec.get("ylim") or ax.get_ylim()))
    elif kind == "profile":
        ax.set_ylim(-0.02, 1.03)
    else:
        canvas.frame_view(ax, here, yscale, spec.get("ylim"))
    canvas.scale_axis(ax, "y", yscale)
    if spec.get("diagonal"):
        low, high = max(ax.get_xlim()[0], ax.get_ylim()[0]), min(ax.get_xlim()[1], ax.get_ylim()[1])
        ax.plot([low, high], [low, high], color="#999999", linewidth=0.9, zorder=0)
    for text, value in (spec.get("reference") or {}).items():
        level = value.get(panel) if isinstance(value, dict) else value
        if level is not None:
            ax.axhline(level, color="#666666", linewidth=0.9, linestyle=(0, (4, 3)))
            place = {"xy": (1, level), "xycoords": ("axes fraction", "data"), "xytext": (-2, 2)}
            ax.annotate(
                str(text), textcoords="offset points", ha="right", fontsize=7, color="#555555", **place
            )


def _renamed(line: Line, text: dict[str, str]) -> Line:
    values = {**line.__dict__, "x": [text[str(x)] for x in line.x]}
    values["missing"] = {text[str(x)]: note for x, note in line.missing.items()}
    return Line(**values)


def _notes(lines: list[Line]) -> str:
    """What a line leaves out, for the legend: ``(2 of 10 diverged)``."""
    runs = sum(line.runs for line in lines)
    counts: dict[str, int] = {}
    for line in lines:
        for why, count in line.notes.items():
            counts[why] = counts.get(why, 0) + count
    parts = [f"{count} of {runs} {why}" for why, count in counts.items() if count]
    return f" ({', '.join(parts)})" if parts else ""


def _legend_columns(texts: dict[str, str], room: int) -> int:
    """The most columns whose widest texts fit into ``room`` characters, dealt out as matplotlib does."""
    widths = [len(text) + 6 for text in texts.values()]
    for columns in range(len(widths), 1, -1):
        rows, longer = divmod(len(widths), columns)
        ends = [0, *accumulate(rows + (i < longer) for i in range(columns))]
        if sum(max(widths[i:j]) for i, j in pairwise(ends)) <= room:
            return columns
    return 1


def _axis_text(spec: dict[str, Any], which: str, fallback: Any) -> str:
    labels = spec.get("labels") or {}
    if which in labels:
        return str(labels[which])
    if isinstance(fallback, dict):
        fallback = str(fallback.get("_target_", "")).rsplit(".", 1)[-1]
    parts = [str(part) for part in (fallback if isinstance(fallback, list) else [fallback])]
    return ", ".join(str(labels.get(part, part.rsplit(".", 1)[-1].replace("_", " "))) for part in parts)


def _x_text(spec: dict[str, Any], kind: str) -> str:
    if kind == "profile":
        return _axis_text(spec, "x", f"{_axis_text({**spec, 'labels': {}}, 'y', spec['y'])} / best")
    if kind == "bars":
        return str((spec.get("labels") or {}).get("x", ""))
    return _axis_text(spec, "x", spec.get("x", "step"))


def _custom(
    figure_id: str,
    spec: dict[str, Any],
    frame: pd.DataFrame,
    curves: Curves,
    rows: Rows | None,
    methods: list[str],
    path: Path,
) -> pd.DataFrame:
    """Call a figure function and save what it returns."""
    at, target = f"figure {figure_id}", str(spec["_target_"])
    found = build.locate(target, at)

    def look(method: str) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot`` that give ``method`` its colour in this paper."""
        style = canvas.look(methods.index(method) if method in methods else len(methods))
        return {"color": style.color, "linestyle": style.dash}

    given = {"frame": frame, "curves": curves, "rows": rows, "look": look}
    arguments = {key: value for key, value in spec.items() if key not in CUSTOM}
    signature = inspect.signature(found)
    try:
        signature.bind(**given, **arguments)
    except TypeError as error:
        wrong = [key for key in arguments if key not in signature.parameters]
        hint = nearest(wrong[0], signature.parameters) if wrong else ""
        raise ConfigError(f"{at}: {target}: {error}{hint}") from None
    with canvas.style():
        made = found(**given, **arguments)
        figure, drawn = made if isinstance(made, tuple) else (made, pd.DataFrame(columns=TABLE))
        canvas.save(figure, path, str(spec.get("title") or ""))
    drawn = drawn.assign(figure=figure_id) if "figure" not in drawn else drawn
    return drawn.reindex(columns=TABLE)
