"""How numbers, intervals and words are written on pages and in README files."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from runners.interval_strip import region
from runners.published import SYMBOLS, Statement, known, ordered

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
WHY = {
    "reproduced": "The whole 95% interval lies inside the expectation.",
    "contradicted": "The whole 95% interval lies outside the expectation.",
    "inconclusive": "The interval straddles the edge of the expectation, or there are too few units to decide.",
    "shown": "Shown at this scale by rule, and not judged.",
    "not run": "Not run.",
}


def number(value: Any, digits: int = 3) -> str:
    """A number with ``digits`` significant digits: ``2.31``, ``12,345``, ``1.2×10⁻⁵``; a dash for None."""
    if value is None or value == "":
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "NaN")
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}".replace("-", "−")
    size = abs(value)
    if 1e-3 <= size < 1e6:
        decimals = max(0, digits - 1 - math.floor(math.log10(size)))
        return f"{value:,.{decimals}f}".replace("-", "−")
    lead, power = f"{value:.{digits - 1}e}".split("e")
    return f"{lead}×10{str(int(power)).translate(SUPERSCRIPTS)}".replace("-", "−")


def _decimals(entry: dict[str, Any]) -> int | None:
    """Decimals that show two digits of an interval's width; None where significant digits say more."""
    ends = [entry.get(key) for key in ("value", "low", "high")]
    finite = [abs(end) for end in ends if isinstance(end, int | float) and math.isfinite(end)]
    signed = [end for end in ends if isinstance(end, int | float) and math.isfinite(end)]
    width = max(signed) - min(signed) if len(signed) > 1 else 0.0
    if width <= 0 or max(finite) >= 1e6:
        return None
    least = min((end for end in finite if end), default=1.0)
    # A third digit where all lie on one side of zero and one end close to it, as of ratios.
    close = least < width / 5 and min(signed) * max(signed) > 0
    decimals = max(0, 1 + close - math.floor(math.log10(width)))
    return decimals if decimals <= 7 and least >= 10.0**-decimals else None


def _place(end: float, entry: dict[str, Any]) -> str:
    decimals = _decimals(entry)
    if (
        decimals is None
        or isinstance(end, bool)
        or not isinstance(end, int | float)
        or not math.isfinite(end)
    ):
        return number(end)
    return f"{end:,.{decimals}f}".replace("-", "−")


def value(entry: dict[str, Any]) -> str:
    """An entry's own number, as finely as its interval."""
    return _place(entry["value"], entry) if entry.get("value") is not None else "—"


def bounds(entry: dict[str, Any]) -> str:
    """``1.92, 2.78``, or nothing where there is no interval."""
    low, high = entry.get("low"), entry.get("high")
    if low is None and high is None:
        return ""
    low = -math.inf if low is None else low
    high = math.inf if high is None else high
    return f"{_place(low, entry)}, {_place(high, entry)}"


def reported(told: Any) -> str:
    """What the paper reports: a number, a range, words, or numbers by cell."""
    if told is None or told == "":
        return "not given"
    if isinstance(told, dict):
        parts = [f"{str(name).rsplit('/', 1)[-1]} {reported(part)}" for name, part in told.items()]
        return ", ".join(parts[:6]) + (f", … ({len(parts)} in all)" if len(parts) > 6 else "")
    if isinstance(told, list | tuple):
        return "[" + ", ".join(number(part) for part in told) + "]"
    return number(told)


def told(statement: Statement) -> str:
    """The paper's number for a statement."""
    return reported(statement.best.get("reported", statement.spec.get("reported")))


def stated(expect: Any) -> str:
    """An expectation as results store it: ``exact: == 0`` for ``{exact: "== 0"}``."""
    return (
        ", ".join(f"{key}: {part}" for key, part in expect.items())
        if isinstance(expect, dict)
        else str(expect or "")
    )


def expectation(expect: Any) -> str:
    """``≥ 1.5`` for ``>= 1.5``, ``= 0 in every unit`` for ``exact: == 0``."""
    mode, _, rest = stated(expect).rpartition(": ")
    text = rest.replace(">=", "≥").replace("<=", "≤").replace("==", "=")
    text = re.sub(r"-(?=[\d.])", "−", text) or "—"
    return text + {"exact": " in every unit", "population": ", no sampling"}.get(mode, "")


def changed(statement: Statement) -> bool:
    """Whether the paper's file states another expectation now than when this verdict was made."""
    then, now = statement.best.get("expect"), statement.spec.get("expect")
    if not then or now is None or statement.spec is statement.best:
        return False
    # "exact" alone is stored with the number it stands for.
    modes = [
        stated(part).partition(":")[0] if stated(part)[:5] in ("exact", "popul") else ""
        for part in (then, now)
    ]
    regions = [region(stated(part)) for part in (then, now)]
    return modes[0] != modes[1] or (regions[1] is not None and regions[0] != regions[1])


def found(thing: Any) -> str:
    """One line: our number, its interval, what was expected."""
    entry = thing.best if isinstance(thing, Statement) else thing
    if isinstance(thing, Statement) and thing.verdict == "not run":
        return reason(thing) or "not run yet"
    parts = (
        [value(entry) + (f" [{bounds(entry)}]" if bounds(entry) else "")]
        if entry.get("value") is not None
        else []
    )
    if entry.get("expect"):
        parts.append(f"expected {expectation(entry['expect'])}")
    if isinstance(thing, Statement) and thing.scale:
        parts.append(f"{thing.scale} scale")
    return ", ".join(parts)


def reason(statement: Statement) -> str:
    """Why a statement has no verdict, with the scales that each reason holds for."""
    scales: dict[str, list[str]] = {}
    for scale, text in statement.not_run.items():
        scales.setdefault(text, []).append(scale)
    return "; ".join(f"{text} ({', '.join(names)} scale)" for text, names in scales.items())


def note(statement: Statement) -> str:
    """The note beside a statement, unless it only repeats why it was not run."""
    text = str(statement.best.get("note") or statement.spec.get("note") or "")
    return "" if text and text in statement.not_run.values() else text


def why(statement: Statement) -> str:
    """The rule behind a verdict, in a sentence or two."""
    entry, verdict = statement.best, statement.verdict
    if verdict == "not run":
        return f"Not run. {reason(statement)}".strip()
    text = WHY[verdict]
    mode = stated(entry.get("expect")).partition(":")[0]
    if mode == "exact" and verdict in ("reproduced", "contradicted"):
        text = f"{'Every' if verdict == 'reproduced' else 'Not every'} unit satisfies the expectation."
    if mode == "population" and verdict in ("reproduced", "contradicted"):
        inside = "inside" if verdict == "reproduced" else "outside"
        text = f"The number lies {inside} the expectation; it is of all there is, not of a sample, so it is exact."
    if len(entry.get("cells") or []) > 1:
        text += f" The verdict is the worst of {len(entry['cells'])} cells."
    if verdict == "inconclusive" and entry.get("needed_units"):
        text += f" About {number(entry['needed_units'])} units would likely decide it."
    return text


def scale_rows(statement: Statement) -> list[dict[str, Any]]:
    """Rows of the small table of all scales and cells."""
    rows = []
    for scale in ordered(statement.at):
        entry = statement.at[scale]
        cells = entry.get("cells") or []
        if len(cells) < 2:
            rows.append(
                {"scale": scale, "cell": "", "entry": entry, "reported": reported(entry.get("reported"))}
            )
        for cell in cells if len(cells) > 1 else []:
            name = inline(cell.get("cell") or {})
            rows.append(
                {"scale": scale, "cell": name, "entry": cell, "reported": reported(cell.get("reported"))}
            )
    return rows


def inline(data: Any) -> str:
    """Small data on one line, without the punctuation of code: ``method zo_sgd, task levy``."""
    if isinstance(data, dict):
        return ", ".join(f"{key} {inline(part)}" for key, part in data.items()) or "everywhere"
    if isinstance(data, list):
        return " | ".join(inline(part) for part in data)
    return f"{data:g}" if isinstance(data, float) else "null" if data is None else str(data)


def duration(seconds: Any) -> str:
    """``0.4 s``, ``12 s``, ``3.5 min``, ``2.1 h``, ``3 d``; a dash where unknown."""
    if not isinstance(seconds, int | float):
        return "—"
    for size, unit in ((86400 * 2, "d"), (3600, "h"), (90, "min")):
        if seconds >= size:
            amount = seconds / {"d": 86400, "h": 3600, "min": 60}[unit]
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def memory(megabytes: Any) -> str:
    """``350 MB``, ``1.4 GB``."""
    if not isinstance(megabytes, int | float):
        return "—"
    return f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1024:.1f} GB"


def hardware(found: Any) -> str:
    """``AMD EPYC 7B13, 2 cores, 24 GB, Linux``."""
    if not isinstance(found, dict):
        return str(found or "")
    units = {"cores": "{} cores", "memory_gb": "{} GB"}
    return ", ".join(units.get(key, "{}").format(value) for key, value in found.items() if value)


def statuses(counts: dict[str, int]) -> str:
    """``58 done, 2 diverged``."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def plural(unit: str, count: Any) -> str:
    """``seed`` or ``seeds``."""
    if "," in unit:
        return f"units ({unit})"
    return unit if count == 1 or unit.endswith("s") else f"{unit}s"


def safe_url(url: Any) -> str:
    """The address if it is a web address, else nothing (no ``javascript:`` from a YAML file)."""
    return str(url) if re.match(r"https?://", str(url or "")) else ""


def css(name: str) -> str:
    """A name as a CSS class or attribute suffix."""
    return re.sub(r"[^a-zA-Z0-9-]+", "-", known(name) if name in SYMBOLS else str(name))


def symbol(verdict: Any) -> str:
    """A verdict's symbol."""
    return SYMBOLS[known(verdict)]


def emoji(verdict: Any) -> str:
    """A verdict's symbol with a colour of its own, for Markdown."""
    return dict(zip(SYMBOLS, "✅❌❔🔹➖", strict=True))[known(verdict)]


def markdown(text: Any) -> str:
    """Text that Markdown (in a table too) shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", " ".join(str(text).split()))


def to_yaml(data: Any) -> str:
    """Data as YAML, keys in their own order."""
    return yaml.safe_dump(
        data, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    ).strip()
