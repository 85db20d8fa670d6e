"""What a large store costs: taking up a finished sweep again, and reporting it, over 10,000 and 100,000 runs.

    .venv/bin/python scripts/bench_store.py [--runs 10000 100000] [--folder DIR] [--keep]

Fills a store of tiny runs (gradient descent on a line, 10 to 14 lines of metrics each) with the executor itself, in a
process per core; then, in a fresh process each: the check of a resumed sweep that finds everything done, and the report
(frames, a claim over all cells, a ratio, a curve figure and a bar figure, tables, page). Prints seconds, peak memory
and the page's size, beside the aims. ``--keep`` keeps a full store; the next call with the same folder uses it again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent
PLUGIN = HOME / "tests" / "plugin"
sys.path[:0] = [str(HOME), str(PLUGIN)]

STEPS = [10, 11, 12, 13, 14]
SEEDS_PER_CELL = 1000  # methods x steps x noises x seeds = runs
PAPER = """
title: A large store
experiments:
  mass:
    asks: What does a large store cost?
    grid:
      method: [toy/descent, toy/sign]
      task: toy/bowl
      task.steps: {steps}
      task.noise: {noises}
      seed: range({seeds})
claims:
  falls:
    says: The gap falls
    source: none
    experiment: mass
    statistic: {{value: {{metric: gap, of: toy/descent}}}}
    over: [task.steps, task.noise]
    expect: "<= 1"
    set_by: ours
    scales: [laptop]
  lower:
    says: One ends lower than the other
    source: none
    experiment: mass
    statistic: {{ratio: {{metric: gap, of: toy/sign, to: toy/descent}}}}
    over: [task.steps, task.noise]
    expect: ">= 0.001"
    set_by: ours
    scales: [laptop]
figures:
  curves: {{title: Gap, experiment: mass, x: step, y: gap, lines: method, panels: task.steps, yscale: log}}
  ends: {{title: Gap at the end, experiment: mass, kind: bars, x: task.steps, y: gap}}
"""


def paper(runs: int) -> str:
    """A paper with that many runs."""
    seeds = min(SEEDS_PER_CELL, runs // (2 * len(STEPS)))
    noises = [round(0.1 + 0.01 * k, 2) for k in range(runs // (2 * len(STEPS) * seeds))]
    return PAPER.format(steps=STEPS, noises=noises, seeds=seeds)


def sweep() -> Any:
    """The paper's sweep, in this process."""
    from runners.paper import Paper
    from runners.reproduce import group_config
    from runners.sweep import Sweep

    return Sweep(Paper("large"), "laptop", launcher=group_config("launcher", "local", {}))


def fill(part: int, parts: int) -> None:
    """Execute every ``parts``-th run."""
    from runners import places
    from runners.execute import Executor
    from runners.fingerprint import Fingerprinter

    fingerprints, executor = Fingerprinter(), Executor(places.outputs())
    for cell in sweep().expander.judged("mass")[part::parts]:
        executor.run(cell.config, run_id=cell.id, fingerprint=fingerprints.of(cell.config))
    executor.claims.close()


def peak_mb() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(phase: str) -> dict[str, float]:
    """One phase in this process; seconds of its parts, peak memory."""
    started, cpu = time.perf_counter(), time.process_time()
    tasks = sweep()
    tasks.check()
    checked = time.perf_counter()
    tasks.run()
    found: dict[str, float] = {
        "check": checked - started,
        "resume": time.perf_counter() - started,
        "resume_cpu": time.process_time() - cpu,
        "runs": len(tasks.results),
        "resume_mb": peak_mb(),
    }
    if phase == "report":
        import matplotlib.figure  # noqa: F401 (loading libraries is not the report's work; it is told apart)
        import pandas as pd  # noqa: F401

        from runners import figures, judge, pages, places  # noqa: F401

        loaded, cpu = time.perf_counter(), time.process_time()
        found["libraries"] = loaded - started - found["resume"]
        folder = places.outputs() / "report" / "large" / "laptop"
        judge.write(tasks, folder)
        found |= {
            "report": time.perf_counter() - loaded,
            "report_cpu": time.process_time() - cpu,
            "report_mb": peak_mb(),
            "page_mb": (folder / "index.html").stat().st_size / 2**20,
            "folder_mb": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20,
        }
    return found


def phase(name: str) -> dict[str, float]:
    """Run a phase in a process of its own."""
    command = [sys.executable, __file__, "--phase", name]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def bench(root: Path, runs: int) -> None:
    """Fill a store and measure it."""
    place = root / f"store-{runs}"
    (place / "conf" / "paper").mkdir(parents=True, exist_ok=True)
    (place / "conf" / "paper" / "large.yaml").write_text(paper(runs))
    os.environ["REPRISE_CONF"] = str(place / "conf")
    os.environ["REPRISE_OUTPUTS"] = str(place / "outputs")
    os.environ["OMP_NUM_THREADS"] = "1"
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    started = time.perf_counter()
    workers = [context.Process(target=fill, args=(part, cores)) for part in range(cores)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise SystemExit(f"filling the store failed (exit code {worker.exitcode})")
    seconds = time.perf_counter() - started
    print(f"{runs:,} runs: store ready in {seconds:.0f} s", flush=True)
    found = phase("resume")
    print(
        f"  resume, all {found['runs']:,.0f} found: {found['resume']:.2f} s (CPU {found['resume_cpu']:.2f} s; "
        f"checking and expanding {found['check']:.2f} s), peak {found['resume_mb']:.0f} MB",
        flush=True,
    )
    found = phase("report")
    print(
        f"  report: {found['report']:.2f} s (CPU {found['report_cpu']:.2f} s; libraries {found['libraries']:.2f} s "
        f"more), peak {found['report_mb']:.0f} MB, page {found['page_mb']:.2f} MB, folder {found['folder_mb']:.2f} MB",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--folder", type=Path, help="default: a new one under outputs/")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--phase", choices=["resume", "report"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        print(json.dumps(measure(options.phase)))
        return
    (HOME / "outputs").mkdir(exist_ok=True)
    root = options.folder or Path(tempfile.mkdtemp(prefix="bench-", dir=HOME / "outputs"))
    print("aims: 100,000 runs: resume 10 s, report 30 s and 2000 MB; 10,000 runs: report 2 s and 1 MB a page")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start", flush=True)
    try:
        for runs in options.runs:
            bench(root, runs)
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
