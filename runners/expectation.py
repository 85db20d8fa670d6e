"""What a claim expects of its statistic: a range of numbers, and how the units are held against it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from runners.errors import ConfigError

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_ONE_SIDED = re.compile(rf"\s*(>=|<=|==|>|<)\s*{_NUMBER}\s*$")
_BETWEEN = re.compile(rf"\s*in\s*\[\s*{_NUMBER}\s*,\s*{_NUMBER}\s*\]\s*$")


@dataclass(frozen=True)
class Region:
    """The numbers that satisfy an expectation; ends are closed unless said to be open."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def holds(self, x: float) -> bool:
        """Whether ``x`` satisfies the expectation."""
        above = x > self.low if self.low_open else x >= self.low
        return above and (x < self.high if self.high_open else x <= self.high)

    def snap(self, x: float) -> float:
        """``x``, or the end of the range from which only rounding separates it."""
        return next((end for end in (self.low, self.high) if math.isclose(x, end, rel_tol=1e-12)), x)

    def misses(self, low: float, high: float) -> bool:
        """Whether no number of [low, high] satisfies the expectation."""
        below = high <= self.low if self.low_open else high < self.low
        return below or (low >= self.high if self.high_open else low > self.high)

    def __str__(self) -> str:
        if self.low == self.high:
            return f"== {self.low:.10g}"
        if math.isinf(self.high):
            return f"{'>' if self.low_open else '>='} {self.low:.10g}"
        if math.isinf(self.low):
            return f"{'<' if self.high_open else '<='} {self.high:.10g}"
        return f"in [{self.low:.10g}, {self.high:.10g}]"


@dataclass(frozen=True)
class Expect:
    """An expectation: ``mode`` is ``interval``, ``exact`` (every unit) or ``population`` (no sampling)."""

    mode: str
    region: Region

    def __str__(self) -> str:
        return str(self.region) if self.mode == "interval" else f"{self.mode}: {self.region}"


def parse_region(at: str, text: Any, points: bool = True) -> Region:
    """Parse ``">= a"``, ``"> a"``, ``"<= a"``, ``"< a"``, ``"in [a, b]"``; with ``points`` also ``"== a"``."""
    match = _BETWEEN.match(text) if isinstance(text, str) else None
    if match:
        low, high = float(match[1]), float(match[2])
        if low > high or (low == high and not points):
            raise ConfigError(f"{at}: the range {text!r} is empty")
        return Region(low, high)
    match = _ONE_SIDED.match(text) if isinstance(text, str) else None
    if not match or (match[1] == "==" and not points):
        forms = '">= a", "> a", "<= a", "< a", "in [a, b]", exact, {exact: ...} or {population: ...}'
        raise ConfigError(f"{at}: {forms} is expected, not {text!r}")
    sign, number = match[1], float(match[2])
    if sign == "==":
        return Region(number, number)
    if sign[0] == ">":
        return Region(low=number, low_open=sign == ">")
    return Region(high=number, high_open=sign == "<")
