"""The verdict on a claim: its statistic's 95% interval held against what the paper says.

Interval inside the expectation: ``reproduced``; outside: ``contradicted``; straddling, too few units, or any run
without a result: ``inconclusive``. A claim over cells takes the worst verdict of its cells. The grammar stands in
`runners.claim_spec`, the intervals in `runners.intervals`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from runners.claim_checks import named_columns, validate
from runners.claim_parser import parse
from runners.claim_spec import MIN_UNITS, Arm, Claim, as_list

if TYPE_CHECKING:
    import pandas as pd

    from runners.claim_statistics import Outcome

__all__ = ["expected_wrong", "judge", "named_columns", "validate"]

REPRODUCED, CONTRADICTED, INCONCLUSIVE = "reproduced", "contradicted", "inconclusive"
SHOWN, NOT_RUN = "shown", "not run"
MAX_NOTES = 6
_WORST_FIRST = (CONTRADICTED, INCONCLUSIVE, REPRODUCED, SHOWN)


def judge(
    claim_id: str,
    claim: Mapping[str, Any],
    frame: pd.DataFrame | None,
    *,
    scale: str,
    curves: Callable[[str], pd.DataFrame] | None = None,
    rows: Callable[[str], pd.DataFrame] | None = None,
    not_run: str | None = None,
) -> dict[str, Any]:
    """Judge one claim or finding.

    ``frame``: the experiment's run frame, failed runs included (None: not run, for the reason ``not_run``).
    ``rows(unit)``: the frame of its rows; ``curves(id)``: a run's metrics. Measures find the run's status in the
    curve's ``attrs["status"]``.

    Returns ``id, says, source, reported, statistic, unit, value, low, high, expect, set_by, verdict, runs, units,
    note, method, cells, needed_units``; numbers are None where they do not exist or are infinite. With several
    cells, ``value`` to ``units`` are those of the cell that decides. ``needed_units``: units per arm that would
    decide every open cell with a probability of about 80%. Raises ConfigError if the claim names anything that
    does not exist.
    """
    parsed = parse(claim_id, claim)
    record = _record(parsed)
    shown = claim.get("shown")
    if not parsed.statistic or (claim.get("experiment") is None and frame is None):
        return record | {"verdict": SHOWN, "note": _join(claim.get("note"), shown)}
    if frame is None:
        return record | {"verdict": NOT_RUN, "note": _join(claim.get("note"), not_run)}
    scales = as_list(claim.get("scales"))
    judged = not shown and parsed.expect is not None and (not scales or scale in scales)
    why = shown if shown else None if judged else f"not judged at scale {scale}"

    from runners.claim_statistics import compute
    from runners.claim_units import Units

    units = Units(parsed, frame, rows, curves)
    pairs = [(of, to) for of in parsed.of for to in (parsed.to or (None,))]
    every = [*parsed.of, *parsed.to, *parsed.among]
    cells, outcomes = [], []
    places = units.cells(every)
    for cell in places:
        for of, to in pairs:
            outcome = compute(parsed, units, cell, of, to)
            arms = [of, *([to] if to else []), *parsed.among]
            problems, remarks = units.account(cell, arms)
            outcome.notes = [*problems, *remarks, *outcome.notes]
            named = {**cell, **_arm_names(parsed, of, to)}
            verdict = _verdict(parsed, outcome, bool(problems)) if judged else SHOWN
            outcomes.append(outcome)
            cells.append(_cell(claim.get("reported"), named, outcome, verdict))
    record["cells"] = cells
    record["runs"] = len(units.involved(places, every))
    if not cells:
        verdict = INCONCLUSIVE if judged else SHOWN
        return record | {"verdict": verdict, "note": _join(claim.get("note"), why, "no runs")}
    place = min(
        range(len(cells)),
        key=lambda k: (_WORST_FIRST.index(cells[k]["verdict"]), _slack(parsed, outcomes[k])),
    )
    chosen = cells[place]
    record["verdict"] = chosen["verdict"]
    # Of cells that are only shown, none stands for the others.
    if judged or len(cells) == 1:
        record |= {key: chosen[key] for key in ("value", "low", "high", "units")}
    record["method"] = _shared(outcome.method for outcome in outcomes)
    weakest = (
        f"the numbers are of {_label(chosen['cell'])}, which decides" if judged and len(cells) > 1 else None
    )
    record["note"] = _join(claim.get("note"), why, weakest, *_notes(cells, outcomes))
    if record["verdict"] == INCONCLUSIVE:
        record["needed_units"] = _needed(parsed, cells, outcomes)
    return record


def expected_wrong(verdicts: Iterable[Mapping[str, Any]]) -> float:
    """How many of these verdicts are expected to be wrong by chance, at most.

    A 95% interval lies wholly beyond its true value, on a given side, in 2.5% of samples. So a claim that is
    false is called reproduced in at most 2.5% of samples (every cell must mislead), and a claim that is true is
    called contradicted in at most 2.5% per cell (any cell may). ``inconclusive`` is never wrong, yet counts: it
    is a draw that might have misled, and leaving it out would count only the lucky half. The bound is attained
    where the truth stands on the threshold, so the number errs on the high side. Exact and population claims,
    those that are shown or not run, and cells with too few units to decide count 0. The number covers chance
    alone: no wrong threshold, no bug.
    """
    total = 0.0
    for verdict in verdicts:
        if verdict["verdict"] not in (REPRODUCED, CONTRADICTED, INCONCLUSIVE):
            continue
        if str(verdict["expect"]).startswith(("exact", "population")):
            continue
        cells = sum((cell.get("units") or 0) >= MIN_UNITS for cell in verdict.get("cells") or [verdict])
        total += min(1.0, 0.025 * (min(cells, 1) if verdict["verdict"] == REPRODUCED else cells))
    return total


def _record(claim: Claim) -> dict[str, Any]:
    entry = claim.entry
    return {
        "id": claim.id,
        "says": entry.get("says"),
        "source": entry.get("source"),
        "reported": entry.get("reported"),
        "statistic": describe(claim) if claim.statistic else None,
        "unit": ", ".join(claim.unit),
        "value": None,
        "low": None,
        "high": None,
        "expect": str(claim.expect) if claim.expect else None,
        "set_by": entry.get("set_by"),
        "verdict": SHOWN,
        "runs": 0,
        "units": 0,
        "note": None,
        "method": None,
        "cells": [],
        "needed_units": None,
    }


def describe(claim: Claim) -> str:
    """The statistic as one readable line."""
    of, to = (" | ".join(map(str, arms)) for arms in (claim.of, claim.to))
    of_metric, to_metric = str(claim.of_metric), str(claim.to_metric)
    by = f" of {of}" if of else ""
    versus = {"difference": "minus", "ratio": "over", "win_rate": "against"}
    if claim.statistic in versus:
        word = versus[claim.statistic]
        if of_metric != to_metric:
            sides = f"{of_metric}{by} {word} {to_metric}{f' of {to}' if to else by}"
        else:
            sides = f"{of_metric}, {of} {word} {to}"
        goal = (
            f" (better: {'lower' if claim.goal == 'min' else 'higher'})"
            if claim.statistic == "win_rate"
            else ""
        )
        text = f"{claim.statistic.replace('_', ' ')} of {sides}{goal}"
    elif claim.statistic == "slope":
        kind = "log-log slope" if claim.axes == "log" else "slope"
        against = f" {'over' if claim.axes == 'log' else 'minus'} {to}" if to else ""
        text = f"{kind} of {of_metric}{by}{against} in {claim.x}"
    elif claim.statistic == "rank":
        among = ", ".join(map(str, claim.among)) or "all methods"
        text = f"rank of {of} among {among} by {of_metric} (better: {'lower' if claim.goal == 'min' else 'higher'})"
    elif claim.statistic == "correlation":
        levels = " within units" if claim.across == "levels" else ""
        text = f"{claim.kind} correlation of {of_metric} with {claim.x}{by}{levels}"
    elif claim.statistic == "within":
        target = f"{claim.target:g}" if isinstance(claim.target, float) else str(claim.target)
        size = f"{claim.tolerated:.3g} of" if not claim.relative else f"{100 * claim.tolerated:.3g} % of"
        text = f"{of_metric}{by} within {size} {target}"
    else:
        text = f"{of_metric}{by}"
    if claim.over:
        text += f", for each {', '.join(claim.over)}"
    return text


def _verdict(claim: Claim, outcome: Outcome, problems: bool) -> str:
    assert claim.expect is not None
    region, mode = claim.expect.region, claim.expect.mode
    if mode == "exact" and outcome.each is not None and not all(region.holds(float(x)) for x in outcome.each):
        return CONTRADICTED  # one counterexample is enough, whatever the other runs do
    if problems or outcome.blocked or outcome.interval is None:
        return INCONCLUSIVE
    if mode == "exact":
        return REPRODUCED
    value, low, high = (
        region.snap(x) for x in (outcome.interval.value, outcome.interval.low, outcome.interval.high)
    )
    if mode == "population":
        return REPRODUCED if region.holds(value) else CONTRADICTED
    if outcome.units < outcome.minimum or math.isnan(low) or math.isnan(high):
        return INCONCLUSIVE
    if region.holds(low) and region.holds(high):
        return REPRODUCED
    return CONTRADICTED if region.misses(low, high) else INCONCLUSIVE


def _slack(claim: Claim, outcome: Outcome) -> float:
    """How far inside the expectation the interval stays; the smallest of several cells decides."""
    if claim.expect is None or outcome.interval is None:
        return -math.inf
    region, interval = claim.expect.region, outcome.interval
    slack = min(interval.low - region.low, region.high - interval.high)
    return -math.inf if math.isnan(slack) else slack


def _cell(reported: Any, named: dict[str, Any], outcome: Outcome, verdict: str) -> dict[str, Any]:
    interval = outcome.interval
    value, low, high = (interval.value, interval.low, interval.high) if interval else (None, None, None)
    return {
        "cell": named,
        "value": _number(value),
        "low": _number(low),
        "high": _number(high),
        "units": outcome.units,
        "verdict": verdict,
        "reported": reported_for(reported, named.values()),
    }


def reported_for(reported: Any, names: Iterable[Any]) -> Any:
    """The paper's number for a cell: a number, or (nested) mappings from the cell's names to one."""
    from runners.claim_units import matches

    while isinstance(reported, Mapping):
        left = list(names)
        hit = next((key for key in reported if any(matches(name, key) for name in left)), None)
        if hit is None:
            return None
        reported = reported[hit]
    return reported


def _needed(claim: Claim, cells: list[dict[str, Any]], outcomes: list[Outcome]) -> int | None:
    """The largest number of units that an open cell needs; None if one of them is not a matter of units."""
    from dataclasses import replace

    from runners import intervals

    assert claim.expect is not None
    region = claim.expect.region
    counts: list[int | None] = []
    for cell, outcome in zip(cells, outcomes, strict=True):
        if cell["verdict"] != INCONCLUSIVE:
            continue
        if claim.expect.mode != "interval" or outcome.blocked or outcome.interval is None:
            return None
        interval, ends = outcome.interval, [end for end in (region.low, region.high) if math.isfinite(end)]
        if outcome.log:
            if min(interval.value, interval.low) <= 0 or not math.isfinite(interval.value):
                return None
            ends = [math.log(end) for end in ends if end > 0]
            interval = replace(
                interval,
                value=math.log(interval.value),
                low=math.log(interval.low),
                high=math.log(interval.high),
            )
        if not ends:  # a ratio held against an end at or below 0: any number of units that may decide will
            counts.append(outcome.minimum)
            continue
        nearest_end = min(ends, key=lambda end: abs(end - interval.value))
        counts.append(intervals.needed_units(outcome.units, interval, nearest_end, outcome.minimum))
    known = [count for count in counts if count is not None]
    return max(known) if known and len(known) == len(counts) else None


def _arm_names(claim: Claim, of: Arm, to: Arm | None) -> dict[str, str]:
    """The arms as part of a cell's name, where the claim lists several."""
    names = {"of": str(of)} if len(claim.of) > 1 else {}
    return names | ({"to": str(to)} if to is not None and len(claim.to) > 1 else {})


def _notes(cells: list[dict[str, Any]], outcomes: list[Outcome]) -> list[str]:
    """What the harness has to say, each text once, with the cells it is about; the worst cells come first."""
    about: dict[str, list[str]] = {}
    ranked = sorted(
        zip(cells, outcomes, strict=True), key=lambda pair: _WORST_FIRST.index(pair[0]["verdict"])
    )
    for cell, outcome in ranked:
        texts = [*outcome.notes, *([outcome.blocked] if outcome.blocked else [])]
        if cell["verdict"] == INCONCLUSIVE and not outcome.blocked and outcome.units < outcome.minimum:
            texts.append(f"{outcome.units} units: at least {outcome.minimum} are needed to decide")
        for text in texts:
            about.setdefault(text, []).append(_label(cell["cell"]))
    notes = []
    for text, places in list(about.items())[:MAX_NOTES]:
        where = "; ".join(places) if len(places) <= MAX_NOTES else f"{len(places)} of {len(cells)} cells"
        notes.append(text if len(places) == len(cells) else f"{text} ({where})")
    more = len(about) - len(notes)
    return [*notes, *([f"{more} more remarks of this kind"] if more else [])]


def _shared(methods: Iterable[str]) -> str | None:
    return "; ".join(dict.fromkeys(method for method in methods if method)) or None


def _label(cell: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in cell.items())


def _join(*parts: Any) -> str | None:
    """The parts as one text; a part's full stop gives way to the semicolon after it."""
    *most, last = [str(part) for part in parts if part] or [""]
    return "; ".join([*(part.removesuffix(".") for part in most), last]) or None


def _number(x: float | None) -> float | None:
    return float(x) if x is not None and math.isfinite(x) else None
