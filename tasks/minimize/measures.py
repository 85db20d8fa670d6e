"""Pure functions of the curve f(x_0), f(x_1), ... of a run."""

import itertools
from collections.abc import Sequence

import numpy as np


def quarterly_contraction(values: Sequence[float]) -> tuple[float, float, float, float]:
    """Mean factor per iteration, (f_end / f_start)^(1 / length), over the four quarters of a run.

    Args:
        values: f(x_0), ..., f(x_K) with the minimal value 0, positive, K >= 4.

    >>> [round(q, 3) for q in quarterly_contraction([2.0**-k for k in range(9)])]
    [0.5, 0.5, 0.5, 0.5]
    """
    f = np.asarray(values, dtype=float)
    if f.size < 5:
        raise ValueError(f"{f.size} values have no quarters")
    ends = np.round(np.linspace(0, f.size - 1, 5)).astype(int)
    factors = [(f[b] / f[a]) ** (1 / (b - a)) for a, b in itertools.pairwise(ends)]
    return (float(factors[0]), float(factors[1]), float(factors[2]), float(factors[3]))


def first_below(values: Sequence[float], level: float) -> int | None:
    """Index of the first value <= level, or None."""
    hits = np.flatnonzero(np.asarray(values) <= level)
    return int(hits[0]) if hits.size else None


def first_infinite(values: Sequence[float]) -> int | None:
    """Index of the first value that is not finite, or None."""
    hits = np.flatnonzero(~np.isfinite(np.asarray(values)))
    return int(hits[0]) if hits.size else None


def never_increases(values: Sequence[float]) -> bool:
    """Whether every value is finite and at most its predecessor."""
    f = np.asarray(values, dtype=float)
    return bool(np.isfinite(f).all() and (np.diff(f) <= 0).all())
