"""Fetches the datasets and models of a paper, so that its runs need no network."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners import build, cli, places
from runners.errors import ConfigError, nearest
from runners.identity import digest
from runners.paper import SCALES, Paper, needed

if TYPE_CHECKING:
    from runners.expand import Cell

USAGE = """
usage: python -m runners.fetch paper=<slug> [scale=laptop]
"""
# What messages advise elsewhere, and what has just been tried here.
ADVICE = re.compile(r"[;,] (point REPRISE_DATA at a folder that holds it, )?(or )?run: make fetch-<paper>")


def run(arguments: list[str]) -> int:
    """The command line."""
    options = dict(cli.pairs(arguments))
    paper = Paper(cli.paper(options, ("paper", "scale")))
    scale = cli.take(options, "scale", "laptop", SCALES)
    if options:
        name = next(iter(options))
        raise ConfigError(f"unknown option '{name}'{nearest(name, ('paper', 'scale'))}")
    doors = {digest(node): node for node in _doors(paper, scale)}
    size = sum(float(node.get("size_mb") or 0) for node in doors.values())
    folder = _existing(places.cache())
    free = shutil.disk_usage(folder).free / 2**20
    if size > free:
        raise ConfigError(f"{paper.slug} needs {size:.0f} MB, and {free:.0f} MB are free in {folder}")
    missing = 0
    for node in doors.values():
        door = build.build(node, "data", resolve_run=_never)
        name = node.get("name") or node.get("_name_") or node["_target_"]
        try:
            door.fetch()
            print(
                f"ready: {name} ({node.get('size_mb', '?')} MB, {node.get('licence', 'licence not stated')})"
            )
        except FileNotFoundError as problem:
            missing += 1
            text = ADVICE.sub("", str(problem)).replace("<paper>", paper.slug)
            print(f"missing: {text}", *_by_hand(door, node), sep="\n  ", file=sys.stderr)
    if not doors:
        print(f"{paper.slug} needs no data at scale {scale}")
    if missing:
        print(f"then: make fetch-{paper.slug} scale={scale}, which checks what is there", file=sys.stderr)
    return 1 if missing else 0


def _by_hand(door: Any, node: dict[str, Any]) -> list[str]:
    """Where files that could not be fetched go, and how they are told; for what is no set of files, another way."""
    if not hasattr(door, "paths"):
        return [
            "try again where the network reaches its source" + (f": {s}" if (s := node.get("source")) else "")
        ]
    roots = [Path(root).expanduser() for root in filter(None, [os.environ.get("REPRISE_DATA")])]
    roots.append(places.cache() / "data")
    found = []
    for file, checksum in node["files"].items():
        if not any((root / file).is_file() for root in roots):
            url = (node.get("urls") or {}).get(file)
            found.append(
                f"put it at {roots[0] / file} (SHA-256 {checksum})" + (f", from {url}" if url else "")
            )
    return found or ["put files with the checksums of its YAML there"]


def _doors(paper: Paper, scale: str) -> Iterator[dict[str, Any]]:
    from runners.expand import Expander

    expander = Expander(paper, scale)
    cells: dict[str, list[Cell]] = {}
    for name in paper.order():
        needs = needed(paper.experiments[name])
        if paper.not_run(name, scale) is None and all(need in cells for need in needs):
            cells[name] = expander.judged(name, finished={need: cells[need] for need in needs})
            for cell in cells[name]:
                yield from _nodes(cell.config)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict) and "_target_" in node and isinstance(node.get("files"), dict):
        yield node
    for value in values:
        yield from _nodes(value)


def _never(node: dict[str, Any]) -> Any:
    raise ConfigError(f"data takes no finished run ({node['_run_']})")


if __name__ == "__main__":
    cli.main(run, USAGE)
