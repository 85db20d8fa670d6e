"""Expansion: an experiment at a scale becomes a list of cells, each one run's full config.

Order of precedence, later wins: method and task YAML < settings < scale < tuned < grid < command line.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from runners import build, compose, identity, store
from runners.compose import Triple
from runners.errors import ConfigError, nearest
from runners.paper import Paper, fits, grids, tune_rules, values

Config = dict[str, Any]


@dataclass
class Cell:
    """One run of an experiment: its coordinates in the grid and its config."""

    experiment: str
    coordinates: dict[str, Any]
    config: Config
    id: str = ""
    folder: str = ""
    fingerprint: str = ""
    sources: list[dict[str, Any]] = field(default_factory=list)  # settings that apply, with their sources

    def __post_init__(self) -> None:
        self.id = self.id or identity.run_id(self.config)
        self.folder = self.folder or identity.folder(self.config, self.id)

    @property
    def group(self) -> tuple[tuple[str, Any], ...]:
        """Coordinates without the seed."""
        return tuple(
            (key, _hashable(value)) for key, value in sorted(self.coordinates.items()) if key != "seed"
        )


@dataclass
class Overrides:
    """What the command line changes: leaves of every cell, other seeds, a choice of cells."""

    leaves: list[Triple] = field(default_factory=list)
    seeds: list[int] | None = None
    only: dict[str, list[str]] = field(default_factory=dict)  # method/task -> names kept

    @property
    def modified(self) -> bool:
        """Whether results under these overrides are not the paper's experiments any more."""
        return bool(self.leaves or self.only)


class Expander:
    """Expands one paper at one scale."""

    def __init__(
        self, paper: Paper, scale: str, overrides: Overrides | None = None, ranks: int | None = None
    ):
        self.ranks = ranks  # what the launcher gives to tasks that can be distributed
        self.paper = paper
        self.scale = scale
        self.overrides = overrides or Overrides()
        self._used: set[int] = set()
        self._composed: dict[str, tuple[Config, Callable[[int], str] | None]] = {}
        self._repeated: dict[str, tuple[Cell, Callable[[int], str]]] = {}

    @store.uncollected()
    def judged(
        self,
        experiment: str,
        *,
        tuned: dict[tuple[tuple[str, Any], ...], dict[str, Any]] | None = None,
        finished: dict[str, list[Cell]] | None = None,
    ) -> list[Cell]:
        """The cells whose marks the claims use. ``tuned`` maps a cell's group to the winning leaves."""
        spec = self.paper.experiments[experiment]
        cells: dict[str, Cell] = {}
        for coordinates in self._points(experiment, spec, finished or {}):
            winner = tuned.get(_group(coordinates), {}) if tuned else {}
            cell = self._cell(experiment, spec, coordinates, winner)
            cells.setdefault(cell.id, cell)
        return list(cells.values())

    def tuning(self, experiment: str) -> list[tuple[Cell, dict[str, Any], dict[str, Any]]]:
        """(cell, candidate leaves, rule) for every tuning run; empty if nothing is tuned."""
        spec = self.paper.experiments[experiment]
        rules = self._rules(experiment, spec)
        if not rules:
            return []
        found, seen = [], set()
        for coordinates in self._points(experiment, spec, {}):
            group = _group(coordinates)
            if group in seen:
                continue
            seen.add(group)
            rule = next(
                (rule for rule in rules if _applies(rule.get("when"), coordinates)),
                None,
            )
            if rule is None:
                continue
            where = f"{self.paper.place}: experiments.{experiment}.tune"
            axes = {path: values(entry, f"{where}.grid.{path}") for path, entry in rule["grid"].items()}
            for combination in itertools.product(*axes.values()):
                candidate = dict(zip(axes, combination, strict=True))
                for seed in values(rule["seeds"], f"{where}.seeds"):
                    point = coordinates | {"seed": seed}
                    found.append((self._cell(experiment, spec, point, candidate), candidate, rule))
        return found

    def check_overrides(self) -> None:
        """Raise ConfigError for a command-line leaf that no cell of any experiment has."""
        for index, (path, _, _) in enumerate(self.overrides.leaves):
            if index not in self._used:
                known: set[str] = set()
                for name in self.paper.experiments:
                    for cell in self._first_cells(name):
                        known |= set(compose.leaves(cell.config))
                raise ConfigError(f"unknown key '{path}' in every experiment{nearest(path, known)}")

    # ----------------------------------------------------------------------------------------------------------------

    def _first_cells(self, experiment: str) -> Iterable[Cell]:
        saved, self.overrides = self.overrides, Overrides()
        try:
            if not self.paper.experiments[experiment].get("needs"):
                yield from self.judged(experiment)[:50]
        finally:
            self.overrides = saved

    def _scale_entries(self, spec: Config) -> list[Config]:
        entry = (spec.get("scale") or {}).get(self.scale) or {}
        if isinstance(entry, list):
            return list(entry)
        return [{"set": {key: value for key, value in entry.items() if key != "not_run"}}]

    def _rules(self, experiment: str, spec: Config) -> list[Config]:
        rules = [dict(rule) for rule in tune_rules(spec)]
        for entry in self._scale_entries(spec):
            for key, value in entry["set"].items():
                if key == "tune" and value is False:
                    return []
                if key.startswith("tune."):
                    for rule in rules:
                        rule[key.removeprefix("tune.")] = value
        for index, rule in enumerate(rules):
            if rule.get("protocol") != "best_of_grid":
                where = f"{self.paper.place}: experiments.{experiment}.tune[{index}].seeds"
                tuning = set(values(rule["seeds"], where))
                for grid in self._grids(experiment, spec):
                    both = tuning & set(values(grid["seed"], where))
                    if both:
                        raise ConfigError(f"{where}: seeds {sorted(both)} are judged too; tune on others")
        return rules

    def _grids(self, experiment: str, spec: Config) -> list[Config]:
        found = []
        for grid in grids(spec):
            axes = {"seed": 0} | dict(grid)
            for entry in self._scale_entries(spec):
                if "when" not in entry:
                    axes.update({k: v for k, v in entry["set"].items() if k in axes})
            if self.overrides.seeds is not None and "seed" in axes:
                axes["seed"] = list(self.overrides.seeds)
            found.append(axes)
        return found

    def _points(self, experiment: str, spec: Config, finished: dict[str, list[Cell]]) -> Iterable[Config]:
        """Coordinates of every cell."""
        where = f"{self.paper.place}: experiments.{experiment}"
        for axes in self._grids(experiment, spec):
            listed = {key: values(entry, f"{where}.grid.{key}") for key, entry in axes.items()}
            for combination in itertools.product(*listed.values()):
                point = dict(zip(listed, combination, strict=True))
                if not self._kept(point):
                    continue
                yield from self._with_needs(experiment, spec, point, finished)

    def _kept(self, point: Config) -> bool:
        for key, names in self.overrides.only.items():
            own = point[key] if isinstance(point[key], list) else [point[key]]
            if not any(fnmatch.fnmatch(str(name), pattern) for name in own for pattern in names):
                return False
        return True

    def _with_needs(
        self, experiment: str, spec: Config, point: Config, finished: dict[str, list[Cell]]
    ) -> Iterable[Config]:
        choices: list[list[tuple[str, Any]]] = []
        for need, target in (spec.get("needs") or {}).items():
            where = f"{self.paper.place}: experiments.{experiment}.needs.{need}"
            found = _match(target, point, finished, where, chosen=bool(self.overrides.only))
            choices.append([(f"task.{need}", pick) for pick in found])
        for picks in itertools.product(*choices):
            yield point | dict(picks)

    def _cell(self, experiment: str, spec: Config, coordinates: Config, tuned: dict[str, Any]) -> Cell:
        """The cell at a point. Of points that differ in their seed alone, the first ones show how the others are."""
        seed = coordinates["seed"]
        key = repr((experiment, coordinates | {"seed": None}, tuned))
        if type(seed) is int and key in self._repeated:
            like, id_of = self._repeated[key]
            own = id_of(seed)
            folder = like.folder.removesuffix(like.id) + own
            shown, config = like.coordinates | {"seed": seed}, like.config | {"seed": seed}
            return Cell(experiment, shown, config, own, folder, sources=like.sources)
        cell, id_of_seed = self._new_cell(experiment, spec, coordinates, tuned)
        if id_of_seed and not self._seed_matters(spec):
            self._repeated[key] = cell, id_of_seed
        return cell

    def _seed_matters(self, spec: Config) -> bool:
        """Whether a condition asks for the seed, or something other than the grid sets it."""
        settings = spec.get("settings") or []
        paths = {path.lstrip("+") for path, _, _ in self.overrides.leaves}
        paths |= {
            axis for entry in (*settings, *self._scale_entries(spec)) for axis in entry.get("when") or {}
        }
        return "seed" in paths | {path.lstrip("+") for setting in settings for path in setting["set"]}

    def _new_cell(
        self, experiment: str, spec: Config, coordinates: Config, tuned: dict[str, Any]
    ) -> tuple[Cell, Callable[[int], str] | None]:
        """The cell at a point, and the ids of its likes with other seeds where these are known."""
        place = f"{self.paper.place}: experiments.{experiment}"
        sources: list[dict[str, Any]] = []

        def triples(method: str) -> list[Triple]:
            point = coordinates | {"method": method}
            found: list[Triple] = []
            for index, setting in enumerate(spec.get("settings") or []):
                where = f"{place}.settings[{index}]"
                if _applies(setting.get("when"), point):
                    found += [(path, value, where) for path, value in setting["set"].items()]
                    source = {"set": setting["set"], "source": setting["source"]}
                    if source not in sources:
                        sources.append(source)
            for entry in self._scale_entries(spec):
                where = f"{place}.scale.{self.scale}"
                if _applies(entry.get("when"), point):
                    found += [
                        (path, value, where)
                        for path, value in entry["set"].items()
                        if path not in coordinates
                        and path not in ("method", "task", "seed", "tune")
                        and not path.startswith("tune.")
                    ]
            found += [(path, value, f"{place}.tune") for path, value in tuned.items()]
            found += [(k, v, f"{place}.grid") for k, v in coordinates.items() if k not in ("method", "task")]
            for index, (path, value, where) in enumerate(self.overrides.leaves):
                if self._has(method, coordinates["task"], path):
                    self._used.add(index)
                    found.append((path, value, where))
            return found

        config, id_of_seed = self._compose(coordinates, triples, place)
        identifier = id_of_seed(config["seed"]) if id_of_seed else identity.run_id(config)
        shown = {key: _label(value) for key, value in coordinates.items()}
        return Cell(experiment, shown, config, identifier, sources=sources), id_of_seed

    def _compose(
        self, coordinates: Config, triples: Callable[[str], list[Triple]], place: str
    ) -> tuple[Config, Callable[[int], str] | None]:
        """One run's config, and its id by seed if nothing else in it depends on the seed.

        Runs that differ in their seed alone share its parts: no one writes into them.
        """
        method, task = coordinates["method"], coordinates["task"]
        plans = [(name, triples(name)) for name in (method if isinstance(method, list) else [method])]
        leaves = [[leaf[:2] for leaf in plan if leaf[0] != "seed"] for _, plan in plans]
        key = repr((method, task, leaves))
        known, id_of = self._composed.get(key, (None, None))
        if known and id_of:
            config = dict(known)
            for path, value, where in plans[0][1]:
                if path == "seed":
                    compose.set_leaf(config, path, value, where)
            return config, id_of
        config = compose.compose_run(
            method,
            task,
            lambda name: next(plan for n, plan in plans if n == name),
            where=place,
            ranks=self.ranks,
        )
        build.check_pair(config, place)
        # A second seed shows whether the config depends on it anywhere else.
        if known is None:
            self._composed[key] = (config, None)
        elif known["seed"] != config["seed"] and known | {"seed": 0} == config | {"seed": 0}:
            self._composed[key] = (config, identity.id_by_seed(config))
        return config, None

    @staticmethod
    def _has(method: str, task: str, path: str) -> bool:
        if path.startswith("+"):
            return True
        missing = object()
        return compose.walk(compose.base({"method": method, "task": task}).tree, path, missing) is not missing


def _applies(when: Config | None, point: Config) -> bool:
    """Whether a condition holds at a point of the grid (``Paper`` has checked its axes and values)."""
    for axis, wanted in (when or {}).items():
        if axis not in point:
            return False
        patterns = wanted if isinstance(wanted, list) else [wanted]
        own = point[axis] if isinstance(point[axis], list) else [point[axis]]
        if not any(fits(_label(value), pattern) for value in own for pattern in patterns):
            return False
    return True


def _match(
    target: Config, point: Config, cells: dict[str, list[Cell]], where: str, *, chosen: bool
) -> list[Config]:
    """Runs that a ``needs`` entry asks for, as task nodes. ``chosen``: cells were left out on the command line."""
    asked = {key: value for key, value in target.items() if key != "experiment"}
    fan_out = [key for key, value in asked.items() if value == "*" or isinstance(value, list)]
    # The same for all seeds, so that they stay seeds of one cell.
    named = [key for key, value in asked.items() if value != "same" and (key != "seed" or key in fan_out)]
    picks: dict[str, Config] = {}
    for cell in cells.get(target["experiment"], []):
        fit = True
        for key, value in asked.items():
            if key not in cell.coordinates:
                raise ConfigError(
                    f"{where}: {target['experiment']} has no '{key}'{nearest(key, cell.coordinates)}"
                )
            own = cell.coordinates[key]
            if value == "same":
                fit &= own == _label(point.get(key))
            elif isinstance(value, list):
                fit &= own in value
            else:
                fit &= value == "*" or own == value
        if fit:
            label = "/".join(str(cell.coordinates[key]) for key in named) or target["experiment"]
            if label in picks or (picks and not fan_out):
                raise ConfigError(
                    f'{where}: several runs of {target["experiment"]} fit {asked}; name one, or use "*"'
                )
            picks[label] = {"_run_": cell.id, "folder": cell.folder, "_name_": label}
    if cells and not picks and not chosen:
        raise ConfigError(f"{where}: no run of {target['experiment']} fits {asked}")
    return list(picks.values())


def _label(value: Any) -> Any:
    if isinstance(value, dict) and "_name_" in value:
        return value["_name_"]
    return "+".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _group(coordinates: Config) -> tuple[tuple[str, Any], ...]:
    shown = {key: _label(value) for key, value in coordinates.items()}
    return tuple((key, _hashable(value)) for key, value in sorted(shown.items()) if key != "seed")


def choose(
    tuning: list[tuple[Cell, dict[str, Any], dict[str, Any]]], score: Callable[[Cell, dict[str, Any]], float]
) -> tuple[dict[tuple[tuple[str, Any], ...], dict[str, Any]], list[dict[str, Any]]]:
    """Pick each group's winner: best mean score over the tuning seeds, the first one on ties.

    Returns ({group: winning leaves}, table of every candidate with its mean score).
    """
    sums: dict[Any, dict[tuple[Any, ...], list[float]]] = {}
    candidates: dict[Any, dict[tuple[Any, ...], dict[str, Any]]] = {}
    goals: dict[Any, str] = {}
    coordinates: dict[Any, dict[str, Any]] = {}
    for cell, candidate, rule in tuning:
        key = tuple((k, _hashable(v)) for k, v in candidate.items())
        sums.setdefault(cell.group, {}).setdefault(key, []).append(score(cell, rule))
        candidates.setdefault(cell.group, {})[key] = candidate
        goals[cell.group] = rule.get("goal", "min")
        coordinates[cell.group] = {k: v for k, v in cell.coordinates.items() if k != "seed"}
    winners, table = {}, []
    for group, scores in sums.items():
        sign = 1 if goals[group] == "min" else -1
        means = {key: sum(found) / len(found) for key, found in scores.items()}
        best = min(means, key=lambda key: sign * means[key])  # min keeps the first of equals
        winners[group] = candidates[group][best]
        for key, mean in means.items():
            row = coordinates[group] | candidates[group][key]
            table.append(row | {"score": mean, "seeds": len(scores[key]), "chosen": key == best})
    return winners, table
