"""Figures: what is aggregated, what is written, and that the bytes never change."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from runners import canvas, figure_spec
from runners.errors import ConfigError
from runners.figures import _legend_columns, draw

METHODS = ["zo/sgd", "zo/adam", "zo/new"]


def case(methods=METHODS, tasks=("zo/a", "zo/b"), seeds=5, steps=None, rate=0.01):
    """Runs whose gap is exp(-rate * (method + 1) * step), times exp(seed / 10)."""
    steps = np.arange(0, 401, 10) if steps is None else steps
    rows, curves = [], {}
    for task in tasks:
        for k, method in enumerate(methods):
            for seed in range(seeds):
                run = f"{task}-{method}-{seed}"
                gap = np.exp(-rate * (k + 1) * steps + seed / 10)
                curves[run] = pd.DataFrame({"step": steps, "gap": gap})
                row = {"id": run, "method": method, "task": task, "seed": seed, "status": "done"}
                rows.append(row | {"final": gap[-1], "cost": float(100 * (k + 1) + seed)})
    return pd.DataFrame(rows), curves


def interval(values):
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return np.mean(values) - half, np.mean(values) + half


def float_of(values):
    return values


def legend(path: Path) -> str:
    return path.read_text(encoding="utf-8")


CURVES = {"title": "Gap", "y": "gap", "panels": "task", "yscale": "log"}


def test_same_bytes_again(tmp_path):
    frame, curves = case()
    specs = {
        "lines": CURVES,
        "bars": {"kind": "bars", "y": "cost"},
        "profile": {"kind": "profile", "y": "cost"},
    }
    for name, spec in specs.items():
        draw(name, spec, frame, curves.__getitem__, tmp_path / "one")
        draw(name, spec, frame, curves.__getitem__, tmp_path / "two")
        assert (tmp_path / "one" / f"{name}.svg").read_bytes() == (
            tmp_path / "two" / f"{name}.svg"
        ).read_bytes()


@pytest.mark.slow
def test_same_bytes_in_another_process(tmp_path):
    frame, curves = case()
    draw("lines", CURVES, frame, curves.__getitem__, tmp_path)
    code = (
        "import sys; from tests.runners.test_figures import *; frame, curves = case(); "
        "draw('lines', CURVES, frame, curves.__getitem__, Path(sys.argv[1]))"
    )
    # Neither the hash seed nor the user's own matplotlibrc may play a part.
    (tmp_path / "matplotlibrc").write_text("font.size: 30\naxes.facecolor: red\nsvg.fonttype: path\n")
    env = os.environ | {"PYTHONHASHSEED": "77", "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "other")], check=True, env=env)
    assert (tmp_path / "lines.svg").read_bytes() == (tmp_path / "other" / "lines.svg").read_bytes()


def test_file_is_small_plain_and_undated(tmp_path):
    frame, curves = case(steps=np.arange(20_000))
    table = draw("gap", CURVES, frame, curves.__getitem__, tmp_path)
    text = (tmp_path / "gap.svg").read_text(encoding="utf-8")
    assert table.groupby(["panel", "line"]).size().max() <= 150
    assert len(text) < 60_000
    ElementTree.fromstring(text)
    assert "<metadata>" not in text
    assert not re.search(r"matplotlib v|dc:date|<!--", text, re.I)
    assert ">Gap<" in text  # text stays text: it can be searched and read aloud


@pytest.mark.slow
def test_many_lines_share_their_points(tmp_path):
    frame, curves = case([f"zo/m{i}" for i in range(20)], [f"zo/t{i}" for i in range(8)], 2, np.arange(1000))
    table = draw("gap", CURVES, frame, curves.__getitem__, tmp_path)
    assert table.groupby(["panel", "line"]).size().max() == 25
    assert (tmp_path / "gap.svg").stat().st_size < 300_000


def test_legends_fit(tmp_path):
    for count in range(2, 12):
        texts = {str(i): "m" * (5 + 3 * i) for i in range(count)}
        columns = _legend_columns(texts, 95)
        rows, longer = divmod(count, columns)
        sizes = [rows + (i < longer) for i in range(columns)]
        assert sum(sizes) == count
        assert columns == 1 or columns * 11 <= 95


def test_centre_and_interval_of_curves(tmp_path):
    frame, curves = case(methods=["zo/sgd"], tasks=["zo/a"])
    logged = draw("g", {"y": "gap", "yscale": "log"}, frame, curves.__getitem__, tmp_path)
    plain = draw("p", {"y": "gap"}, frame, curves.__getitem__, tmp_path)
    values = np.stack([curve["gap"] for curve in curves.values()])
    steps = curves["zo/a-zo/sgd-0"]["step"].to_numpy()
    for table, forward, backward in ((logged, np.log, np.exp), (plain, float_of, float_of)):
        assert list(table.columns) == ["figure", "panel", "line", "x", "center", "low", "high", "n"]
        for row in table.iloc[[0, 17, -1]].itertuples():
            column = forward(values[:, np.flatnonzero(steps == row.x)[0]])
            low, high = interval(column)
            assert row.center == pytest.approx(backward(np.mean(column)))
            assert (row.low, row.high) == pytest.approx((backward(low), backward(high)))
            assert row.n == 5


def test_runs_with_other_steps_are_aligned(tmp_path):
    frame, curves = case(methods=["zo/sgd"], tasks=["zo/a"], seeds=3)
    for seed, stride in enumerate((1, 3, 7)):
        steps = np.unique(np.append(np.arange(0, 400, stride), 400))
        curves[f"zo/a-zo/sgd-{seed}"] = pd.DataFrame({"step": steps, "gap": np.exp(-0.01 * steps)})
    table = draw("g", {"y": "gap", "yscale": "log"}, frame, curves.__getitem__, tmp_path)
    # All three follow one line in log scale, so that interpolation there is exact.
    assert table["center"].to_numpy() == pytest.approx(np.exp(-0.01 * table["x"].to_numpy(dtype=float)))
    assert table["high"].to_numpy() == pytest.approx(table["low"].to_numpy())


def test_a_run_that_ends_early_holds_its_last_value(tmp_path):
    frame, curves = case(methods=["zo/sgd"], tasks=["zo/a"], seeds=2)
    first, second = list(curves)
    curves[first] = pd.DataFrame({"step": [0, 10], "gap": [4.0, 2.0]})
    curves[second] = pd.DataFrame({"step": [0, 10, 20], "gap": [4.0, 2.0, 1.0]})
    table = draw("g", {"y": "gap"}, frame, curves.__getitem__, tmp_path)
    assert list(table["center"]) == [4.0, 2.0, 1.5]
    assert list(table["n"]) == [2, 2, 2]


def test_diverged_and_failed_runs_are_told(tmp_path):
    frame, curves = case(methods=["zo/sgd"], tasks=["zo/a"], seeds=4)
    frame["status"] = ["done", "done", "diverged", "failed"]
    curves[frame["id"][2]] = pd.DataFrame({"step": [0, 10], "gap": [1.0, 1e6]})
    del curves[frame["id"][3]]  # a failed run must not even be read
    table = draw("g", {"y": "gap"}, frame, curves.__getitem__, tmp_path)
    assert set(table[table["x"] <= 10]["n"]) == {3}
    assert set(table[table["x"] > 10]["n"]) == {2}
    assert "sgd (1 of 4 diverged, 1 of 4 failed)" in legend(tmp_path / "g.svg")


def test_values_without_a_logarithm_are_told(tmp_path):
    frame, curves = case(methods=["zo/sgd"], tasks=["zo/a"], seeds=2)
    curves[frame["id"][0]] = pd.DataFrame({"step": [0, 1, 2], "gap": [1.0, 0.01, 0.0]})
    curves[frame["id"][1]] = pd.DataFrame({"step": [0, 1, 2], "gap": [1.0, 0.01, 0.01]})
    table = draw("g", {"y": "gap", "yscale": "log"}, frame, curves.__getitem__, tmp_path)
    assert list(table["center"]) == pytest.approx([1.0, 0.01, 0.01])
    assert "1 of 2 reach ≤ 0, drawn at 0.01" in legend(tmp_path / "g.svg")


def test_a_method_keeps_its_colour(tmp_path):
    frame, curves = case()
    colours = [canvas.look(i).color.lower() for i in range(3)]
    for wanted in (METHODS, METHODS[1:], [METHODS[2]]):
        part = frame[frame["method"].isin(wanted)]
        name = f"f{len(wanted)}"
        draw(name, {"y": "gap"}, part, curves.__getitem__, tmp_path, methods=METHODS)
        text = legend(tmp_path / f"{name}.svg").lower()
        for method, colour in zip(METHODS, colours, strict=True):
            assert (f"stroke: {colour}" in text) == (method in wanted)


def test_looks_of_many_methods_differ():
    looks = [canvas.look(i) for i in range(21)]
    assert len({(look.color, str(look.dash)) for look in looks}) == 21


def test_numeric_lines_are_ordered_by_value(tmp_path):
    frame, curves = case(methods=["zo/sgd"], tasks=["zo/a"], seeds=4)
    frame["method.lr"] = [0.1, 0.01, 10.0, 1.0]
    table = draw("g", {"y": "gap", "lines": "method.lr"}, frame, curves.__getitem__, tmp_path)
    assert list(dict.fromkeys(table["line"])) == ["0.01", "0.1", "1", "10"]


def test_bars(tmp_path):
    frame, curves = case()
    frame.loc[frame["method"] == "zo/adam", "cost"] = [np.nan, *range(1, 10)]
    table = draw("b", {"kind": "bars", "y": "cost"}, frame, curves.__getitem__, tmp_path)
    row = table[(table["line"] == "zo/new") & (table["x"] == "zo/b")].iloc[0]
    assert row["center"] == pytest.approx(302.0)
    assert (row["low"], row["high"]) == pytest.approx(interval(np.arange(300, 305)))
    few = table[(table["line"] == "zo/adam") & (table["x"] == "zo/a")].iloc[0]
    assert few["n"] == 4
    assert "1 of 10 without a value" in legend(tmp_path / "b.svg")
    counted = {"kind": "bars", "y": "cost", "censored": 1000}
    table = draw("c", counted, frame, curves.__getitem__, tmp_path)
    assert table[(table["line"] == "zo/adam") & (table["x"] == "zo/a")].iloc[0]["center"] == pytest.approx(
        202.0
    )


def test_bars_of_rows_and_of_measures(tmp_path):
    frame, curves = case(tasks=["zo/a"])
    rows = pd.DataFrame(
        {"method": ["zo/sgd"] * 4, "task": "zo/a", "i": range(4), "hit": [True, False, True, True]}
    )
    spec = {"kind": "bars", "y": "hit", "unit": "image", "center": "proportion"}
    table = draw("r", spec, frame, curves.__getitem__, tmp_path, rows=lambda unit: rows)
    assert table.iloc[0]["center"] == 0.75
    assert table.iloc[0]["n"] == 4
    some = spec | {"where": {"i": [0, 1]}}  # a column that only the rows have
    table = draw("s", some, frame, curves.__getitem__, tmp_path, rows=lambda unit: rows)
    assert (table.iloc[0]["center"], table.iloc[0]["n"]) == (0.5, 2)
    with pytest.raises(ConfigError, match="where: unknown column 'j'"):
        draw("s", spec | {"where": {"j": 0}}, frame, curves.__getitem__, tmp_path, rows=lambda unit: rows)
    measured = {"kind": "bars", "y": {"_target_": "tests.runners.test_figures.first_gap"}}
    table = draw("m", measured, frame, curves.__getitem__, tmp_path)
    assert table.iloc[0]["center"] == pytest.approx(np.mean(np.exp(np.arange(5) / 10)))


def first_gap(frame: pd.DataFrame) -> float:
    return float(frame["gap"].iloc[0])


def test_performance_profile(tmp_path):
    costs = {"zo/sgd": [1.0, 4.0, None, None], "zo/new": [2.0, 2.0, 5.0, None]}
    frame = pd.DataFrame(
        [
            {"id": f"{m}{i}", "method": m, "task": f"zo/t{i}", "seed": 0, "status": "done", "cost": cost}
            for m, values in costs.items()
            for i, cost in enumerate(values)
        ]
    )
    table = draw("p", {"kind": "profile", "y": "cost"}, frame, {}.__getitem__, tmp_path)
    share = {(row.line, row.x): row.center for row in table.itertuples()}
    # Ratios to the best: sgd 1, 2, inf, inf; new 2, 1, 1, inf. What nobody solves stays in the denominator.
    assert (share["zo/sgd", 1.0], share["zo/new", 1.0]) == (0.25, 0.5)
    assert (share["zo/sgd", 2.0], share["zo/new", 2.0]) == (0.5, 0.75)


def test_scatter_is_thinned_and_says_so(tmp_path):
    frame, curves = case(methods=["zo/sgd"], tasks=["zo/a"], seeds=600)
    table = draw("s", {"kind": "scatter", "x": "seed", "y": "cost"}, frame, curves.__getitem__, tmp_path)
    assert len(table) == 120
    assert {0.0, 599.0} <= set(table["x"])
    assert "120 of 600 drawn" in legend(tmp_path / "s.svg")


def test_where_selects(tmp_path):
    frame, curves = case()
    for wanted in ("zo/a", ["zo/a"], "*/a"):
        table = draw("g", {**CURVES, "where": {"task": wanted}}, frame, curves.__getitem__, tmp_path)
        assert set(table["panel"]) == {"zo/a"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"y": "gap", "yscal": "log"}, "unknown key 'yscal' of kind curves; nearest: yscale"),
        ({"y": "gapp"}, "no run logs 'gapp'; nearest: gap"),
        ({"y": "gap", "x": "stepp"}, "no run logs 'stepp'; nearest: step"),
        (
            {"y": "gap", "kind": "curvs"},
            "kind 'curvs' is none of curves, bars, scatter, profile; nearest: curves",
        ),
        ({"y": "gap", "yscale": "lin"}, "yscale 'lin' is none of"),
        ({"y": "gap", "center": "modian"}, "center 'modian' is none of .*; nearest: median"),
        ({"y": "gap", "panels": "tasks"}, "panels: unknown column 'tasks'; nearest: task"),
        ({"y": "gap", "lines": ["method", "sed"]}, "lines: unknown column 'sed'; nearest: seed"),
        ({"y": "gap", "where": {"tsk": "a"}}, "where: unknown column 'tsk'; nearest: task"),
        ({"y": "gap", "where": {"task": "zo/aa"}}, "where: unknown task 'zo/aa'; nearest: zo/a"),
        ({"kind": "bars", "y": "finl"}, "unknown metric 'finl'; nearest: final"),
        ({"kind": "bars", "y": "final", "unit": "image"}, "'unit: image' needs rows"),
        ({"kind": "bars", "y": {"_target_": "math.sqr"}}, "no 'sqr' in math; nearest: sqrt"),
        ({"kind": "scatter", "y": "final"}, "'x' is missing"),
        ({"title": "t"}, "'y' is missing"),
        ({"y": "gap", "labels": {"y": "$\\frac$"}}, "a label cannot be drawn"),
        ({"_target_": "tests.runners.test_figures.nothing"}, "no 'nothing' in tests.runners.test_figures"),
        (
            {"_target_": "tests.runners.test_figures.own_figure", "widht": 2},
            "unexpected keyword .*nearest: width",
        ),
    ],
)
def test_bad_specs_are_one_clear_line(tmp_path, spec, message):
    frame, curves = case(seeds=2)
    with pytest.raises(ConfigError, match=message) as caught:
        draw("fig1", spec, frame, curves.__getitem__, tmp_path)
    assert str(caught.value).startswith("figure fig1: ")
    assert "\n" not in str(caught.value)


def own_figure(frame, curves, rows, look, width=1):
    figure = Figure()
    figure.subplots().plot([0, 1], [0, width], **look("zo/adam"))
    return figure, pd.DataFrame({"panel": "", "line": "zo/adam", "x": [0, 1], "center": [0, width]})


def test_a_figure_function(tmp_path):
    frame, curves = case(seeds=2)
    spec = {"_target_": "tests.runners.test_figures.own_figure", "title": "Own", "width": 3}
    table = draw("own", spec, frame, curves.__getitem__, tmp_path, methods=METHODS)
    assert list(table["figure"]) == ["own", "own"]
    assert list(table["center"]) == [0, 3]
    assert f"stroke: {canvas.look(1).color.lower()}" in legend(tmp_path / "own.svg")


def test_names_are_text_not_markup(tmp_path):
    frame, curves = case(methods=["zo/<script>alert(1)</script>", "zo/$x_$"], tasks=["zo/a & b"])
    draw("g", {"y": "gap", "title": "<b>"}, frame, curves.__getitem__, tmp_path)
    text = legend(tmp_path / "g.svg")
    assert "<script" not in text
    assert "&lt;b&gt;" in text
    assert "$x_$" in text


def test_nothing_to_draw_is_drawn_as_such(tmp_path):
    frame, curves = case(methods=["zo/sgd"], tasks=["zo/a"], seeds=2)
    frame["status"] = "failed"
    for name, spec in {"c": {"y": "gap"}, "b": {"kind": "bars", "y": "cost"}}.items():
        assert not len(draw(name, spec, frame, curves.__getitem__, tmp_path))
        assert "nothing to draw" in legend(tmp_path / f"{name}.svg")
    assert not len(draw("e", {"y": "gap"}, frame[:0], curves.__getitem__, tmp_path))


def test_ticks():
    texts = [canvas.tick(x) for x in (0.01, 1, 100, 2000, 1e-7, 1e5, 2e5)]
    assert texts == ["0.01", "1", "100", "2000", "10⁻⁷", "10⁵", "2·10⁵"]


def test_methods_of_a_paper_in_order():
    paper = {
        "experiments": {
            "one": {"grid": {"method": ["k/b", ["k/c", "k/a"]]}},
            "two": {"grid": [{"method": "k/a"}, {"method": ["k/d", "k/b"]}]},
        }
    }
    assert figure_spec.methods(paper) == ["k/b", "k/c", "k/a", "k/d"]
