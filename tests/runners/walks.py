"""What the tests of groups, Ctrl-C and Slurm share: what an undisturbed walk records, and how to watch one."""

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def expected(steps: int, seed: int = 0, ranks: int = 1, lr: float = 0.1, noise: float = 0.1) -> list[float]:
    """Gaps of an undisturbed `toy/walk` under `toy/descent`, step by step."""
    x, gaps = 1.5, []
    for step in range(steps):
        slopes = [x + noise * random.Random(f"{seed}/{step}/{rank}").gauss(0, 1) for rank in range(ranks)]
        x = x - (sum(slopes[1:], slopes[0]) / ranks) * lr
        gaps.append(x * x / 2)
    return gaps


def check_undisturbed(result: dict[str, Any]) -> None:
    """A run of `toy/walk` recorded what it records when nothing happens to it."""
    config = result["config"]
    gaps = expected(config["task"]["steps"], config["seed"], config["ranks"])
    assert result["status"] == "done"
    lines = (Path(result["folder"]) / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": i, "gap": gap} for i, gap in enumerate(gaps)]
    assert result["summary"] == {"gap": gaps[-1]}


def attempts(folder: Path) -> list[tuple[int, int]]:
    """(rank, first step) of each attempt at a run, by the order in which they started."""
    try:
        lines = (folder / "attempts.log").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(int(rank), int(step)) for rank, step, _ in map(str.split, lines)]


def wait_for(what: Callable[[], Any], seconds: float = 120.0, every: float = 0.05) -> Any:
    """First true value of ``what()``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(every)
    raise AssertionError(f"not so within {seconds} s: {what}")


def processes(*words: str) -> list[psutil.Process]:
    """Living processes that have all these words somewhere in their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            line = " ".join(process.cmdline())
            if all(word in line for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.pid != os.getpid()]


def rank_of(process: psutil.Process) -> int:
    """Which rank a process is."""
    return int(process.environ()["RANK"])
