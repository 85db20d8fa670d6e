"""Each run has GPUs of its own. The list of devices is a made-up one: no GPU is touched by a run that asks for none."""

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runners import group
from runners.errors import ConfigError
from runners.execute import Outcome
from runners.launchers import Job, Settings
from runners.launchers.local import Local, _Sweep
from runners.store import Store

PAPER = """
title: Devices
experiments:
  alone: {asks: One each, grid: {method: toy/descent, task: toy/where, device: [cuda], seed: range(3)}}
  pair: {asks: Two, grid: {method: toy/descent, task: toy/where, task.resources.gpus: [2], device: [cuda], seed: [7]}}
  processor: {asks: None, grid: {method: toy/descent, task: toy/bowl, device: [cpu], seed: [0]}}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("gpus")
def test_runs_have_gpus_of_their_own(conf: Any, process: Any, store: Store) -> None:
    """Several experiments with different needs share a machine of four GPUs."""
    conf("paper/devices.yaml", PAPER)
    chosen = ("launcher.gpus=[4,5,6,7]", "launcher.workers=4")
    ran = process("runners.reproduce", "paper=devices", "task.pause=1.0", *chosen)
    assert ran.code == 0, ran.err
    results = [result for result in store.results() if result["config"]["task"]["_name_"] == "toy/where"]
    assert len(results) == 4
    kept = []
    for result in results:
        assert result["config"]["device"] == "cuda"
        summary = result["summary"]
        mine = set(summary["visible"].split(","))
        assert len(mine) == (2 if result["config"]["seed"] == 7 else 1)
        assert mine <= {"4", "5", "6", "7"}
        for start, end, others in kept:
            if summary["started"] < end and start < summary["ended"]:
                assert not mine & others
        kept.append((summary["started"], summary["ended"], mine))
    bowl = next(result for result in store.results() if result["config"]["task"]["_name_"] == "toy/bowl")
    assert bowl["config"]["device"] == "cpu"


class Machine:
    """A machine without processes: runs last as long as the test says."""

    def __init__(self, tmp_path: Path, jobs: list[Job], **options: Any):
        local = Local(**options)
        self.sweep = _Sweep(local, jobs, Settings(tmp_path), SimpleNamespace(ended=self._ended), self)  # type: ignore[arg-type]
        self.active, self.running, self.ended = True, {}, []

    def schedule(self, _: Any, args: tuple[Any, ...], timeout: float | None) -> Any:
        future: Future[Any] = Future()
        future.set_result(Outcome(args[1], "done").as_dict())
        self.running[args[1]] = (future, args[-1])
        return future

    def _ended(self, job: Job, outcome: Outcome) -> None:
        self.ended.append(outcome)

    def go(self) -> dict[str, tuple[Any, ...]]:
        """Start what there is room for; return the GPUs of what runs."""
        self.sweep._fill()
        return {name: gpus for name, (_, gpus) in self.running.items()}

    def end(self, name: str) -> None:
        future, _ = self.running.pop(name)
        self.sweep._ended(self.sweep.flying.pop(future), future)


def job(name: str, device: str = "cuda", ranks: int = 1, **resources: Any) -> Job:
    task = {"_name_": "toy/where", "resources": resources}
    method = {"_name_": "toy/descent"}
    return Job(name, {"method": method, "task": task, "seed": 0, "device": device, "ranks": ranks})


def test_mixed_needs(tmp_path: Path) -> None:
    """Runs that need less overtake one whose GPUs are not free yet, but not for ever."""
    jobs = [job("a"), job("b", gpus=4), job("c"), job("d", ranks=2), job("e", "cpu")]
    machine = Machine(tmp_path, jobs, workers=8, gpus=[0, 1, 2, 3])
    assert machine.go() == {"a": (0,), "c": (1,), "d": (2, 3), "e": ()}
    for name in ("c", "d", "e"):
        machine.end(name)
    assert set(machine.go()) == {"a"}  # b needs all four
    machine.end("a")
    assert machine.go() == {"b": (0, 1, 2, 3)}


def test_large_needs_are_not_starved(tmp_path: Path) -> None:
    jobs = [job("first"), job("large", gpus=2), *(job(f"small {i}") for i in range(500))]
    machine = Machine(tmp_path, jobs, workers=4, gpus=[0, 1])
    started = 0
    while "large" not in machine.go():
        machine.end(next(iter(machine.running)))
        started += 1
    assert 1 < started < 100


@pytest.mark.parametrize(("per_gpu", "most"), [(1, 2), (2, 4), (3, 6)])
def test_per_gpu(per_gpu: int, most: int, tmp_path: Path) -> None:
    """So many runs share a GPU, dealt out evenly."""
    machine = Machine(tmp_path, [job(str(i)) for i in range(9)], workers=9, gpus=[0, 1], per_gpu=per_gpu)
    running = list(machine.go().values())
    assert len(running) == most
    assert running.count((0,)) == running.count((1,)) == per_gpu
    machine.end("0")
    assert len(machine.go()) == most


def test_a_named_gpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [job("a", "cuda:1"), job("b", "cuda:1")], workers=4, gpus=[8, 9])
    assert machine.go() == {"a": (9,)}
    machine.end("a")
    assert machine.go() == {"b": (9,)}


def test_gpus_of_an_exclusive_run_that_asks_for_too_many(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [job("a", gpus=3, exclusive=True)], workers=4, gpus=[0, 1])
    assert machine.go() == {}
    assert [outcome.error for outcome in machine.ended] == ["asks for 3 GPUs, this machine has 2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("launcher.gpus=[]",), "ranks=1 on cuda: 0 GPUs may be used here"),
        (("launcher.gpus=[0,1]", "task.resources.gpus=3"), "resources.gpus=3: 2 GPUs may be used here"),
        (("launcher.gpus=[0,1]", "ranks=3"), "ranks=3 on cuda: 2 GPUs may be used here"),
        (("launcher.gpus=[0,one]", "launcher.per_gpu=0"), "launcher.per_gpu=0"),
        (("launcher.gpus=[0,-1]",), "launcher.gpus=[0, -1]"),
        (("launcher.gpus=2",), "launcher.gpus=2: expected a list"),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_too_many(arguments: tuple[str, ...], message: str, conf: Any, command: Any, outputs: Path) -> None:
    conf("paper/devices.yaml", PAPER)
    ran = command("runners.reproduce", "paper=devices", "experiment=alone", *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert not list(outputs.glob("toy/*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("launcher.gpus=[0,1]",), "device=cuda: this machine has no NVIDIA GPU"),
        (("device=mps",), "device=mps: this machine has no Apple GPU"),
        (
            ("device=cpu", "task.resources.gpus=2"),
            "task.resources.gpus=2: no run here is on a GPU; add device=cuda",
        ),
    ],
)
def test_a_machine_without_gpus(
    arguments: tuple[str, ...], message: str, conf: Any, command: Any, outputs: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(group, "_has_mps", lambda: False)
    conf("paper/devices.yaml", PAPER)
    ran = command("runners.reproduce", "paper=devices", "experiment=alone", *arguments)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert message in ran.err
    assert not list(outputs.glob("toy/*"))


@pytest.mark.parametrize(
    ("visible", "found"),
    [("", []), ("2,3", [2, 3]), ("GPU-8f2e, MIG-1", ["GPU-8f2e", "MIG-1"]), ("1,-1,2", [1]), ("-1", [])],
)
def test_visible_gpus(visible: str, found: list[Any], monkeypatch: Any) -> None:
    """The numbers that the sweep was given are the ones it deals out, not 0, 1, ..."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert group.visible_gpus() == found


def test_gpus_of_the_machine(monkeypatch: Any, tmp_path: Path) -> None:
    """Without CUDA_VISIBLE_DEVICES nvidia-smi tells; where there is none there is no GPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)'\necho '  MIG 1g: (UUID: MIG-1)'\necho 'GPU 1: A'\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    group._installed_gpus.cache_clear()
    assert group.visible_gpus() == [0, 1]
    smi.unlink()
    group._installed_gpus.cache_clear()
    assert group.visible_gpus() == []
    group._installed_gpus.cache_clear()


@pytest.mark.usefixtures("gpus")
def test_a_named_gpu_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"cuda:2: 2 GPUs"):
        group.check_devices(job("a", "cuda:2").config, 2)
