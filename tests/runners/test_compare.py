"""Comparisons: what is paired, what is tuned, that budgets are equal, ranks and tables by hand."""

import csv
import math
import re

import pandas as pd
import pytest

from runners import compare, comparison, identity, places, yamls
from runners.compare import Goal, Plan
from runners.compose import compose_run
from runners.errors import ConfigError

VALLEY = """
_target_: reprise_toy.tasks.Bowl
interface: reprise_toy.interface.Method
compare: {metric: gap, scale: log}
steps: 20
"""


@pytest.fixture
def valley(conf):
    conf("task/toy/valley.yaml", VALLEY)
    return conf


def rows(outputs, name="table.csv"):
    with (outputs / "compare" / "toy" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_table_picture_and_pages(valley, command, outputs):
    ended = command(
        "runners.compare",
        "kind=toy",
        "tasks=valley",
        "methods=descent,sign",
        "seeds=4",
        "tune_seeds=2",
        "budget=5",
    )
    assert ended.code == 0, ended.err
    assert "descent" in ended.out
    runs = rows(outputs, "runs.csv")
    assert sorted((row["method"], int(row["seed"])) for row in runs) == sorted(
        (method, seed) for method in ("toy/descent", "toy/sign") for seed in range(4)
    )
    by_seed = {}
    for row in runs:
        by_seed.setdefault(row["seed"], {})[row["method"]] = float(row["value"])
    for row in rows(outputs):
        own = [marks[row["method"]] for marks in by_seed.values()]
        geometric = math.exp(sum(map(math.log, own)) / len(own))
        assert float(row["center"]) == pytest.approx(geometric, rel=1e-5)
        assert float(row["low"]) < geometric < float(row["high"])
        place = [sorted(marks.values()).index(marks[row["method"]]) + 1 for marks in by_seed.values()]
        assert float(row["rank"]) == pytest.approx(sum(place) / len(place))
        assert (row["n"], row["runs"], row["tried"]) == ("4", "4", "5")
    folder = outputs / "compare" / "toy"
    assert sorted(path.name for path in folder.iterdir()) == [
        *("README.md", "compare_log.svg", "index.html", "runs.csv", "table.csv"),
    ]
    for name in ("README.md", "index.html"):
        text = (folder / name).read_text()
        assert "compare_log.svg" in text
        assert "toy/valley" in text


@pytest.mark.slow
def test_the_setting_with_the_best_tuning_score_is_judged(valley, command, outputs):
    ended = command(
        "runners.compare",
        "kind=toy",
        "tasks=valley",
        "methods=descent",
        "seeds=2",
        "tune_seeds=2",
        "budget=5",
    )
    assert ended.code == 0, ended.err
    scores = {}
    for path in outputs.glob("toy/descent/valley/*/result.json"):
        result = yamls.load(path)
        config = result["config"]
        if config["seed"] >= compare.FIRST_TUNING_SEED:
            scores.setdefault(config["method"]["lr"], []).append(result["summary"]["gap"])
        else:
            judged = config["method"]["lr"]
    assert sorted(scores) == [0.01, 0.03, 0.1, 0.3, 1.0]
    assert {len(found) for found in scores.values()} == {2}
    assert judged == min(scores, key=lambda lr: sum(scores[lr]))
    (row,) = rows(outputs)
    assert row["setting"].startswith("lr=")
    assert row["edge"] == str(judged in (0.01, 1.0))


@pytest.mark.slow
def test_a_method_that_fails_is_last_and_the_others_are_compared(valley, command, outputs):
    ended = command("runners.compare", "kind=toy", "tasks=valley", "seeds=2", "budget=1")
    assert ended.code == 1
    assert "runs failed" in ended.err
    table = {row["method"]: row for row in rows(outputs)}
    assert set(table) == {"toy/descent", "toy/sign", "toy/bad"}
    assert (table["toy/bad"]["rank"], table["toy/bad"]["n"], table["toy/bad"]["center"]) == ("3", "0", "")
    assert {row["tried"] for row in table.values()} == {"1"}
    assert "2 of 2 without" in (outputs / "compare" / "toy" / "README.md").read_text()


def test_what_is_left_out_is_said(valley, command):
    ended = command("runners.compare", "kind=toy", "dry_run=true")
    assert ended.code == 0
    assert "left out: toy/foreign: no task here has its interface" in ended.err
    assert "left out: toy/bowl: its YAML does not say what to compare" in ended.err
    assert "left out: toy/duel: opponent has no default" in ended.err


def test_long_tasks_take_part_where_they_are_named(valley, command):
    valley("task/toy/gorge.yaml", VALLEY.replace("scale: log", "heavy: true"))
    ended = command("runners.compare", "kind=toy", "dry_run=true")
    assert "left out: toy/gorge: its runs take long (heavy: true); tasks= may name it" in ended.err
    fast = int(re.search(r"(\d+) runs", ended.err)[1])
    ended = command("runners.compare", "kind=toy", "tasks=gorge,valley", "dry_run=true")
    assert "toy/gorge" not in ended.err
    assert int(re.search(r"(\d+) runs", ended.err)[1]) == 2 * fast


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kind=toi"], "nearest: toy"),
        (["kidn=toy"], "unknown option 'kidn'; nearest: kind"),
        (["kind=toy", "tasks=vally"], "unknown task 'vally' of kind toy; nearest: toy/valley"),
        (["kind=toy", "methods=descnt"], "nearest: toy/descent"),
        (["kind=toy", "tasks=bowl"], "does not say what to compare"),
        (["kind=toy", "budget=0"], "budget=0: expected a whole number of at least 1"),
        (["kind=toy", "sedes=3"], "unknown option 'sedes'; nearest: seeds"),
        (["kind=toy", "tasks=valley", "task.stepz=3"], "task.stepz"),
        (["kind=toy", "tasks=valley", "methods=foreign"], "no method offers its interface"),
    ],
)
def test_bad_input_is_one_line(valley, command, arguments, words):
    ended = command("runners.compare", *arguments)
    assert ended.code == 2
    assert words in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("compare: gap", "expected a mapping with metric"),
        ("compare: {metric: gap, gaol: min}", "unknown key 'gaol'; nearest: goal"),
        ("compare: {metric: gap, goal: least}", "goal: min or max"),
        ("compare: {metric: gap, scale: wide}", "scale: linear or log"),
        ("compare: {metric: gap, heavy: 3}", "heavy: true or false"),
    ],
)
def test_bad_declarations_are_told(text, words):
    with pytest.raises(ConfigError, match=words):
        compare.comparable(yamls.parse(text), "toy/valley")


def test_a_metric_that_no_run_has_is_one_line(conf, command):
    conf("task/toy/valley.yaml", VALLEY.replace("metric: gap", "metric: gpa"))
    ended = command(
        "runners.compare", "kind=toy", "tasks=valley", "methods=descent", "seeds=1", "tune_seeds=1"
    )
    assert ended.code == 2
    assert "gpa" in ended.err.splitlines()[-1]
    assert "nearest: gap" in ended.err.splitlines()[-1]


def test_what_comparisons_ask_changes_no_id(conf):
    conf("task/toy/valley.yaml", VALLEY)
    asked = compose_run("toy/descent", "toy/valley", lambda _: [])
    conf("task/toy/valley.yaml", VALLEY.replace("compare: {metric: gap, scale: log}\n", ""))
    conf(
        "method/toy/descent.yaml",
        (places.option_file("method", "toy/descent")).read_text() + "tunable: {lr: [1.0]}\n",
    )
    assert identity.run_id(asked) == identity.run_id(compose_run("toy/descent", "toy/valley", lambda _: []))


def test_learning_rates_are_found_and_scaled():
    assert compare.tunable({"_target_": "x.Y", "lr": 0.1}, "m", 5) == {"lr": [0.01, 0.03, 0.1, 0.3, 1.0]}
    assert compare.tunable({"optimizer": {"_target_": "x.Y", "lr": 2}}, "m", 3) == {
        "optimizer.lr": [0.2, 2.0, 20.0]
    }
    assert compare.tunable({"lr": "1/L"}, "m", 5) == {"lr": ["0.1/L", "0.3/L", "1/L", "3/L", "10/L"]}
    assert compare.tunable({"lr": "0.1"}, "m", 3) == {"lr": ["0.01", "0.1", "1"]}
    assert compare.tunable({"lr": "1e-3"}, "m", 3) == {"lr": ["0.0001", "0.001", "0.01"]}
    assert compare.tunable({"lr": "auto", "step_size": 1.0}, "m", 3) == {"step_size": [0.1, 1.0, 10.0]}
    for node in ({"lr": None}, {"lr": 0.0}, {"lr": True}, {"alpha": 0.1}, {"lr": 0.1, "tunable": False}):
        assert compare.tunable(node, "m", 5) == {}
    assert compare.tunable({"lr": 0.1}, "m", 1) == {}


def test_declared_grids_are_thinned_to_the_budget():
    lr = [1, 2, 3, 4, 5, 6, 7]
    assert compare.tunable({"lr": 0.1, "b": 1, "tunable": {"b": [1, 2]}}, "m", 5) == {"b": [1, 2]}
    assert compare.tunable({"lr": 0.1, "tunable": {"lr": lr}}, "m", 3) == {"lr": [1, 4, 7]}
    found = compare.tunable({"lr": 0.1, "b": 1, "tunable": {"lr": lr, "b": [1, 2, 3]}}, "m", 6)
    assert len(found["lr"]) * len(found["b"]) <= 6
    assert (found["lr"][0], found["lr"][-1], found["b"][-1]) == (1, 7, 3)
    with pytest.raises(ConfigError, match="unknown key 'lrr'; nearest: lr"):
        compare.tunable({"lr": 0.1, "tunable": {"lrr": [1]}}, "m", 5)
    with pytest.raises(ConfigError, match="expected"):
        compare.tunable({"lr": 0.1, "tunable": {"lr": 3}}, "m", 5)


@pytest.mark.parametrize("budget", range(2, 12))
def test_factors_are_distinct_and_span_two_decades(budget):
    found = compare.factors(budget)
    assert (found[0], found[-1], len(set(found))) == (0.1, 10.0, budget)
    assert found == sorted(found)


def test_ranks_by_hand():
    plan = Plan("k", 5, 2, 1, goals={"k/low": Goal("m"), "k/high": Goal("m", "max")})
    frame = pd.DataFrame(
        [
            ("k/low", "a", 0, 1.0),
            ("k/low", "b", 0, 2.0),
            ("k/low", "c", 0, math.nan),
            ("k/low", "a", 1, 3.0),
            ("k/low", "b", 1, 3.0),
            ("k/low", "c", 1, 1.0),
            ("k/high", "a", 0, 1.0),
            ("k/high", "b", 0, 2.0),
        ],
        columns=["task", "method", "seed", "value"],
    )
    found = comparison.ranks(plan, frame)
    assert found == {
        ("k/low", "a"): (1 + 2.5) / 2,
        ("k/low", "b"): (2 + 2.5) / 2,
        ("k/low", "c"): (3 + 1) / 2,
        ("k/high", "a"): 2.0,
        ("k/high", "b"): 1.0,
    }


def test_every_task_that_is_compared_says_it_well():
    for task in places.options("task"):
        node = yamls.load(places.option_file("task", task))
        goal = compare.comparable(node, task)
        if goal is not None and isinstance(goal.censored, str):
            assert goal.censored in node, task
