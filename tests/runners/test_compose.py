"""Composition: groups chosen by name, leaves set on top, types kept, nothing shared between runs."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners import compose
from runners.errors import ConfigError

TASK = """
defaults:
  - /data/letters@data: a
  - _self_
_target_: reprise_toy.tasks.Prepared
interface: reprise_toy.interface.Method
table: {_target_: reprise_toy.tasks.build_table, _artifact_: true, size: 2}
"""
LETTERS = "_target_: reprise_toy.tasks.TextFile\npath: {path}\nfiles: {{{name}: {sum}}}\n"


def run(*leaves: tuple[str, Any], method: Any = "toy/descent", task: str = "toy/bowl") -> dict[str, Any]:
    """A composed run."""
    return compose.compose_run(method, task, lambda _: [(path, value, "here") for path, value in leaves])


@pytest.fixture
def letters(conf: Callable[[str, str], Path], tmp_path: Path) -> Path:
    """A task with a data set from a group of two."""
    conf("task/toy/lettered.yaml", TASK)
    for name in "ab":
        (tmp_path / name).write_text(name * 3)
        conf(f"data/letters/{name}.yaml", LETTERS.format(path=tmp_path / name, name=name, sum="null"))
    conf("data/letters/pinned.yaml", LETTERS.format(path=tmp_path / "a", name="a", sum="abcd"))
    return tmp_path


def test_defaults_and_names() -> None:
    config = run()
    assert config["method"]["_name_"] == "toy/descent"
    assert config["task"]["steps"] == 20
    assert (config["seed"], config["device"], config["dtype"], config["ranks"]) == (0, "cpu", None, 1)
    assert set(config) == {"method", "task", "seed", "device", "dtype", "ranks"}


def test_later_leaves_win_and_types_are_kept() -> None:
    config = run(("method.lr", 1), ("method.lr", 2), ("task.steps", 7.0), ("seed", 3))
    assert config["method"]["lr"] == 2.0
    assert type(config["method"]["lr"]) is float
    assert config["task"]["steps"] == 7
    assert type(config["task"]["steps"]) is int
    assert config["seed"] == 3


@pytest.mark.parametrize(("default", "given"), [('"0.001"', 0.25), ('"1/L"', 2)])
def test_arithmetic_as_text_takes_a_number(
    conf: Callable[[str, str], Path], default: str, given: float
) -> None:
    conf("method/toy/scaled.yaml", f"_target_: reprise_toy.methods.Descent\n_partial_: true\nlr: {default}\n")
    config = compose.compose_run("toy/scaled", "toy/bowl", lambda _: [("method.lr", given, "")])
    assert config["method"]["lr"] == str(given)
    with pytest.raises(ConfigError, match="expected"):
        compose.compose_run("toy/scaled", "toy/bowl", lambda _: [("method.lr", True, "")])


def test_runs_share_nothing() -> None:
    before = copy.deepcopy(run())
    changed = run(("method.lr", 9.0), ("task.resources", {"hours": 7}))
    changed["task"]["resources"]["hours"] = 8
    assert run() == before


@pytest.mark.parametrize(
    "text", ["naïve", "日本語", "a b", "a=b", "'quoted'", "", "x/../y", "null", "1e-3", "{a}"]
)
def test_any_text_is_a_text(text: str) -> None:
    assert run(("+method.name", text))["method"]["name"] == text


def test_a_mapping_sets_its_leaves_and_no_others() -> None:
    config = run(("task", {"steps": 5, "noise": 0}))
    assert (config["task"]["steps"], config["task"]["noise"]) == (5, 0.0)
    assert config["task"]["_target_"] == "reprise_toy.tasks.Bowl"
    with pytest.raises(ConfigError, match=r"unknown key 'step'|unknown key 'task.step'"):
        run(("task", {"step": 5}))
    with pytest.raises(ConfigError, match="_target_"):
        run(("task", {"_target_": "os.system"}))


@pytest.mark.parametrize(
    "path", ["method._target_", "task._name_", "method._partial_", "+task._run_", "+method._x_.y"]
)
def test_the_harness_keeps_its_own_keys(path: str) -> None:
    with pytest.raises(ConfigError, match="here: unknown key"):
        run((path, "os.system"))


def test_interpolations_take_the_default_s_type() -> None:
    assert run(("method.lr", "${seed}"), ("seed", 2))["method"]["lr"] == 2.0
    assert run(("task.steps", "${seed}"), ("seed", 2))["task"]["steps"] == 2
    with pytest.raises(ConfigError, match=r"method.lr='cpu': expected a number"):
        run(("method.lr", "${device}"))


def test_groups_are_chosen_by_name(letters: Path) -> None:
    config = run(task="toy/lettered")
    assert config["task"]["data"]["_name_"] == "a"
    other = run(("task.data", "b"), task="toy/lettered")
    assert other["task"]["data"]["_name_"] == "b"
    assert other["task"]["data"]["path"].endswith("/b")
    assert compose.leaves(other)["task.data"] == "b"
    with pytest.raises(ConfigError, match="here: unknown data/letters 'pind'; nearest: pinned"):
        run(("task.data", "pind"), task="toy/lettered")


@pytest.mark.parametrize("value", [None, 3, ["a"]])
def test_a_group_takes_a_name(letters: Path, value: Any) -> None:
    with pytest.raises(ConfigError, match="expected the name of a data/letters"):
        run(("task.data", value), task="toy/lettered")


@pytest.mark.parametrize("path", ["method.interface", "task.interface", "+task.interface"])
def test_interfaces_are_not_for_a_run_to_say(path: str) -> None:
    with pytest.raises(ConfigError, match=r"here: '.*interface' is for the YAML to say"):
        run((path, "reprise_toy.other.Method"))


def test_leaves_below_a_chosen_group(letters: Path) -> None:
    config = run(("task.data", "b"), ("task.data.path", str(letters / "a")), task="toy/lettered")
    assert config["task"]["data"]["_name_"] == "b"
    assert config["task"]["data"]["path"].endswith("/a")


def test_files_without_a_checksum_are_pinned_to_what_they_hold_now(letters: Path) -> None:
    first = run(task="toy/lettered")["task"]["data"]["files"]["a"]
    (letters / "a").write_text("changed")
    second = run(task="toy/lettered")["task"]["data"]["files"]["a"]
    assert len(first) == len(second) == 64
    assert first != second
    assert run(("task.data", "pinned"), task="toy/lettered")["task"]["data"]["files"]["a"] == "abcd"
    (letters / "a").unlink()
    with pytest.raises(ConfigError, match=r"a: .*No such file"):
        run(task="toy/lettered")


def test_panels_hold_their_members() -> None:
    config = run(method=["toy/descent", "toy/sign"], task="toy/race")
    assert list(config["method"]["_panel_"]) == ["toy/descent", "toy/sign"]
    with pytest.raises(ConfigError, match="share one task"):
        compose.compose_run(
            ["toy/descent", "toy/sign"], "toy/race", lambda m: [("task.repeats", 3 + (m == "toy/sign"), "")]
        )


def test_lists_are_set_whole_or_by_index(conf: Callable[[str, str], Path]) -> None:
    conf(
        "method/toy/pair.yaml",
        "_target_: reprise_toy.methods.Descent\n_partial_: true\nbetas: [0.9, 0.999]\n",
    )
    assert run(("method.betas.1", 0.5), method="toy/pair")["method"]["betas"] == [0.9, 0.5]
    assert run(("method.betas", [0.1]), method="toy/pair")["method"]["betas"] == [0.1]
    whole = run(("method.betas", [1, 0]), method="toy/pair")["method"]["betas"]
    assert [(value, type(value)) for value in whole] == [(1.0, float), (0.0, float)]
    for path in ("method.betas.2", "method.betas.x", "method.betas.-1"):
        with pytest.raises(ConfigError, match="unknown key"):
            run((path, 0.5), method="toy/pair")


def test_a_config_that_hydra_refuses_is_one_line(conf: Callable[[str, str], Path]) -> None:
    conf("task/toy/broken.yaml", "defaults: [/data/nowhere@data: x]\n_target_: reprise_toy.tasks.Bowl\n")
    with pytest.raises(ConfigError, match=r"task=toy/broken: .*nowhere") as error:
        run(task="toy/broken")
    assert "file://" not in str(error.value)


def test_composition_inside_hydra_leaves_hydra_as_it_was() -> None:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from runners import places

    compose._hydra.cache_clear()
    compose._base.cache_clear()
    with initialize_config_dir(str(places.HOME / "conf"), version_base="1.3"):
        mine = GlobalHydra.instance().hydra
        run()
        assert GlobalHydra.instance().hydra is mine
