"""What was changed is made again, exactly where it is used; what was not stays. The package is a copy to edit."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.runners.conftest import numbers

PAPER = """
title: Edited
experiments:
  one:
    grid:
      - {method: [toy/descent, toy/still], task: toy/bowl, seed: range(2)}
      - {method: toy/still, task: toy/lettered, seed: range(2)}
  duel:
    grid: {method: toy/still, task: toy/duel, seed: range(2)}
    needs: {opponent: {experiment: one, method: "*", task: toy/bowl, seed: same}}
"""
STILL = '"""Stays."""\n\n\nclass Still:\n    def __init__(self, lr=1):\n        self.lr = lr\n\n'
STILL += "    def move(self, x, slope):\n        return x * 0.5\n"


@pytest.fixture
def edited(plugin_copy: SimpleNamespace, tmp_path: Path, outputs: Path, process: Callable[..., Any]) -> Any:
    """The copy with more in it: ``made()`` reproduces its paper, returns which cells ran: {(method, task): count}."""
    package = plugin_copy.package
    interface = "interface: reprise_toy.interface.Method\n"
    (tmp_path / "letters.txt").write_text("abc")
    files = {
        "still.py": STILL,
        "conf/paper/edited.yaml": PAPER,
        "conf/method/toy/still.yaml": f"_target_: reprise_toy.still.Still\n_partial_: true\n{interface}lr: 1\n",
        "conf/task/toy/lettered.yaml": "defaults: [/data/letters@data: a, _self_]\n"
        f"_target_: reprise_toy.tasks.Prepared\n{interface}"
        "table: {_target_: reprise_toy.tasks.build_table, _artifact_: true, size: 2, seed: 0}\n",
        "conf/data/letters/a.yaml": "_target_: reprise_toy.tasks.TextFile\n"
        f"path: {tmp_path / 'letters.txt'}\nfiles: {{letters.txt: null}}\n",
    }
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def stamps() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in outputs.glob("*/*/*/*/result.json")}

    def made(*arguments: str) -> dict[tuple[str, str], int]:
        before = stamps()
        ended = process(
            "tests.runners.sweep_only", "paper=edited", "scale=smoke", *arguments, env=plugin_copy.env
        )
        assert ended.code == 0, ended.err
        counts: dict[tuple[str, str], int] = {}
        for path, stamp in stamps().items():
            if before.get(path) != stamp:
                key = (path.parts[-4], path.parts[-3])
                counts[key] = counts.get(key, 0) + 1
        return counts

    return SimpleNamespace(made=made, package=package, outputs=outputs, data=tmp_path / "letters.txt")


def replace(path: Path, old: str, new: str) -> None:
    """Edit a file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


ALL = {("descent", "bowl"): 2, ("still", "bowl"): 2, ("still", "lettered"): 2, ("still", "duel"): 4}


@pytest.mark.slow
def test_a_change_is_made_again_exactly_where_it_is_used(edited: Any) -> None:
    assert edited.made() == ALL
    assert edited.made() == {}
    first = numbers(edited.outputs)

    # words about the code
    replace(edited.package / "helper.py", "Product of value and factor.", "The product.")
    replace(edited.package / "helper.py", "    return", "    # multiply\n    return")
    assert edited.made() == {}

    # a helper of one method, and the duels against its runs
    replace(edited.package / "helper.py", "value * factor", "value * factor * 1.0")
    assert edited.made() == {("descent", "bowl"): 2, ("still", "duel"): 2}
    assert numbers(edited.outputs) == first  # it changed no number, but who could know

    # a data file
    edited.data.write_text("abcd")
    assert edited.made() == {("still", "lettered"): 2}

    # a default
    replace(edited.package / "conf/method/toy/descent.yaml", "lr: 0.1", "lr: 0.2")
    assert edited.made() == {("descent", "bowl"): 2, ("still", "duel"): 2}
    replace(edited.package / "conf/method/toy/descent.yaml", "lr: 0.2", "lr: 0.1")
    assert edited.made() == {}

    # what changes no number: resources, the interface's name is checked but not hashed
    replace(edited.package / "conf/task/toy/bowl.yaml", "hours: 1.0", "hours: 2.0")
    assert edited.made() == {}


@pytest.mark.slow
def test_code_that_is_edited_while_a_sweep_runs_is_not_taken_for_what_ran(
    edited: Any, plugin_copy: SimpleNamespace, start: Callable[..., Any], process: Any, tmp_path: Path
) -> None:
    log = tmp_path / "toy.log"
    env = plugin_copy.env | {"REPRISE_TOY_LOG": str(log)}
    sweep = start(
        "tests.runners.sweep_only", "paper=edited", "scale=smoke", "seeds=6", "task.pause=0.02", env=env
    )
    while not log.exists() or log.read_text().count("end") < 3:
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.01)
    replace(edited.package / "still.py", "x * 0.5", "x * 0.25")
    replace(edited.package / "conf/task/toy/bowl.yaml", "noise: 0.1", "noise: 0.7")
    replace(edited.package / "conf/paper/edited.yaml", "range(2)", "range(3)")
    _, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, err
    results = [json.loads(path.read_bytes()) for path in edited.outputs.glob("*/*/*/*/result.json")]
    assert {result["config"]["task"].get("noise", 0.1) for result in results} == {0.1}
    assert {result["config"]["seed"] for result in results} == set(range(6))
    of = {"still": [r for r in results if "still" in r["config"]["method"]["_target_"]]}
    of["descent"] = [r for r in results if r not in of["still"]]
    assert all(result["fingerprint"] for result in of["descent"])
    unsure = [result for result in of["still"] if not result["fingerprint"]]
    assert len(unsure) >= 6  # the duels at least come after the edit
    assert err.count("its code was edited as it ran; counts as stale") == len(unsure)
    replace(edited.package / "conf/task/toy/bowl.yaml", "noise: 0.7", "noise: 0.1")
    edited.made("seeds=6", "task.pause=0.02")
    env = plugin_copy.env | {"REPRISE_OUTPUTS": str(tmp_path / "fresh")}
    arguments = ("paper=edited", "scale=smoke", "seeds=6", "task.pause=0.02")
    assert process("tests.runners.sweep_only", *arguments, env=env).code == 0
    assert numbers(edited.outputs) == numbers(tmp_path / "fresh")


def test_a_default_that_cannot_be_read_is_one_line(
    edited: Any, plugin_copy: SimpleNamespace, process: Callable[..., SimpleNamespace]
) -> None:
    (edited.package / "still.py").write_text("def broken(:\n")
    ended = process("tests.runners.sweep_only", "paper=edited", "scale=smoke", env=plugin_copy.env)
    assert ended.code != 0
    assert "still.py" in ended.err
