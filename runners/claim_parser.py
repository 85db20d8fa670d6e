"""From an entry of ``claims:`` or ``findings:`` to a `Claim`; every mistake is one line naming its place."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runners.claim_spec import (
    BARE_EXACT,
    CENTERS,
    KEYS,
    RUN_COLUMNS,
    SCALES,
    STATISTICS,
    TWO_SIDED,
    Arm,
    Claim,
    Measure,
    Metric,
    as_list,
    is_run_column,
)
from runners.errors import ConfigError, nearest
from runners.expectation import Expect, Region, parse_region

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")


def one_of(at: str, value: Any, options: Iterable[str], what: str = "value") -> str:
    """Return ``value`` if it is one of ``options``, else raise ConfigError with the nearest."""
    options = tuple(options)
    if value not in options:
        raise ConfigError(
            f"{at}: unknown {what} '{value}'{nearest(str(value), options)} (one of: {', '.join(options)})"
        )
    return str(value)


def parse(claim_id: str, entry: Any) -> Claim:
    """Parse one entry of ``claims:``; raise ConfigError with the claim, the place and the nearest valid name.

    An entry with ``shown`` or ``experiment: null`` needs no statistic. All others need ``statistic``,
    ``set_by`` and ``expect`` (which ``within`` implies).
    """
    at = f"claim {claim_id}"
    entry = _mapping(at, entry)
    for key in entry:
        one_of(at, key, KEYS, "key")
    if not entry.get("says"):
        raise ConfigError(f"{at}: 'says' is missing")
    if "experiment" not in entry and not entry.get("shown"):
        raise ConfigError(
            f"{at}: 'experiment' is missing (null, or `shown: <why>`, if nothing is run for it)"
        )
    judged = not entry.get("shown") and entry.get("experiment") is not None
    if entry.get("set_by") is not None:
        one_of(f"{at}: set_by", entry["set_by"], ("paper", "ours"))
    for scale in as_list(entry.get("scales")):
        one_of(f"{at}: scales", scale, SCALES, "scale")
    if "where" in entry:
        _mapping(f"{at}: where", entry["where"])
    if entry.get("statistic") is None:
        if judged:
            raise ConfigError(f"{at}: 'statistic' is missing (or say `shown: <why it is not judged>`)")
        return Claim(claim_id, entry)
    fields = _statistic(f"{at}: statistic", entry["statistic"])
    name = fields["statistic"]
    center = entry.get("center")
    if center is not None:
        center = one_of(
            f"{at}: center", str(center).removesuffix(" mean"), CENTERS[name], f"centre of {name}"
        )
        if fields.get("axes") == "linear" and center == "geometric":
            raise ConfigError(f"{at}: center: a slope on linear axes has no geometric mean")
    if entry.get("interval") is not None:
        one_of(f"{at}: interval", entry["interval"], ("student_t", "bootstrap_t"))
    if entry.get("paired") not in (None, True, False):
        raise ConfigError(f"{at}: paired: true or false is expected, not {entry['paired']!r}")
    unit = tuple(str(name) for name in as_list(entry.get("unit", "seed")))
    if not unit or sum(not is_run_column(name) for name in unit) > 1:
        raise ConfigError(
            f"{at}: unit: columns and at most one kind of row are expected, not {entry['unit']!r}"
        )
    over = tuple(str(column) for column in as_list(entry.get("over")))
    if all(is_run_column(column) for column in unit):
        for column in over:
            if not is_run_column(column):
                options = (*RUN_COLUMNS, "method.<name>", "task.<name>")
                raise ConfigError(f"{at}: over: unknown column '{column}'{nearest(column, options)}")
    censored, drop = _censored(f"{at}: censored", entry.get("censored"))
    expect = _expect(f"{at}: expect", entry.get("expect"), name, fields)
    if judged:
        for key, value in (("expect", expect), ("set_by", entry.get("set_by"))):
            if value is None:
                raise ConfigError(f"{at}: '{key}' is missing")
    return Claim(
        claim_id,
        entry,
        over=over,
        unit=unit,
        censored=censored,
        drop=drop,
        center=center,
        interval=entry.get("interval"),
        paired=entry.get("paired"),
        expect=expect,
        **fields,
    )


def _statistic(at: str, node: Any) -> dict[str, Any]:
    node = _mapping(at, node)
    if len(node) != 1:
        raise ConfigError(f"{at}: one of {', '.join(STATISTICS)} is expected, not {len(node)} keys")
    name, spec = next(iter(node.items()))
    one_of(at, name, STATISTICS, "statistic")
    at = f"{at}: {name}"
    if isinstance(spec, str) or (isinstance(spec, Mapping) and "_target_" in spec):
        spec = {"metric": spec}
    spec = _mapping(at, spec)
    for key in spec:
        one_of(at, key, STATISTICS[name], "key")
    fields: dict[str, Any] = {"statistic": name}
    for side in ("of_metric", "to_metric"):
        metric = spec.get(side, spec.get("metric"))
        if metric is None and (side == "of_metric" or name in TWO_SIDED):
            raise ConfigError(f"{at}: 'metric' is missing")
        fields[side] = parse_metric(f"{at}: {side if side in spec else 'metric'}", metric) if metric else ""
    fields["of"] = _arms(f"{at}: of", spec["of"]) if "of" in spec else (Arm(),)
    if name in TWO_SIDED:
        if "to" in spec and "of" not in spec:
            raise ConfigError(f"{at}: 'of' is missing")
        if "to" not in spec and fields["of_metric"] == fields["to_metric"]:
            raise ConfigError(f"{at}: 'to' (or 'to_metric') is missing")
        fields["to"] = _arms(f"{at}: to", spec["to"]) if "to" in spec else ()
    elif "to" in spec:
        fields["to"] = _arms(f"{at}: to", spec["to"])
    if name in ("slope", "correlation"):
        if "x" not in spec:
            raise ConfigError(f"{at}: 'x' is missing")
        fields["x"] = parse_metric(f"{at}: x", spec["x"])
        fields["axes"] = one_of(f"{at}: axes", spec.get("axes", "log"), ("log", "linear"))
        fields["kind"] = one_of(f"{at}: kind", spec.get("kind", "spearman"), ("spearman", "pearson"))
        fields["across"] = one_of(f"{at}: across", spec.get("across", "units"), ("units", "levels"))
        if "window" in spec:
            fields |= _window(f"{at}: window", spec["window"])
    if name in ("rank", "win_rate"):
        fields["goal"] = one_of(f"{at}: goal", spec.get("goal"), ("min", "max"))
        fields["ties"] = one_of(f"{at}: ties", spec.get("ties", "half"), ("half", "win", "lose", "drop"))
        fields["tolerance"] = _number(f"{at}: tolerance", spec.get("tolerance", 0.0), least=0.0)
        if "of" not in spec:
            raise ConfigError(f"{at}: 'of' is missing")
        fields["among"] = _arms(f"{at}: among", spec["among"]) if spec.get("among", "all") != "all" else ()
    if name == "within":
        if ("rel" in spec) == ("abs" in spec) or "target" not in spec:
            raise ConfigError(f"{at}: 'target' and one of 'rel' and 'abs' are expected")
        target = spec["target"]
        number = isinstance(target, int | float) and not isinstance(target, bool)
        fields["target"] = float(target) if number else parse_metric(f"{at}: target", target)
        fields["relative"] = "rel" in spec
        key = "rel" if "rel" in spec else "abs"
        fields["tolerated"] = _number(f"{at}: {key}", spec[key], least=0.0)
    return fields


def parse_metric(at: str, node: Any) -> Metric:
    """A column's name, or a measure ``{_target_: dotted.name, **arguments}``."""
    if isinstance(node, str) and node:
        return node
    if isinstance(node, Mapping) and "_target_" in node:
        target = node["_target_"]
        if not isinstance(target, str) or not _DOTTED.match(target):
            raise ConfigError(f"{at}: _target_: the dotted name of a function is expected, not {target!r}")
        return Measure(target, {str(key): value for key, value in node.items() if key != "_target_"})
    raise ConfigError(f"{at}: a column or {{_target_: ...}} is expected, not {node!r}")


def _arms(at: str, node: Any) -> tuple[Arm, ...]:
    arms = tuple(_arm(at, part) for part in as_list(node))
    if not arms:
        raise ConfigError(f"{at}: at least one method is expected")
    return arms


def _arm(at: str, node: Any) -> Arm:
    if isinstance(node, str):
        return Arm((("method", node),))
    node = _mapping(at, node)
    if len(node) == 1 and next(iter(node)) in ("min", "max"):
        best, parts = next(iter(node.items()))
        return Arm(best=best, arms=_arms(f"{at}: {best}", parts))
    for column, value in node.items():
        if isinstance(value, list | Mapping):
            raise ConfigError(f"{at}: {column}: one value is expected, not {value!r}")
    return Arm(tuple((str(column), value) for column, value in node.items()))


def _window(at: str, node: Any) -> dict[str, Any]:
    relative = isinstance(node, Mapping) and set(node) == {"relative"}
    bounds = node["relative"] if relative else node
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        raise ConfigError(f"{at}: [from, to] or {{relative: [from, to]}} is expected, not {node!r}")
    ends = [
        math.inf * sign if end is None else _number(at, end)
        for end, sign in zip(bounds, (-1, 1), strict=True)
    ]
    if not ends[0] < ends[1]:
        raise ConfigError(f"{at}: the range {list(bounds)} is empty")
    return {"window": (ends[0], ends[1]), "window_relative": relative}


def _censored(at: str, node: Any) -> tuple[float | str | None, str | None]:
    drop = None
    if isinstance(node, Mapping):
        for key in node:
            one_of(at, key, ("as", "drop"), "key")
        drop = one_of(f"{at}: drop", node["drop"], ("both", "any")) if "drop" in node else None
        node = node.get("as")
        if node is None and drop != "any":
            raise ConfigError(f"{at}: 'as' is missing")
    if node is None or isinstance(node, str):
        return node, drop
    return _number(at, node), drop


def _expect(at: str, node: Any, statistic: str, fields: Mapping[str, Any]) -> Expect | None:
    mode, text = "interval", node
    if isinstance(node, Mapping):
        if len(node) != 1:
            raise ConfigError(f"{at}: {{exact: ...}} or {{population: ...}} is expected, not {node!r}")
        mode, text = next(iter(node.items()))
        one_of(at, mode, ("exact", "population"))
    elif node in ("exact", "population"):
        mode, text = str(node), None
    if statistic == "within":
        if text is not None:
            raise ConfigError(
                f"{at}: `within` states its own range: say nothing, exact or population, not {node!r}"
            )
        return Expect(mode, _tolerance(fields["target"], fields["relative"], fields["tolerated"]))
    if node is None:
        return None
    if text is None:
        if mode == "population" or statistic not in BARE_EXACT:
            raise ConfigError(f'{at}: {mode} of {statistic} needs a range: {{{mode}: ">= a"}}')
        return Expect(mode, Region(BARE_EXACT[statistic], BARE_EXACT[statistic]))
    return Expect(mode, parse_region(at, text, points=mode != "interval"))


def _tolerance(target: Any, relative: bool, tolerated: float) -> Region:
    """Range of the metric itself (target a number), of metric / target, or of metric - target."""
    if isinstance(target, float):
        half = abs(target) * tolerated if relative else tolerated
        return Region(target - half, target + half)
    return Region(1 - tolerated, 1 + tolerated) if relative else Region(-tolerated, tolerated)


def _mapping(at: str, node: Any) -> Mapping[str, Any]:
    if not isinstance(node, Mapping) or not node:
        raise ConfigError(f"{at}: a mapping is expected, not {node!r}")
    return node


def _number(at: str, node: Any, least: float = -math.inf) -> float:
    if isinstance(node, bool) or not isinstance(node, int | float) or math.isnan(node) or node < least:
        bound = f" of at least {least:g}" if least > -math.inf else ""
        raise ConfigError(f"{at}: a number{bound} is expected, not {node!r}")
    return float(node)
