"""Verifies a paper's stored runs after a change of code: one seed per cell runs again, beside the stored result.

Where the numbers come out bitwise equal, the fingerprints of the cell's other runs are renewed (they need not run
again); where they differ, they stay stale and ``reproduce`` runs them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from runners import cli, places
from runners.errors import ConfigError, nearest
from runners.paper import SCALES, Paper

USAGE = """
usage: python -m runners.verify paper=<slug> [scale=laptop]
"""


def run(arguments: list[str]) -> int:
    """The command line."""
    from runners.reproduce import group_config
    from runners.sweep import Sweep

    options = dict(cli.pairs(arguments))
    paper = Paper(cli.paper(options, ("paper", "scale")))
    scale = cli.take(options, "scale", "laptop", SCALES)
    if options:
        name = next(iter(options))
        raise ConfigError(f"unknown option '{name}'{nearest(name, ('paper', 'scale'))}")
    sweep = Sweep(paper, scale, launcher=group_config("launcher", "local", {}), stale="keep")
    frozen = places.outputs() / "report" / paper.slug / scale / "frozen"
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in (frozen / f"{name}.json" for name in paper.order()):  # needed runs are renewed first
        if not path.is_file():
            continue
        for cell in json.loads(path.read_bytes())["cells"]:
            coordinates = {key: value for key, value in cell["coordinates"].items() if key != "seed"}
            groups.setdefault((path.stem, json.dumps(coordinates, sort_keys=True)), []).append(cell)
    if not groups:
        raise ConfigError(
            f"{paper.slug} has no stored runs at scale {scale}: make reproduce-{paper.slug} makes them"
        )
    return verify(sweep, groups)


def verify(sweep: Any, groups: dict[tuple[str, str], list[dict[str, Any]]]) -> int:
    """Run one seed per cell again; returns 1 if any number differs or a cell has no result."""
    from runners.artifacts import ArtifactStore
    from runners.execute import Executor
    from runners.store import write_atomic

    different = equal = missing = 0
    with tempfile.TemporaryDirectory() as scratch:
        executor = Executor(Path(scratch), progress=False)
        executor.source, executor.artifacts = sweep.root, ArtifactStore(sweep.root)
        for (experiment, label), cells in groups.items():
            stored = {}
            for cell in cells:
                hit = sweep.store.look(cell["config"], cell["id"], None)
                if hit.result is not None:
                    stored[cell["id"]] = hit.result
            name = f"{experiment} {label}"
            if not stored:
                missing += 1
                print(f"no result: {name}")
                continue
            first = next(cell for cell in cells if cell["id"] in stored)
            if (first["config"]["task"].get("resources") or {}).get("exclusive"):
                print(f"timed, so it runs again: {name}")
                continue
            fresh = sweep.fingerprints.of(first["config"])
            outcome = executor.run(first["config"], run_id=first["id"], fingerprint=fresh, again=True)
            old, new = (store.folder(first["config"], first["id"]) for store in (sweep.store, executor.store))
            if outcome.status != stored[first["id"]]["status"] or not same(old, new):
                different += 1
                print(f"differs: {name} ({outcome.status} {outcome.error})")
                continue
            renewed = 0
            for cell in cells:
                result = stored.get(cell["id"])
                needs = sweep.store.needs(cell["config"])
                if result is not None and (result["fingerprint"], result["needs"]) != (fresh, needs):
                    folder = sweep.store.folder(cell["config"], cell["id"])
                    write_atomic(
                        folder / "result.json", json.dumps(result | {"fingerprint": fresh, "needs": needs})
                    )
                    renewed += 1
            equal += 1
            print(f"equal: {name}" + (f" ({renewed} fingerprints renewed)" if renewed else ""))
        executor.claims.close()
    total = f"{equal} cells equal, {different} different, {missing} without a result"
    again = f": make reproduce-{sweep.paper.slug} runs them" if different + missing else ""
    print(total + again, file=sys.stderr)
    return 1 if different + missing else 0


def same(old: Path, new: Path) -> bool:
    """Whether two runs recorded bitwise the same metrics, rows and summary."""
    for name in ("metrics.jsonl", "rows.jsonl"):
        pair = [path.read_bytes() if path.exists() else b"" for path in (old / name, new / name)]
        if pair[0] != pair[1]:
            return False
    summaries = [json.loads((folder / "result.json").read_bytes())["summary"] for folder in (old, new)]
    return bool(summaries[0] == summaries[1])


if __name__ == "__main__":
    cli.main(run, USAGE)
