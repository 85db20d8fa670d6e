"""A paper's YAML: read, checked key by key, never guessed at."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from runners import places, yamls
from runners.compose import check_option
from runners.errors import ConfigError, nearest

SCALES = ("smoke", "laptop", "paper")
SOURCES = "Table 5 | official code | derived | assumed"
_PAPER = ("title", "authors", "venue", "arxiv", "openreview", "code", "extras", "about", "experiments", "claims",
          "findings", "figures", "assumptions")  # fmt: skip
_EXPERIMENT = ("asks", "grid", "settings", "tune", "needs", "scale", "scales")
TUNE = ("when", "grid", "metric", "goal", "seeds", "censored", "protocol", "source")
_SETTING = ("when", "set", "source")
RANGE = re.compile(r"^range\(\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?(?:,\s*(-?\d+)\s*)?\)$")


def slugs() -> tuple[str, ...]:
    """Every paper there is."""
    return places.options("paper")


def _load(slug: str) -> dict[str, Any]:
    if slug not in slugs():
        raise ConfigError(f"unknown paper '{slug}'{nearest(slug, slugs())}")
    path = places.option_file("paper", slug)
    assert path is not None
    return yamls.load(path) or {}


class Paper:
    """One paper: identity, experiments, claims, findings, figures."""

    def __init__(self, slug: str, raw: dict[str, Any] | None = None):
        """``raw``: what stands in ``conf/paper/<slug>.yaml`` (default: what does)."""
        self.slug = slug
        self.place = f"conf/paper/{slug}.yaml" if raw is None else slug
        self.raw: dict[str, Any] = _load(slug) if raw is None else raw
        self._check_keys(self.raw, _PAPER, "")
        for key in ("experiments", "claims", "findings", "figures", "code"):
            self._mapping(self.raw.get(key) or {}, key)
        for name in set(self.claims) & set(self.findings):
            raise ConfigError(f"{self.place}: findings.{name}: a claim has this name already")
        if not isinstance(self.raw.get("extras") or [], list):
            raise ConfigError(f"{self.place}: extras: expected a list, found {self.raw['extras']!r}")
        if not self.experiments:
            raise ConfigError(f"{self.place}: no experiments")
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

    def _mapping(self, node: Any, where: str) -> dict[str, Any]:
        if not isinstance(node, dict):
            raise ConfigError(
                f"{self.place}{': ' + where if where else ''}: expected a mapping, found {node!r}"
            )
        return node

    def _check_keys(self, node: Any, known: Iterable[str], where: str) -> None:
        known = tuple(known)
        for key in self._mapping(node, where):
            if key not in known:
                at = f"{self.place}{': ' + where if where else ''}"
                raise ConfigError(f"{at}: unknown key '{key}'{nearest(str(key), known)}")

    def _check_experiment(self, name: str, spec: Any) -> None:
        where = f"experiments.{name}"
        self._check_keys(spec, _EXPERIMENT, where)
        if "grid" not in spec:
            raise ConfigError(f"{self.place}: {where}: no grid")
        if not grids(spec):
            raise ConfigError(f"{self.place}: {where}.grid: the list is empty")
        for index, grid in enumerate(grids(spec)):
            if not isinstance(grid, dict) or "method" not in grid or "task" not in grid:
                raise ConfigError(
                    f"{self.place}: {where}.grid[{index}]: expected a mapping with method and task"
                )
        for need, target in self._mapping(spec.get("needs") or {}, f"{where}.needs").items():
            at = f"{self.place}: {where}.needs.{need}"
            if not isinstance(target, dict) or "experiment" not in target:
                raise ConfigError(f"{at}: expected a mapping with experiment")
            if target["experiment"] not in self.experiments:
                wanted = str(target["experiment"])
                raise ConfigError(f"{at}: unknown experiment '{wanted}'{nearest(wanted, self.experiments)}")
        axes = self._check_scales(where, spec)
        if not isinstance(spec.get("settings") or [], list):
            raise ConfigError(f"{self.place}: {where}.settings: expected a list, found {spec['settings']!r}")
        for index, setting in enumerate(spec.get("settings") or []):
            at = f"{where}.settings[{index}]"
            self._check_keys(setting, _SETTING, at)
            if not setting.get("source"):
                raise ConfigError(f"{self.place}: {at}: no source ({SOURCES})")
            self._mapping(setting.get("set"), f"{at}.set")
            self._check_when(setting.get("when"), f"{at}.when", axes)
        self._check_tune(where, spec, axes)

    def _check_tune(self, where: str, spec: dict[str, Any], axes: dict[str, list[Any] | None]) -> None:
        if spec.get("tune") and spec.get("needs"):
            raise ConfigError(
                f"{self.place}: {where}: tune does not go with needs: tune the needed experiment"
            )
        if not isinstance(spec.get("tune") or [], dict | list):
            raise ConfigError(f"{self.place}: {where}.tune: expected a mapping, found {spec['tune']!r}")
        for index, rule in enumerate(tune_rules(spec)):
            at = f"{where}.tune[{index}]"
            self._check_keys(rule, TUNE, at)
            for key in ("grid", "metric", "seeds"):
                if key not in rule:
                    raise ConfigError(f"{self.place}: {at}: no {key}")
            for path, entry in self._mapping(rule["grid"], f"{at}.grid").items():
                values(entry, f"{self.place}: {at}.grid.{path}")
                if path in axes:
                    raise ConfigError(
                        f"{self.place}: {at}.grid: '{path}' is an axis of the grid: tune others"
                    )
            values(rule["seeds"], f"{self.place}: {at}.seeds")
            for key, known in (("goal", ("min", "max")), ("protocol", (None, "best_of_grid"))):
                if rule.get(key, known[0]) not in known:
                    choices = " or ".join(str(name) for name in known if name)
                    raise ConfigError(f"{self.place}: {at}.{key}: {choices}, not {rule[key]!r}")
            self._check_when(rule.get("when"), f"{at}.when", axes)

    def _check_scales(self, where: str, spec: dict[str, Any]) -> dict[str, list[Any] | None]:
        """Check what each scale sets; returns every value that each axis has at any scale (None: not known yet)."""
        axes: dict[str, list[Any] | None] = {f"task.{need}": None for need in spec.get("needs") or {}}
        listed: dict[str, list[Any]] = {}
        for index, grid in enumerate(grids(spec)):
            for axis, entry in grid.items():
                at = f"{where}.grid.{axis}" if len(grids(spec)) == 1 else f"{where}.grid[{index}].{axis}"
                found = values(entry, f"{self.place}: {at}")
                for name in [
                    part for value in found for part in (value if isinstance(value, list) else [value])
                ]:
                    if axis in ("method", "task"):
                        check_option(axis, name, f"{self.place}: {at}")
                listed.setdefault(axis, []).extend(found)
        self._check_keys(spec.get("scale") or {}, SCALES, f"{where}.scale")
        for scale in spec.get("scales") or []:
            if scale not in SCALES:
                raise ConfigError(
                    f"{self.place}: {where}.scales: unknown scale '{scale}'{nearest(str(scale), SCALES)}"
                )
        for scale, entry in (spec.get("scale") or {}).items():
            at = f"{where}.scale.{scale}"
            if not isinstance(entry, list):
                changes = self._mapping(entry or {}, at)
                for key in set(changes) & set(listed):
                    listed[key].extend(values(changes[key], f"{self.place}: {at}.{key}"))
                self._check_tune_keys(changes, at)
        axes |= listed
        for scale, entry in (spec.get("scale") or {}).items():
            for index, part in enumerate(entry if isinstance(entry, list) else []):
                at = f"{where}.scale.{scale}[{index}]"
                self._check_keys(part, ("when", "set"), at)
                changes = self._mapping(part.get("set"), f"{at}.set")
                self._check_tune_keys(changes, f"{at}.set")
                for key in changes:
                    if str(key).partition(".")[0] == "tune" and part.get("when"):
                        raise ConfigError(f"{self.place}: {at}.set: '{key}' has no when of its own")
                    if key in listed and part.get("when"):
                        raise ConfigError(
                            f"{self.place}: {at}.set: '{key}' is an axis of the grid: no when there"
                        )
                self._check_when(part.get("when"), f"{at}.when", axes)
        return axes

    def _check_tune_keys(self, changes: dict[str, Any], where: str) -> None:
        known = [f"tune.{key}" for key in TUNE]
        if changes.get("tune", False) is not False:
            raise ConfigError(f"{self.place}: {where}.tune: false (not tuned), or tune.seeds, tune.grid, ...")
        for key in changes:
            if str(key).startswith("tune.") and key not in known:
                raise ConfigError(f"{self.place}: {where}: unknown key '{key}'{nearest(key, known)}")

    def _check_when(self, when: Any, where: str, axes: dict[str, list[Any] | None]) -> None:
        """A condition must name axes of the grid and fit at least one of their values, at some scale."""
        for axis, wanted in self._mapping({} if when is None else when, where).items():
            at = f"{self.place}: {where}"
            if axis not in axes:
                raise ConfigError(f"{at}: '{axis}' is no axis of the grid{nearest(str(axis), axes)}")
            known = axes[axis]
            if known is None:
                continue
            own = [part for value in known for part in (value if isinstance(value, list) else [value])]
            for pattern in wanted if isinstance(wanted, list) else [wanted]:
                if not any(fits(value, pattern) for value in own):
                    raise ConfigError(
                        f"{at}: {axis}={pattern} fits no value of the grid{nearest(str(pattern), map(str, own))}"
                    )


def fits(value: Any, pattern: Any) -> bool:
    """Whether a value is what a condition names; texts may be patterns like ``zeroth_order/*``."""
    if isinstance(value, str) and isinstance(pattern, str):
        return fnmatch.fnmatchcase(value, pattern)
    return bool(value == pattern)


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
    if isinstance(entry, str) and entry.startswith("range("):
        match = RANGE.match(entry.strip())
        if not match or (match[3] and int(match[3]) == 0):
            raise ConfigError(f"{where}: '{entry}' is not a range like range(10) or range(100, 105)")
        found: list[Any] = list(range(*(int(part) for part in match.groups() if part is not None)))
    else:
        found = list(entry) if isinstance(entry, list) else [entry]
    if not found:
        raise ConfigError(f"{where}: {entry if entry != [] else 'the list'} is empty")
    return found
