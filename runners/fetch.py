"""Fetches the datasets and models of a paper, so that its runs need no network."""

from __future__ import annotations

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


def run(arguments: list[str]) -> int:
    """The command line."""
    options = dict(cli.pairs(arguments))
    if "paper" not in options:
        raise ConfigError("which paper? paper=<slug>; python -m runners.list shows them")
    paper = Paper(options.pop("paper"))
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
            print(f"missing: {str(problem).replace('<paper>', paper.slug)}", file=sys.stderr)
    if not doors:
        print(f"{paper.slug} needs no data at scale {scale}")
    return 1 if missing else 0


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
