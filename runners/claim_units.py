"""From an experiment's frames to the units of a claim: which rows an arm has, what each unit's metric is."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from runners.claim_spec import Arm, Claim, Measure, Metric, as_list, is_run_column
from runners.errors import ConfigError, nearest

Curves = Callable[[str], pd.DataFrame]
Rows = Callable[[str], pd.DataFrame]
RESULTS = ("done", "diverged")


class Units:
    """The runs and rows that a claim is about.

    ``frame`` has one row a run (``id``, ``status``, config columns, summary values). ``rows(unit)`` has one row
    a replicate (``id``, config columns, ``i``, the row's values), ``curves(id)`` a run's metrics. Raises
    ConfigError where the claim names a column, measure or kind of row that does not exist.
    """

    def __init__(self, claim: Claim, frame: pd.DataFrame, rows: Rows | None, curves: Curves | None) -> None:
        self.claim = claim
        self._curves = curves
        self._cache: dict[tuple[str, str], float] = {}
        self.runs = frame.copy()
        if "status" not in self.runs:
            self.runs["status"] = "done"
        self.any_done = bool((self.runs["status"] == "done").any())
        unit = claim.rows_unit
        if unit is None:
            self.data = self.runs
        else:
            if rows is None:
                raise ConfigError(f"{claim.at}: unit '{unit}': this experiment records no rows")
            self.data = rows(unit).copy()
            if self.any_done and not len(self.data):
                raise ConfigError(f"{claim.at}: unit: no run records rows of '{unit}'")
        for column, value in (claim.entry.get("where") or {}).items():
            self._check(column, "where")
            allowed = as_list(value) if value is not None else [None]
            if column in self.runs:
                self.runs = self.runs[_Selector(self.runs, panels=unit is not None).any_of(column, allowed)]
            if unit is None:
                self.data = self.runs
            elif column in self.data:
                self.data = self.data[_Selector(self.data).any_of(column, allowed)]
        self._status: dict[str, str] = {}
        if len(self.runs):
            self._status = dict(zip(map(str, self.runs["id"]), self.runs["status"], strict=True))
        if unit is not None and len(self.data):
            self.data = self.data[[str(run) in self._status for run in self.data["id"]]]
        self.data = self.data.reset_index(drop=True)
        self.keys = self._key_columns(unit)
        ids = list(map(str, self.data["id"])) if len(self.data) else []
        self.data = self.data.assign(
            _lost=[self._status.get(run) not in RESULTS for run in ids],
            _unit=self.data.groupby(self.keys, dropna=False, sort=False).ngroup() if len(self.data) else 0,
        )
        self._recorded = set(ids)

        self._in_data, self._in_runs = _Selector(self.data), _Selector(self.runs, panels=unit is not None)

    def _key_columns(self, unit: str | None) -> list[str]:
        keys = [name for name in self.claim.unit if is_run_column(name)]
        if unit is not None:
            identity = [unit] if unit in self.data else ["seed", "i"]
            keys += [name for name in identity if name not in keys]
        for name in keys:
            self._check(name, "unit", (self.data,))
        return keys

    def _check(self, column: str, place: str, tables: Sequence[pd.DataFrame] | None = None) -> None:
        tables = tables or (self.runs, self.data)
        if any(column in table for table in tables) or not all(len(table) for table in tables):
            return
        options = [str(name) for table in tables for name in table if not str(name).startswith("_")]
        raise ConfigError(f"{self.claim.at}: {place}: unknown column '{column}'{nearest(column, options)}")

    def cells(self, arms: Iterable[Arm]) -> list[dict[str, Any]]:
        """The cells of ``over`` in which any of the arms has runs, in order of appearance."""
        if not self.claim.over:
            return [{}]
        for column in self.claim.over:
            self._check(column, "over")
        source = self.data if len(self.data) and set(self.claim.over) <= set(self.data) else self.runs
        if not set(self.claim.over) <= set(source):
            return []
        select = self._in_data if source is self.data else self._in_runs
        masks = [select.all_of(dict(leaf.where)) for arm in arms for leaf in arm.leaves()]
        kept = source[np.logical_or.reduce(masks)] if masks else source
        cells = kept[list(self.claim.over)].drop_duplicates()
        return [{str(k): plain(v) for k, v in row.items()} for row in cells.to_dict("records")]

    def methods(self, cell: Mapping[str, Any]) -> tuple[Arm, ...]:
        """One arm per method that the cell has."""
        table = self.data[self._in_data.all_of(cell)]
        return tuple(Arm((("method", name),)) for name in dict.fromkeys(table.get("method", [])))

    def account(self, cell: Mapping[str, Any], arms: Iterable[Arm]) -> tuple[list[str], list[str]]:
        """What keeps the arms' runs in this cell from being a complete result; and what else to tell of them."""
        runs = self.involved([cell], arms)
        lost = runs["status"][~runs["status"].isin(RESULTS)]
        problems = [
            f"{count} of {len(runs)} runs {'timed out' if status == 'timeout' else status}"
            for status, count in lost.value_counts().items()
        ]
        unit = self.claim.rows_unit
        if unit is not None:
            silent = runs["status"].isin(RESULTS) & ~runs["id"].astype(str).isin(self._recorded)
            for status, count in runs["status"][silent].value_counts().items():
                problems.append(f"{count} of {len(runs)} runs ({status}) recorded no rows of '{unit}'")
        diverged = int((runs["status"] == "diverged").sum())
        return problems, [f"{diverged} of {len(runs)} runs diverged"] if diverged else []

    def involved(self, cells: Iterable[Mapping[str, Any]], arms: Iterable[Arm]) -> pd.DataFrame:
        """``id`` and ``status`` of the runs behind these cells and arms. A panel's run is each of its methods'."""
        chosen = np.zeros(len(self.runs), dtype=bool)
        leaves = [leaf for arm in arms for leaf in arm.leaves()]
        for cell in cells:
            for leaf in leaves:
                # Rows may split a run further than its config does: such columns do not select runs.
                known = {key: value for key, value in (*cell.items(), *leaf.where) if key in self.runs}
                mask = self._in_runs.all_of(known)
                if not mask.any() and self.claim.rows_unit is not None and "method" in known:
                    mask = self._in_runs.all_of({key: known[key] for key in known if key != "method"})
                chosen |= mask
        return self.runs.reindex(columns=["id", "status"])[chosen]

    def take(
        self, cell: Mapping[str, Any], arm: Arm, metric: Metric, x: Metric | None = None, censor: bool = True
    ) -> pd.DataFrame:
        """One row per unit (and value of ``x``) of an arm: ``unit, value, never, lost`` (and ``x``).

        ``never``: the metric is missing; ``value`` is then what ``censored`` says, or NaN (also without
        ``censor``). ``lost``: the run came to no result. ``attrs["boolean"]``: every present value is a truth value.
        """
        if arm.best:
            return self._best(arm, [self.take(cell, part, metric, x, censor) for part in arm.arms])
        for column, _ in arm.where:
            self._check(column, "of/to", (self.data,))
        table = self.data[self._in_data.all_of({**cell, **dict(arm.where)})]
        by = ["_unit"]
        if x is not None:
            table = table.assign(_x=self._values(table, x, "x")[0])
            by.append("_x")
        if isinstance(metric, Measure) and self.claim.rows_unit is not None:
            table, values, boolean = self._measured(table, by, metric)
        else:
            values, boolean = self._values(table, metric, "metric")
        out = pd.DataFrame(
            {"unit": table["_unit"].to_numpy(), "value": values, "lost": table["_lost"].to_numpy(dtype=bool)}
        )
        if x is not None:
            out["x"] = table["_x"].to_numpy(dtype=float)
        self._distinct(table, by)
        out["never"] = np.isnan(values) & ~out["lost"].to_numpy()
        if censor and out["never"].any() and self.claim.censored is not None:
            fill = self._censored(table)
            out["value"] = np.where(out["never"], fill, out["value"])
        out.loc[out["lost"], "value"] = np.nan
        out.attrs["boolean"] = boolean
        return out

    def _best(self, arm: Arm, tables: list[pd.DataFrame]) -> pd.DataFrame:
        on = ["unit", *(["x"] if "x" in tables[0] else [])]
        stacked = pd.concat(tables)
        filled = stacked.groupby(on, sort=False)
        # A unit that one of the arms lacks has no best: it stays, without a value.
        complete = (filled["value"].count() == len(tables)).to_numpy()
        best = filled["value"].agg(arm.best).where(complete).rename("value").reset_index()
        best["lost"] = filled["lost"].any().to_numpy()
        best["never"] = filled["never"].all().to_numpy()
        best.attrs["boolean"] = all(table.attrs["boolean"] for table in tables)
        return best

    def _distinct(self, table: pd.DataFrame, by: list[str]) -> None:
        twice = table[table.duplicated(by, keep=False)]
        if not len(twice):
            return
        group = next(iter(twice.groupby(by, dropna=False, sort=False)))[1]
        columns = [
            str(name) for name in group if is_run_column(str(name)) and group[name].astype(str).nunique() > 1
        ]
        unit = ", ".join(f"{name}={group[name].iloc[0]}" for name in self.keys)
        why = f"they differ in {', '.join(columns)}" if columns else "nothing tells them apart"
        raise ConfigError(
            f"{self.claim.at}: unit ({unit}) has {len(group)} values where one is expected: {why}; "
            "name what tells units apart in of/to, over, where or unit"
        )

    def _values(self, table: pd.DataFrame, metric: Metric, place: str) -> tuple[np.ndarray, bool]:
        if isinstance(metric, Measure):
            if self.claim.rows_unit is not None:
                raise ConfigError(
                    f"{self.claim.at}: {place}: a measure of rows cannot be an x: name a column"
                )
            pairs = zip(table["id"].astype(str), table["_lost"], strict=True)
            measured = [math.nan if lost else self._on_curve(metric, run) for run, lost in pairs]
            return np.array(measured, dtype=float), False
        if metric not in table:
            if self.any_done and len(table):
                options = [str(name) for name in table if not str(name).startswith("_")]
                raise ConfigError(
                    f"{self.claim.at}: {place}: unknown column '{metric}'{nearest(metric, options)}"
                )
            return np.full(len(table), math.nan), False
        cells = [None if value is None or value is pd.NA else value for value in table[metric]]
        try:
            values = np.array([math.nan if value is None else float(value) for value in cells], dtype=float)
        except (TypeError, ValueError):
            raise ConfigError(f"{self.claim.at}: {place}: column '{metric}' does not hold numbers") from None
        present = [value for value, number in zip(cells, values, strict=True) if not math.isnan(number)]
        return values, bool(present) and all(isinstance(value, bool | np.bool_) for value in present)

    def _measured(
        self, table: pd.DataFrame, by: list[str], measure: Measure
    ) -> tuple[pd.DataFrame, np.ndarray, bool]:
        function = load(self.claim.at, measure)
        firsts, values = [], []
        for _, group in table.groupby(by, sort=False):
            firsts.append(group.index[0])
            shown = group.drop(columns=[name for name in group if str(name).startswith("_")])
            lost = bool(group["_lost"].any())
            values.append(
                math.nan if lost else self._call(function, measure, shown, str(group["id"].iloc[0]))
            )
        return table.loc[firsts], np.array(values, dtype=float), False

    def _on_curve(self, measure: Measure, run: str) -> float:
        key = (f"{measure.target} {dict(measure.args)}", run)
        if key not in self._cache:
            if self._curves is None:
                raise ConfigError(f"{self.claim.at}: metric '{measure}' needs the runs' curves")
            curve = self._curves(run)
            curve.attrs["status"] = self._status[run]  # a diverged run's curve ends early
            function = load(self.claim.at, measure)
            # A run may diverge before its first line: then there is nothing to measure.
            self._cache[key] = self._call(function, measure, curve, run) if len(curve) else math.nan
        return self._cache[key]

    def _call(self, function: Callable[..., Any], measure: Measure, frame: pd.DataFrame, run: str) -> float:
        try:
            value = function(frame, **measure.args)
            return math.nan if value is None else float(value)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self.claim.at}: metric '{measure}' fails on run {run}: {what}") from error

    def _censored(self, table: pd.DataFrame) -> np.ndarray:
        censored = self.claim.censored
        if not isinstance(censored, str):
            return np.full(len(table), censored, dtype=float)
        names = [str(name) for name in table if not str(name).startswith("_") and table[name].notna().any()]
        hits = [censored] if censored in names else [name for name in names if name.endswith(f".{censored}")]
        if len(hits) != 1:
            hint = f" (one of: {', '.join(hits)})" if hits else nearest(censored, names)
            raise ConfigError(f"{self.claim.at}: censored: unknown column '{censored}'{hint}")
        return self._values(table, hits[0], "censored")[0]


def load(at: str, measure: Measure) -> Callable[..., Any]:
    """Import a measure and check its arguments; raise ConfigError if either fails."""
    module, _, name = measure.target.rpartition(".")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{at}: metric: '{module}' cannot be imported: {error}") from error
    function = getattr(found, name, None)
    if not callable(function):
        options = [key for key, value in vars(found).items() if callable(value)]
        raise ConfigError(f"{at}: metric: '{module}' has no function '{name}'{nearest(name, options)}")
    try:
        signature = inspect.signature(function)
        signature.bind(None, **measure.args)
    except TypeError as error:
        wrong = next((key for key in measure.args if key not in signature.parameters), "")
        hint = nearest(wrong, signature.parameters) if wrong else ""
        raise ConfigError(f"{at}: metric: {measure.target}: {error}{hint}") from None
    return function


def matches(value: Any, wanted: Any) -> bool:
    """Whether a column's value is the one a YAML names: numbers by value, ``levy`` as ``zeroth_order/levy``."""
    if isinstance(value, str) and isinstance(wanted, str):
        if ("/" in value) != ("/" in wanted):
            return value.rpartition("/")[2] == wanted.rpartition("/")[2]
        return value == wanted
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return wanted is None
    value = plain(value)
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return math.isclose(value, wanted)
    return bool(value == wanted)


def plain(value: Any) -> Any:
    """A column's value as JSON holds it."""
    return value.item() if isinstance(value, np.generic) else value


class _Selector:
    """Masks of a frame's rows by column values; distinct values are compared once, masks are kept.

    ``panels``: the run of several methods is selected by each. That is for the account of runs only: values that
    belong to one method of a panel stand in its rows.
    """

    def __init__(self, table: pd.DataFrame, panels: bool = False) -> None:
        self._table = table
        self._panels = panels
        self._codes: dict[str, tuple[np.ndarray, list[Any]]] = {}
        self._masks: dict[tuple[str, str], np.ndarray] = {}

    def all_of(self, wanted: Mapping[str, Any]) -> np.ndarray:
        """Rows in which every column has its wanted value; none where a column does not exist."""
        mask = np.ones(len(self._table), dtype=bool)
        for column, value in wanted.items():
            if column not in self._table:
                return np.zeros(len(self._table), dtype=bool)
            mask &= self.any_of(column, [value])
        return mask

    def any_of(self, column: str, wanted: list[Any]) -> np.ndarray:
        """Rows in which the column has one of the wanted values."""
        key = (column, repr(wanted))
        if key not in self._masks:
            if column not in self._codes:
                values = list(self._table[column])
                codes, _ = pd.factorize(np.array([repr(value) for value in values], dtype=object))
                firsts = np.unique(codes, return_index=True)[1]
                self._codes[column] = codes, [values[first] for first in firsts]
            codes, distinct = self._codes[column]
            split = self._panels and column == "method"
            hits = [
                any(
                    matches(part, option)
                    for part in (str(value).split("+") if split else [value])
                    for option in wanted
                )
                for value in distinct
            ]
            self._masks[key] = np.array(hits, dtype=bool)[codes]
        return self._masks[key]
