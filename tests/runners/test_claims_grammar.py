"""Mistakes in claims are one line each, with the claim, the place and the nearest valid name, before any run."""

import subprocess
import sys
from typing import Any

import pytest

from runners.claim_parser import parse
from runners.claims import judge, named_columns, validate
from runners.errors import ConfigError

RATIO = {"ratio": {"metric": "gap", "of": "kind/a", "to": "kind/b"}}
CLAIM: dict[str, Any] = {
    "says": "a beats b",
    "source": "Fig. 2",
    "experiment": "main",
    "statistic": RATIO,
    "over": "task",
    "expect": ">= 1.5",
    "set_by": "ours",
}
EXPERIMENTS = {
    "main": {
        "grid": {"method": ["kind/a", "kind/b"], "task": ["kind/levy", "kind/ackley"], "seed": "range(10)"},
        "scale": {"paper": {"method": ["kind/a", "kind/b", "kind/large"]}},
    },
    "panel": {"grid": [{"method": [["kind/a", "kind/b"]], "task": ["kind/levy"]}]},
    "open": {"grid": {"method": ["kind/*"], "seed": [0]}},
}


def statistic(name: str, **spec: Any) -> dict[str, Any]:
    return {"statistic": {name: spec}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expct": ">= 1"}, "claim c: unknown key 'expct'; nearest: expect"),
        ({"says": ""}, "claim c: 'says' is missing"),
        ({"experiment": "mian"}, "claim c: experiment: unknown experiment 'mian'; nearest: main"),
        ({"set_by": "us"}, "claim c: set_by: unknown value 'us'; nearest: ours"),
        ({"set_by": None}, "claim c: 'set_by' is missing"),
        ({"expect": None}, "claim c: 'expect' is missing"),
        ({"scales": ["laptpo"]}, "claim c: scales: unknown scale 'laptpo'; nearest: laptop"),
        ({"statistic": None}, "claim c: 'statistic' is missing"),
        ({"statistic": "ratio"}, "claim c: statistic: a mapping is expected, not 'ratio'"),
        ({"statistic": {"ration": {}}}, "claim c: statistic: unknown statistic 'ration'; nearest: ratio"),
        ({"statistic": {**RATIO, "value": "gap"}}, "claim c: statistic: one of value, difference"),
        (statistic("ratio", metric="gap", off="kind/a"), "statistic: ratio: unknown key 'off'; nearest: of"),
        (statistic("ratio", of="kind/a", to="kind/b"), "claim c: statistic: ratio: 'metric' is missing"),
        (statistic("ratio", metric="gap", of="kind/a"), "ratio: 'to' (or 'to_metric') is missing"),
        (statistic("ratio", metric="gap", to="kind/a"), "ratio: 'of' is missing"),
        (
            statistic("ratio", metric=3, of="kind/a", to="kind/b"),
            "ratio: metric: a column or {_target_: ...}",
        ),
        (
            statistic("value", metric={"_target_": "gap"}),
            "_target_: the dotted name of a function is expected",
        ),
        (
            statistic("value", metric="gap", of={"method": ["a"]}),
            "of: method: one value is expected, not ['a']",
        ),
        (statistic("value", metric="gap", of=[]), "of: at least one method is expected"),
        (
            statistic("rank", metric="gap", of="kind/a"),
            "claim c: statistic: rank: goal: unknown value 'None'",
        ),
        (statistic("rank", metric="gap", goal="min"), "claim c: statistic: rank: 'of' is missing"),
        (
            statistic("win_rate", metric="gap", of="kind/a", to="kind/b", goal="minn"),
            "win_rate: goal: unknown value 'minn'; nearest: min",
        ),
        (
            statistic("win_rate", metric="gap", of="kind/a", to="kind/b", goal="min", ties="halve"),
            "win_rate: ties: unknown value 'halve'; nearest: half",
        ),
        (
            statistic("win_rate", metric="gap", of="kind/a", to="kind/b", goal="min", tolerance=-1),
            "tolerance: a number of at least 0 is expected, not -1",
        ),
        (statistic("slope", metric="gap"), "claim c: statistic: slope: 'x' is missing"),
        (
            statistic("slope", metric="gap", x="step", window=[5, 2]),
            "slope: window: the range [5, 2] is empty",
        ),
        (statistic("slope", metric="gap", x="step", window=5), "slope: window: [from, to] or"),
        (
            statistic("slope", metric="gap", x="step", axes="logg"),
            "slope: axes: unknown value 'logg'; nearest: log",
        ),
        (
            {**statistic("slope", metric="gap", x="step", axes="linear"), "center": "geometric"},
            "center: a slope on linear axes has no geometric mean",
        ),
        (statistic("correlation", metric="gap", x="n", kind="spearmen"), "'spearmen'; nearest: spearman"),
        (
            {**statistic("within", metric="gap", target=1), "expect": None},
            "'target' and one of 'rel' and 'abs'",
        ),
        (statistic("within", metric="gap", target=1, rel=0.1), "`within` states its own range"),
        ({"center": "medain"}, "claim c: center: unknown centre of ratio 'medain'; nearest: median"),
        ({"center": "proportion"}, "claim c: center: unknown centre of ratio 'proportion'"),
        ({"interval": "bootstrap"}, "claim c: interval: unknown value 'bootstrap'; nearest: bootstrap_t"),
        ({"paired": "yes"}, "claim c: paired: true or false is expected, not 'yes'"),
        ({"over": "tsak"}, "claim c: over: unknown column 'tsak'; nearest: task"),
        ({"unit": ["image", "block"]}, "claim c: unit: columns and at most one kind of row"),
        ({"where": "task"}, "claim c: where: a mapping is expected, not 'task'"),
        ({"censored": {"as": 3, "dorp": "both"}}, "claim c: censored: unknown key 'dorp'; nearest: drop"),
        ({"censored": {"drop": "both"}}, "claim c: censored: 'as' is missing"),
        ({"censored": {"drop": "all"}}, "claim c: censored: drop: unknown value 'all'"),
        ({"censored": [3]}, "claim c: censored: a number is expected, not [3]"),
        ({"expect": "=> 1"}, "claim c: expect: "),
        ({"expect": ">= one"}, "is expected, not '>= one'"),
        ({"expect": "== 1"}, "is expected, not '== 1'"),
        ({"expect": 1.5}, "is expected, not 1.5"),
        ({"expect": "in [3, 2]"}, "claim c: expect: the range 'in [3, 2]' is empty"),
        ({"expect": "in [2, 2]"}, "claim c: expect: the range 'in [2, 2]' is empty"),
        ({"expect": {"exactly": ">= 1"}}, "claim c: expect: unknown value 'exactly'; nearest: exact"),
        ({"expect": "population"}, 'population of ratio needs a range: {population: ">= a"}'),
        ({**statistic("slope", metric="gap", x="step"), "expect": "exact"}, "exact of slope needs a range"),
        (
            statistic("ratio", metric="gap", of="kind/aa", to="kind/b"),
            "of: method 'kind/aa' is not in experiment 'main'",
        ),
        (
            statistic("ratio", metric="gap", of="kind/a", to=["kind/b", "kind/larg"]),
            "ratio: to: method 'kind/larg' is not in experiment 'main'; nearest: kind/large",
        ),
        (
            statistic("ratio", metric="gap", of={"min": ["kind/a", "kind/z"]}, to="kind/b"),
            "of: method 'kind/z' is not in experiment 'main'",
        ),
        (
            {"where": {"task": ["levi"]}},
            "claim c: where: task 'levi' is not in experiment 'main'; nearest: kind/levy",
        ),
        (
            {"reported": {"levy": 4, "akcley": 2}},
            "claim c: reported: no cell is called 'akcley'; nearest: kind/ackley",
        ),
        (
            statistic("value", metric={"_target_": "math.sqtr"}),
            "'math' has no function 'sqtr'; nearest: sqrt",
        ),
        (statistic("value", metric={"_target_": "no.such"}), "claim c: metric: 'no' cannot be imported"),
        (
            {"experiment": "panel", **statistic("value", metric="gap", of="kind/c")},
            "is not in experiment 'panel'",
        ),
    ],
)
def test_mistakes_are_found_before_any_run(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate({"c": {**CLAIM, **change}}, EXPERIMENTS)
    assert message in str(caught.value)
    assert str(caught.value).startswith("claim c: ")
    assert "\n" not in str(caught.value)


def test_a_forgotten_experiment_is_not_taken_for_a_shown_claim() -> None:
    forgotten = {key: value for key, value in CLAIM.items() if key != "experiment"}
    with pytest.raises(ConfigError, match="claim c: 'experiment' is missing"):
        validate({"c": forgotten}, EXPERIMENTS)


@pytest.mark.parametrize("entry", [None, [], "text", {}])
def test_what_is_no_claim_at_all(entry: Any) -> None:
    with pytest.raises(ConfigError, match="claim c: a mapping is expected"):
        validate({"c": entry}, EXPERIMENTS)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {
            "reported": {"levy": {"b": 4.2}, "kind/ackley": 2},
            **statistic("ratio", metric="gap", of="a", to=["b", "large"]),
        },
        {"expect": "in [-1e-3, .5]"},
        {"expect": {"exact": "== 1"}},
        {"expect": {"population": "> 0"}},
        {"expect": "exact"},
        {"experiment": None, "statistic": None, "expect": None, "shown": "a statement about the literature"},
        {"shown": "no number in the paper", "expect": None, "set_by": None},
        {"censored": {"drop": "any"}},
        {"center": "geometric mean"},
        {"experiment": "panel", **statistic("value", metric="s", of="b"), "unit": "repeat", "over": "round"},
        {"experiment": "open", **statistic("value", metric="gap", of="kind/whatever")},
        statistic("rank", metric="gap", of="kind/a", among="all", goal="max"),
        statistic("slope", metric="gap", x="step", window=[None, 100]),
        {**statistic("within", metric="gap", target="theory", abs=0.1), "expect": None},
        {**statistic("within", metric="gap", target=3, rel=0.1), "expect": "exact"},
        statistic("value", metric={"_target_": "math.log", "base": 2}) | {"experiment": None, "shown": "x"},
    ],
)
def test_what_is_allowed(change: dict[str, Any]) -> None:
    validate({"c": {**CLAIM, **change}}, EXPERIMENTS)


def test_columns_that_claims_name() -> None:
    claims = {
        "a": {**CLAIM, "censored": "steps"},
        "b": {
            **CLAIM,
            **statistic("slope", metric="gap", x="task.T", of={"method": "kind/a", "method.lr": 0.1}),
            "where": {"task.dim": 3},
            "unit": ["seed", "task.data"],
            "censored": "task.T",
        },
    }
    assert set(named_columns(claims)) == {
        *("task.steps", "method.steps", "task.T", "method.lr", "task.dim", "task.data")
    }


def test_expectations_read_back() -> None:
    for text in (">= 1.5", "> 0", "<= -0.001", "< 1000000", "<= 1.000001", "in [-0.6, -0.4]"):
        claim = parse("c", {**CLAIM, "expect": text})
        assert str(claim.expect) == text
        assert parse("c", {**CLAIM, "expect": str(claim.expect)}).expect == claim.expect
    assert str(parse("c", {**CLAIM, "expect": "exact"}).expect) == "exact: == 1"


def test_judge_checks_what_validate_would() -> None:
    with pytest.raises(ConfigError, match="unknown key 'expct'; nearest: expect"):
        judge("c", {**CLAIM, "expct": 1}, None, scale="laptop")


def test_the_command_line_starts_without_heavy_imports() -> None:
    code = (
        "import sys, runners.claims; print(sorted({'numpy', 'pandas', 'scipy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
