"""Faults: processes killed at any moment, full and read-only disks, Ctrl-C, two sweeps at once."""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.runners.conftest import kill_group, numbers

Start = Callable[..., Any]
Process = Callable[..., SimpleNamespace]

PAPER = """
title: Under fire
experiments:
  bowl:
    grid: {method: [toy/descent, toy/sign], task: toy/bowl, seed: range(20), task.repeats: 3, task.steps: 30}
    settings: [{set: {task.pause: 0.0002}, source: assumed}]
  tuned:
    grid: {method: [toy/descent, toy/sign], task: toy/bowl, seed: range(8)}
    tune: {grid: {method.lr: [0.01, 0.1]}, metric: gap, seeds: range(100, 103)}
  duel:
    grid: {method: [toy/descent, toy/sign], task: toy/duel, seed: range(10)}
    needs: {opponent: {experiment: bowl, method: "*", seed: same}}
  race: {grid: {method: [[toy/descent, toy/sign]], task: toy/race, seed: range(5)}}
  prepared: {grid: {method: toy/descent, task: toy/prepared, seed: range(10)}}
claims:
  lower:
    says: Lower
    source: Fig. 1
    experiment: bowl
    statistic: {ratio: {metric: gap, of: toy/sign, to: toy/descent}}
    expect: ">= 0"
    set_by: ours
"""
SWEEP = ("tests.runners.sweep_only", "paper=fire", "scale=smoke", "launcher.workers=2")
COMMAND = ("runners.reproduce", "paper=fire", "scale=smoke", "launcher.workers=2")


@pytest.fixture
def fire(conf: Callable[[str, str], Path]) -> tuple[str, ...]:
    """A paper with everything in it, and the command that reproduces it."""
    conf("paper/fire.yaml", PAPER)
    return COMMAND


def noted(log: Path) -> list[list[str]]:
    """What the toy tasks noted so far."""
    return (
        [line.split() for line in log.read_text().splitlines() if line.count(" ") == 2]
        if log.exists()
        else []
    )


def finished(outputs: Path) -> set[str]:
    """Runs with a whole result."""
    found = set()
    for path in outputs.glob("*/*/*/*/result.json"):
        json.loads(path.read_bytes())  # a result is never half there
        found.add(path.parent.name)
    return found


def verdict(outputs: Path) -> list[Any]:
    """What the report says, costs and dates left out."""
    found = json.loads((outputs / "report" / "fire" / "smoke" / "verdicts.json").read_text())
    runs = (outputs / "report" / "fire" / "smoke" / "runs.csv").read_text().splitlines()
    column = runs[0].split(",").index("seconds")
    table = [",".join(cell for i, cell in enumerate(line.split(",")) if i != column) for line in runs]
    return [found["claims"], found["experiments"].keys(), sorted(table)]


@pytest.mark.slow
def test_killed_at_any_moment_a_sweep_ends_as_if_undisturbed(
    fire: tuple[str, ...], start: Start, process: Process, tmp_path: Path
) -> None:
    calm = tmp_path / "calm"
    assert process(*fire, env={"REPRISE_OUTPUTS": str(calm)}).code == 0
    expected = numbers(calm)
    outputs, log, draws = tmp_path / "fire", tmp_path / "toy.log", random.Random(0)
    env = {"REPRISE_OUTPUTS": str(outputs), "REPRISE_TOY_LOG": str(log)}
    for kill in range(20):
        before, done = len(noted(log)), finished(outputs)
        sweep = start(*fire, env=env)
        if kill % 4 == 0:  # at any time, also before the first run
            time.sleep(draws.uniform(0, 2))
        else:  # while it runs
            lines = before + draws.randint(1, 12)
            while len(noted(log)) < lines and sweep.poll() is None:
                time.sleep(0.001)
            time.sleep(draws.uniform(0, 0.02))
        kill_group(sweep)
        sweep.communicate()
        repeated = {run for word, run, _ in noted(log)[before:] if word == "begin"} & done
        assert not repeated, "a finished run was made again"
        assert done <= finished(outputs), "a finished run was lost"
    ended = process(*fire, env=env)
    assert ended.code == 0, ended.err
    assert "run again" not in ended.err
    assert numbers(outputs) == expected
    assert verdict(outputs) == verdict(calm)
    assert not list(outputs.glob("*/*/*/*/.*")), "half-written files"
    for claim in outputs.glob("*/*/*/*/claim*"):  # killed between its result and giving its claim back
        assert claim.with_name("result.json").exists()
    assert process(*fire, env=env).code == 0
    assert numbers(outputs) == expected


@pytest.mark.slow
def test_two_commands_share_one_sweep(
    fire: tuple[str, ...], start: Start, tmp_path: Path, outputs: Path
) -> None:
    log = tmp_path / "toy.log"
    both = [start(*fire, "experiment=bowl", env={"REPRISE_TOY_LOG": str(log)}) for _ in range(2)]
    ends = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    begun = Counter(run for word, run, _ in noted(log) if word == "begin")
    assert set(begun) == finished(outputs)
    assert len(begun) == 40
    assert set(begun.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "number", "code"),
    [("parent", signal.SIGINT, 130), ("group", signal.SIGINT, 130), ("parent", signal.SIGTERM, 143)],
)
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(
    fire: tuple[str, ...],
    start: Start,
    process: Process,
    tmp_path: Path,
    outputs: Path,
    to: str,
    number: signal.Signals,
    code: int,
) -> None:
    log = tmp_path / "toy.log"
    sweep = start(*SWEEP, "experiment=bowl", env={"REPRISE_TOY_LOG": str(log)})
    while len(noted(log)) < 10:
        assert sweep.poll() is None, sweep.communicate()
        time.sleep(0.005)
    workers = {int(process) for _, _, process in noted(log)}
    (os.kill if to == "parent" else os.killpg)(sweep.pid, number)
    _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == code
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "stopped; what is finished is kept, the same command goes on from there"
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(psutil.pid_exists, workers)), "orphans"
    done = finished(outputs)
    assert 0 < len(done) < 40
    interrupted = [json.loads(path.read_text()) for path in outputs.glob("*/*/*/*/failure.json")]
    assert {record["status"] for record in interrupted} <= {"interrupted"}
    begun = len(noted(log))
    ended = process(*SWEEP, "experiment=bowl", env={"REPRISE_TOY_LOG": str(log)})
    assert ended.code == 0, ended.err
    assert not {run for word, run, _ in noted(log)[begun:]} & done
    assert len(finished(outputs)) == 40
    assert not list(outputs.glob("*/*/*/*/failure.json"))


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """``mount(folder, options)`` mounts a disk of its own there (needs root, as in a container)."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    mounted: list[Path] = []

    def run(folder: Path, *options: str) -> None:
        if folder not in mounted:
            folder.mkdir(parents=True, exist_ok=True)
            mounted.append(folder)
        subprocess.run(["mount", *options, str(folder)], check=True)

    yield run
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def stopped(ended: SimpleNamespace, reason: str) -> None:
    """One clear line and a non-zero exit, no traceback."""
    assert ended.code == 1, ended
    assert "Traceback" not in ended.err
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.err
    assert errors[0].startswith("error: cannot write ")
    assert reason in errors[0]
    assert "what is finished is kept" in errors[0]


@pytest.mark.slow
def test_a_full_disk_stops_the_sweep_and_costs_nothing_done(
    fire: tuple[str, ...], process: Process, mount: Callable[..., None], tmp_path: Path
) -> None:
    outputs, log = tmp_path / "disk", tmp_path / "toy.log"
    env = {"REPRISE_OUTPUTS": str(outputs), "REPRISE_TOY_LOG": str(log)}
    mount(outputs, "-t", "tmpfs", "-o", "size=600k", "tmpfs")
    stopped(process(*fire, "experiment=bowl", env=env), "No space left on device")
    done = finished(outputs)
    assert 0 < len(done) < 40
    stopped(process(*SWEEP, "experiment=bowl", env=env), "No space left on device")
    assert finished(outputs) >= done
    single = process("runners.run", "method=toy/sign", "task=toy/bowl", "task.steps=9999", env=env)
    stopped(single, "No space left on device")
    begun = len(noted(log))
    mount(outputs, "-o", "remount,size=20m")
    ended = process(*SWEEP, "experiment=bowl", env=env)
    assert ended.code == 0, ended.err
    assert not {run for _, run, _ in noted(log)[begun:]} & done
    calm = {"REPRISE_OUTPUTS": str(tmp_path / "calm")}
    assert process(*SWEEP, "experiment=bowl", env=calm).code == 0
    assert numbers(outputs) == numbers(tmp_path / "calm")


def test_a_read_only_disk(
    fire: tuple[str, ...], process: Process, mount: Callable[..., None], outputs: Path
) -> None:
    run = ("runners.run", "method=toy/descent", "task=toy/bowl")
    assert process(*run).code == 0
    before = numbers(outputs)
    mount(outputs, "--bind", str(outputs))
    mount(outputs, "-o", "remount,ro,bind")
    stopped(process(*fire), "Read-only file system")
    stopped(process(*run, "seed=1"), "Read-only file system")
    assert numbers(outputs) == before
    stored = process(*run)
    assert (stored.code, stored.out[:13]) == (0, "done (stored)")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["outputs", "run", "results"])
def test_a_file_where_a_folder_should_be(
    fire: tuple[str, ...], process: Process, tmp_path: Path, outputs: Path, what: str
) -> None:
    arguments = [*fire, "experiment=race"]
    if what == "outputs":
        outputs.write_text("mine")
    elif what == "run":
        (outputs / "toy").mkdir(parents=True)
        arguments = [*fire, "experiment=bowl"]
        (outputs / "toy" / "descent").write_text("mine")
    else:
        arguments = [*fire, "publish=true"]
        (tmp_path / "results").write_text("mine")
    ended = process(*arguments)
    stopped(ended, str(tmp_path))
    for path in (outputs, outputs / "toy" / "descent", tmp_path / "results"):
        assert not path.is_file() or path.read_text() == "mine"
