"""What the harness costs: trivial runs through it, through other harnesses, and by themselves; start-up times.

    .venv/bin/python scripts/bench_harness.py [--runs 500] [--others python] [--folder DIR]

``--others``: a Python that has the extra ``bench`` (benchopt, hydra-joblib-launcher); default: this one. A harness
that is not installed there is not measured. ``--folder``: where the stores lie; default: the project's disk, since
creating files is most of the cost. Prints times and ratios, and checks nothing.

A run is one step of gradient descent on a line. "Whole" is a whole sweep with judgement, figure and page, in a process
whose libraries are loaded, over its number of runs; "each further run", and the others' times, are slopes between a
small and a large number of runs, without start-up. CPU seconds are those of all processes: on a busy machine they are
the steadier number.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

HOME = Path(__file__).resolve().parent.parent
PLUGIN = HOME / "tests" / "plugin"
sys.path[:0] = [str(HOME), str(PLUGIN)]

PAPER = """
title: Trivial runs
experiments:
  bowl:
    asks: What does a run cost?
    grid: {{method: toy/descent, task: toy/bowl, task.steps: 1, seed: range({runs})}}
claims:
  falls: {{says: It falls, source: none, experiment: bowl, statistic: {{value: {{metric: gap, of: toy/descent}}}},
          expect: "<= 2", set_by: ours, scales: [laptop]}}
figures:
  gap: {{title: Gap, experiment: bowl, kind: bars, y: gap}}
"""
HYDRA_APP = """
import sys
sys.path[:0] = [{home!r}, {plugin!r}]
import hydra
from hydra.utils import instantiate
from scripts.bench_harness import Silent

@hydra.main(config_path={folder!r}, config_name="bowl", version_base="1.3")
def job(config):
    instantiate(config.task).evaluate(instantiate(config.method), Silent(config.seed))

job()
"""
HYDRA_YAML = """
method: {_target_: reprise_toy.methods.Descent, _partial_: true, lr: 0.1}
task: {_target_: reprise_toy.tasks.Bowl, steps: 1}
seed: 0
"""
BENCHOPT = {
    "objective.py": """
from benchopt import BaseObjective
class Objective(BaseObjective):
    name = "bowl"
    def set_data(self, seed): self.seed = seed
    def get_objective(self): return {"seed": self.seed}
    def evaluate_result(self, gap): return {"value": gap}
    def get_one_result(self): return {"gap": 1.0}
""",
    "datasets/line.py": """
from benchopt import BaseDataset
class Dataset(BaseDataset):
    name = "line"
    parameters = {"seed": list(range(RUNS))}
    def get_data(self): return {"seed": self.seed}
""",
    "solvers/descent.py": """
import sys
from benchopt import BaseSolver
sys.path[:0] = PATHS
from reprise_toy.methods import Descent
from reprise_toy.tasks import Bowl
from scripts.bench_harness import Silent
class Solver(BaseSolver):
    name = "descent"
    sampling_strategy = "run_once"
    def set_objective(self, seed): self.seed = seed
    def run(self, _):
        record = Silent(self.seed)
        Bowl(steps=1).evaluate(lambda: Descent(0.1), record)
        self.gap = record.values["gap"]
    def get_result(self): return {"gap": self.gap}
""",
}


class Silent:
    """The least a task needs of a run."""

    def __init__(self, seed: int):
        self.seed = seed
        self.values: dict[str, float] = {}

    def log(self, step: int, **metrics: float) -> None:
        """Forget the metrics."""

    def summary(self, **values: float) -> None:
        """Keep the marks."""
        self.values.update(values)

    def track(self, iterable: range) -> range:
        """Iterate without progress."""
        return iterable


@dataclass
class Cost:
    """Seconds."""

    wall: float
    cpu: float

    def __truediv__(self, count: float) -> Cost:
        return Cost(self.wall / count, self.cpu / count)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall - other.wall, self.cpu - other.cpu)


def least(costs: Iterable[Cost]) -> Cost:
    """The least disturbed of several repetitions."""
    listed = list(costs)
    return Cost(min(cost.wall for cost in listed), min(cost.cpu for cost in listed))


def slope(costs: dict[int, Cost]) -> Cost:
    """Cost of each further run, from two numbers of runs."""
    few, many = sorted(costs)
    return (costs[many] - costs[few]) / (many - few)


def spend(command: list[str], folder: Path, **variables: str) -> Cost:
    """Run a command and measure it with the descendants it waits for; raises if it fails."""
    log = folder / "log.txt"
    with log.open("w") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | variables, stdout=output, stderr=subprocess.STDOUT
        )
        _, code, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-3000:]}")
    return Cost(wall, usage.ru_utime + usage.ru_stime)


def bare(runs: int) -> Cost:
    """The same objects, called directly."""
    from reprise_toy.methods import Descent
    from reprise_toy.tasks import Bowl

    wall, cpu = time.perf_counter(), time.process_time()
    for seed in range(runs):
        Bowl(steps=1).evaluate(partial(Descent, lr=0.1), Silent(seed))
    return Cost(time.perf_counter() - wall, time.process_time() - cpu) / runs


def _clock() -> Cost:
    """Seconds now, of this process and all its children (the workers' are kept by their fork server)."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return Cost(time.perf_counter(), total)


def reproduce(paper: str) -> Cost:
    """``runners.reproduce`` in this process: check, expand, launch, judge, draw, report."""
    from runners.reproduce import run

    before = _clock()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run([f"paper={paper}"])
    cost = _clock() - before
    if code:
        raise SystemExit(f"runners.reproduce failed:\n{errors.getvalue()[-3000:]}")
    return cost


def reprise(folder: Path, runs: int, repeats: int) -> tuple[dict[int, Cost], dict[int, Cost], Cost]:
    """Cost of few and of all runs through ``runners.reproduce``.

    Returns ({number: cost}, {number: cost with all runs found in the store}, the command with all runs from cold).
    """
    few = max(10, runs // 10)
    (folder / "conf" / "paper").mkdir(parents=True)
    for paper, count in (("warm", 4), ("few", few), ("trivial", runs)):
        (folder / "conf" / "paper" / f"{paper}.yaml").write_text(PAPER.format(runs=count))
    os.environ["REPRISE_CONF"] = str(folder / "conf")
    fresh: dict[int, list[Cost]] = {few: [], runs: []}
    found: dict[int, list[Cost]] = {few: [], runs: []}
    for index in range(repeats):
        os.environ["REPRISE_OUTPUTS"] = str(folder / f"store-{index}")
        if index == 0:
            reproduce("warm")
        for paper, count in (("trivial", runs), ("few", few)):
            os.environ["REPRISE_OUTPUTS"] = str(folder / f"store-{paper}-{index}")
            fresh[count].append(reproduce(paper))
            found[count].append(reproduce(paper))
    command = [sys.executable, "-m", "runners.reproduce", "paper=trivial"]
    path = os.pathsep.join((str(HOME), str(PLUGIN)))
    cold = spend(command, folder, PYTHONPATH=path, REPRISE_OUTPUTS=str(folder / "store-cold"))
    return {n: least(c) for n, c in fresh.items()}, {n: least(c) for n, c in found.items()}, cold


def has(python: str, module: str) -> bool:
    """Whether a Python can import a module."""
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", probe], check=False).returncode == 0


def hydra(folder: Path, python: str, launcher: str, counts: tuple[int, int], repeats: int) -> Cost:
    """Each run through a Hydra application's multirun."""
    (folder / "bowl.yaml").write_text(HYDRA_YAML)
    app = folder / "app.py"
    app.write_text(HYDRA_APP.format(home=str(HOME), plugin=str(PLUGIN), folder=str(folder)))
    costs = {}
    for count in counts:
        arguments = ["-m", f"seed=range({count})", f"hydra/launcher={launcher}"]
        if launcher == "joblib":
            arguments.append(f"hydra.launcher.n_jobs={os.cpu_count()}")
        costs[count] = least(spend([python, str(app), *arguments], folder) for _ in range(repeats))
    return slope(costs)


def benchopt(folder: Path, python: str, counts: tuple[int, int], repeats: int) -> tuple[Cost, Cost]:
    """Each run through benchopt, and each found in its cache."""
    fresh, found = {}, {}
    for count in counts:
        costs = []
        for index in range(repeats):
            place = folder / f"benchmark_{count}_{index}"
            for name, text in BENCHOPT.items():
                path = place / name
                path.parent.mkdir(parents=True, exist_ok=True)
                paths = repr([str(HOME), str(PLUGIN)])
                path.write_text(text.replace("RUNS", str(count)).replace("PATHS", paths))
            command = [python, "-m", "benchopt", "run", ".", "-n", "1", "-r", "1", "--no-plot", "--no-html"]
            costs.append((spend(command, place), spend(command, place)))
        fresh[count] = least(cost for cost, _ in costs)
        found[count] = least(cost for _, cost in costs)
    return slope(fresh), slope(found)


def line(name: str, cost: Cost, base: Cost | None = None, note: str = "") -> None:
    """Print one contestant."""
    over = f"{1e3 * (cost.wall - base.wall):8.2f} ms" if base else " " * 11
    print(f"  {name:<36} {1e3 * cost.wall:8.2f} ms {over}   CPU {1e3 * cost.cpu:7.2f} ms  {note}", flush=True)


def inode_ms(folder: Path, count: int = 200) -> float:
    """Milliseconds to create one small file, each in a folder of its own."""
    for index in range(count):
        (folder / f"d{index}").mkdir()
    started = time.perf_counter()
    for index in range(count):
        (folder / f"d{index}" / "x").write_bytes(b"x" * 300)
    return 1e3 * (time.perf_counter() - started) / count


def startup() -> None:
    """Time each command line's ``--help``, the list, and a bare interpreter."""
    commands = sorted(p.stem for p in (HOME / "runners").glob("*.py") if "    cli.main(" in p.read_text())
    cases = [
        ["-c", "pass"],
        ["-m", "runners.list"],
        *(["-m", f"runners.{name}", "--help"] for name in commands),
    ]
    for case in cases:
        walls, cpus = [], []
        for _ in range(5):
            started, before = time.perf_counter(), os.times()
            subprocess.run([sys.executable, *case], cwd=HOME, check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            walls.append(time.perf_counter() - started)
            cpus.append(after[2] + after[3] - before[2] - before[3])
        print(f"  python {' '.join(case):<36} {min(walls):6.2f} s (CPU {min(cpus):.2f} s)", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--others", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--folder", type=Path, default=HOME / "outputs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="bench-", dir=options.folder))
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start")
    try:
        print("Start-up (best of 5; aim: 0.4 s at most)")
        startup()
        measure(root, options.runs, options.repeats, options.others)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def measure(root: Path, runs: int, repeats: int, python: str) -> None:
    """The harness and the others, one after the other."""

    def place(name: str) -> Path:
        folder = root / name
        folder.mkdir()
        return folder

    base = least(bare(runs) for _ in range(repeats))
    fresh, found, cold = reprise(place("reprise"), runs, repeats)
    print(f"One of {runs} trivial runs (best of {repeats}){'over the bare loop':>31}")
    line("bare loop", base)
    line("runners.reproduce, whole", fresh[runs] / runs, base, "(aim: 3 ms, at most 4)")
    line("  each further run", slope(fresh), base)
    line("  all found in the store, whole", found[runs] / runs)
    line("  each further one found", slope(found), None, "(at most 0.5 ms)")
    line("  the command from cold", Cost(cold.wall / runs, float("nan")), base, f"({cold.wall:.1f} s in all)")
    file = inode_ms(place("files"))
    print(f"    a run makes a folder and 3 files; to create one costs {file:.2f} ms on this disk now")
    if has(python, "hydra"):
        line("Hydra, basic launcher", hydra(place("basic"), python, "basic", (5, 45), repeats), base)
    else:
        print("  Hydra: not measured here (not installed)")
    if has(python, "hydra_plugins.hydra_joblib_launcher"):
        line("Hydra, joblib launcher", hydra(place("joblib"), python, "joblib", (5, 45), repeats), base)
    else:
        print("  Hydra's joblib launcher: not measured here (not installed)")
    if has(python, "benchopt"):
        each, cached = benchopt(place("benchopt"), python, (20, 120), repeats)
        line("benchopt", each, base)
        line("  found in its cache", cached)
    else:
        print("  benchopt: not measured here (not installed)")


if __name__ == "__main__":
    main()
