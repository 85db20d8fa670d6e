"""Runs of several ranks: one record, no orphans, resumed when a rank dies, failed at once when the method fails."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from runners import recorder
from runners.recorder import Diverged, Recorder, SilentRecorder, Stopped
from runners.store import Store
from tests.runners.walks import attempts, check_undisturbed, processes, rank_of, wait_for

PAPER = """
title: Walks
experiments:
  walks:
    asks: Do groups share a machine?
    grid: {{method: toy/descent, task: toy/walk, {grid}}}
"""
CONFIG = {"seed": 3, "device": "cpu"}


def by_fault(store: Store) -> dict[str, dict[str, Any]]:
    """Records and failures of walks by what was wrong with them (`raise 1`: on rank 1)."""
    found = {}
    for path in store.root.glob("toy/descent/walk/*/config.yaml"):
        from runners import yamls

        config = yamls.load(path)
        name = f"{config['task']['fault']} {config['task']['victim']}"
        for record in ("result.json", "failure.json"):
            if (path.parent / record).exists():
                found[name] = json.loads((path.parent / record).read_text()) | {"folder": str(path.parent)}
    return found


@pytest.mark.slow
def test_groups_side_by_side(conf: Any, process: Any, store: Store) -> None:
    """Two groups at a time; one fails, one diverges, one disagrees, one is well: each is told apart."""
    grid = (
        "seed: [0], task.resources.ranks: [2]}\n"
        "      - {method: toy/descent, task: toy/walk, seed: [0], task.resources.ranks: [2], "
        "task.fault: [raise, nan]}\n"
        "      - {method: toy/descent, task: toy/walk, seed: [0], task.resources.ranks: [2], task.fault: [nan], "
        "task.victim: [-1]"
    )
    text = PAPER.format(grid=grid).replace("grid: {", "grid:\n      - {")
    conf("paper/walks.yaml", text)
    ran = process("runners.reproduce", "paper=walks", "launcher.workers=4")
    assert ran.code == 1, ran.err
    found = by_fault(store)
    assert len(found) == 4
    undisturbed = found["None 1"]
    check_undisturbed(undisturbed)
    assert sorted(attempts(Path(undisturbed["folder"]))) == [(0, 0), (1, 0)]
    assert undisturbed["config"]["ranks"] == 2
    assert found["nan -1"]["status"] == "diverged"
    assert found["raise 1"]["error"] == "rank 1: ArithmeticError: rank 1 cannot add"
    assert "in _misbehave" in found["raise 1"]["traceback"]
    assert "rank 1: step 3: gap is not finite on this rank alone" in found["nan 1"]["error"]
    for name in ("raise 1", "nan 1"):
        assert found[name]["status"] == "failed"
        assert sorted(attempts(Path(found[name]["folder"]))) == [(0, 0), (1, 0)]  # a restart cannot mend it
        assert found[name]["error"] in ran.err
    assert not processes(str(store.root))


@pytest.mark.slow
def test_a_killed_rank_resumes_the_group(conf: Any, start: Any, store: Store) -> None:
    """Under launcher=torchrun: the walk gets two ranks, the bowl, which cannot be distributed, one."""
    grid = "seed: [0], task.steps: [60], task.pause: [0.05]}\n      - {method: toy/descent, task: toy/bowl, seed: [0]"
    conf("paper/walks.yaml", PAPER.format(grid=grid).replace("grid: {", "grid:\n      - {"))
    env = {"REPRISE_CHECKPOINT_SECONDS": "0.3"}
    sweep = start("runners.reproduce", "paper=walks", "launcher=torchrun", "launcher.nproc=2", env=env)
    wait_for(lambda: list(store.root.glob("toy/descent/walk/*/checkpoint.pt")))
    ranks = processes("-m runners.rank", str(store.root))
    assert sorted(map(rank_of, ranks)) == [0, 1]
    next(rank for rank in ranks if rank_of(rank) == 1).send_signal(signal.SIGKILL)
    # No rank starts the sweep (a fork of it shows for a moment).
    wait_for(lambda: len(processes("runners.reproduce", "paper=walks")) <= 1)
    out, err = sweep.communicate(timeout=300)
    assert sweep.returncode == 0, out + err
    results = {result["config"]["task"]["_name_"]: result for result in store.results()}
    assert results["toy/bowl"]["config"]["ranks"] == 1
    check_undisturbed(results["toy/walk"])
    assert results["toy/walk"]["config"]["ranks"] == 2
    starts = attempts(Path(results["toy/walk"]["folder"]))
    assert sorted(starts[:2]) == [(0, 0), (1, 0)]
    assert sorted(rank for rank, _ in starts[2:]) == [0, 1]
    assert len({step for _, step in starts[2:]}) == 1
    assert starts[2][1] > 0  # from the checkpoint


@pytest.mark.slow
def test_ctrl_c_and_kill_9(start: Any, store: Store) -> None:
    """A stopped run of two ranks goes on from where it was; a killed one leaves no process behind."""
    walk = ("method=toy/descent", "task=toy/walk", "ranks=2", "task.steps=80", "task.pause=0.05")
    first = start("runners.run", *walk)
    folder = wait_for(lambda: [p.parent for p in store.root.glob("toy/descent/walk/*/metrics.jsonl")])[0]
    wait_for(lambda: (folder / "metrics.jsonl").read_text().count("\n") > 3)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: to every process
    assert first.wait(60) == 130
    assert (folder / "checkpoint.pt").exists()
    assert not processes(str(folder))

    second = start("runners.run", *walk)
    wait_for(lambda: len(attempts(folder)) == 4)
    second.kill()
    second.wait()
    wait_for(lambda: not processes(str(folder)), 20)
    assert not (folder / "result.json").exists()

    third = start("runners.run", *walk)
    out, err = third.communicate(timeout=300)
    assert third.returncode == 0, out + err
    check_undisturbed(json.loads((folder / "result.json").read_text()) | {"folder": str(folder)})
    steps = [step for _, step in attempts(folder)]
    assert steps[0] == 0
    assert steps[2] > 0
    assert steps[4] >= steps[2]


@pytest.mark.slow
def test_ctrl_c_of_a_sweep(conf: Any, start: Any, store: Store) -> None:
    """Runs with checkpoints save and go on later; the others do not keep it from ending."""
    grid = "seed: [0, 1], task.steps: [300], task.pause: [0.05], task.checkpoints: [true, false]"
    conf("paper/walks.yaml", PAPER.format(grid=grid))
    command = ("runners.reproduce", "paper=walks", "launcher.workers=4")
    first = start(*command)
    folders = wait_for(lambda: _going(store.root, 4))
    os.killpg(first.pid, signal.SIGINT)
    assert first.wait(60) == 130
    saved = [folder for folder in folders if (folder / "checkpoint.pt").exists()]
    assert len(saved) == 2
    for folder in folders:
        assert json.loads((folder / "failure.json").read_text())["status"] == "interrupted"
    assert not processes(str(store.root))

    second = start(*command)
    out, err = second.communicate(timeout=300)
    assert second.returncode == 0, out + err
    for result in store.results():
        check_undisturbed(result)
        folder = Path(result["folder"])
        assert (attempts(folder)[1][1] > 0) == (folder in saved)


def _going(root: Path, count: int) -> list[Path]:
    """Folders of walks, if so many have gone a few steps."""
    files = [
        path for path in root.glob("toy/descent/walk/*/metrics.jsonl") if path.read_text().count("\n") > 3
    ]
    return [path.parent for path in files] if len(files) == count else []


CASES = [
    ("runners.run", ("ranks=1000",), "ranks=1000 on cpu: this machine has"),
    ("runners.run", ("launcher=torchrun", "launcher.nproc=999"), "ranks=999 on cpu: this machine has"),
    ("runners.run", ("ranks=2", "device=cuda"), "device=cuda: this machine has no NVIDIA GPU"),
    ("runners.run", ("launcher=torchrun", "launcher.nproc=0"), "at least 1"),
]


@pytest.mark.parametrize(("module", "arguments", "message"), CASES)
def test_more_ranks_than_devices(
    module: str, arguments: tuple[str, ...], message: str, command: Any, outputs: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ran = command(module, "method=toy/descent", "task=toy/walk", *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert not outputs.exists()


def test_a_paper_of_too_many_ranks(conf: Any, command: Any, outputs: Path) -> None:
    conf("paper/walks.yaml", PAPER.format(grid="seed: [0], task.resources.ranks: [1000]"))
    ran = command("runners.reproduce", "paper=walks")
    assert ran.code == 2
    assert "ranks=1000" in ran.err
    assert not outputs.exists()


@pytest.mark.parametrize("module", ["runners.run", "runners.reproduce", "runners.cluster"])
def test_under_torchrun_no_sweep_starts(module: str, command: Any, monkeypatch: Any) -> None:
    """`torchrun -m runners.reproduce ...` would start one sweep for each rank."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ran = command(module, "paper=toy", "scale=smoke")
    assert ran.code == 2
    assert "launcher=torchrun launcher.nproc=" in ran.err


def test_silent_ranks(tmp_path: Path) -> None:
    """Ranks other than 0 draw and check as rank 0 does, and write nothing."""
    loud, silent = (kind(tmp_path / kind.__name__, CONFIG) for kind in (Recorder, SilentRecorder))
    assert silent.rng("x", 2).random() == loud.rng("x", 2).random()
    silent.log(0, loss=1.0)
    silent.rows("repeat", {"gap": [1.0]})
    silent.summary(gap=1.0)
    silent.save({"step": 1})
    silent.close(ended=True)
    with pytest.raises(Diverged):
        silent.log(1, loss=float("nan"))
    assert silent.values == {"gap": 1.0}
    assert not (tmp_path / "SilentRecorder").exists()


def test_ranks_stop_together(tmp_path: Path, monkeypatch: Any) -> None:
    """What rank 0 says counts, even where another rank has seen the stop file and rank 0 has not."""
    (tmp_path / recorder.STOP_FILE).touch()
    says = [(True, False), (True, True)]
    monkeypatch.setattr(recorder, "_from_rank_0", lambda *_: says.pop(0))
    run = SilentRecorder(tmp_path, CONFIG, rank=1, ranks=2)
    assert run.due()
    run.save({})  # does not stop
    assert run.due()
    with pytest.raises(Stopped):
        run.save({})


def test_a_failed_attempt_keeps_the_checkpoint(tmp_path: Path) -> None:
    """What failed before it came to its checkpoint (a peer that died, no memory) can still go on from it later."""
    first = Recorder(tmp_path, CONFIG)
    first.log(0, loss=1.0)
    first.save({"step": 1})
    first.log(1, loss=0.5)
    first.close(ended=False)
    Recorder(tmp_path, CONFIG).close(ended=False)
    third = Recorder(tmp_path, CONFIG)
    assert third.restore() == {"step": 1}
    third.close(ended=True)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "loss": 1.0}\n'


def test_stop_file(tmp_path: Path, monkeypatch: Any) -> None:
    """A task without checkpoints stops at its next step, one with them gets time to write one."""
    monkeypatch.setattr(recorder, "PROGRESS_SECONDS", 0.0)
    plain, resumable = Recorder(tmp_path / "a", CONFIG), Recorder(tmp_path / "b", CONFIG)
    for run in (plain, resumable):
        run.dir.mkdir()
        (run.dir / recorder.STOP_FILE).touch()
    with pytest.raises(Stopped):
        list(plain.track(range(3)))
    assert resumable.restore() is None
    assert list(resumable.track(range(3))) == [0, 1, 2]
    assert resumable.due()
    with pytest.raises(Stopped):
        resumable.save({})
