"""YAML reads as Hydra reads it, and what is written reads back as the same tree."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners import yamls
from runners.errors import ConfigError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        ("-2E+5", -200000.0),
        (".5", 0.5),
        ("1_000", 1000),
        ("1.", 1.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("'1e-3'", "1e-3"),
        ("2024-01-31", "2024-01-31"),
        ("1.2.3", "1.2.3"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("e3", "e3"),
    ],
)
def test_scalars(text: str, value: Any) -> None:
    found = yamls.parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["1e-3", "1e3", "-2E+5", ".5", "1.", "2024-01-31", "true", "12", "a", "e3"])
def test_scalars_read_as_hydra_reads_them(text: str) -> None:
    from omegaconf import OmegaConf

    theirs = OmegaConf.create(f"key: {text}").key
    ours = yamls.parse(f"key: {text}")["key"]
    assert (ours, type(ours)) == (theirs, type(theirs))


def test_ranges_in_braces_stay_whole() -> None:
    assert yamls.parse("{seed: range(100, 105), lr: [range(1, 2, 3)]}")["seed"] == "range(100, 105)"
    assert yamls.parse("{a: range(1, 10, 3), b: 2}") == {"a": "range(1, 10, 3)", "b": 2}


def test_merge_keys_are_no_duplicates() -> None:
    text = "base: &base {a: 1, b: 2}\nmore:\n  <<: *base\n  b: 3\n"
    assert yamls.parse(text)["more"] == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' stands twice"),
        ("x: {a: 1, a: 2}", "line 1: the key 'a' stands twice"),
        ("x:\n  - {b: 1}\n  - {c: 1, c: 2}", "line 3: the key 'c' stands twice"),
        ("a: [1", "not valid YAML"),
        ("a: b: c", "line 1: not valid YAML"),
        ("{{x}}: 1", "a key must be a name"),
        ("? [1, 2]\n: 3", "line 1: a key must be a name"),
        ("a: !!set {b}", "not valid YAML"),
        ("a: \0", "not valid YAML"),
    ],
)
def test_mistakes_name_their_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"line|YAML") as error:
        yamls.parse(text)
    assert said in str(error.value)


@given(st.dictionaries(st.text(), TREES, max_size=4))
def test_what_is_written_reads_back(tree: dict[str, Any]) -> None:
    assert yamls.parse(yamls.dump(tree)) == tree


@given(
    st.sampled_from(["1e-3", "1e3", ".5", "2024-01-31", "yes", "range(3)", "0x1f", "1_0", "<<", "=", "12:30"])
)
def test_texts_that_look_like_something_else_stay_texts(text: str) -> None:
    assert yamls.parse(yamls.dump({"key": text, "list": [text]})) == {"key": text, "list": [text]}
