"""Method, task, data and launcher files that are wrong: exit code 2 and one line, before anything runs."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.runners.test_bad_command_lines import one_line

DESCENT = """_target_: reprise_toy.methods.Descent
_partial_: true
interface: reprise_toy.interface.Method
lr: 0.1
"""
BOWL = """_target_: reprise_toy.tasks.Bowl
interface: reprise_toy.interface.Method
steps: 3
"""

# (file, its text, what the line must hold)
CASES = {
    "misspelt argument": ("method", DESCENT + "lrr: 2.0\n", ("method.lrr", "Descent takes no argument 'lrr'", "lr")),
    "misspelt module": ("method", DESCENT.replace("methods", "metods"), ("reprise_toy.metods", "metods")),
    "misspelt class": ("method", DESCENT.replace(".Descent", ".Descnt"), ("no 'Descnt'", "nearest: Descent")),
    "missing package": ("method", DESCENT.replace("reprise_toy.methods", "nowhere_at_all"), ("nowhere_at_all",)),
    "target that is no name": ("method", "_target_: 3\n_partial_: true\n", ("_target_", "3")),
    "target without a dot": ("method", "_target_: Descent\n_partial_: true\n", ("Descent",)),
    "no target": ("method", "interface: reprise_toy.interface.Method\nlr: 0.1\n", ("method", "_target_")),
    "another interface": ("method", DESCENT.replace("interface.Method", "other.M"), ("interfaces differ",)),
    "duplicate key": ("method", DESCENT + "lr: 0.2\n", ("wrong", "lr")),
    "duplicate deep": ("method", DESCENT + "x: {a: 1, a: 2}\n", ("wrong", "duplicate", "a")),
    "not YAML": ("method", DESCENT + "x: [1\n", ("wrong",)),
    "not a mapping": ("method", "- 1\n- 2\n", ("wrong",)),
    "empty": ("method", "", ("wrong",)),
    "unresolved": ("method", DESCENT + "name: ${nowhere.at.all}\n", ("nowhere",)),
    "circular": ("method", DESCENT.replace("0.1", "${method.lr}"), ("method.lr",)),
    "a number as a key": ("method", DESCENT + "3: 4\n", ("method.3", "takes no argument '3'")),
    "a nested mistake": (
        "method",
        DESCENT + "name: {_target_: reprise_toy.methods.Sign, lrr: 1}\n",
        ("method.name.lrr", "Sign takes no argument 'lrr'"),
    ),
    "task: misspelt argument": ("task", BOWL + "step: 2\n", ("task.step", "takes no argument", "steps")),
    "task: argument missing": ("task", BOWL.replace("Bowl", "TextFile").replace("steps: 3", ""),
                               ("task", "path")),
    "task: not a class of ours": ("task", BOWL.replace("Bowl", "Bowll"), ("no 'Bowll'", "nearest: Bowl")),
    "task: unknown group": ("task", "defaults: [/data/none@data: x]\n" + BOWL, ("data/none",)),
    "task: artifact argument": (
        "task",
        BOWL.replace("Bowl", "Prepared").replace("steps: 3", "table:")
        + "  {_target_: reprise_toy.tasks.build_table, _artifact_: true, sise: 2}\n",
        ("task.table.sise", "build_table takes no argument 'sise'", "size"),
    ),
    "task: resources": ("task", BOWL + "resources: {hour: 2}\n", ("resources", "'hour'", "nearest: hours")),
    "task: resources of a wrong type": ("task", BOWL + "resources: {hours: long}\n", ("resources", "hours")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_clear_line(
    command: Callable[..., SimpleNamespace], conf: Callable[[str, str], Path], name: str
) -> None:
    group, text, expected = CASES[name]
    conf(f"{group}/toy/wrong.yaml", text)
    choice = {"method": "toy/descent", "task": "toy/bowl"} | {group: "toy/wrong"}
    ended = command("runners.run", *(f"{key}={value}" for key, value in choice.items()))
    one_line(ended, *expected)


@pytest.mark.parametrize(
    "name", ["misspelt argument", "another interface", "duplicate key", "task: unknown group"]
)
def test_the_same_from_a_paper(
    command: Callable[..., SimpleNamespace], conf: Callable[[str, str], Path], name: str
) -> None:
    group, text, expected = CASES[name]
    conf(f"{group}/toy/wrong.yaml", text)
    choice = {"method": "toy/descent", "task": "toy/bowl"} | {group: "toy/wrong"}
    grid = ", ".join(f"{key}: {value}" for key, value in choice.items())
    conf("paper/wrong.yaml", f"title: x\nexperiments: {{one: {{grid: {{{grid}}}}}}}\n")
    one_line(command("runners.reproduce", "paper=wrong", "scale=smoke"), *expected)


def test_a_launcher_with_a_misspelt_option(
    command: Callable[..., SimpleNamespace], conf: Callable[[str, str], Path]
) -> None:
    conf("launcher/mine.yaml", "_target_: runners.launchers.local.Local\nworkerz: 2\n")
    ended = command("runners.reproduce", "paper=toy", "scale=smoke", "launcher=mine")
    one_line(ended, "launcher.workerz", "Local takes no argument 'workerz'", "nearest: workers")


def test_nothing_was_run(
    command: Callable[..., SimpleNamespace], conf: Callable[[str, str], Path], outputs: Path
) -> None:
    conf("method/toy/wrong.yaml", DESCENT + "lrr: 2.0\n")
    command("runners.run", "method=toy/wrong", "task=toy/bowl")
    assert not outputs.exists()
