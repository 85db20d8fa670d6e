"""Pins: a dataset whose YAML states no checksum is known by the checksum its files have now."""

from __future__ import annotations

from typing import Any

from runners import build
from runners.errors import ConfigError


def pin(node: Any, where: str = "") -> None:
    """Fill in, in place, every null checksum of a ``files`` mapping (its class's ``checksums(node)`` computes them)."""
    if isinstance(node, list):
        for item in node:
            pin(item, where)
    if not isinstance(node, dict):
        return
    files = node.get("files")
    if isinstance(files, dict) and "_target_" in node and any(value is None for value in files.values()):
        door = build.locate(node["_target_"], where)
        if not hasattr(door, "checksums"):
            raise ConfigError(f"{where}: {node['_target_']} states no checksum for {', '.join(files)}")
        try:
            node["files"] = {**files, **door.checksums(node)}
        except OSError as problem:
            raise ConfigError(f"{where}: {node.get('_name_', node['_target_'])}: {problem}") from problem
    for key, value in node.items():
        pin(value, f"{where}.{key}" if where else str(key))
