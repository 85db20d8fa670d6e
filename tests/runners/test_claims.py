"""Every statistic on hand-computed cases, and every way to each verdict."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.claims import expected_wrong, judge
from runners.errors import ConfigError

A, B, C = "kind/a", "kind/b", "kind/c"


def runs(values: dict[str, list[Any]], metric: str = "gap", **columns: Any) -> pd.DataFrame:
    """One run per method and seed."""
    table = [
        {"method": method, "task": "kind/t", "seed": seed, "status": "done", metric: value, **columns}
        for method, many in values.items()
        for seed, value in enumerate(many)
    ]
    frame = pd.DataFrame(table)
    frame.insert(0, "id", [f"r{k}" for k in range(len(frame))])
    return frame


def entry(statistic: dict[str, Any], expect: Any = None, **more: Any) -> dict[str, Any]:
    base = {"says": "so", "source": "Fig. 1", "experiment": "main", "set_by": "paper"}
    return {**base, "statistic": statistic, **({} if expect is None else {"expect": expect}), **more}


def verdict(frame: Any, claim: dict[str, Any], scale: str = "laptop", **more: Any) -> dict[str, Any]:
    record = judge("c", claim, frame, scale=scale, **more)
    json.dumps(record, allow_nan=False)
    return record


def numbers(record: dict[str, Any]) -> tuple[float, float, float]:
    return record["value"], record["low"], record["high"]


# --- the eight statistics ---------------------------------------------------------------------------------------


def test_value() -> None:
    # Mean 3, s² = 2.5, t(4) = 2.776445: 3 ± 1.963243.
    record = verdict(runs({A: [1, 2, 3, 4, 5]}), entry({"value": "gap"}, ">= 1"))
    assert numbers(record) == pytest.approx((3, 1.036757, 4.963243), abs=1e-6)
    assert (record["verdict"], record["units"], record["runs"]) == ("reproduced", 5, 5)
    assert record["statistic"] == "gap"
    assert record["method"] == "mean, 5 units, Student t, 95%"
    assert record["needed_units"] is None


@pytest.mark.parametrize(
    ("center", "expected"),
    [
        ("geometric", (4.0, 4 * 2 ** (-1.963243), 4 * 2**1.963243)),  # logs in base 2: 0..4
        ("median", (4.0, 1.0, 16.0)),
    ],
)
def test_value_centres(center: str, expected: tuple[float, ...]) -> None:
    record = verdict(runs({A: [1, 2, 4, 8, 16]}), entry({"value": "gap"}, "> 0", center=center))
    assert numbers(record) == pytest.approx(expected, rel=1e-5)
    # The extremes of five units do not cover a median with 95%.
    assert record["verdict"] == ("inconclusive" if center == "median" else "reproduced")


def test_value_of_booleans_is_a_proportion() -> None:
    frame = runs({A: [True] * 18 + [False] * 2}, metric="success")
    record = verdict(frame, entry({"value": {"metric": "success", "of": A}}, ">= 0.6"))
    assert numbers(record) == pytest.approx((0.9, 0.698966, 0.972136), abs=1e-5)  # Wilson
    assert "Wilson" in record["method"]


def test_difference_pairs_by_seed() -> None:
    # Differences 1, 2, 3, 2, 2: mean 2, s² = 0.5, 2.776445·sqrt(0.1) = 0.877989. The seeds' spread cancels.
    frame = runs({A: [11, 102, 1003, 52, 2], B: [10, 100, 1000, 50, 0]})
    record = verdict(frame, entry({"difference": {"metric": "gap", "of": A, "to": B}}, "> 0"))
    assert numbers(record) == pytest.approx((2, 1.122011, 2.877989), abs=1e-6)
    assert "paired by seed" in record["method"]
    assert record["statistic"] == "difference of gap, kind/a minus kind/b"
    unpaired = verdict(frame, entry({"difference": {"metric": "gap", "of": A, "to": B}}, "> 0", paired=False))
    assert unpaired["verdict"] == "inconclusive"
    assert "Welch" in unpaired["method"]


def test_arms_with_different_seeds_are_not_paired() -> None:
    frame = runs({A: [1, 2, 3, 4, 5, 6, 7], B: [11, 12, 13, 14, 15]})
    record = verdict(frame, entry({"difference": {"metric": "gap", "of": B, "to": A}}, "> 0"))
    # Welch by hand: 9, variances 14/3/7 and 2.5/5, df = (7/6)²/((2/3)²/6 + (1/2)²/4) = 9.96.
    assert numbers(record) == pytest.approx((9, 9 - 2.408015, 9 + 2.408015), abs=1e-2)
    assert "unpaired (5 and 7 units)" in record["method"]
    assert record["units"] == 5
    claim = entry({"difference": {"metric": "gap", "of": B, "to": A}}, "> 0", paired=True)
    assert "2 units are not shared" in verdict(frame, claim)["note"]


def test_difference_of_booleans_and_of_medians() -> None:
    frame = runs({A: [True] * 9 + [False], B: [False] * 10}, metric="ok")
    record = verdict(frame, entry({"difference": {"metric": "ok", "of": A, "to": B}}, "> 0"))
    assert "Agresti-Min" in record["method"]
    assert (record["value"], record["verdict"]) == (0.9, "reproduced")
    frame = runs({A: [1, 2, 3, 4, 5, 6, 700], B: [0, 0, 0, 0, 0, 0, 0]})
    record = verdict(
        frame, entry({"difference": {"metric": "gap", "of": A, "to": B}}, "> 0", center="median")
    )
    assert numbers(record) == (4, 1, 700)


def test_ratio_is_geometric_and_paired() -> None:
    # Ratios 2, 4, 8, 4, 4: base-2 logs have mean 2, s² = 0.5.
    frame = runs({A: [2, 40, 800, 4, 4], B: [1, 10, 100, 1, 1]})
    record = verdict(frame, entry({"ratio": {"metric": "gap", "of": A, "to": B}}, ">= 1.5", reported=4.2))
    assert numbers(record) == pytest.approx((4, 2**1.122011, 2**2.877989), rel=1e-6)
    assert record["verdict"] == "reproduced"
    assert record["cells"][0]["reported"] == record["reported"] == 4.2


def test_ratio_of_means_and_median_of_ratios() -> None:
    frame = runs({A: [1, 2, 3, 4, 5, 9], B: [2, 1, 2, 2, 1, 4]})
    means = verdict(frame, entry({"ratio": {"metric": "gap", "of": A, "to": B}}, "> 0", center="mean"))
    assert means["value"] == pytest.approx(2.0)
    assert "bootstrap-t" in means["method"]
    medians = verdict(frame, entry({"ratio": {"metric": "gap", "of": A, "to": B}}, "> 0", center="median"))
    assert numbers(medians) == (2.0, 0.5, 5.0)


def test_ratio_of_two_metrics_of_one_method() -> None:
    frame = runs({A: [8, 8, 8, 4, 16]}).assign(start=[2, 4, 4, 2, 8])
    statistic = {"ratio": {"of_metric": "gap", "to_metric": "start", "of": A}}
    record = verdict(frame, entry(statistic, ">= 1"))
    assert record["value"] == pytest.approx(2 ** (6 / 5))
    assert record["statistic"] == "ratio of gap of kind/a over start of kind/a"


def test_arms_by_column_values() -> None:
    slow, fast = runs({A: [1, 2, 4, 8, 16]}), runs({A: [2, 4, 8, 16, 32]})
    frame = pd.concat([slow.assign(**{"method.lr": 0.1}), fast.assign(**{"method.lr": 0.2})])
    frame["id"] = range(10)
    arms = {"of": {"method": A, "method.lr": 0.2}, "to": {"method.lr": 0.1}}
    record = verdict(frame, entry({"ratio": {"metric": "gap", **arms}}, {"exact": "== 2"}))
    assert record["verdict"] == "reproduced"
    assert record["statistic"] == "ratio of gap, method=kind/a, method.lr=0.2 over method.lr=0.1"


def test_ratio_to_the_best_rival_of_each_unit() -> None:
    frame = runs({A: [1, 1, 1, 1, 1, 1], B: [2, 8, 2, 8, 2, 8], C: [8, 2, 8, 2, 8, 4]})
    best = {"ratio": {"metric": "gap", "of": {"min": [B, C]}, "to": A}}
    record = verdict(frame, entry(best, ">= 1.5", center="median"))
    assert numbers(record) == (2, 2, 4)
    assert record["statistic"].startswith("ratio of gap, min of (kind/b, kind/c) over")


def power(frame: pd.DataFrame, exponent: float) -> Callable[[str], pd.DataFrame]:
    """Curves c·step^exponent with c the run's gap."""
    step = np.arange(0, 101)
    with np.errstate(divide="ignore"):
        gaps = {row.id: row.gap * np.where(step > 0, step, 1.0) ** exponent for row in frame.itertuples()}
    return lambda run: pd.DataFrame({"step": step, "loss": gaps[run]})


def test_slope_along_curves() -> None:
    frame = runs({A: [1, 2, 3, 4, 5]})
    statistic = {"slope": {"metric": "loss", "x": "step", "window": [10, None]}}
    record = verdict(frame, entry(statistic, "in [-0.6, -0.4]"), curves=power(frame, -0.5))
    assert numbers(record) == pytest.approx((-0.5, -0.5, -0.5), abs=1e-9)
    assert record["verdict"] == "reproduced"
    relative = {"slope": {"metric": "loss", "x": "step", "window": {"relative": [0.25, 1]}}}
    assert verdict(frame, entry(relative, "< 0"), curves=power(frame, -1.0))["value"] == pytest.approx(-1)


def test_slope_over_runs_pairs_seeds() -> None:
    # Each seed's own power of x: exponents 1, 2, 3, 2, 2 (mean 2, s² = 0.5).
    parts = [
        runs({A: [float(x) ** k for k in (1, 2, 3, 2, 2)]}).assign(**{"task.T": x}) for x in (1, 10, 100)
    ]
    frame = pd.concat(parts).assign(id=range(15))
    record = verdict(frame, entry({"slope": {"metric": "gap", "x": "task.T"}}, "> 1"))
    assert numbers(record) == pytest.approx((2, 1.122011, 2.877989), abs=1e-6)
    assert record["method"].startswith("slope of geometric means")


def test_slope_of_means_over_unequal_seeds() -> None:
    # Means 4 at x = 1 (three seeds) and 16 at x = 4: slope 1.
    few, many = runs({A: [2, 4, 6, 3, 5]}), runs({A: [16, 15, 17, 14, 18, 16, 16]})
    frame = pd.concat([few.assign(**{"task.T": 1}), many.assign(**{"task.T": 4})]).assign(id=range(12))
    record = verdict(frame, entry({"slope": {"metric": "gap", "x": "task.T"}}, "> 0", center="mean"))
    assert record["value"] == pytest.approx(1.0)
    assert "unpaired" in record["method"]
    assert "bootstrap-t" in record["method"]
    assert record["verdict"] == "reproduced"


def test_linear_slope_of_a_difference() -> None:
    # A - B grows by 3 per unit of eta in every seed.
    parts = [
        runs({A: [5 * eta + s for s in range(5)], B: [2 * eta + s for s in range(5)]}).assign(
            **{"task.eta": eta}
        )
        for eta in (0.0, 0.2, 0.4)
    ]
    frame = pd.concat(parts).assign(id=range(30))
    statistic = {"slope": {"metric": "gap", "x": "task.eta", "of": A, "to": B, "axes": "linear"}}
    assert numbers(verdict(frame, entry(statistic, "> 0"))) == pytest.approx((3, 3, 3))


def test_rank() -> None:
    frame = runs({A: [1, 1, 1, 1, 1, 9], B: [2, 1, 2, 2, 2, 2], C: [3, 3, 3, 3, 3, 3]})
    record = verdict(frame, entry({"rank": {"metric": "gap", "of": A, "goal": "min"}}, "<= 2"))
    assert numbers(record) == (1, 1, 3)  # ranks 1, 1.5 (shared), 1, 1, 1, 3
    mean = verdict(frame, entry({"rank": {"metric": "gap", "of": A, "goal": "min"}}, "<= 2", center="mean"))
    assert mean["value"] == pytest.approx(8.5 / 6)
    assert "Wilson" in mean["method"]
    statistic = {"rank": {"metric": "gap", "of": A, "among": [B], "goal": "max"}}
    assert verdict(frame, entry(statistic, "<= 2"))["value"] == 2  # against B alone, and the largest is best


@pytest.mark.parametrize(("ties", "value"), [("half", 0.7), ("win", 0.8), ("lose", 0.6), ("drop", 0.75)])
def test_win_rate(ties: str, value: float) -> None:
    frame = runs({A: [1] * 6 + [5] * 2 + [9] * 2, B: [5] * 10})  # 6 wins, 2 ties, 2 losses
    statistic = {"win_rate": {"metric": "gap", "of": A, "to": B, "goal": "min", "ties": ties}}
    record = verdict(frame, entry(statistic, ">= 0.5"))
    assert record["value"] == pytest.approx(value)
    assert "2 of 10 units tie" in record["note"]
    assert record["units"] == (8 if ties == "drop" else 10)


def test_win_rate_with_tolerance_and_all_ties() -> None:
    frame = runs({A: [1.0] * 10, B: [1.0 + 1e-9] * 10})
    claim = {"win_rate": {"metric": "gap", "of": A, "to": B, "goal": "min"}}
    assert verdict(frame, entry(claim, ">= 0.5"))["verdict"] == "reproduced"
    claim["win_rate"]["tolerance"] = 1e-6
    record = verdict(frame, entry(claim, ">= 0.5"))
    assert (record["value"], record["verdict"]) == (0.5, "inconclusive")
    claim["win_rate"]["ties"] = "drop"
    record = verdict(frame, entry(claim, ">= 0.5"))
    assert (record["value"], record["verdict"], record["needed_units"]) == (None, "inconclusive", None)
    assert "all units tie" in record["note"]


def test_correlation_across_units_and_levels() -> None:
    frame = runs({A: list(range(10))}).assign(noise=[1, 0, 2, 3, 4, 5, 6, 7, 9, 8])
    record = verdict(frame, entry({"correlation": {"metric": "gap", "x": "noise"}}, "> 0"))
    assert record["value"] == pytest.approx(1 - 24 / 990)
    parts = [runs({A: [s * x for s in (1, 2, 3, 4, 5, -1)]}).assign(**{"task.sd": x}) for x in (1, 2, 3, 4)]
    frame = pd.concat(parts).assign(id=range(24))
    statistic = {"correlation": {"metric": "gap", "x": "task.sd", "across": "levels"}}
    record = verdict(frame, entry(statistic, ">= 0.8"))
    assert numbers(record) == pytest.approx((1, -1, 1))  # five seeds rise, one falls
    assert record["method"].startswith("median spearman correlation over 4 levels")


def test_within() -> None:
    frame = runs({A: [18, 19, 20, 19, 19]})
    record = verdict(frame, entry({"within": {"metric": "gap", "target": 19, "rel": 0.1}}))
    assert record["expect"] == "in [17.1, 20.9]"
    assert record["verdict"] == "reproduced"
    assert record["statistic"] == "gap within 10 % of 19"
    record = verdict(frame, entry({"within": {"metric": "gap", "target": 25, "abs": 3}}))
    assert record["verdict"] == "contradicted"
    frame["theory"] = [18.0, 19, 20, 19, 19.001]
    exact = {"within": {"metric": "gap", "target": "theory", "rel": 1e-4}}
    record = verdict(frame, entry(exact, "exact"))
    assert (record["verdict"], record["expect"]) == ("reproduced", "exact: in [0.9999, 1.0001]")
    exact["within"]["rel"] = 1e-5
    assert verdict(frame, entry(exact, "exact"))["verdict"] == "contradicted"


# --- verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expect", "expected"),
    [
        (">= 1", "reproduced"),
        (">= 2", "inconclusive"),
        (">= 5", "contradicted"),
        ("<= 5", "reproduced"),
        ("< 3", "inconclusive"),
        ("<= 1", "contradicted"),
        ("in [1, 5]", "reproduced"),
        ("in [2, 5]", "inconclusive"),
        ("in [5, 9]", "contradicted"),
    ],
)
def test_interval_against_expectation(expect: str, expected: str) -> None:
    assert verdict(runs({A: [1, 2, 3, 4, 5]}), entry({"value": "gap"}, expect))["verdict"] == expected


def test_units_without_spread_stand_on_closed_and_fall_off_open_thresholds() -> None:
    frame = runs({A: [1.0] * 5})
    assert verdict(frame, entry({"value": "gap"}, ">= 1"))["verdict"] == "reproduced"
    record = verdict(frame, entry({"value": "gap"}, "> 1"))
    assert record["verdict"] == "contradicted"
    assert "no spread" in record["method"]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_fewer_than_five_units_never_decide(n: int) -> None:
    record = verdict(runs({A: [100.0, 100.1, 100.2, 100.3][:n]}), entry({"value": "gap"}, "> 0"))
    assert record["verdict"] == "inconclusive"
    assert f"{n} units: at least 5 are needed" in record["note"]
    assert record["needed_units"] == (None if n == 1 else 5)
    assert record["value"] == pytest.approx(np.mean([100.0, 100.1, 100.2, 100.3][:n]))


def test_needed_units_of_an_open_claim() -> None:
    # Mean 3, s² = 2.5, threshold 2: effect 1/1.58 = 0.63, 22 units (t test, power 80%).
    record = verdict(runs({A: [1, 2, 3, 4, 5]}), entry({"value": "gap"}, ">= 2"))
    assert record["needed_units"] == 22
    ratio = entry({"ratio": {"metric": "gap", "of": A, "to": B}}, "> 0")
    assert verdict(runs({A: [1, 2, 4], B: [1, 1, 1]}), ratio)["needed_units"] == 5


def test_failed_runs_leave_a_claim_open() -> None:
    frame = runs({A: [10, 11, 12, 13, 14, None], B: [1, 1, 1, 1, 1, 1]})
    frame.loc[5, "status"] = "failed"
    record = verdict(frame, entry({"ratio": {"metric": "gap", "of": A, "to": B}}, ">= 1"))
    assert record["verdict"] == "inconclusive"
    assert "1 of 12 runs failed" in record["note"]
    assert record["units"] == 5
    assert "paired" in record["method"]
    assert record["runs"] == 12
    frame.loc[5, "status"] = "timeout"
    assert "timed out" in verdict(frame, entry({"value": {"metric": "gap", "of": A}}, ">= 1"))["note"]
    # A claim that does not touch the failed run is not concerned.
    assert verdict(frame, entry({"value": {"metric": "gap", "of": B}}, ">= 1"))["verdict"] == "reproduced"


def test_all_runs_failed_or_none_there() -> None:
    frame = runs({A: [1, 2, 3, 4, 5]}).drop(columns="gap").assign(status="failed")
    record = verdict(frame, entry({"value": "gap"}, ">= 1", over="task"))
    assert (record["verdict"], record["value"]) == ("inconclusive", None)
    assert "5 of 5 runs failed" in record["note"]
    empty = runs({A: [1]}).iloc[:0]
    assert "no runs" in verdict(empty, entry({"value": "gap"}, ">= 1", over="task"))["note"]
    bare = pd.DataFrame(columns=["id", "method", "task", "seed", "status", "seconds"])
    for claim in (
        entry({"value": "gap"}, ">= 1"),
        entry({"rank": {"metric": "gap", "of": A, "goal": "min"}}, "<= 1"),
    ):
        assert verdict(bare, claim)["verdict"] == "inconclusive"


def test_missing_arm() -> None:
    frame = runs({A: [1, 2, 3, 4, 5]})
    record = verdict(frame, entry({"ratio": {"metric": "gap", "of": A, "to": B}}, ">= 1"))
    assert record["verdict"] == "inconclusive"
    assert "no runs of kind/b" in record["note"]


def diverged() -> pd.DataFrame:
    frame = runs({A: [1.0, 2, 4, 8, 16], B: [2.0, 4, 8, 16, None]}).assign(**{"task.steps": 64})
    frame.loc[9, "status"] = "diverged"
    return frame


def test_diverged_runs_without_the_metric() -> None:
    ratio = {"ratio": {"metric": "gap", "of": B, "to": A}}
    record = verdict(diverged(), entry(ratio, ">= 1"))
    assert record["verdict"] == "inconclusive"
    assert "1 of 5 units of kind/b have no value" in record["note"]
    assert "1 of 10 runs diverged" in record["note"]
    for censored in ("steps", "task.steps", 64):
        record = verdict(diverged(), entry(ratio, ">= 1", censored=censored))
        assert record["value"] == pytest.approx(2 ** (4 / 5) * 4 ** (1 / 5))
        assert "1 of 5 units of kind/b never get there and count as `censored`" in record["note"]
        assert "1 of 10 runs diverged" in record["note"]


def test_units_that_never_get_there_can_be_left_out_and_are_counted() -> None:
    frame = runs({A: [1, 2, 4, 8, 16, 32, 5, None], B: [2, 4, 8, 16, 32, 64, None, None]})
    ratio = {"ratio": {"metric": "gap", "of": B, "to": A}}
    both = verdict(frame, entry(ratio, ">= 1", censored={"as": 1000, "drop": "both"}))
    assert both["value"] == pytest.approx((2**6 * 200) ** (1 / 7))
    assert "1 of 8 units left out: metric missing in every arm" in both["note"]
    either = verdict(frame, entry(ratio, ">= 1", censored={"drop": "any"}))
    assert (either["value"], either["units"]) == (pytest.approx(2.0), 6)
    assert "2 of 8 units left out: metric missing in an arm" in either["note"]
    wins = {"win_rate": {"metric": "gap", "of": A, "to": B, "goal": "min"}}
    record = verdict(frame, entry(wins, ">= 0.5", censored={"as": math.inf, "drop": "both"}))
    assert (record["value"], record["units"]) == (1.0, 7)


def test_infinite_values_have_medians_but_no_means() -> None:
    frame = runs({A: [1, 2, 3, 4, 5, 6, None]})
    record = verdict(frame, entry({"value": "gap"}, ">= 1", censored=math.inf, center="median"))
    assert (record["value"], record["high"], record["verdict"]) == (4, None, "reproduced")
    assert (
        verdict(frame, entry({"value": "gap"}, "<= 9", censored=math.inf, center="median"))["verdict"]
        == "inconclusive"
    )
    assert "infinite" in verdict(frame, entry({"value": "gap"}, ">= 1", censored=math.inf))["note"]


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_no_logarithm_of_what_is_not_positive(bad: float) -> None:
    frame = runs({A: [1, 2, 3, 4, bad], B: [1, 1, 1, 1, 1]})
    record = verdict(frame, entry({"ratio": {"metric": "gap", "of": A, "to": B}}, ">= 0.1"))
    assert record["verdict"] == "inconclusive"
    assert "1 of 10 values are not positive" in record["note"]


def test_exact_claims_hold_in_every_unit() -> None:
    frame = runs({A: [0.0, 0.5, 2.0], B: [0.0, 0.5, 1.0]})
    difference = {"difference": {"metric": "gap", "of": A, "to": B}}
    record = verdict(frame, entry(difference, {"exact": ">= 0"}))
    assert (record["verdict"], record["low"], record["high"], record["units"]) == ("reproduced", 0, 1, 3)
    assert record["expect"] == "exact: >= 0"
    assert verdict(frame, entry(difference, "exact"))["verdict"] == "contradicted"
    assert verdict(frame, entry(difference, {"exact": "> 0"}))["verdict"] == "contradicted"
    ratio = {"ratio": {"metric": "gap", "of": A, "to": B}}  # 0/0 counts as equal
    assert verdict(frame, entry(ratio, {"exact": ">= 1"}))["verdict"] == "reproduced"


def test_exact_truths_and_counterexamples_among_failures() -> None:
    frame = runs({A: [True, True, True]}, metric="monotone")
    assert verdict(frame, entry({"value": "monotone"}, "exact"))["verdict"] == "reproduced"
    frame.loc[2, "status"] = "failed"
    assert verdict(frame, entry({"value": "monotone"}, "exact"))["verdict"] == "inconclusive"
    frame.loc[0, "monotone"] = False
    assert verdict(frame, entry({"value": "monotone"}, "exact"))["verdict"] == "contradicted"


def test_population_claims_compare_the_centre_itself() -> None:
    frame = runs({A: [True, True, False], B: [True, False, False]}, metric="solved")
    difference = {"difference": {"metric": "solved", "of": A, "to": B}}
    record = verdict(frame, entry(difference, {"population": ">= 0"}))
    assert (record["verdict"], record["value"], record["low"]) == (
        "reproduced",
        pytest.approx(1 / 3),
        record["value"],
    )
    assert "no interval" in record["method"]
    assert verdict(frame, entry(difference, {"population": ">= 0.5"}))["verdict"] == "contradicted"


# --- cells, scales, units ---------------------------------------------------------------------------------------


def two_tasks() -> pd.DataFrame:
    easy = runs({A: [1, 2, 1, 2, 1], B: [4, 8, 4, 8, 4.1], C: [8, 16, 8, 16, 8.1]})
    hard = runs({A: [1, 2, 1, 2, 1], B: [2, 4, 2, 4, 2.1], C: [1, 9, 1, 9, 1]}).assign(task="kind/hard")
    frame = pd.concat([easy, hard])
    return frame.assign(id=range(len(frame)))


def test_a_claim_over_cells_takes_the_worst() -> None:
    reported = {"t": {"b": 4.2, "kind/c": 8}, "hard": 2.0}
    statistic = {"ratio": {"metric": "gap", "of": [B, C], "to": A}}
    record = verdict(two_tasks(), entry(statistic, ">= 1.5", over="task", reported=reported))
    assert [cell["cell"] for cell in record["cells"]] == [
        {"task": "kind/t", "of": B},
        {"task": "kind/t", "of": C},
        {"task": "kind/hard", "of": B},
        {"task": "kind/hard", "of": C},
    ]
    assert [cell["verdict"] for cell in record["cells"]] == ["reproduced"] * 3 + ["inconclusive"]
    assert [cell["reported"] for cell in record["cells"]] == [4.2, 8, 2.0, 2.0]
    assert record["verdict"] == "inconclusive"
    assert record["value"] == record["cells"][3]["value"]
    assert "the numbers are of task=kind/hard of=kind/c, which decides" in record["note"]
    assert record["runs"] == 30
    noted = verdict(two_tasks(), entry(statistic, ">= 1.5", over="task", note="Tuned. On other seeds."))
    assert noted["note"].startswith("Tuned. On other seeds; the numbers are of task=kind/hard")
    contradicted = verdict(two_tasks(), entry(statistic, ">= 3", over="task"))
    assert contradicted["verdict"] == "contradicted"
    assert contradicted["cells"][2]["verdict"] == "contradicted"
    reproduced = verdict(two_tasks(), entry(statistic, ">= 0.01", over="task"))
    assert reproduced["verdict"] == "reproduced"
    assert reproduced["low"] == min(cell["low"] for cell in reproduced["cells"])


def test_many_remarks_are_summed_up() -> None:
    parts = [runs({A: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}).assign(task=f"kind/t{k}") for k in range(9)]
    frame = pd.concat(parts).assign(id=range(90))
    for k in range(9):
        frame.iloc[10 * k : 10 * k + k, frame.columns.get_loc("status")] = "failed"
    note = verdict(frame, entry({"value": "gap"}, ">= 0.1", over="task"))["note"]
    assert "1 of 10 runs failed (task=kind/t1)" in note
    assert note.endswith("more remarks of this kind")
    frame["status"] = ["failed", *["done"] * 9] * 9
    assert verdict(frame, entry({"value": "gap"}, ">= 0.1", over="task"))["note"].endswith(
        "decides; 1 of 10 runs failed"
    )


def test_cells_without_any_arm_do_not_count() -> None:
    frame = two_tasks()
    frame = frame[(frame["task"] == "kind/t") | (frame["method"] == A)]
    statistic = {"ratio": {"metric": "gap", "of": B, "to": C}}
    assert len(verdict(frame, entry(statistic, "<= 1", over="task"))["cells"]) == 1
    statistic = {"ratio": {"metric": "gap", "of": B, "to": A}}  # A has runs there: B's are missing
    assert verdict(frame, entry(statistic, ">= 1", over="task"))["verdict"] == "inconclusive"


def test_where_selects() -> None:
    claim = entry({"ratio": {"metric": "gap", "of": B, "to": A}}, ">= 1", where={"task": "hard"})
    assert verdict(two_tasks(), claim)["value"] == pytest.approx(2, rel=0.02)
    claim = entry({"value": "gap"}, ">= 1", where={"task": ["t"], "method": A, "seed": [0, 1]})
    assert verdict(two_tasks(), claim)["runs"] == 2


def test_scales_and_shown_claims() -> None:
    frame = runs({A: [1, 2, 3, 4, 5]})
    claim = entry({"value": "gap"}, ">= 1", scales=["laptop", "paper"])
    record = verdict(frame, claim, scale="smoke")
    assert (record["verdict"], record["value"], record["note"]) == ("shown", 3, "not judged at scale smoke")
    assert verdict(frame, claim)["verdict"] == "reproduced"
    shown = verdict(frame, entry({"value": "gap"}, shown="the paper gives no number"))
    assert (shown["verdict"], shown["value"]) == ("shown", 3)
    assert shown["note"] == "the paper gives no number"
    words = {"says": "is the first", "experiment": None, "shown": "a statement about the literature"}
    record = verdict(None, words)
    assert (record["verdict"], record["statistic"], record["cells"]) == ("shown", None, [])


def test_not_run() -> None:
    claim = entry({"value": "gap"}, ">= 1", note="see the page")
    record = verdict(None, claim, not_run="needs 8 GPUs for 2 days")
    assert record["verdict"] == "not run"
    assert record["note"] == "see the page; needs 8 GPUs for 2 days"
    assert record["statistic"] == "gap"


def test_units_are_named_by_several_columns() -> None:
    claim = entry({"ratio": {"metric": "gap", "of": B, "to": A}}, ">= 1")
    with pytest.raises(ConfigError, match=r"claim c: unit \(seed=0\) has 2 values.*they differ in task"):
        verdict(two_tasks(), claim)
    record = verdict(two_tasks(), claim | {"unit": ["task", "seed"]})
    assert record["units"] == 10
    assert record["unit"] == "task, seed"


def images(methods: tuple[str, ...] = (A, B), **columns: Any) -> pd.DataFrame:
    table = [
        {
            "id": f"r{m}",
            "method": method,
            "task": "kind/t",
            "seed": 0,
            "i": i,
            "queries": (2.0 ** (i % 3)) * 2**m,
        }
        for m, method in enumerate(methods)
        for i in range(20)
    ]
    return pd.DataFrame(table).assign(**columns)


def test_rows_are_units() -> None:
    frame = runs({A: [0], B: [0]})
    frame["id"] = ["r0", "r1"]
    claim = entry({"ratio": {"metric": "queries", "of": B, "to": A}}, ">= 1.2", unit="image")
    record = verdict(frame, claim, rows=lambda unit: images())
    assert (record["units"], record["runs"], record["verdict"]) == (20, 2, "reproduced")
    assert record["value"] == pytest.approx(2)
    # Every ratio is 2, up to rounding: it stands on the threshold.
    assert verdict(frame, claim | {"expect": ">= 2"}, rows=lambda unit: images())["verdict"] == "reproduced"
    assert verdict(frame, claim | {"expect": "> 2"}, rows=lambda unit: images())["verdict"] == "contradicted"
    assert "paired by image" in record["method"]
    # A run that recorded nothing is not passed over.
    record = verdict(frame, claim, rows=lambda unit: images((A,)))
    assert record["verdict"] == "inconclusive"
    assert "1 of 2 runs (done) recorded no rows of 'image'" in record["note"]
    frame.loc[1, "status"] = "failed"
    assert "1 of 2 runs failed" in verdict(frame, claim, rows=lambda unit: images())["note"]


def test_rows_of_several_runs_need_an_identity() -> None:
    frame = runs({A: [0, 0]}).assign(id=["r0", "r1"])
    rows = images((A, A))
    rows["seed"] = (rows["id"] == "r1").astype(int)
    claim = entry({"value": "queries"}, ">= 1", unit="image")
    assert verdict(frame, claim, rows=lambda unit: rows)["units"] == 40
    named = rows.assign(image=rows["i"])  # the same images in both runs: 40 rows are not 40 images
    with pytest.raises(ConfigError, match="they differ in seed"):
        verdict(frame, claim, rows=lambda unit: named)
    assert verdict(frame, claim | {"where": {"seed": 1}}, rows=lambda unit: named)["units"] == 20


def test_panels_compare_methods_of_one_run() -> None:
    frame = runs({f"{A}+{B}": [0]}).assign(id="r0", gap=1.0)
    rows = images().assign(id="r0")
    claim = entry({"ratio": {"metric": "queries", "of": B, "to": A}}, ">= 1.2", unit="repeat")
    record = verdict(frame, claim, rows=lambda unit: rows)
    assert (record["value"], record["runs"], record["verdict"]) == (pytest.approx(2), 1, "reproduced")
    frame["status"] = "failed"
    assert "1 of 1 runs failed" in verdict(frame, claim, rows=lambda unit: rows)["note"]
    frame["status"] = "done"
    # A value of the whole run belongs to none of its methods: it is not compared with itself.
    record = verdict(frame, entry({"ratio": {"metric": "gap", "of": B, "to": A}}, ">= 1"))
    assert (record["verdict"], record["value"]) == ("inconclusive", None)


def test_measures_of_curves_and_of_rows() -> None:
    frame = runs({A: [1, 2, 3, 4, 5]})
    frame.loc[4, "status"] = "diverged"
    curves = power(frame, 0.0)
    seen = []

    def curve(run: str) -> pd.DataFrame:
        seen.append(run)
        return curves(run)

    measure = {"_target_": f"{__name__}.last", "column": "loss", "times": 2}
    record = verdict(
        frame, entry({"value": {"metric": measure}}, ">= 1", over="task", censored=100), curves=curve
    )
    assert record["value"] == pytest.approx((2 + 4 + 6 + 8 + 100) / 5)
    assert record["statistic"] == "last(column=loss, times=2), for each task"
    assert len(seen) == 5
    frame = runs({A: [0]}).assign(id="r0")
    measure = {"_target_": f"{__name__}.last", "column": "queries"}
    rows = pd.concat([images((A,)).assign(queries=-1.0), images((A,))])  # two rows a unit
    record = verdict(
        frame, entry({"value": {"metric": measure}}, ">= 1", unit="image"), rows=lambda unit: rows
    )
    assert (record["units"], record["value"]) == (20, pytest.approx(images((A,))["queries"].mean()))


def last(frame: pd.DataFrame, column: str, times: float = 1.0) -> float | None:
    """The last value; nothing for a run that diverged."""
    if frame.attrs.get("status") == "diverged":
        return None
    return float(frame[column].iloc[-1]) * times


# --- what does not exist ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"statistic": {"value": "gapp"}}, "claim c: metric: unknown column 'gapp'; nearest: gap"),
        ({"over": "task.dimm"}, "claim c: over: unknown column 'task.dimm'; nearest: task.dim"),
        ({"where": {"sead": 3}}, "claim c: where: unknown column 'sead'; nearest: seed"),
        ({"unit": "task.dimm"}, "claim c: unit: unknown column 'task.dimm'; nearest: task.dim"),
        ({"unit": "image"}, "claim c: unit 'image': this experiment records no rows"),
        ({"censored": "task.stepz"}, "claim c: censored: unknown column 'task.stepz'; nearest: task.steps"),
        ({"statistic": {"value": "task"}}, "claim c: metric: column 'task' does not hold numbers"),
        (
            {"statistic": {"value": {"metric": "gap", "of": {"method.lrr": 1}}}},
            "of/to: unknown column 'method.lrr'",
        ),
        ({"statistic": {"value": {"_target_": "no.such"}}}, "claim c: metric: 'no' cannot be imported"),
        ({"statistic": {"value": {"_target_": "math.sqtr"}}}, "'math' has no function 'sqtr'; nearest: sqrt"),
        (
            {"statistic": {"value": {"_target_": f"{__name__}.last", "column": "gap", "tims": 2}}},
            "got an unexpected keyword argument 'tims'; nearest: times",
        ),
        (
            {"statistic": {"value": {"_target_": f"{__name__}.last", "column": "x"}}},
            "fails on run r0: KeyError",
        ),
    ],
)
def test_names_that_do_not_exist(change: dict[str, Any], message: str) -> None:
    frame = runs({A: [1, 2, 3, 4, None]}, **{"task.dim": 3, "task.steps": 9, "method.lr": 0.1})
    claim = entry({"value": "gap"}, ">= 1", censored=9) | change
    with pytest.raises(ConfigError) as caught:
        verdict(frame, claim, curves=lambda run: pd.DataFrame({"step": [1], "loss": [1.0]}))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_kind_of_row_that_no_run_records() -> None:
    frame = runs({A: [1, 2, 3, 4, 5]})
    claim = entry({"value": "gap"}, ">= 1", unit="imge")
    with pytest.raises(ConfigError, match="claim c: unit: no run records rows of 'imge'"):
        verdict(frame, claim, rows=lambda unit: pd.DataFrame(columns=["id", "i"]))


# --- what must always hold --------------------------------------------------------------------------------------

VALUES = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=9)


@settings(max_examples=25)
@given(VALUES, st.floats(0.01, 100.0))
def test_opposite_expectations_never_agree(values: list[float], threshold: float) -> None:
    frame = runs({A: values})
    above = verdict(frame, entry({"value": "gap"}, f">= {threshold!r}"))
    below = verdict(frame, entry({"value": "gap"}, f"< {threshold!r}"))
    opposite = {"reproduced": "contradicted", "contradicted": "reproduced", "inconclusive": "inconclusive"}
    assert below["verdict"] == opposite[above["verdict"]]
    assert above["low"] <= above["value"] <= above["high"]
    if len(values) < 5:
        assert above["verdict"] == "inconclusive"


@settings(max_examples=25)
@given(VALUES, st.randoms())
def test_order_of_runs_and_direction_of_ratios(values: list[float], random: Any) -> None:
    frame = runs({A: values, B: [value**0.5 for value in reversed(values)]})
    claim = entry({"ratio": {"metric": "gap", "of": A, "to": B}}, ">= 1")
    record = verdict(frame, claim)
    order = list(range(len(frame)))
    random.shuffle(order)
    assert numbers(verdict(frame.iloc[order], claim)) == pytest.approx(numbers(record), rel=1e-9)
    turned = verdict(frame, entry({"ratio": {"metric": "gap", "of": B, "to": A}}, "<= 1"))
    assert 1 / turned["value"] == pytest.approx(record["value"])
    assert 1 / turned["low"] == pytest.approx(record["high"], rel=1e-6)


def test_expected_wrong() -> None:
    def record(verdict: str, expect: str = ">= 1", cells: int = 1, units: int = 5) -> dict[str, Any]:
        return {"verdict": verdict, "expect": expect, "cells": [{"units": units}] * cells}

    assert expected_wrong([]) == 0
    assert expected_wrong([record("shown"), record("not run"), record("reproduced", "exact: >= 0")]) == 0
    assert expected_wrong([record("contradicted", "population: >= 0", 4)]) == 0
    assert expected_wrong([record("inconclusive", units=4)]) == 0
    several = [record("reproduced", cells=4), record("inconclusive", cells=4), record("contradicted")]
    assert expected_wrong(several) == pytest.approx(0.025 * (1 + 4 + 1))


@pytest.mark.slow
def test_expected_wrong_bounds_what_chance_does() -> None:
    """Claims whose truth stands on the threshold: that is where most verdicts go wrong."""
    rng = np.random.default_rng(0)
    records, wrong = [], 0
    for _ in range(120):
        x = rng.standard_normal((2, 6))  # two cells, true mean 0: ">= 0" is true, "> 0" false
        frame = pd.concat([runs({A: list(x[0])}), runs({A: list(x[1])}).assign(task="kind/u")]).assign(
            id=range(12)
        )
        for expect, lie in ((">= 0", "contradicted"), ("> 0", "reproduced")):
            record = verdict(frame, entry({"value": "gap"}, expect, over="task"))
            records.append(record)
            wrong += record["verdict"] == lie
    assert 0 < wrong <= expected_wrong(records)
    assert wrong == pytest.approx(120 * 0.05, abs=8)
