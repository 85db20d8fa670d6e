"""Tells a value that a constructor refuses (bad input) from a run that fails by itself."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Any

from runners import build
from runners.errors import ConfigError

Config = dict[str, Any]


def refusal(problem: BaseException, config: Config) -> str | None:
    """One line on the value that was refused, or None if that is not what happened.

    A ValueError counts that left the constructor of a class that the run's method or task names. Methods are mostly
    constructed by their tasks, as an optimizer needs its parameters, so that no earlier check could tell. The line
    names the key that the message is about, where one can be found in it by its name or its value.
    """
    if type(problem) is not ValueError:
        return None
    classes = {}
    for path, node in [*_nodes(config["method"], "method"), *_nodes(config["task"], "task")]:
        try:
            classes[build.locate(node["_target_"])] = path, node
        except ConfigError:
            continue
    for frame, _ in traceback.walk_tb(problem.__traceback__):
        if frame.f_code.co_name not in ("__init__", "__post_init__"):
            continue
        path, node = classes.get(type(frame.f_locals.get("self")), ("", {}))
        if path:
            return _line(path, node, " ".join(str(problem).split()))
    return None


def _nodes(node: Any, path: str) -> Iterator[tuple[str, Config]]:
    """Every node with a target, and its dotted path."""
    if not isinstance(node, dict):
        return
    if isinstance(node.get("_target_"), str):
        yield path, node
    for key, value in node.items():  # all members of a panel have the keys of "method"
        panel = key == "_panel_" and isinstance(value, dict)
        for name, part in value.items() if panel else [(key, value)]:
            yield from _nodes(part, path if panel else f"{path}.{name}")


def _line(path: str, node: Config, message: str) -> str:
    values = {key: value for key, value in build.arguments(node).items() if not isinstance(value, dict)}
    places = {key: _place(key, message) for key in values}
    if all(place < 0 for place in places.values()):
        places = {key: _place(str(value), message) for key, value in values.items()}
    found = min(
        (place, key) for place, key in [*((p, k) for k, p in places.items() if p >= 0), (len(message), "")]
    )
    if key := found[1]:
        same = message.removeprefix(f"{key}={values[key]}").lstrip(": ")  # a message may name both itself
        return f"{path}.{key}={values[key]}: {same or message}"
    return f"{path} {node.get('_name_') or node['_target_']}: {message}"


def _place(word: str, message: str) -> int:
    """Where a word stands in a message; -1 where it does not."""
    hit = re.search(rf"(?<![\w.]){re.escape(word)}(?![\w])", message) if word else None
    return hit.start() if hit else -1
