"""What a run is: its id is a hash of its resolved config, so equal configs are the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from runners.build import TOP_KEYS

Config = dict[str, Any]
ID_DIGITS = 20  # 80 bits: a collision among 10 million runs has probability 4e-11


def canonical(config: Config) -> Config:
    """The part of a config that its id hashes.

    Method, task, seed, device type, dtype and ranks, with every checksum and revision they name; without
    resources, interfaces and what comparisons ask (which change no number) and without launcher, tracker and scale.
    """
    return {
        "method": _strip(config["method"]),
        "task": _strip(config["task"]),
        "seed": config["seed"],
        "device": str(config.get("device") or "cpu").split(":")[0],
        "dtype": config.get("dtype"),
        "ranks": config.get("ranks", 1),
    }


def _strip(node: Any) -> Any:
    if "_panel_" in node:
        return {"_panel_": {name: _strip(member) for name, member in node["_panel_"].items()}}
    return {key: value for key, value in node.items() if key not in TOP_KEYS}


def digest(node: Any) -> str:
    """Hash of any JSON-like tree (keys in any order)."""
    return _hash(_text(node))


def _text(node: Any) -> str:
    return json.dumps(node, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]


def run_id(config: Config) -> str:
    """A run's id."""
    return digest(canonical(config))


def id_by_seed(config: Config) -> Callable[[int], str]:
    """Ids of the runs that differ from a config in their seed alone; the rest of it is written out once."""
    mark = "\0seed\0"
    before, after = _text(canonical({**config, "seed": mark})).split(_text(mark))
    return lambda seed: _hash(f"{before}{_text(seed)}{after}")


def method_name(config: Config) -> str:
    """``kind/name``; for a panel the members joined by ``+``."""
    node = config["method"]
    if "_panel_" in node:
        return "+".join(node["_panel_"])
    return str(node["_name_"])


def folder(config: Config, identifier: str) -> str:
    """Relative folder ``<kind>/<method>/<task>/<id>`` of a run."""
    kind, _, task = str(config["task"]["_name_"]).partition("/")
    method = method_name(config)
    short = method.partition("/")[2] or method
    if "_panel_" in config["method"]:
        short = "panel-" + digest(method)[:8]
    return "/".join((kind, short.replace("/", "."), (task or kind).replace("/", "."), identifier))
