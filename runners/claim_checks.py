"""Checks of a paper's claims against its experiments, made before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runners.claim_parser import one_of, parse
from runners.claim_spec import Arm, Claim, Measure, as_list, is_run_column
from runners.errors import ConfigError, nearest


def validate(claims: Mapping[str, Any], experiments: Mapping[str, Any]) -> None:
    """Check claims (or findings) as far as the YAML allows, before any run; raise ConfigError at the first mistake.

    Checked: keys, statistic, expectation, the experiment's name, methods and tasks that the experiment's grid
    does not have, cells of ``reported``, and that measures exist and take their arguments (this imports them).
    Columns that only runs create are checked by `runners.claims.judge`.
    """
    for claim_id, entry in (claims or {}).items():
        claim = parse(str(claim_id), entry)
        name = entry.get("experiment")
        if name is None:
            continue
        one_of(f"{claim.at}: experiment", name, experiments, "experiment")
        experiment = experiments[name] or {}
        known = {column: set(_grid_values(experiment, column)) for column in ("method", "task")}
        for place, column, value in _named(claim):
            if column in known and isinstance(value, str) and not _known(value, known[column]):
                hint = nearest(value, known[column])
                raise ConfigError(
                    f"{claim.at}: {place}: {column} '{value}' is not in experiment '{name}'{hint}"
                )
        _check_reported(claim, known)
        for metric in (claim.of_metric, claim.to_metric, claim.x, claim.target):
            if isinstance(metric, Measure):
                from runners.claim_units import load

                load(claim.at, metric)


def named_columns(claims: Mapping[str, Any]) -> list[str]:
    """Config leaves (``task.steps``) that claims name: frames need them as columns even where they never vary.

    A short name (``censored: steps``) may mean a leaf of the task or of the method: both are listed.
    """
    found: dict[str, None] = {}
    for claim_id, entry in (claims or {}).items():
        claim = parse(str(claim_id), entry)
        names: list[Any] = [*claim.over, *claim.unit, *(column for _, column, _ in _named(claim))]
        names += [claim.of_metric, claim.to_metric, claim.x, claim.target]
        for name in names:
            if isinstance(name, str) and "." in name and is_run_column(name):
                found[name] = None
        if isinstance(claim.censored, str):
            short = [f"task.{claim.censored}", f"method.{claim.censored}"]
            found |= dict.fromkeys([claim.censored] if is_run_column(claim.censored) else short)
    return list(found)


def _grid_values(experiment: Mapping[str, Any], column: str) -> Iterator[str]:
    """All names that a grid, or a scale's replacement of it, gives a column; "*" where it is not a literal."""
    for grid in as_list(experiment.get("grid")):
        if isinstance(grid, Mapping) and column in grid:
            yield from _names(grid[column])
    for scale in (experiment.get("scale") or {}).values():
        for part in as_list(scale):
            values = part.get("set", part) if isinstance(part, Mapping) else {}
            if isinstance(values, Mapping) and column in values:
                yield from _names(values[column])


def _names(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):  # a panel's factories by name
        yield from (str(key) for key in node)
        node = list(node.values())
    if isinstance(node, list | tuple):
        for part in node:
            yield from _names(part)
    else:
        yield "*" if any(mark in str(node) for mark in "*?($") else str(node)


def _known(value: str, names: set[str]) -> bool:
    # Without names the column is set elsewhere, by a default say: nothing to check against.
    if not names or "*" in names or value in names:
        return True
    return "/" not in value and value in {name.rpartition("/")[2] for name in names}


def _named(claim: Claim) -> Iterator[tuple[str, str, Any]]:
    """(place, column, value) for every value that the claim names literally."""
    for place, arms in (("of", claim.of), ("to", claim.to), ("among", claim.among)):
        for column, value in _pairs(arms):
            yield f"statistic: {claim.statistic}: {place}", column, value
    for column, value in (claim.entry.get("where") or {}).items():
        for part in as_list(value):
            yield "where", str(column), part


def _pairs(arms: Iterable[Arm]) -> Iterator[tuple[str, Any]]:
    for arm in arms:
        for leaf in arm.leaves():
            yield from leaf.where


def _check_reported(claim: Claim, known: Mapping[str, set[str]]) -> None:
    """Where all cells are known names, ``reported`` may name no other."""
    reported = claim.entry.get("reported")
    columns = [column for column in claim.over if known.get(column)]
    if not isinstance(reported, Mapping) or len(columns) != len(claim.over):
        return
    names = {name for column in columns for name in known[column]}
    for arms in (claim.of, claim.to):
        if len(arms) > 1:
            names |= {str(arm) for arm in arms}
    if "*" in names:
        return
    for key in _keys(reported):
        if not _known(str(key), names):
            raise ConfigError(f"{claim.at}: reported: no cell is called '{key}'{nearest(str(key), names)}")


def _keys(node: Any) -> Iterator[Any]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield key
            yield from _keys(value)
