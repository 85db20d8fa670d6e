"""What pages cost: the page of a paper with 10,000 runs, and the scoreboard of 38 such papers.

    .venv/bin/python scripts/bench_report.py [--runs 10000] [--papers 38]

Results are synthetic and go to a temporary folder. Prints seconds and sizes, and checks nothing. Seconds are those
of a whole ``python -m runners.report``, start-up and reading included; CPU seconds are the steadier number on a busy
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent


def publish(root: Path, slug: str, runs: int) -> None:
    """One paper with 8 claims over 4 cells and ``runs`` runs of 20 methods on 20 tasks."""
    experiments = {"main": {"asks": "Which is faster?", "grid": {"method": "bandit/a", "task": "bandit/b"}}}
    claims = {f"c{i}": {"says": f"Claim {i} holds by a margin", "expect": ">= 1"} for i in range(8)}
    (root / "conf" / "paper").mkdir(parents=True, exist_ok=True)
    spec = {"title": f"Paper {slug}", "experiments": experiments, "claims": claims}
    (root / "conf" / "paper" / f"{slug}.yaml").write_text(json.dumps(spec))  # JSON is YAML
    folder = root / "results" / slug / "laptop"
    folder.mkdir(parents=True)
    numbers = {"value": 2.0, "low": 1.5, "high": 2.5, "units": 10, "verdict": "reproduced", "reported": None}
    cells = [{"cell": {"task": f"bandit/t{k}"}, **numbers} for k in range(4)]
    found = [{"id": name, **entry, **numbers, "cells": cells} for name, entry in claims.items()]
    verdicts = {"paper": slug, "scale": "laptop", "seconds": 1.0, "claims": found, "findings": []}
    (folder / "verdicts.json").write_text(json.dumps(verdicts))
    with (folder / "runs.csv").open("w") as file:
        file.write("id,experiment,method,task,seed,status,seconds,final,steps\n")
        for i in range(runs):
            file.write(f"{i:016x},main,bandit/m{i % 20},bandit/t{i // 20 % 20},{i},done,0.5,0.25,{i}\n")


def measure(root: Path) -> None:
    """Build the pages of everything under ``root``."""
    environment = os.environ | {"REPRISE_CONF": str(root / "conf")}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "runners.report", f"results={root / 'results'}"]
    subprocess.run(command, check=True, cwd=HOME, env=environment, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    pages = sorted((root / "results").glob("*/index.html"), key=lambda path: path.stat().st_size)
    index = (root / "results" / "index.html").stat().st_size
    print(
        f"  {wall:5.2f} s wall, {cpu:5.2f} s CPU; largest page {pages[-1].stat().st_size / 1e3:.0f} kB, ",
        end="",
    )
    print(f"scoreboard {index / 1e3:.0f} kB")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="runs of one paper")
    parser.add_argument("--papers", type=int, default=38, help="papers of the large scoreboard")
    options = parser.parse_args()
    for papers in (1, options.papers):
        with tempfile.TemporaryDirectory() as folder:
            for i in range(papers):
                publish(Path(folder), f"p{i}", options.runs if papers == 1 else options.runs // papers)
            print(f"{papers} papers, {options.runs} runs in all")
            measure(Path(folder))


if __name__ == "__main__":
    main()
