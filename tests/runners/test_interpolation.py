"""References are resolved as OmegaConf resolves them, or left to it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runners import compose
from runners.errors import ConfigError
from runners.interpolation import resolve_references

CONFIG = {
    "task": {
        "data": {"_target_": "x.Y", "files": {"a": "1"}, "_name_": "libsvm/a1a"},
        "loss": "logistic",
        "optimum": {
            "data": "${..data}",
            "loss": "${..loss}",
            "deeper": {"loss": "${..loss}", "all": "${...data.files}"},
        },
        "again": "${.optimum}",
        "absolute": "${task.loss}",
        "listed": [1, "${..loss}", {"x": "${task.data.files.a}"}],
        "none": None,
        "copy": "${.none}",
    },
    "seed": 3,
}


def test_every_form_by_hand():
    found = resolve_references(CONFIG)
    assert found is not None
    task = found["task"]
    assert task["optimum"] == {
        "data": CONFIG["task"]["data"],
        "loss": "logistic",
        "deeper": {"loss": "logistic", "all": {"a": "1"}},
    }
    assert task["again"] == task["optimum"]
    assert task["listed"] == [1, "logistic", {"x": "1"}]
    assert task["copy"] is None
    assert task["optimum"]["data"] is not task["data"]


def test_as_omegaconf():
    assert resolve_references(CONFIG) == OmegaConf.to_container(OmegaConf.create(CONFIG), resolve=True)


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.one_of(
    st.integers(0, 3),
    st.none(),
    st.builds(
        lambda dots, path: "${" + "." * dots + ".".join(path) + "}",
        st.integers(0, 4),
        st.lists(NAMES, min_size=1, max_size=3),
    ),
)
TREES = st.recursive(
    VALUES, lambda inner: st.one_of(st.dictionaries(NAMES, inner, max_size=3), st.lists(inner, max_size=2))
)


@given(st.dictionaries(NAMES, TREES, min_size=1, max_size=3))
def test_what_is_resolved_is_what_omegaconf_resolves(tree: dict[str, Any]):
    found = resolve_references(tree)
    if found is not None:
        assert found == OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    else:
        with pytest.raises((OmegaConfBaseException, RecursionError)):
            OmegaConf.to_container(OmegaConf.create(tree), resolve=True)


@pytest.mark.parametrize(
    "text", ["${oc.env:HOME}", "a ${task.loss} b", "${nowhere}", "${task.}", r"\${task.loss}", "${......x}"]
)
def test_the_rest_is_left_to_omegaconf(text):
    assert resolve_references({"task": {"loss": "l", "x": text}}) is None


@pytest.mark.parametrize(
    "tree", [{"a": "${b}", "b": "${a}"}, {"a": {"b": "${a}"}}, {"a": "???", "b": "${a}"}]
)
def test_circles_and_missing_values_are_one_line(tree):
    assert resolve_references(tree) is None
    with pytest.raises(ConfigError):
        compose.resolve(tree)
