"""A paper's YAML: read, checked key by key, never guessed at."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any

from runners import places, yamls
from runners.errors import ConfigError, nearest

SCALES = ("smoke", "laptop", "paper")
SOURCES = "Table 5 | official code | dossier | assumed"
_PAPER = ("title", "authors", "venue", "arxiv", "openreview", "code", "extras", "about", "experiments", "claims",
          "findings", "figures", "assumptions")  # fmt: skip
_EXPERIMENT = ("asks", "grid", "settings", "tune", "needs", "scale", "scales")
_TUNE = ("when", "grid", "metric", "goal", "seeds", "censored", "protocol", "source")
_SETTING = ("when", "set", "source")
RANGE = re.compile(r"^range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*(-?\d+)\s*)?\)$")


def slugs() -> tuple[str, ...]:
    """Every paper there is."""
    return places.options("paper")


class Paper:
    """One paper: identity, experiments, claims, findings, figures."""

    def __init__(self, slug: str):
        if slug not in slugs():
            raise ConfigError(f"unknown paper '{slug}'{nearest(slug, slugs())}")
        self.slug = slug
        path = places.option_file("paper", slug)
        assert path is not None
        self.file: Path = path
        self.place = f"conf/paper/{slug}.yaml"
        self.raw: dict[str, Any] = yamls.load(path) or {}
        self._check_keys(self.raw, _PAPER, "")
        for name, experiment in self.experiments.items():
            self._check_experiment(name, experiment)

    @property
    def title(self) -> str:
        """Title as published."""
        return str(self.raw.get("title", self.slug))

    @property
    def extras(self) -> list[str]:
        """Optional dependencies this paper needs."""
        return list(self.raw.get("extras") or [])

    @cached_property
    def experiments(self) -> dict[str, dict[str, Any]]:
        """Experiments by name."""
        return dict(self.raw.get("experiments") or {})

    @property
    def claims(self) -> dict[str, dict[str, Any]]:
        """Claims by id."""
        return dict(self.raw.get("claims") or {})

    @property
    def findings(self) -> dict[str, dict[str, Any]]:
        """Findings by id."""
        return dict(self.raw.get("findings") or {})

    @property
    def figures(self) -> dict[str, dict[str, Any]]:
        """Figures by id."""
        return dict(self.raw.get("figures") or {})

    def not_run(self, experiment: str, scale: str) -> str | None:
        """Why an experiment does not run at a scale, or None if it does."""
        spec = self.experiments[experiment]
        if spec.get("scales") is not None and scale not in spec["scales"]:
            return f"runs at scale {', '.join(spec['scales'])} only"
        settings = (spec.get("scale") or {}).get(scale) or {}
        reason = settings.get("not_run") if isinstance(settings, dict) else None
        return str(reason) if reason else None

    def order(self) -> list[str]:
        """Experiments so that each stands after those it needs."""
        done: list[str] = []
        waiting = dict(self.experiments)
        while waiting:
            ready = [n for n, spec in waiting.items() if all(need in done for need in needed(spec))]
            if not ready:
                raise ConfigError(f"{self.place}: experiments {sorted(waiting)} need each other in a circle")
            done += ready
            for name in ready:
                del waiting[name]
        return done

    def _check_keys(self, node: Any, known: tuple[str, ...], where: str) -> None:
        at = f"{self.place}{': ' + where if where else ''}"
        if not isinstance(node, dict):
            raise ConfigError(f"{at}: expected a mapping, found {node!r}")
        for key in node:
            if key not in known:
                raise ConfigError(f"{at}: unknown key '{key}'{nearest(str(key), known)}")

    def _check_experiment(self, name: str, spec: Any) -> None:
        where = f"experiments.{name}"
        self._check_keys(spec, _EXPERIMENT, where)
        if "grid" not in spec:
            raise ConfigError(f"{self.place}: {where}: no grid")
        for index, grid in enumerate(grids(spec)):
            if not isinstance(grid, dict) or "method" not in grid or "task" not in grid:
                raise ConfigError(
                    f"{self.place}: {where}.grid[{index}]: expected a mapping with method and task"
                )
        for index, setting in enumerate(spec.get("settings") or []):
            self._check_keys(setting, _SETTING, f"{where}.settings[{index}]")
            if not setting.get("source"):
                raise ConfigError(f"{self.place}: {where}.settings[{index}]: no source ({SOURCES})")
        for index, rule in enumerate(tune_rules(spec)):
            self._check_keys(rule, _TUNE, f"{where}.tune[{index}]")
            for key in ("grid", "metric", "seeds"):
                if key not in rule:
                    raise ConfigError(f"{self.place}: {where}.tune[{index}]: no {key}")
            if rule.get("goal", "min") not in ("min", "max"):
                raise ConfigError(
                    f"{self.place}: {where}.tune[{index}].goal: min or max, not {rule['goal']!r}"
                )
        self._check_keys(spec.get("scale") or {}, SCALES, f"{where}.scale")
        for scale in spec.get("scales") or []:
            if scale not in SCALES:
                raise ConfigError(
                    f"{self.place}: {where}.scales: unknown scale '{scale}'{nearest(scale, SCALES)}"
                )
        for need, target in (spec.get("needs") or {}).items():
            at = f"{self.place}: {where}.needs.{need}"
            if not isinstance(target, dict) or "experiment" not in target:
                raise ConfigError(f"{at}: expected a mapping with experiment")
            if target["experiment"] not in self.experiments:
                wanted = str(target["experiment"])
                raise ConfigError(f"{at}: unknown experiment '{wanted}'{nearest(wanted, self.experiments)}")


def grids(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """An experiment's grids (a list is a union)."""
    grid = spec["grid"]
    return list(grid) if isinstance(grid, list) else [grid]


def tune_rules(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """An experiment's tuning rules; the first whose ``when`` fits a cell tunes it."""
    rules = spec.get("tune") or []
    return list(rules) if isinstance(rules, list) else [rules]


def needed(spec: dict[str, Any]) -> list[str]:
    """Experiments that an experiment needs."""
    return [str(target["experiment"]) for target in (spec.get("needs") or {}).values()]


def values(entry: Any, where: str) -> list[Any]:
    """Values of one grid entry: a list, ``range(a, b)``, or a single value. Empty is an error."""
    if isinstance(entry, str) and entry.startswith("range"):
        match = RANGE.match(entry.strip())
        if not match:
            raise ConfigError(f"{where}: '{entry}' is not a range like range(10) or range(100, 105)")
        found: list[Any] = list(range(*(int(part) for part in match.groups() if part is not None)))
    else:
        found = list(entry) if isinstance(entry, list) else [entry]
    if not found:
        raise ConfigError(f"{where}: {entry if entry != [] else 'the list'} is empty")
    return found
