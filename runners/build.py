"""Turns config nodes into objects: ``_target_`` with named arguments, checked before the call."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runners.errors import ConfigError, nearest

Config = dict[str, Any]
# Keys of method and task nodes that speak to the harness, not to the constructor.
TOP_KEYS = ("interface", "resources", "compare", "tunable")


@dataclass(frozen=True)
class Artifact:
    """An expensive preparation that a task asks for with ``run.artifact(node)``."""

    node: Config


@dataclass(frozen=True)
class FinishedRun:
    """A finished run handed to a task argument by ``needs``."""

    id: str
    dir: Path
    config: Config
    summary: dict[str, Any]


def locate(dotted: str, where: str = "") -> Any:
    """Import the object a ``_target_`` names; ConfigError says what is missing."""
    at = f"{where}: " if where else ""
    if not isinstance(dotted, str) or "." not in dotted:
        raise ConfigError(f"{at}_target_ {dotted!r} is no dotted name")
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                continue
            raise ConfigError(
                f"{at}_target_ {dotted} needs the package '{error.name}', which is not installed"
            ) from error
        for depth, attribute in enumerate(parts[length:], start=length):
            if not hasattr(found, attribute):
                place = ".".join(parts[:depth])
                raise ConfigError(
                    f"{at}_target_ {dotted}: no '{attribute}' in {place}{nearest(attribute, dir(found))}"
                )
            found = getattr(found, attribute)
        return found
    raise ConfigError(f"{at}_target_ {dotted}: no module '{parts[0]}'")


@functools.lru_cache(maxsize=1024)
def _signature(target: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def check_arguments(target: Callable[..., Any], kwargs: Config, *, partial: bool, where: str) -> None:
    """Raise ConfigError where ``target`` does not take these arguments (or lacks one it needs)."""
    signature = _signature(target)
    if signature is None:  # a builtin without a signature: the call itself will tell
        return
    try:
        signature.bind_partial(**kwargs) if partial else signature.bind(**kwargs)
    except TypeError as error:
        name = getattr(target, "__qualname__", str(target))
        takes = [p for p in signature.parameters if p not in ("self", "args", "kwargs")]
        for key in kwargs:
            if key not in signature.parameters:
                message = f"{where}.{key}: {name} takes no argument '{key}'{nearest(key, takes)}"
                raise ConfigError(message) from error
        raise ConfigError(f"{where}: {name}: {error}") from error


def arguments(node: Config, *, top: bool = False) -> Config:
    """The keyword arguments in a node: every key that is not the harness's own."""
    return {
        str(key): value
        for key, value in node.items()
        if not (str(key).startswith("_") and str(key).endswith("_")) and not (top and key in TOP_KEYS)
    }


def build(node: Any, where: str, *, resolve_run: Callable[[Config], FinishedRun], top: bool = False) -> Any:
    """Build a node: objects for ``_target_``, factories for ``_partial_``, plain trees otherwise."""
    deeper = functools.partial(build, resolve_run=resolve_run)
    if isinstance(node, list):
        return [deeper(item, f"{where}[{index}]") for index, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    if "_run_" in node:
        return resolve_run(node)
    if "_panel_" in node:
        return {name: deeper(member, where, top=True) for name, member in node["_panel_"].items()}
    if node.get("_artifact_"):
        return Artifact(node)
    kwargs = {key: deeper(value, f"{where}.{key}") for key, value in arguments(node, top=top).items()}
    if "_target_" not in node:
        return kwargs
    target = locate(node["_target_"], where)
    partial = bool(node.get("_partial_"))
    check_arguments(target, kwargs, partial=partial, where=where)
    return functools.partial(target, **kwargs) if partial else target(**kwargs)


def check(node: Any, where: str, *, top: bool = False) -> None:
    """Check every target of a node, at any depth, without calling any: that it exists and takes its arguments."""
    if isinstance(node, list):
        for index, item in enumerate(node):
            check(item, f"{where}[{index}]")
    if not isinstance(node, dict) or "_run_" in node:
        return
    if "_panel_" in node:
        for member in node["_panel_"].values():
            check(member, where, top=True)
        return
    kwargs = arguments(node, top=top)
    for key, value in kwargs.items():
        check(value, f"{where}.{key}")
    if "_target_" in node:
        target = locate(node["_target_"], where)
        if node.get("_artifact_"):
            kwargs = {"out": None, **kwargs}
        check_arguments(target, kwargs, partial=bool(node.get("_partial_")), where=where)


def interface(node: Config, name: str) -> str:
    """The dotted Protocol a method or task YAML pairs by: its ``interface``, else its kind's own."""
    return str(node.get("interface") or f"tasks.{name.split('/')[0]}.interface.Method")


def check_pair(config: Config, where: str = "") -> None:
    """Raise ConfigError where method and task do not share an interface."""
    task = config["task"]
    wanted = interface(task, task["_name_"])
    members = config["method"].get("_panel_") or {config["method"]["_name_"]: config["method"]}
    for name, member in members.items():
        offered = interface(member, name)
        if offered != wanted:
            at = f"{where}: " if where else ""
            raise ConfigError(
                f"{at}method {name} ({offered}) does not fit task {task['_name_']} ({wanted}): their interfaces differ"
            )
