"""A run's id: equal configs are one run, whatever they are called and wherever they run."""

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners import compose, identity

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def config(*leaves: tuple[str, Any], method: Any = "toy/descent", task: str = "toy/bowl") -> dict[str, Any]:
    """A composed run with some leaves set."""
    return compose.compose_run(method, task, lambda _: [(path, value, "") for path, value in leaves])


def shuffled(node: Any) -> Any:
    """The same tree with every mapping's keys in another order."""
    if isinstance(node, dict):
        items = [(key, shuffled(value)) for key, value in node.items()]
        random.Random(0).shuffle(items)
        return dict(items)
    return [shuffled(item) for item in node] if isinstance(node, list) else node


@given(JSON)
def test_the_order_of_keys_does_not_matter(tree: Any) -> None:
    assert identity.digest(tree) == identity.digest(shuffled(tree))


@given(st.lists(JSON, min_size=2, max_size=6))
def test_different_trees_have_different_digests(trees: list[Any]) -> None:
    import json

    texts = {json.dumps(tree, sort_keys=True) for tree in trees}
    assert len({identity.digest(tree) for tree in trees}) == len(texts)


def test_an_id_has_at_least_64_bits() -> None:
    assert len(identity.run_id(config())) * 4 >= 64


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("method.lr", 1), ("method.lr", 1.0)),
        (("task.steps", 30), ("task.steps", 30.0)),
        (("task.steps", 20), ("task.noise", 0.1)),  # both are the defaults
        (("device", "cuda:1"), ("device", "cuda:0")),
        (("task.resources.hours", 3), ("task.resources.hours", 5)),
        (("method.lr", "${task.noise}"), ("method.lr", 0.1)),
        (("seed", 3.0), ("seed", 3)),
        (("task.resources.memory_gb", 3), ("task.resources.ranks", 1)),
    ],
)
def test_equal_runs_share_an_id(one: tuple[str, Any], other: tuple[str, Any]) -> None:
    assert identity.run_id(config(one)) == identity.run_id(config(other))


@pytest.mark.parametrize(
    "leaf",
    [
        ("method.lr", 0.2),
        ("task.steps", 21),
        ("seed", 1),
        ("dtype", "float64"),
        ("device", "cuda"),
        ("ranks", 2),
        ("+method.name", "x"),
    ],
)
def test_what_changes_numbers_changes_the_id(leaf: tuple[str, Any]) -> None:
    assert identity.run_id(config(leaf)) != identity.run_id(config())


@pytest.mark.parametrize("name", ["method", "task"])
def test_interfaces_do_not_change_an_id(name: str) -> None:
    plain, other = config(), config()
    other[name]["interface"] = "elsewhere.Method"
    assert identity.run_id(plain) == identity.run_id(other)
    panel, changed = (config(method=["toy/descent", "toy/sign"], task="toy/race") for _ in range(2))
    changed["method"]["_panel_"]["toy/sign"]["interface"] = "elsewhere.Method"
    assert identity.run_id(panel) == identity.run_id(changed)


def test_the_order_of_a_panel_is_part_of_its_folder_but_its_members_are_its_id() -> None:
    one = config(method=["toy/descent", "toy/sign"], task="toy/race")
    assert identity.method_name(one) == "toy/descent+toy/sign"
    assert identity.folder(one, "x").startswith("toy/panel-")


def test_folders_are_four_levels_without_any_dots_to_climb() -> None:
    assert identity.folder(config(), "abc") == "toy/descent/bowl/abc"
    deep = copy.deepcopy(config())
    deep["method"]["_name_"] = "toy/a/b"
    deep["task"]["_name_"] = "toy/c/d"
    assert identity.folder(deep, "abc") == "toy/a.b/c.d/abc"
