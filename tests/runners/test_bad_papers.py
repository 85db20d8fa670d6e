"""Paper files that are wrong: exit code 2 and one line with the place and the nearest valid name, before any run."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runners import yamls
from tests.runners.test_bad_command_lines import one_line

GOOD = yamls.parse("""
title: A paper
experiments:
  bowl:
    grid: {method: [toy/descent, toy/sign], task: toy/bowl, seed: range(8)}
    settings:
      - {when: {method: toy/sign}, set: {method.lr: 0.06}, source: assumed}
    scale: {smoke: {task.steps: 10}, laptop: [{when: {method: toy/sign}, set: {task.steps: 9}}]}
  tuned:
    grid: {method: [toy/descent, toy/sign], task: toy/bowl, seed: range(6)}
    tune: {grid: {method.lr: [0.01, 0.1]}, metric: gap, seeds: range(100, 103)}
  duel:
    grid: {method: toy/descent, task: toy/duel, seed: range(6)}
    needs: {opponent: {experiment: bowl, method: "*", seed: same}}
    settings:
      - {when: {task.opponent: toy/sign}, set: {task.steps: 12}, source: assumed}
claims:
  lower:
    says: Lower
    source: Fig. 1
    experiment: bowl
    statistic: {difference: {metric: gap, of: toy/sign, to: toy/descent}}
    expect: ">= 0"
    set_by: ours
findings:
  low: {says: Low, experiment: bowl, statistic: {value: {metric: gap}}, expect: "<= 1", set_by: ours}
figures:
  gap: {experiment: bowl, x: step, y: gap}
""")
BOWL = ("experiments", "bowl")
TUNE = ("experiments", "tuned", "tune")
NEED = ("experiments", "duel", "needs", "opponent")
CLAIM = ("claims", "lower")
DROP = object()

# (path, value put there, what the line must hold)
CASES: list[tuple[tuple[Any, ...], Any, tuple[str, ...]]] = [
    (("titel",), "x", ("unknown key 'titel'", "nearest: title")),
    (("experiments",), ["bowl"], ("experiments", "expected a mapping")),
    (("experiments",), DROP, ("experiment",)),
    (("claims",), [1], ("claims", "expected a mapping")),
    (("findings",), "none", ("findings", "expected a mapping")),
    (("figures",), ["gap"], ("figures", "expected a mapping")),
    (("extras",), "llm", ("extras", "expected a list")),
    ((*BOWL,), 3, ("experiments.bowl", "expected a mapping")),
    ((*BOWL, "gird"), {}, ("experiments.bowl", "unknown key 'gird'", "nearest: grid")),
    ((*BOWL, "grid"), DROP, ("experiments.bowl", "no grid")),
    ((*BOWL, "grid"), 3, ("experiments.bowl.grid", "expected a mapping")),
    ((*BOWL, "grid"), [], ("experiments.bowl.grid", "empty")),
    ((*BOWL, "grid", "task"), DROP, ("experiments.bowl.grid", "method and task")),
    ((*BOWL, "grid", "method"), ["toy/descnt"], ("experiments.bowl", "'toy/descnt'", "nearest: toy/descent")),
    ((*BOWL, "grid", "method"), [], ("experiments.bowl.grid.method", "empty")),
    ((*BOWL, "grid", "method"), ["toy/descent", "toy/sign", "toy/foreign"], ("toy/foreign", "interfaces differ")),
    ((*BOWL, "grid", "task"), "toy/bowll", ("experiments.bowl", "nearest: toy/bowl")),
    ((*BOWL, "grid", "seed"), "range(0)", ("experiments.bowl.grid.seed", "range(0) is empty")),
    ((*BOWL, "grid", "seed"), "range(5, 2)", ("experiments.bowl.grid.seed", "empty")),
    ((*BOWL, "grid", "seed"), "range(0, 9, 0)", ("experiments.bowl.grid.seed", "range(0, 9, 0)")),
    ((*BOWL, "grid", "seed"), "range(ten)", ("experiments.bowl.grid.seed", "is not a range")),
    ((*BOWL, "grid", "seed"), "range(3", ("experiments.bowl.grid.seed", "is not a range")),
    ((*BOWL, "grid", "seed"), "range(1, 2, 3, 4)", ("experiments.bowl.grid.seed", "is not a range")),
    ((*BOWL, "grid", "seed"), ["a"], ("experiments.bowl", "seed='a'", "whole number")),
    ((*BOWL, "grid", "method.lrr"), [1.0], ("experiments.bowl.grid", "'method.lrr'", "nearest: method.lr")),
    ((*BOWL, "grid", "task.noise"), ["few"], ("experiments.bowl.grid", "task.noise='few'", "a number")),
    ((*BOWL, "grid", "taks.steps"), [3], ("experiments.bowl.grid", "'taks.steps'", "nearest: task.steps")),
    ((*BOWL, "settings"), {"set": {}}, ("experiments.bowl.settings", "expected a list")),
    ((*BOWL, "settings", 0), "x", ("experiments.bowl.settings[0]", "expected a mapping")),
    ((*BOWL, "settings", 0, "wen"), {}, ("experiments.bowl.settings[0]", "unknown key 'wen'", "nearest: when")),
    ((*BOWL, "settings", 0, "source"), DROP, ("experiments.bowl.settings[0]", "no source")),
    ((*BOWL, "settings", 0, "set"), DROP, ("experiments.bowl.settings[0]", "set")),
    ((*BOWL, "settings", 0, "set"), {"method.lrr": 1.0}, ("settings[0]", "'method.lrr'", "nearest: method.lr")),
    ((*BOWL, "settings", 0, "set"), {"method.lr": "a"}, ("settings[0]", "method.lr='a'", "a number")),
    ((*BOWL, "settings", 0, "when"), {"metod": "a"}, ("settings[0].when", "'metod'", "nearest: method")),
    ((*BOWL, "settings", 0, "when"), {"method": "toy/sing"}, ("settings[0].when", "toy/sing", "nearest: toy/sign")),
    ((*BOWL, "settings", 0, "when"), {"task": "tou/*"}, ("settings[0].when", "tou/*")),
    ((*BOWL, "settings", 0, "when"), ["method"], ("settings[0].when", "expected a mapping")),
    ((*BOWL, "scale", "smok"), {}, ("experiments.bowl.scale", "unknown key 'smok'", "nearest: smoke")),
    ((*BOWL, "scale"), ["smoke"], ("experiments.bowl.scale", "expected a mapping")),
    ((*BOWL, "scale", "smoke"), 3, ("experiments.bowl.scale.smoke", "expected a mapping")),
    ((*BOWL, "scale", "smoke", "task.step"), 3, ("scale.smoke", "'task.step'", "nearest: task.steps")),
    ((*BOWL, "scale", "smoke", "task.steps"), "few", ("scale.smoke", "task.steps='few'")),
    ((*BOWL, "scale", "smoke", "sed"), [0], ("scale.smoke", "'sed'", "nearest: seed")),
    ((*BOWL, "scale", "smoke", "tune.seedz"), [0], ("scale.smoke", "'tune.seedz'", "nearest: tune.seeds")),
    ((*BOWL, "scale", "smoke", "tunes"), False, ("scale.smoke", "'tunes'")),
    ((*BOWL, "scale", "laptop", 0, "wen"), {}, ("scale.laptop[0]", "'wen'", "nearest: when")),
    ((*BOWL, "scale", "laptop", 0, "set"), DROP, ("scale.laptop[0]", "set")),
    ((*BOWL, "scale", "laptop", 0, "set"), {"seed": [0]}, ("scale.laptop[0]", "seed", "grid")),
    ((*BOWL, "scales"), ["smok"], ("experiments.bowl.scales", "'smok'", "nearest: smoke")),
    ((*TUNE, "metric"), DROP, ("experiments.tuned.tune[0]", "no metric")),
    ((*TUNE, "seeds"), DROP, ("experiments.tuned.tune[0]", "no seeds")),
    ((*TUNE, "seeds"), "range(5, 9)", ("experiments.tuned.tune[0].seeds", "[5]", "judged too")),
    ((*TUNE, "seeds"), "range(9, 9)", ("experiments.tuned.tune[0].seeds", "empty")),
    ((*TUNE, "sedes"), [1], ("experiments.tuned.tune[0]", "'sedes'", "nearest: seeds")),
    ((*TUNE, "goal"), "least", ("experiments.tuned.tune[0].goal", "min or max", "least")),
    ((*TUNE, "protocol"), "best", ("experiments.tuned.tune[0].protocol", "best_of_grid")),
    ((*TUNE, "grid"), [0.1], ("experiments.tuned.tune[0].grid", "expected a mapping")),
    ((*TUNE, "grid", "method.lr"), [], ("experiments.tuned.tune", "empty")),
    ((*TUNE, "grid", "method.lrr"), [0.1], ("experiments.tuned.tune", "'method.lrr'", "nearest: method.lr")),
    ((*TUNE, "grid", "method.lr"), ["a"], ("experiments.tuned.tune", "method.lr='a'", "a number")),
    ((*TUNE, "when"), {"methd": "a"}, ("experiments.tuned.tune[0].when", "'methd'", "nearest: method")),
    ((*TUNE, "grid", "seed"), [0], ("experiments.tuned.tune[0].grid", "'seed'", "axis of the grid")),
    ((*BOWL, "scale", "smoke", "tune"), True, ("scale.smoke.tune", "false")),
    ((*BOWL, "scale", "laptop", 0, "set"), {"tune.seeds": [100]}, ("scale.laptop[0].set", "tune.seeds", "when")),
    (TUNE, 3, ("experiments.tuned.tune", "expected a mapping")),
    ((*NEED, "experiment"), "bowel", ("experiments.duel.needs.opponent", "'bowel'", "nearest: bowl")),
    ((*NEED, "experiment"), "duel", ("need each other in a circle", "duel")),
    ((*NEED, "experiment"), DROP, ("experiments.duel.needs.opponent", "experiment")),
    ((*NEED, "metod"), "x", ("experiments.duel.needs.opponent", "'metod'", "nearest: method")),
    ((*NEED, "method"), "toy/sing", ("experiments.duel.needs.opponent", "no run of bowl fits", "toy/sing")),
    ((*NEED, "seed"), DROP, ("experiments.duel.needs.opponent", "fit", "name one")),
    (("experiments", "duel", "needs"), ["bowl"], ("experiments.duel.needs", "expected a mapping")),
    (("experiments", "duel"), {"grid": {"method": "toy/sign", "task": "toy/duel"},
                               "needs": {"oponent": {"experiment": "bowl", "method": "toy/sign", "seed": "same"}}},
     ("experiments.duel", "'task.oponent'", "nearest: task.opponent")),
    (("experiments", "duel", "settings", 0, "set"), {"task.step": 1}, ("settings[0]", "nearest: task.steps")),
    (("experiments", "duel", "tune"), {"grid": {"task.steps": [1]}, "metric": "gap", "seeds": [100]},
     ("experiments.duel", "tune", "needs")),
    ((*CLAIM, "exper"), "bowl", ("lower", "'exper'", "nearest: expe")),
    ((*CLAIM, "experiment"), "bowel", ("lower", "'bowel'", "nearest: bowl")),
    ((*CLAIM, "statistic"), {"diference": {}}, ("lower", "'diference'", "nearest: difference")),
    ((*CLAIM, "statistic", "difference", "off"), "x", ("lower", "'off'", "nearest: of")),
    ((*CLAIM, "statistic", "difference", "of"), "toy/sing", ("lower", "toy/sing", "nearest: toy/sign")),
    ((*CLAIM, "expect"), "more", ("lower", "expect", "'more'")),
    ((*CLAIM, "expect"), DROP, ("lower", "'expect' is missing")),
    ((*CLAIM, "scales"), ["laptob"], ("lower", "'laptob'", "nearest: laptop")),
    ((*CLAIM, "set_by"), "us", ("lower", "'us'", "ours")),
    (("findings", "lower"), {}, ("findings.lower", "a claim has this name")),
    (("findings", "low", "expct"), 1, ("low", "'expct'", "nearest: expect")),
    (("figures", "gap", "kid"), "bars", ("gap", "'kid'", "nearest: kind")),
    (("figures", "gap", "kind"), "bar", ("gap", "'bar'", "nearest: bars")),
    (("figures", "gap", "experiment"), "bowel", ("gap", "'bowel'", "nearest: bowl")),
    (("figures", "gap", "y"), DROP, ("gap", "'y' is missing")),
]  # fmt: skip

TEXTS = {
    "duplicate key": ("title: a\nexperiments: {}\ntitle: b\n", ("line 3", "'title' stands twice")),
    "duplicate deep": ("title: a\nexperiments:\n  x:\n    grid: {method: a, method: b}\n", ("line 4", "'method'")),
    "not YAML": ("title: [a\nexperiments: {}\n", ("not valid YAML", "line")),
    "tab": ("title: a\n\tx: 3\n", ("not valid YAML", "line 2")),
    "not a mapping": ("- a\n- b\n", ("expected a mapping",)),
    "a list as a key": ("title: a\n? [1, 2]\n: 3\n", ("line 2", "key")),
    "a foreign tag": ("title: !!python/object:os.system x\n", ("not valid YAML",)),
    "unknown alias": ("title: *nothing\n", ("not valid YAML",)),
    "empty": ("", ("experiment",)),
}  # fmt: skip


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The good paper with one place changed."""
    paper = copy.deepcopy(GOOD)
    node: Any = paper
    for key in path[:-1]:
        node = node[key]
    if value is DROP:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return paper


@pytest.fixture
def check(command: Callable[..., SimpleNamespace], conf: Callable[[str, str], Path]) -> Callable[..., Any]:
    """Check a paper without running it."""

    def run(text: str, scale: str = "smoke") -> SimpleNamespace:
        conf("paper/wrong.yaml", text)
        return command("runners.reproduce", "paper=wrong", f"scale={scale}", "dry_run=true")

    return run


def test_the_good_paper_is_good(check: Callable[..., SimpleNamespace]) -> None:
    for scale in ("smoke", "laptop", "paper"):
        ended = check(dump(GOOD), scale)
        assert ended.code == 0, ended.err
        assert "bowl: 16 runs" in ended.err


def dump(paper: Any) -> str:
    """YAML text of a paper."""
    import yaml

    return yaml.safe_dump(paper, sort_keys=False, allow_unicode=True)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    CASES,
    ids=[f"{'.'.join(map(str, p))}={'nothing' if v is DROP else v}"[:70] for p, v, _ in CASES],
)
def test_one_clear_line(
    check: Callable[..., Any], path: tuple[Any, ...], value: Any, expected: tuple
) -> None:
    scale = "laptop" if "laptop" in path else "smoke"
    ended = check(dump(changed(path, value)), scale)
    one_line(ended, *(part for part in expected if part))
    assert "wrong.yaml" in ended.err or "claim" in ended.err or "figure" in ended.err


@pytest.mark.parametrize("name", TEXTS)
def test_files_that_are_no_papers(check: Callable[..., Any], name: str) -> None:
    text, expected = TEXTS[name]
    one_line(check(text), "wrong.yaml", *expected)


def test_a_file_that_is_not_text(check: Callable[..., Any], conf: Callable[..., Path], command: Any) -> None:
    conf("paper/wrong.yaml", "").write_bytes(b"title: \xff\xfe\n")
    one_line(command("runners.show", "paper=wrong"), "wrong.yaml", "UTF-8")
