"""95% intervals for the centre of a sample, and how many units would narrow one enough.

Which method, and how often it truly covers (``tests/runners/test_claims_coverage.py`` measures every row;
"log-normal" has sigma 1):

======================================  ===============================================================
mean, Student t (default)               normal data: 95% at any n. Log-normal data: about 82, 84, 87% at
                                        n = 5, 10, 20: the mean of such data is not a mean's job, so
                                        ratios and times go on the log scale (geometric mean), where
                                        Student t covers 95% again.
mean, bootstrap-t                       normal: 95% at n >= 5, a third wider than Student t at n = 5.
                                        Log-normal: about 89, 91, 92% at n = 5, 10, 20. Choose it where a
                                        mean of skewed data is what a paper states.
ratio or slope of means, bootstrap-t    on the log scale, log-normal data: 91 to 93% at n = 5, 10, 20
                                        (Student t with the delta method: 88 to 92%).
median, order statistics                at least 95% for every distribution, but only from n = 6 on: the
                                        extremes of 5 units cover a median with 93.75%. Those of a smaller
                                        sample are returned, and named, and never decide a claim.
proportion, Wilson                      95% on average over p; between 83% (n = 5, p near 0 or 1) and 98%
                                        at single p.
percentile bootstrap (not offered)      normal: about 75, 84, 90% at n = 3, 5, 10; log-normal: 65, 71, 81%.
======================================  ===============================================================

Below 5 units nothing is conclusive: at n = 3 Student t rests on its normality assumption alone (84% on
log-normal data). Quantities confined to a range (mean ranks, shares with half wins) use the Wilson interval
of the rescaled mean: among all variables on [0, 1] with a given mean a binary one varies most, so it is
conservative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from runners.claim_spec import MIN_UNITS

LEVEL = 0.95
MIN_UNITS_MEDIAN = 6
POWER = 0.8
MAX_NEEDED = 1_000_000
RESAMPLES = 9_999
_UPPER = 0.5 + LEVEL / 2
_Z = float(special.ndtri(_UPPER))
_CHUNK = 4_000_000  # resampled values held at once


@dataclass(frozen=True)
class Interval:
    """A point, its 95% interval, and the method in words. Bounds may be infinite, or NaN where undefined."""

    value: float
    low: float
    high: float
    method: str

    def exp(self) -> Interval:
        """The same interval after ``exp``."""
        return Interval(_exp(self.value), _exp(self.low), _exp(self.high), self.method)


def _exp(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(x))


def contrast(
    groups: Sequence[np.ndarray],
    weights: Sequence[float],
    *,
    paired: bool = False,
    log_means: bool = False,
    kind: str = "student_t",
) -> Interval:
    """Interval for ``sum_j weights[j] * mean_j``, with ``log_means`` for ``sum_j weights[j] * log(mean_j)``.

    One group with weight 1 is a mean; weights (1, -1) a difference, or with ``log_means`` the log of a ratio
    of means; the weights of least squares a slope. ``paired``: entry i of every group belongs to unit i.
    ``kind`` is ``student_t`` (unpaired: Welch's degrees of freedom; ``log_means``: delta method) or
    ``bootstrap_t`` (Efron and Tibshirani, 1993, *An Introduction to the Bootstrap*, section 12.5; fixed
    resamples, so the same data give the same interval). Raises ValueError on an empty or non-finite group.
    """
    if kind not in ("student_t", "bootstrap_t"):
        raise ValueError(f"kind {kind!r} is neither student_t nor bootstrap_t")
    data = [np.asarray(group, dtype=float) for group in groups]
    w = np.asarray(weights, dtype=float)
    if any(len(x) == 0 or not np.isfinite(x).all() for x in data):
        raise ValueError("every group needs at least one value, all of them finite")
    if log_means and any(x.mean() <= 0 for x in data):
        raise ValueError("the logarithm of a mean needs a positive mean")
    if paired and not log_means:
        data, w = [np.stack(data, axis=1) @ w], np.ones(1)
    means = np.array([x.mean() for x in data])
    theta = float(w @ (np.log(means) if log_means else means))
    if min(len(x) for x in data) < 2:
        return Interval(theta, np.nan, np.nan, "no interval from a single unit")
    # A linear statistic is its own influence function; that of log(mean) is x / mean.
    scale = w / means if log_means else w
    if paired:
        columns = np.stack(data, axis=1)
        shares = np.array([(columns @ scale).var(ddof=1) / len(columns)])
        df = float(len(columns) - 1)
    else:
        shares = np.array([c**2 * x.var(ddof=1) / len(x) for c, x in zip(scale, data, strict=True)])
        total = shares.sum()
        freedom = sum(v**2 / (len(x) - 1) for v, x in zip(shares, data, strict=True))
        df = float(total**2 / freedom) if freedom > 0 else float(min(len(x) for x in data) - 1)
    error = float(np.sqrt(shares.sum()))
    if error <= 1e-14 * float(np.abs(scale) @ np.abs(means)):  # rounding of equal values is no spread
        return Interval(theta, theta, theta, "no spread between units: the interval has no width")
    if kind == "student_t":
        half = float(special.stdtrit(df, _UPPER)) * error
        words = "Student t" if len(data) == 1 or paired else "Welch's t"
        return Interval(theta, theta - half, theta + half, words + (" (delta method)" if log_means else ""))
    t = _studentised(data, w, theta, paired, log_means)
    lower, upper = np.quantile(t, [1 - _UPPER, _UPPER], method="inverted_cdf")
    return Interval(theta, theta - float(upper) * error, theta - float(lower) * error, "bootstrap-t")


def _studentised(
    data: list[np.ndarray], w: np.ndarray, theta: float, paired: bool, log_means: bool
) -> np.ndarray:
    """(theta* - theta) / error* of every resample; infinite where a resample has no spread of its own."""
    rng = np.random.default_rng(0)
    sizes = [len(x) for x in data]
    step = max(1, _CHUNK // sum(sizes))
    parts = []
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        if paired:
            shared = rng.multinomial(sizes[0], np.full(sizes[0], 1 / sizes[0]), size) / sizes[0]
            shares = [shared] * len(data)
        else:
            shares = [rng.multinomial(n, np.full(n, 1 / n), size) / n for n in sizes]
        means = np.stack([share @ x for share, x in zip(shares, data, strict=True)], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            centers = (np.log(means) if log_means else means) @ w
            scale = w / means if log_means else np.broadcast_to(w, means.shape)
            if paired:
                values = scale @ np.stack(data)
                center = (shared * values).sum(axis=1, keepdims=True)
                variance = (shared * (values - center) ** 2).sum(axis=1) / (sizes[0] - 1)
                level = (shared * np.abs(values)).sum(axis=1)
            else:
                variance, level = np.zeros(size), np.zeros(size)
                for j, (share, x) in enumerate(zip(shares, data, strict=True)):
                    spread = share @ x**2 - means[:, j] ** 2
                    spread = np.where(spread > 1e-12 * (share @ x**2), spread, 0.0)
                    variance += scale[:, j] ** 2 * spread / (sizes[j] - 1)
                    level += np.abs(scale[:, j] * means[:, j])
            error = np.sqrt(variance)
            error = np.where(error > 1e-12 * level, error, 0.0)
            moved = centers - theta
            moved = np.where(np.abs(moved) > 1e-12 * np.maximum(level, abs(theta)), moved, 0.0)
            t = np.where(error > 0, moved / error, np.sign(moved) * np.inf)
        t[(moved == 0) & (error == 0)] = 0.0
        # A resample whose mean has no logarithm says nothing about either end: it widens both.
        undefined = np.flatnonzero(np.isnan(t))
        t[undefined] = np.where(np.arange(len(undefined)) % 2, np.inf, -np.inf)
        parts.append(t)
    return np.concatenate(parts)


def median(values: np.ndarray) -> Interval:
    """Median with order statistics (binomial ranks, at least 95% for any distribution from 6 units on).

    Fewer units return their extremes and say how often those cover. Values may be infinite, not NaN.
    """
    x = np.sort(np.asarray(values, dtype=float))
    n = len(x)
    if n == 0 or np.isnan(x).any():
        raise ValueError("a median needs at least one value and no NaN")
    lower, upper = x[(n - 1) // 2], x[n // 2]
    value = float(lower if lower == upper else (lower + upper) / 2)
    if n < MIN_UNITS_MEDIAN:
        return Interval(
            value, float(x[0]), float(x[-1]), f"extremes of {n} units (cover {1 - 0.5 ** (n - 1):.2%})"
        )
    # P(fewer than k of n values fall below the median) <= 2.5%: the k-th smallest and k-th largest values.
    k = int(stats.binom.ppf(1 - _UPPER, n, 0.5))
    return Interval(value, float(x[k - 1]), float(x[n - k]), "order statistics")


def proportion(values: np.ndarray) -> Interval:
    """Mean of values in [0, 1] (a win 1, a tie 1/2) with the score interval (Wilson, 1927, *JASA* 22)."""
    return bounded_mean(values, 0.0, 1.0)


def bounded_mean(values: np.ndarray, least: float, most: float) -> Interval:
    """Mean of values confined to [least, most]: the Wilson interval of the rescaled mean (conservative)."""
    x = np.asarray(values, dtype=float)
    if len(x) == 0 or not ((x >= least) & (x <= most)).all():
        raise ValueError(f"values in [{least:g}, {most:g}] are expected, at least one")
    width = most - least
    p, low, high = _wilson(float((x.mean() - least) / width), len(x))
    words = (
        "Wilson" if (least, most) == (0.0, 1.0) else f"Wilson on the mean rescaled from [{least:g}, {most:g}]"
    )
    return Interval(least + width * p, least + width * low, least + width * high, words)


def _wilson(p: float, n: float) -> tuple[float, float, float]:
    middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * np.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    # At p = 0 and 1 the ends are exact, whatever the rounding.
    return p, 0.0 if p <= 0 else float(middle - half), 1.0 if p >= 1 else float(middle + half)


def proportion_difference(a: np.ndarray, b: np.ndarray, *, paired: bool) -> Interval:
    """Difference of the shares of ones in ``a`` and ``b`` (binary values).

    Paired: adjusted Wald, half a unit added to each of the four cells (Agresti and Min, 2005, *Statistics in
    Medicine* 24). Unpaired: Newcombe's hybrid of the two Wilson intervals (1998, *Statistics in Medicine* 17,
    method 10).
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if not len(a) or not len(b) or not (np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all()):
        raise ValueError("a difference of proportions needs values that are 0 or 1")
    value = float(a.mean() - b.mean())
    if paired:
        n = len(a) + 2
        first, second = float((a > b).sum()) + 0.5, float((a < b).sum()) + 0.5
        middle = (first - second) / n
        half = _Z * np.sqrt(first + second - (first - second) ** 2 / n) / n
        low, high = max(-1.0, float(middle - half)), min(1.0, float(middle + half))
        return Interval(value, low, high, "adjusted Wald (Agresti-Min)")
    p, low_a, high_a = _wilson(float(a.mean()), len(a))
    q, low_b, high_b = _wilson(float(b.mean()), len(b))
    low = value - float(np.hypot(p - low_a, high_b - q))
    high = value + float(np.hypot(high_a - p, q - low_b))
    return Interval(value, low, high, "Newcombe")


def correlation(x: np.ndarray, y: np.ndarray, kind: str = "spearman") -> Interval:
    """Spearman or Pearson correlation over units with Fisher's z (4 units at least; NaN bounds below).

    Spearman's error is that of Bonett and Wright (2000, *Psychometrika* 65). A perfect rank correlation takes
    its inner end from the best imperfect one, since a finite sample cannot show that no pair is ever swapped.
    Raises ValueError where one of the two is constant.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if kind == "spearman":
        x, y = stats.rankdata(x), stats.rankdata(y)
    n = len(x)
    if n < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        raise ValueError("a correlation needs two variables that vary")
    r = float(np.clip(np.corrcoef(x, y)[0, 1], -1.0, 1.0))
    if n < 4:
        return Interval(r, np.nan, np.nan, f"no interval from {n} units")
    if kind == "pearson":
        if abs(r) > 1 - 1e-15:
            return Interval(r, r, r, "exact linear relation: the interval has no width")
        inner, variance, words = r, 1 / (n - 3), "Fisher z"
    else:
        inner = float(np.sign(r)) * min(abs(r), 1 - 12 / (n**3 - n))
        variance, words = (1 + inner**2 / 2) / (n - 3), "Fisher z (Bonett-Wright)"
    half = _Z * float(np.sqrt(variance))
    low, high = float(np.tanh(np.arctanh(inner) - half)), float(np.tanh(np.arctanh(inner) + half))
    return Interval(r, min(low, r), max(high, r), words)


def needed_units(n: int, interval: Interval, threshold: float, minimum: int = MIN_UNITS) -> int | None:
    """Units that decide between ``interval``'s value and ``threshold`` with probability about 80%.

    Assumes that the true centre and spread are those seen, and an error that falls as 1 / sqrt(units). None
    if the value stands on the threshold, the interval is undefined, or a million units would not do.
    """
    bound = interval.low if threshold < interval.value else interval.high
    half, distance = abs(interval.value - bound), abs(interval.value - threshold)
    if n < 2 or not np.isfinite(half) or not np.isfinite(distance) or distance == 0:
        return None
    spread = half * np.sqrt(n) / special.stdtrit(n - 1, _UPPER)
    extra = special.ndtri(POWER)

    def decides(m: int) -> bool:
        return bool((special.stdtrit(m - 1, _UPPER) + extra) * spread <= distance * np.sqrt(m))

    low, high = 1, max(minimum, 2)
    while not decides(high):
        low, high = high, high * 2
        if high > MAX_NEEDED:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle >= 2 and decides(middle) else (middle, high)
    return max(high, minimum)
