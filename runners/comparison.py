"""The table, the picture and the page of a comparison of methods (`runners.compare`)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from runners import figures, formats, pages, store
from runners.compare import Plan
from runners.compose import walk
from runners.curves import Curves
from runners.store import write_atomic

if TYPE_CHECKING:
    from runners.sweep import Sweep

CENTERS = {"log": "geometric mean", "linear": "mean"}
COLUMNS = ["task", "method", "rank", "center", "low", "high", "n", "runs", "tried", "setting", "edge"]


def write(sweep: Sweep, plan: Plan, folder: Path) -> pd.DataFrame:
    """Write ``table.csv``, ``runs.csv``, ``*.svg``, ``README.md`` and ``index.html``; returns the table.

    The table has a row per task and method: ``rank`` (mean over seeds of the rank among the task's methods; what came
    to no result is last, equals share), ``center`` with its 95% interval over the ``n`` of ``runs`` that have a value,
    the number of settings ``tried``, the ``setting`` chosen, and ``edge``: whether that is an end of the grid.
    """
    folder.mkdir(parents=True, exist_ok=True)
    frame = values(sweep, plan)
    table = summary(sweep, plan, frame, folder)
    write_atomic(folder / "runs.csv", frame.to_csv(index=False, float_format="%.10g", lineterminator="\n"))
    write_atomic(folder / "table.csv", table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    context = {
        "plan": plan,
        "modified": " ".join(f"{path}={value}" for path, value, _ in sweep.overrides.leaves),
        "overall": _records(overall(plan, table)),
        "tasks": [(task, goal, _rows(table, task)) for task, goal in plan.goals.items()],
        "pictures": [path.name for path in sorted(folder.glob("*.svg"))],
    }
    write_atomic(folder / "README.md", pages.environment(False).get_template("compare.md").render(**context))
    css = Markup((pages.TEMPLATES / "style.css").read_text(encoding="utf-8"))
    page = (
        pages.environment(True)
        .get_template("compare.html")
        .render(css=css, script="", script_hash="", **context)
    )
    write_atomic(folder / "index.html", page)
    return table


def values(sweep: Sweep, plan: Plan) -> pd.DataFrame:
    """One row a run, with its task's metric in the column ``value``."""
    records = sweep.records("compare")
    frame = store.frame_of(records)[["id", "method", "task", "seed", "status", "seconds"]]
    marks = [
        record["summary"].get(plan.goals[record["config"]["task"]["_name_"]].metric) for record in records
    ]
    return frame.assign(value=[math.nan if mark is None else float(mark) for mark in marks])


def summary(sweep: Sweep, plan: Plan, frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Draw the pictures and return the table of what they show, with ranks and settings."""
    for old in folder.glob("*.svg"):
        old.unlink()
    order = list(plan.grids)
    drawn = []
    for scale, center in CENTERS.items():
        tasks = [task for task, goal in plan.goals.items() if goal.scale == scale]
        if tasks:
            spec = {
                "title": f"Methods of the kind {plan.kind}",
                "kind": "bars",
                "x": "method",
                "y": "value",
                "labels": {"value": f"{center} of the task's metric"},
                "lines": [],
                "panels": "task",
                "yscale": scale,
                "center": center,
            }
            part = frame[frame["task"].isin(tasks)]
            curves = Curves(sweep.folder_of, {})
            drawn.append(figures.draw(f"compare_{scale}", spec, part, curves, folder, methods=order))
    points = {(row["panel"], row["x"]): row for part in drawn for row in part.to_dict("records")}
    chosen = _chosen(sweep, plan)
    rows: list[dict[str, Any]] = []
    for (task, method), rank in ranks(plan, frame).items():
        point = points.get((task, method), {})
        setting, edge = chosen.get((task, method), ("", False))
        row = {"task": task, "method": method, "rank": rank, "n": point.get("n", 0)}
        row |= {key: point.get(key, math.nan) for key in ("center", "low", "high")}
        row["runs"] = int(((frame["task"] == task) & (frame["method"] == method)).sum())
        rows.append(
            row | {"tried": plan.candidates(method), "setting": setting, "edge": edge and row["n"] > 0}
        )
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(["task", "rank"], kind="stable").reset_index(drop=True)


def ranks(plan: Plan, frame: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Mean rank by task and method: 1 is best; per seed among the task's methods, no result is last, equals share."""
    signs = frame["task"].map(
        {task: -1.0 if goal.goal == "max" else 1.0 for task, goal in plan.goals.items()}
    )
    scores = (signs * frame["value"]).fillna(np.inf)
    rank = scores.groupby([frame["task"], frame["seed"]]).rank(method="average")
    means = rank.groupby([frame["task"], frame["method"]], sort=False).mean()
    found: dict[Any, float] = means.to_dict()
    return {(str(task), str(method)): mean for (task, method), mean in found.items()}


def overall(plan: Plan, table: pd.DataFrame) -> pd.DataFrame:
    """Per method: mean rank over its tasks, their number, how many settings were tried, what was tuned."""
    grouped = table.groupby("method", as_index=False).agg(rank=("rank", "mean"), tasks=("task", "count"))
    grouped["tried"] = grouped["method"].map(plan.candidates)
    grouped["tuned"] = [
        "; ".join(f"{leaf}: {', '.join(map(_setting, tried))}" for leaf, tried in plan.grids[method].items())
        or "as it is"
        for method in grouped["method"]
    ]
    return grouped.sort_values("rank", kind="stable").reset_index(drop=True)


def _chosen(sweep: Sweep, plan: Plan) -> dict[tuple[str, str], tuple[str, bool]]:
    """The setting each task and method ran with, and whether a number in it is an end of its grid."""
    found = {}
    for cell in sweep.cells.get("compare", []):
        method, task = cell.coordinates["method"], cell.coordinates["task"]
        parts, edge = [], False
        for leaf, tried in plan.grids[method].items():
            value = walk(cell.config, f"method.{leaf}")
            parts.append(f"{leaf}={_setting(value)}")
            edge |= len(tried) > 1 and value in (tried[0], tried[-1])
        found[task, method] = (", ".join(parts), edge)
    return found


def _rows(table: pd.DataFrame, task: str) -> list[dict[str, Any]]:
    return [row | {"interval": interval(row)} for row in _records(table[table["task"] == task])]


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def interval(row: dict[str, Any]) -> str:
    """``0.012 (0.01 to 0.015)``, and how many runs have no value."""
    text = _text(row["center"]) if math.isfinite(row["center"]) else "–"
    if math.isfinite(row["low"]) and math.isfinite(row["high"]):
        text += f" ({_text(row['low'])} to {_text(row['high'])})"
    missing = row["runs"] - row["n"]
    return f"{text}, {missing} of {row['runs']} without" if missing else text


def _setting(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _text(value: Any) -> str:
    return (
        formats.number(value)
        if isinstance(value, float | int) and not isinstance(value, bool)
        else str(value)
    )


def show(table: pd.DataFrame, plan: Plan, folder: Path) -> None:
    """Print the table: a row per method, best mean rank first, a column per task."""
    from rich.console import Console
    from rich.table import Table

    printed = Table(
        title=f"Methods of the kind {plan.kind}: mean rank and {_shown(plan)}", title_justify="left"
    )
    for column in ("method", "mean rank", *(task.partition("/")[2] for task in plan.goals)):
        printed.add_column(column, overflow="fold")
    cells = {(row["task"], row["method"]): interval(row) for row in _records(table)}
    for row in _records(overall(plan, table)):
        few = f" ({row['tasks']} of {len(plan.goals)})" if row["tasks"] < len(plan.goals) else ""
        untuned = "" if row["tried"] > 1 else " (not tuned)"
        name = f"{row['method'].partition('/')[2]}{untuned}"
        printed.add_row(
            name, f"{row['rank']:.2f}{few}", *(cells.get((task, row["method"]), "") for task in plan.goals)
        )
    Console().print(printed)
    print(
        f"{len(table)} cells; {plan.budget} settings tried for each tuned method; table and picture: {folder}"
    )


def _shown(plan: Plan) -> str:
    metrics = {goal.metric for goal in plan.goals.values()}
    return metrics.pop() if len(metrics) == 1 else "each task's metric"
