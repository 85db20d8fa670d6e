"""Interval mathematics against closed forms, libraries and properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from runners import intervals
from runners.intervals import Interval, contrast

FLOATS = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
SAMPLES = st.lists(FLOATS, min_size=2, max_size=12).map(np.array)


def ends(interval: Interval) -> tuple[float, float]:
    return interval.low, interval.high


def test_mean_by_hand() -> None:
    # 1..5: mean 3, s = sqrt(2.5), t(4) = 2.7764: half-width 1.9632.
    got = contrast([np.arange(1.0, 6.0)], [1.0])
    assert (got.value, got.low, got.high) == pytest.approx((3.0, 1.03676, 4.96324), abs=1e-4)


@given(SAMPLES)
def test_mean_is_the_library_s(x: np.ndarray) -> None:
    if np.ptp(x) > 0:
        assert ends(contrast([x], [1.0])) == pytest.approx(DescrStatsW(x).tconfint_mean())


@given(SAMPLES, SAMPLES)
def test_unpaired_difference_is_welch(x: np.ndarray, y: np.ndarray) -> None:
    if np.ptp(x) > 0 or np.ptp(y) > 0:
        expected = CompareMeans(DescrStatsW(x), DescrStatsW(y)).tconfint_diff(usevar="unequal")
        assert ends(contrast([x, y], [1.0, -1.0])) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_paired_difference_is_the_mean_of_differences() -> None:
    x, y = np.array([3.0, 5.0, 9.0, 4.0]), np.array([1.0, 4.0, 5.0, 4.0])
    assert ends(contrast([x, y], [1.0, -1.0], paired=True)) == pytest.approx(ends(contrast([x - y], [1.0])))


def test_log_ratio_of_means_has_the_delta_method_s_error() -> None:
    x, y = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 9.0])
    # var(x)/n/mean² = 1/3/4, var(y)/n/mean² = 7/3/36; Welch's degrees of freedom from these two shares.
    shares = np.array([1 / 12, 7 / 108])
    df = shares.sum() ** 2 / (shares**2 / 2).sum()
    half = stats.t.ppf(0.975, df) * math.sqrt(shares.sum())
    got = contrast([x, y], [1.0, -1.0], log_means=True)
    assert (got.value, got.low) == pytest.approx((math.log(1 / 3), math.log(1 / 3) - half))


def test_bootstrap_t_by_brute_force() -> None:
    """All 4^4 resamples of four values give the quantiles that 9,999 random ones approach."""
    x = np.array([0.0, 1.0, 3.0, 7.0])
    resamples = x[np.stack(np.meshgrid(*[np.arange(4)] * 4), axis=-1).reshape(-1, 4)]
    moved, error = resamples.mean(axis=1) - x.mean(), resamples.std(axis=1, ddof=1) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, moved / error, np.copysign(np.inf, moved))
    lower, upper = np.quantile(t, [0.025, 0.975], method="inverted_cdf")
    got = contrast([x], [1.0], kind="bootstrap_t")
    assert got.low == pytest.approx(x.mean() - upper * x.std(ddof=1) / 2, rel=0.1)
    assert got.high == pytest.approx(x.mean() - lower * x.std(ddof=1) / 2, rel=0.1)


def test_bootstrap_t_is_repeatable_and_unbounded_where_resamples_have_no_spread() -> None:
    x = np.array([0.0, 0.0, 0.0, 0.0, 5.0])  # a third of the resamples are all zeros
    first, second = (contrast([x], [1.0], kind="bootstrap_t") for _ in range(2))
    assert first == second
    assert first.high == math.inf


def test_bootstrap_t_of_paired_ratio_moves_pairs_together() -> None:
    x = np.array([1.0, 10.0, 100.0, 1000.0, 3.0, 30.0])
    together = contrast([2 * x, x], [1.0, -1.0], paired=True, log_means=True, kind="bootstrap_t")
    assert ends(together) == pytest.approx((math.log(2), math.log(2)))
    apart = contrast([2 * x, x], [1.0, -1.0], log_means=True, kind="bootstrap_t")
    assert apart.high - apart.low > 1


@given(SAMPLES, st.floats(0.1, 10), st.floats(-100, 100))
def test_contrast_is_equivariant(x: np.ndarray, scale: float, shift: float) -> None:
    if np.ptp(x) > 0.01:
        for kind in ("student_t", "bootstrap_t"):
            plain = np.array(ends(contrast([x], [1.0], kind=kind)))
            moved = np.array(ends(contrast([scale * x + shift], [1.0], kind=kind)))
            assert moved == pytest.approx(scale * plain + shift, rel=1e-6, abs=1e-6)


def test_equal_values_have_no_width_and_single_units_no_interval() -> None:
    flat = contrast([np.full(7, 0.1)], [1.0])
    assert ends(flat) == (flat.value, flat.value)
    assert "no spread" in flat.method
    assert math.isnan(contrast([np.array([2.0])], [1.0]).low)


@pytest.mark.parametrize("groups", [[[]], [[1.0, math.inf]], [[1.0, math.nan]]])
def test_contrast_refuses_what_has_no_mean(groups: list[list[float]]) -> None:
    with pytest.raises(ValueError):
        contrast([np.array(group) for group in groups], [1.0])


def test_median_by_hand() -> None:
    got = intervals.median(np.arange(10.0, 0.0, -1.0))
    assert (got.value, got.low, got.high) == (5.5, 2.0, 9.0)  # Binomial(10, 1/2): ranks 2 and 9 cover 97.9%
    few = intervals.median(np.array([3.0, 1.0, 2.0, 5.0, 4.0]))
    assert (few.low, few.high) == (1.0, 5.0)
    assert "93.75%" in few.method


@given(st.lists(FLOATS, min_size=6, max_size=60, unique=True).map(np.array))
def test_median_is_the_library_s(x: np.ndarray) -> None:
    expected = stats.quantile_test(x, q=0.0, p=0.5).confidence_interval(0.95)
    assert ends(intervals.median(x)) == (expected.low, expected.high)


def test_median_of_values_that_never_end() -> None:
    assert intervals.median(np.array([1, 2, 3, 4, 5, 6, math.inf])).high == math.inf


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_proportion_is_the_library_s(case: tuple[int, int]) -> None:
    wins, n = case
    got = intervals.proportion(np.repeat([1.0, 0.0], [wins, n - wins]))
    assert ends(got) == pytest.approx(proportion_confint(wins, n, method="wilson"), abs=1e-12)


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=5, max_size=20), st.floats(0.1, 5), st.floats(-3, 3))
def test_bounded_mean_rescales(x: list[float], width: float, least: float) -> None:
    low, high = ends(intervals.proportion(np.array(x)))
    got = intervals.bounded_mean(least + width * np.array(x) * (1 - 1e-12), least, least + width)
    assert ends(got) == pytest.approx((least + width * low, least + width * high), abs=1e-9)


def test_difference_of_proportions() -> None:
    a, b = np.repeat([1.0, 0.0], [56, 14]), np.repeat([1.0, 0.0], [48, 32])
    # Newcombe (1998), table II, row (a), method 10: 56/70 - 48/80: 0.2, [0.0524, 0.3339].
    got = intervals.proportion_difference(a, b, paired=False)
    assert (got.value, got.low, got.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    assert ends(got) == pytest.approx(confint_proportions_2indep(56, 70, 48, 80, method="newcomb"))
    # Agresti-Min by hand, n = 10, 4 against 1: cells 4.5 and 1.5 of 12.
    a, b = np.array([1, 1, 1, 1, 0, 1, 1, 0, 0, 0]), np.array([0, 0, 0, 0, 1, 1, 1, 0, 0, 0])
    half = 1.959964 * math.sqrt(6 - 9 / 12) / 12
    assert ends(intervals.proportion_difference(a, b, paired=True)) == pytest.approx(
        (0.25 - half, 0.25 + half)
    )


def test_correlation_by_hand() -> None:
    x = np.arange(10.0)
    y = x.copy()
    y[[0, 1, 8, 9]] = y[[1, 0, 9, 8]]  # two swaps of neighbours: 1 - 6·4/990
    rho = 1 - 24 / 990
    half = 1.959964 * math.sqrt((1 + rho**2 / 2) / 7)
    got = intervals.correlation(x, y)
    assert (got.value, got.low) == pytest.approx((rho, math.tanh(math.atanh(rho) - half)))
    pearson = stats.pearsonr(x, y).confidence_interval(0.95)
    assert ends(intervals.correlation(x, y, "pearson")) == pytest.approx((pearson.low, pearson.high))


def test_perfect_rank_correlation_is_no_certainty() -> None:
    got = intervals.correlation(np.arange(5.0), np.arange(5.0))
    assert got.value == got.high == pytest.approx(1.0)
    assert got.low < 0  # five units in order happen once in 120 by chance
    with pytest.raises(ValueError, match="vary"):
        intervals.correlation(np.arange(5.0), np.ones(5))


def test_needed_units_decide_in_four_cases_of_five() -> None:
    rng = np.random.default_rng(1)
    pilot = np.array([0.5 - 1, 0.5 + 1, 0.5 - 1, 0.5 + 1, 0.5])  # mean 1/2, s = 1
    assert pilot.std(ddof=1) == pytest.approx(1.0)
    m = intervals.needed_units(5, contrast([pilot], [1.0]), 0.0)
    assert m == 34  # one-sample t test of effect 1/2, two-sided 5%, power 80%: 34 (Cohen, 1988, table 2.4)
    x = 0.5 + rng.standard_normal((4000, m))
    low = x.mean(axis=1) - stats.t.ppf(0.975, m - 1) * x.std(axis=1, ddof=1) / math.sqrt(m)
    assert (low > 0).mean() == pytest.approx(0.8, abs=0.03)


def test_needed_units_where_none_would_do() -> None:
    interval = Interval(1.0, 0.0, 2.0, "")
    assert intervals.needed_units(5, interval, 1.0) is None  # on the threshold
    assert intervals.needed_units(5, interval, 1.0 + 1e-9) is None  # further than a million units can see
    assert intervals.needed_units(1, Interval(1.0, math.nan, math.nan, ""), 0.0) is None
    assert intervals.needed_units(3, interval, -50.0) == 5  # clear, but below the least number of units
