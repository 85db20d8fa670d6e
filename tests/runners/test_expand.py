"""Expansion: grids, precedence, scales, settings, tuning, needs, panels, what the command line changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.errors import ConfigError
from runners.expand import Cell, Expander, Overrides, choose
from runners.paper import Paper, values

Expand = Callable[..., Expander]
GRID = "grid: {method: [toy/descent, toy/sign], task: toy/bowl, seed: range(3)}"


@pytest.fixture
def expand(conf: Callable[[str, str], Path]) -> Expand:
    """``expand(experiments, scale, ...)``: an expander of a paper with these experiments."""

    def make(experiments: str, scale: str = "smoke", **overrides: Any) -> Expander:
        indented = "\n".join(f"  {line}" for line in experiments.strip("\n").splitlines())
        conf("paper/made.yaml", f"experiments:\n{indented}\n")
        return Expander(Paper("made"), scale, Overrides(**overrides))

    return make


def points(cells: list[Cell], *paths: str) -> list[tuple[Any, ...]]:
    """Values at some paths of every cell's config, in order of these values."""
    from runners.compose import leaves

    found = [tuple(leaves(cell.config).get(path) for path in paths) for cell in cells]
    return sorted(found, key=str)


def test_a_grid_is_a_product(expand: Expand) -> None:
    cells = expand(f"one:\n  {GRID}").judged("one")
    assert points(cells, "method", "seed") == [
        (method, seed) for method in ("toy/descent", "toy/sign") for seed in range(3)
    ]
    assert len({cell.id for cell in cells}) == 6
    assert cells[0].coordinates == {"seed": 0, "method": "toy/descent", "task": "toy/bowl"}
    assert cells[0].folder == f"toy/descent/bowl/{cells[0].id}"


def test_a_list_of_grids_is_a_union(expand: Expand) -> None:
    cells = expand("""
one:
  grid:
    - {method: toy/descent, task: toy/bowl, method.lr: [0.1, 0.2]}
    - {method: toy/descent, task: toy/bowl, method.lr: 0.2}
    - {method: toy/sign, task: toy/bowl, seed: [3, 4]}
""").judged("one")
    assert points(cells, "method", "method.lr", "seed") == [
        ("toy/descent", 0.1, 0),
        ("toy/descent", 0.2, 0),
        ("toy/sign", 0.05, 3),
        ("toy/sign", 0.05, 4),
    ]


def test_equal_configs_are_one_cell(expand: Expand) -> None:
    cells = expand(
        "one:\n  grid: {method: toy/descent, task: toy/bowl, method.lr: [1, 1.0, 1e0], seed: [0, 0]}"
    )
    assert len(cells.judged("one")) == 1


def test_precedence_level_by_level(expand: Expand) -> None:
    """Method and task file < settings < scale < tuned < grid < command line."""
    start = "one:\n  grid: {method: toy/descent, task: toy/bowl}"
    settings = "\n  settings: [{set: {method.lr: 0.2, task.steps: 2}, source: Table 1}]"
    scale = "\n  scale: {smoke: {method.lr: 0.3, task.steps: 3}}"
    tune = "\n  tune: {grid: {method.lr: [0.4]}, metric: gap, seeds: [100]}"
    grid = start.replace("}", ", method.lr: 0.5}")

    def lr(text: str, tuned: bool = False, **overrides: Any) -> tuple[Any, ...]:
        made = expand(text, **overrides)
        winners = {cell.group: candidate for cell, candidate, _ in made.tuning("one")} if tuned else None
        return points(made.judged("one", tuned=winners), "method.lr", "task.steps")[0]

    assert lr(start) == (0.1, 20)
    assert lr(start + settings) == (0.2, 2)
    assert lr(start + settings + scale) == (0.3, 3)
    assert lr(start + settings + scale + tune, tuned=True) == (0.4, 3)
    assert lr(grid + settings) == (0.5, 2)
    assert lr(grid + settings + scale) == (0.3, 3)  # a scale replaces an axis
    line = [("method.lr", 0.6, "command line"), ("task.steps", 6, "command line")]
    assert lr(grid + settings + scale, leaves=line) == (0.6, 6)
    assert lr(start + settings + scale + tune, tuned=True, leaves=line) == (0.6, 6)


def test_settings_apply_where_they_say(expand: Expand) -> None:
    made = expand(f"""
one:
  {GRID}
  settings:
    - {{when: {{method: "toy/s*"}}, set: {{method.lr: 0.2}}, source: Table 1}}
    - {{when: {{method: [toy/sign, toy/descent], seed: 1}}, set: {{task.steps: 7}}, source: official code}}
    - {{set: {{task.noise: 0}}, source: assumed}}
""")
    assert points(made.judged("one"), "method", "seed", "method.lr", "task.steps", "task.noise") == [
        ("toy/descent", 0, 0.1, 20, 0.0),
        ("toy/descent", 1, 0.1, 7, 0.0),
        ("toy/descent", 2, 0.1, 20, 0.0),
        ("toy/sign", 0, 0.2, 20, 0.0),
        ("toy/sign", 1, 0.2, 7, 0.0),
        ("toy/sign", 2, 0.2, 20, 0.0),
    ]
    last = made.judged("one")[3]
    assert [source["source"] for source in last.sources] == ["Table 1", "official code", "assumed"]


def test_scales_replace_axes_and_set_leaves(expand: Expand) -> None:
    text = f"""
one:
  {GRID}
  scale:
    smoke: {{seed: [7], method: toy/sign, task.steps: 2}}
    laptop: [{{set: {{seed: range(2)}}}}, {{when: {{method: toy/sign}}, set: {{task.steps: 5}}}}]
    paper: {{task.resources.memory_gb: 3}}
"""
    assert points(expand(text).judged("one"), "method", "seed", "task.steps") == [("toy/sign", 7, 2)]
    assert points(expand(text, "laptop").judged("one"), "method", "seed", "task.steps") == [
        ("toy/descent", 0, 20),
        ("toy/descent", 1, 20),
        ("toy/sign", 0, 5),
        ("toy/sign", 1, 5),
    ]
    cells = expand(text, "paper").judged("one")
    assert [cell.config["task"]["resources"] for cell in cells] == [{"hours": 1.0, "memory_gb": 3}] * 6


def test_the_command_line_chooses_and_changes(expand: Expand) -> None:
    seeds = points(expand(f"one:\n  {GRID}", seeds=[0, 1, 2, 3]).judged("one"), "method", "seed")
    assert seeds == [(method, seed) for method in ("toy/descent", "toy/sign") for seed in range(4)]
    assert len(expand(f"one:\n  {GRID}", only={"method": ["toy/s*"]}).judged("one")) == 3
    assert expand(f"one:\n  {GRID}", only={"task": ["toy/race"]}).judged("one") == []
    assert not Overrides(seeds=[1]).modified
    assert Overrides(only={"method": ["x"]}).modified
    assert Overrides(leaves=[("method.lr", 1, "")]).modified


def test_a_leaf_that_only_some_cells_have(expand: Expand) -> None:
    text = """
one:
  grid: {method: toy/descent, task: [toy/bowl, toy/race]}
"""
    made = expand(text, leaves=[("task.repeats", 9, "command line"), ("task.steps", 2, "command line")])
    assert points(made.judged("one"), "task", "task.repeats", "task.steps") == [
        ("toy/bowl", 9, 2),
        ("toy/race", 9, None),
    ]
    made.check_overrides()
    wrong = expand(text, leaves=[("task.step", 2, "command line")])
    wrong.judged("one")
    with pytest.raises(
        ConfigError, match=r"unknown key 'task.step' in every experiment; nearest: task.steps"
    ):
        wrong.check_overrides()


def test_panels_and_their_settings(expand: Expand) -> None:
    cells = expand("""
one:
  grid: {method: [[toy/descent, toy/sign], toy/sign], task: toy/race, seed: [0, 1]}
  settings:
    - {when: {method: toy/sign}, set: {method.lr: 0.3}, source: assumed}
    - {when: {seed: 1}, set: {task.repeats: 2}, source: assumed}
""").judged("one")
    assert [cell.coordinates["method"] for cell in cells] == [
        "toy/descent+toy/sign",
        "toy/sign",
        "toy/descent+toy/sign",
        "toy/sign",
    ]
    panel = cells[0].config["method"]["_panel_"]
    assert (panel["toy/descent"]["lr"], panel["toy/sign"]["lr"]) == (0.1, 0.3)
    assert [cell.config["task"]["repeats"] for cell in cells] == [8, 8, 2, 2]


NEEDS = f"""
bowl:
  {GRID}
duel:
  grid: {{method: [toy/descent, toy/sign], task: toy/duel, seed: [0, 1]}}
  needs: {{opponent: {{experiment: bowl, method: %s, seed: same}}}}
"""


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("same", [("toy/descent", "toy/descent"), ("toy/sign", "toy/sign")]),
        ("toy/sign", [("toy/descent", "toy/sign"), ("toy/sign", "toy/sign")]),
        ('"*"', [(a, b) for a in ("toy/descent", "toy/sign") for b in ("toy/descent", "toy/sign")]),
        ("[toy/sign]", [("toy/descent", "toy/sign"), ("toy/sign", "toy/sign")]),
    ],
)
def test_needs_pair_runs_with_finished_ones(
    expand: Expand, method: str, expected: list[tuple[str, str]]
) -> None:
    made = expand(NEEDS % method)
    bowl = made.judged("bowl")
    cells = made.judged("duel", finished={"bowl": bowl})
    assert len(cells) == 2 * len(expected)
    by_id = {cell.id: cell for cell in bowl}
    found = []
    for cell in cells:
        opponent = by_id[cell.config["task"]["opponent"]["_run_"]]
        assert opponent.coordinates["seed"] == cell.coordinates["seed"]
        found.append((cell.coordinates["method"], opponent.coordinates["method"]))
        if method != "same" and method != "toy/sign":
            assert cell.coordinates["task.opponent"] == opponent.coordinates["method"]
    assert sorted(set(found)) == sorted(expected)


def test_another_opponent_is_another_run(expand: Expand) -> None:
    made = expand(NEEDS % "same")
    first = made.judged("duel", finished={"bowl": made.judged("bowl")})
    other = expand(NEEDS % "same", leaves=[("task.steps", 5, "")])
    second = other.judged("duel", finished={"bowl": other.judged("bowl")})
    assert not {cell.id for cell in first} & {cell.id for cell in second}


def test_tuning_runs_per_cell_on_seeds_of_their_own(expand: Expand) -> None:
    made = expand(f"""
one:
  {GRID}
  tune: {{grid: {{method.lr: [0.1, 0.2], task.noise: [0, 1]}}, metric: gap, seeds: range(100, 102)}}
""")
    runs = made.tuning("one")
    assert len(runs) == 2 * 4 * 2
    assert {cell.config["seed"] for cell, _, _ in runs} == {100, 101}
    assert len({cell.group for cell, _, _ in runs}) == 2
    score = {
        cell.id: abs(cell.config["method"]["lr"] - 0.2) + cell.config["task"]["noise"] for cell, _, _ in runs
    }
    winners, table = choose(runs, lambda cell, _: score[cell.id])
    cells = made.judged("one", tuned=winners)
    assert points(cells, "method.lr", "task.noise") == [(0.2, 0.0)] * 6
    assert [row["chosen"] for row in table].count(True) == 2
    assert {row["seeds"] for row in table} == {2}


def test_the_first_rule_that_fits_tunes_a_cell(expand: Expand) -> None:
    made = expand(f"""
one:
  {GRID}
  tune:
    - {{when: {{method: toy/sign}}, grid: {{method.lr: [1]}}, metric: gap, seeds: [100]}}
    - {{when: {{method: toy/sign}}, grid: {{method.lr: [2, 3]}}, metric: gap, seeds: [100]}}
""")
    assert points([cell for cell, _, _ in made.tuning("one")], "method", "method.lr") == [("toy/sign", 1.0)]


def test_a_scale_changes_tuning_or_turns_it_off(expand: Expand) -> None:
    text = f"""
one:
  {GRID}
  tune: {{grid: {{method.lr: [0.1, 0.2]}}, metric: gap, seeds: range(100, 105)}}
  scale: {{smoke: {{tune: false}}, laptop: {{tune.seeds: [200], tune.grid: {{method.lr: [0.7]}}}}}}
"""
    assert expand(text).tuning("one") == []
    laptop = [cell for cell, _, _ in expand(text, "laptop").tuning("one")]
    assert points(laptop, "seed", "method.lr") == [(200, 0.7)] * 2
    assert len(expand(text, "paper").tuning("one")) == 20


def test_tuning_on_judged_seeds_is_said_to_be_the_paper_s_way(expand: Expand) -> None:
    text = f"one:\n  {GRID}\n  tune: {{grid: {{method.lr: [1]}}, metric: gap, seeds: [2], protocol: best_of_grid}}"
    assert len(expand(text).tuning("one")) == 2
    with pytest.raises(ConfigError, match=r"seeds \[2\] are judged too"):
        expand(text.replace(", protocol: best_of_grid", "")).tuning("one")


@pytest.mark.parametrize("goal", ["min", "max"])
def test_the_best_mean_wins_and_ties_go_to_the_first(expand: Expand, goal: str) -> None:
    made = expand(f"""
one:
  grid: {{method: toy/descent, task: toy/bowl}}
  tune: {{grid: {{method.lr: [0.1, 0.2, 0.3]}}, metric: gap, goal: {goal}, seeds: [100, 101]}}
""")
    runs = made.tuning("one")
    sign = 1 if goal == "min" else -1
    marks = {0.1: (sign * 3, sign * 3), 0.2: (sign * 1, sign * 3), 0.3: (sign * 2, sign * 2)}
    winners, _ = choose(runs, lambda cell, _: marks[cell.config["method"]["lr"]][cell.config["seed"] - 100])
    assert list(winners.values()) == [{"method.lr": 0.2}]
    winners, _ = choose(runs, lambda *_: sign * float("inf"))
    assert list(winners.values()) == [{"method.lr": 0.1}]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("range(3)", [0, 1, 2]),
        ("range(100, 105, 2)", [100, 102, 104]),
        ("range( 2 , 0 , -1 )", [2, 1]),
        ([1, 2], [1, 2]),
        (5, [5]),
        (None, [None]),
        ("range_net", ["range_net"]),
        ("range(a)", None),
    ],
)
def test_values_of_an_axis(entry: Any, expected: list[Any] | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="is not a range"):
            values(entry, "here")
    else:
        assert values(entry, "here") == expected


def test_order_of_experiments(expand: Expand) -> None:
    made = expand("""
c: {grid: {method: toy/sign, task: toy/duel}, needs: {opponent: {experiment: b, seed: same}}}
b: {grid: {method: toy/sign, task: toy/duel}, needs: {opponent: {experiment: a, seed: same}}}
a: {grid: {method: toy/sign, task: toy/bowl}}
""")
    assert made.paper.order() == ["a", "b", "c"]
