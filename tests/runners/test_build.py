"""Nodes become objects: arguments checked by name before any call, factories, slots, panels, artifacts, runs."""

import functools
from pathlib import Path
from typing import Any

import pytest

from runners import build
from runners.errors import ConfigError

DESCENT = {"_target_": "reprise_toy.methods.Descent", "_partial_": True, "lr": 0.5}


def made(node: Any, **options: Any) -> Any:
    """A node built without finished runs."""
    return build.build(node, "method", resolve_run=lambda node: f"run {node['_run_']}", **options)


def test_factories_and_objects() -> None:
    factory = made(DESCENT)
    assert isinstance(factory, functools.partial)
    assert factory().lr == 0.5
    assert factory(lr=2.0).lr == 2.0
    assert made(DESCENT | {"_partial_": False}).lr == 0.5


def test_what_speaks_to_the_harness_does_not_reach_the_constructor() -> None:
    node = DESCENT | {"interface": "x.Y", "resources": {"hours": 1}, "_name_": "toy/descent", "_anything_": 3}
    assert made(node, top=True)().lr == 0.5
    with pytest.raises(ConfigError, match="takes no argument 'interface'"):
        made(node)


def test_nested_nodes_lists_and_plain_trees() -> None:
    inner = {"_target_": "reprise_toy.methods.Sign", "lr": 0.1}
    found = made({"a": [inner, 1], "b": {"c": inner, "d": None}, "e": "text"})
    assert [type(found["a"][0]).__name__, found["a"][1]] == ["Sign", 1]
    assert type(found["b"]["c"]).__name__ == "Sign"
    assert (found["b"]["d"], found["e"]) == (None, "text")
    assert made(DESCENT | {"name": inner})().name.lr == 0.1


def test_slots_and_panels() -> None:
    slots = made({"init": DESCENT, "optimizer": DESCENT | {"lr": 1.0}}, top=True)
    assert {name: factory().lr for name, factory in slots.items()} == {"init": 0.5, "optimizer": 1.0}
    panel = made({"_panel_": {"a": DESCENT | {"interface": "x.Y"}, "b": DESCENT}}, top=True)
    assert {name: factory().lr for name, factory in panel.items()} == {"a": 0.5, "b": 0.5}


def test_artifacts_stay_closed_and_runs_are_found() -> None:
    node = {"_target_": "reprise_toy.tasks.build_table", "_artifact_": True, "size": 3}
    assert made(node) == build.Artifact(node)
    assert made({"_run_": "abc", "folder": "x"}) == "run abc"


def test_a_call_is_not_made_with_arguments_that_do_not_fit() -> None:
    calls = []

    def target(a: int, *, b: int = 2) -> None:
        calls.append((a, b))

    build.check_arguments(target, {"a": 1}, partial=False, where="x")
    build.check_arguments(target, {"b": 1}, partial=True, where="x")
    for kwargs, said in [
        ({"a": 1, "c": 2}, "x.c: .*takes no argument 'c'"),
        ({"bb": 2}, "nearest: b"),
        ({}, "missing a required argument: 'a'"),
    ]:
        with pytest.raises(ConfigError, match=said):
            build.check_arguments(target, kwargs, partial=False, where="x")
    assert not calls


def test_check_calls_nothing(tmp_path: Path) -> None:
    node = {"_target_": "pathlib.Path.touch", "self": str(tmp_path / "made")}
    build.check(node, "x")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("dotted", "said"),
    [
        ("reprise_toy.methods.Descnt", "no 'Descnt' in reprise_toy.methods; nearest: Descent"),
        ("reprise_toy.method.Descent", "no 'method' in reprise_toy"),
        ("nowhere.at.all", "no module 'nowhere'"),
        ("reprise_toy.methods.Descent.mov", "no 'mov' in reprise_toy.methods.Descent; nearest: move"),
        ("Descent", "is no dotted name"),
        (None, "is no dotted name"),
    ],
)
def test_targets_that_do_not_exist(dotted: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        build.locate(dotted, "task.x")
    assert said in str(error.value)
    assert str(error.value).startswith("task.x: ")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import package_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="needs the package 'package_that_is_not_there'"):
        build.locate("needs_more.Thing")


def test_a_module_that_is_wrong_raises_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_inside.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        build.locate("wrong_inside.Thing")


def test_interfaces_pair_methods_and_tasks() -> None:
    config: dict[str, Any] = {"method": {"_name_": "a/m"}, "task": {"_name_": "a/t"}}
    build.check_pair(config)
    config["task"]["_name_"] = "b/t"
    with pytest.raises(ConfigError, match=r"a/m .*does not fit task b/t"):
        build.check_pair(config)
    config["method"]["interface"] = "tasks.b.interface.Method"
    build.check_pair(config)
