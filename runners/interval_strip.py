"""Where a number and its interval lie against what is expected: places in percent for a page's strips."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from runners.errors import ConfigError
from runners.expectation import parse_region


def region(expect: Any) -> tuple[float, float] | None:
    """The values that an expectation admits: ``">= 1.5"`` is (1.5, inf); None where it is no range."""
    text = str(expect or "").removeprefix("exact:").removeprefix("population:").strip()
    try:
        found = parse_region("expect", text)
    except ConfigError:
        return None
    return found.low, found.high


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def strip(claim: dict[str, Any]) -> dict[str, Any] | None:
    """Geometry of a claim's strip: one row a cell, the admitted region, and the axis' ends.

    Places are percentages from the left; ``log`` tells the axis. None where there is nothing to place.
    """
    reported = claim.get("reported")
    cells = claim.get("cells") or []
    if len(cells) < 2:
        cells = [
            {"cell": {}, **{key: claim.get(key) for key in ("value", "low", "high", "units", "verdict")}}
        ]
        cells[0]["reported"] = reported
    rows = []
    for cell in cells:
        name = ", ".join(str(part).rsplit("/", 1)[-1] for part in (cell.get("cell") or {}).values())
        told = cell.get("reported")
        if told is None and isinstance(reported, dict):
            told = reported.get(name)
        value = number(cell.get("value"))
        if value is not None:
            ends = {"low": number(cell.get("low")), "high": number(cell.get("high"))}
            rows.append({"name": name, "value": value, "reported": number(told), **ends, "raw": cell})
    if not rows:
        return None
    admitted = region(claim.get("expect"))
    edges = [edge for edge in admitted or () if math.isfinite(edge)]
    core = (
        [row["value"] for row in rows]
        + edges
        + [row["reported"] for row in rows if row["reported"] is not None]
    )
    tails = [row[key] for row in rows for key in ("low", "high") if row[key] is not None]
    every = core + tails
    log = min(every) > 0 and max(core) / min(core) > 12
    forward: Callable[[float], float] = math.log if log else float
    left, right = min(map(forward, core)), max(map(forward, core))
    room = (right - left) or abs(left) * 0.5 or 1.0
    if tails:
        left = max(min(left, *map(forward, tails)), left - 1.5 * room)
        right = min(max(right, *map(forward, tails)), right + 1.5 * room)
    pad = 0.08 * ((right - left) or room)
    left, right = left - pad, right + pad

    def place(value: float | None) -> float | None:
        if value is None:
            return None
        if math.isinf(value) or (log and value <= 0):
            return 100.0 if value > 0 else 0.0
        return round(min(100.0, max(0.0, 100 * (forward(value) - left) / (right - left))), 2)

    for row in rows:
        row["at"] = {key: place(row[key]) for key in ("value", "low", "high", "reported")}
    shade = (place(admitted[0]), place(admitted[1])) if admitted else None
    backward: Callable[[float], float] = math.exp if log else float
    return {"rows": rows, "shade": shade, "edges": [(place(edge), edge) for edge in edges], "log": log} | {
        "ends": (backward(left), backward(right))
    }
