"""What a paper's ``figures:`` may say, checked before anything runs; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runners import build
from runners.errors import ConfigError, nearest

COMMON = (
    *("title", "caption", "experiment", "kind", "where", "scales", "lines", "panels", "labels"),
    *("xscale", "yscale", "xlim", "ylim", "columns", "sharey", "y", "reference"),
)
KEYS = {
    "curves": (*COMMON, "x", "center"),
    "bars": (*COMMON, "x", "center", "unit", "censored"),
    "scatter": (*COMMON, "x", "unit", "diagonal"),
    "profile": (*COMMON, "unit", "instance"),
}
# Keys of a figure function's entry that are the harness's; all others are the function's arguments.
CUSTOM = ("_target_", "title", "caption", "experiment", "where", "scales", "labels")
SCALES = ("linear", "log", "symlog")
CENTERS = ("mean", "geometric mean", "median", "proportion")


def check(figure_id: str, spec: Any, experiments: Iterable[str] | None = None) -> None:
    """Raise `ConfigError` where a figure's entry has an unknown or missing key, kind, scale or centre.

    With ``experiments``, the paper's, also where it names none of them or a function that does not exist.
    """
    at = f"figure {figure_id}"
    if not isinstance(spec, dict):
        raise ConfigError(f"{at}: a mapping is expected, not {spec!r}")
    if experiments is not None:
        one_of(at, "experiment", spec.get("experiment"), experiments)
        if "_target_" in spec:
            build.locate(str(spec["_target_"]), at)
    if "_target_" in spec:
        return
    kind = spec.get("kind", "curves")
    one_of(at, "kind", kind, KEYS)
    for name in spec:
        if name not in KEYS[kind]:
            raise ConfigError(f"{at}: unknown key '{name}' of kind {kind}{nearest(str(name), KEYS[kind])}")
    for name in ("xscale", "yscale"):
        one_of(at, name, spec.get(name, "linear"), SCALES)
    if spec.get("center"):
        one_of(at, "center", spec["center"], CENTERS)
    for name in ("where", "labels", "reference"):
        if not isinstance(spec.get(name) or {}, dict):
            raise ConfigError(f"{at}: {name}: a mapping is expected, not {spec[name]!r}")
    if "y" not in spec:
        raise ConfigError(f"{at}: 'y' is missing (the metric to draw)")
    if kind == "scatter" and "x" not in spec:
        raise ConfigError(f"{at}: 'x' is missing (a scatter needs a column for each axis)")


def one_of(at: str, name: str, value: Any, options: Iterable[str]) -> None:
    """Raise `ConfigError` unless ``value`` is one of ``options``."""
    options = tuple(options)
    if value not in options:
        raise ConfigError(
            f"{at}: {name} '{value}' is none of {', '.join(options)}{nearest(str(value), options)}"
        )


def methods(paper: dict[str, Any]) -> list[str]:
    """Every method of a paper's experiments in their order; colours follow it."""
    found: dict[str, None] = {}

    def collect(value: Any) -> None:
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, list):
                collect(part)
            elif part is not None:
                found.setdefault(str(part))

    for experiment in (paper.get("experiments") or {}).values():
        grids = (experiment or {}).get("grid") or {}
        for grid in grids if isinstance(grids, list) else [grids]:
            collect(grid.get("method"))
    return list(found)
