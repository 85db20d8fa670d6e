"""Submit, status, cancel and the Slurm launcher's plans, against made-up Slurm commands."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runners.errors import ConfigError
from runners.launchers import Job
from runners.launchers.slurm import Slurm, _Losses
from runners.launchers.slurm_ledger import Ledger, longest_array, queue
from runners.store import Store, write_atomic

TOY = ("paper=toy", "scale=smoke")


def job(
    name: str, ranks: int = 1, device: str = "cpu", seconds: float | None = None, **resources: Any
) -> Job:
    config = {"task": {"resources": resources}, "ranks": ranks, "device": device}
    return Job(name, config, seconds=seconds)


def names(chunks: list[list[Job]]) -> list[str]:
    return ["".join(job.id for job in chunk) for chunk in chunks]


# -- plans --------------------------------------------------------------------------------------------------------


def test_short_runs_share_a_job() -> None:
    """Until it takes about chunk_minutes, by earlier runs or by their limits, or has chunk_runs of them."""
    jobs = [job(letter, seconds=240) for letter in "abcdefgh"]
    assert names(Slurm(chunk_minutes=10).plan(jobs)) == ["ab", "cd", "ef", "gh"]
    assert names(Slurm(chunk_minutes=60, chunk_runs=3).plan(jobs)) == ["abc", "def", "gh"]
    limited = [job(letter, hours=0.25) for letter in "abc"]
    assert names(Slurm(chunk_minutes=30).plan(limited)) == ["ab", "c"]
    assert names(Slurm().plan([job(letter) for letter in "abc"])) == ["abc"]


def test_runs_of_other_needs_and_suspects_have_jobs_of_their_own() -> None:
    jobs = [job("a"), job("b", memory_gb=4), job("c"), job("d", exclusive=True), job("e", ranks=2), job("f")]
    assert names(Slurm().plan(jobs)) == ["acf", "b", "d", "e"]
    assert names(Slurm().plan(jobs, alone=frozenset("c"))) == ["af", "b", "c", "d", "e"]
    wide = [job("a", ranks=16), job("b", ranks=16)]
    assert names(Slurm().plan(wide)) == ["a", "b"]  # several nodes: one run a job


def test_what_is_asked_for() -> None:
    slurm = Slurm(
        partition="gpu", account="me", qos="high", cpus=4, gpu_type="a100", memory_gb=8, signal_seconds=120
    )
    asked = slurm.parameters([job("a", ranks=4, device="cuda", hours=10, memory_gb=64)])
    assert asked == asked | {
        "partition": "gpu",
        "account": "me",
        "qos": "high",
        "time": 901,  # half more than it likely takes
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": 16,
        "gpus_per_node": "a100:4",
        "mem": "65536M",
        "signal_delay_s": 120,
    }
    two = slurm.parameters([job("a", ranks=16, device="cuda")])
    assert (two["nodes"], two["gpus_per_node"], two["cpus_per_task"], two["mem"]) == (
        2,
        "a100:8",
        32,
        "8192M",
    )
    plain = Slurm(minutes=7).parameters([job("a")])
    assert not {"gpus_per_node", "mem", "exclusive", "partition"} & set(plain)
    assert plain["time"] == 7
    assert Slurm().parameters([job("a", exclusive=True)])["exclusive"] is True
    assert Slurm(extra={"constraint": "h100"}).parameters([job("a")])["additional_parameters"] == {
        "requeue": True,
        "constraint": "h100",
    }
    with pytest.raises(ConfigError, match="ranks=9 cannot be spread evenly over 2 nodes"):
        Slurm().parameters([job("a", ranks=9)])


def test_arrays_are_no_longer_than_slurm_takes(commands: Path) -> None:
    write(commands, "scontrol", "echo 'MaxArraySize            = 4'")
    assert longest_array() == 3
    arrays = list(Slurm(chunk_runs=1)._arrays([[job(letter)] for letter in "abcdefgh"]))
    assert [names(chunks) for _, chunks in arrays] == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]
    write(commands, "scontrol", "exit 1")
    assert longest_array() == 1000


def test_losses(store: Store) -> None:
    """A run that takes its job down, and one that gets nowhere, count; their neighbours, and progress, do not."""

    def real(seed: int) -> Job:
        method, task = {"_name_": "toy/descent"}, {"_name_": "toy/walk"}
        return Job(f"{seed}" * 20, {"method": method, "task": task, "seed": seed, "device": "cpu"})

    culprit, neighbour, walk = jobs = [real(seed) for seed in range(3)]
    folders = {job.id: store.folder(job.config, job.id) for job in jobs}
    for job in (culprit, walk):
        folders[job.id].mkdir(parents=True)
        (folders[job.id] / "config.yaml").touch()
    store.record_failure(walk.config, walk.id, "interrupted", "told to stop")
    losses = _Losses(store)
    losses.sent(jobs)
    (folders[walk.id] / "checkpoint.pt").touch()
    losses.count(jobs, progress=0)
    assert losses.of == {culprit.id: 1}
    losses.sent(jobs)
    losses.count([neighbour], progress=0)  # its job does nothing at all, and nothing else happens
    losses.sent([neighbour])
    losses.count([neighbour, walk], progress=0)
    assert losses.of == {
        culprit.id: 1,
        neighbour.id: 2,
    }  # after the first of them was counted, walk's may be its fault
    losses.sent([neighbour, walk])
    losses.count([neighbour, walk], progress=1)
    assert losses.of == {culprit.id: 1, neighbour.id: 2}
    losses.sent([walk])
    losses.count([walk], progress=0)
    assert losses.of == {culprit.id: 1, neighbour.id: 2, walk.id: 1}


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (
            "Traceback\n  x\nModuleNotFoundError: No module named 'x'\nsrun: error: vm: task 0: Exited",
            "ModuleNot",
        ),
        (
            "srun: error: vm: task 0: Killed\nsrun: Force Terminated StepId=4.0",
            "srun: error: vm: task 0: Killed",
        ),
        ("bash: module: command not found\n\n", "bash: module"),
        ("", ""),
    ],
)
def test_last_words(stderr: str, words: str, outputs: Path) -> None:
    ledger = Ledger(outputs)
    for name in ("4", "5_1"):
        ledger.note(name, [job("a")])
        (ledger.logs / name).mkdir()
        os.utime(ledger.folder / f"{name}.json", (9, 9 + int(name[0])))
    ledger.forget("5_1")
    (ledger.logs / "4" / "4_0_log.err").write_text("srun: error: an older one")
    (ledger.logs / "5_1" / "5_1_0_log.err").write_text(stderr)
    assert ledger.last_words("a").startswith(words)
    assert ledger.last_words("b") == ""


BAD = [
    ("launcher.minutes=soon", "launcher.minutes='soon'"),
    ("launcher.minutes=0", "launcher.minutes=0: expected a whole number of at least 1"),
    ("launcher.chunk_runs=0", "launcher.chunk_runs=0"),
    ("launcher.cpus=1.5", "launcher.cpus=1.5"),
    ("launcher.memory_gb=-1", "launcher.memory_gb=-1"),
    ("launcher.memory_gb=much", "launcher.memory_gb='much'"),
    ("launcher.setup=[1]", "launcher.setup=[1]: expected a list of shell lines"),
    ("launcher.setup=module", "launcher.setup='module': expected a list"),
    ("launcher.partitoin=gpu", "unknown key 'launcher.partitoin'; nearest: launcher.partition"),
    ("launcher.extra=5", "launcher.extra=5: expected a mapping"),
    ("dry_run=perhaps", "dry_run=perhaps"),
    ("paper=toi", "unknown paper 'toi'; nearest: toy"),
    ("scale=huge", "scale=huge"),
    ("stpes=3", "unknown option 'stpes'"),
]


@pytest.mark.parametrize(("argument", "message"), BAD)
def test_bad_options(argument: str, message: str, command: Any, outputs: Path) -> None:
    ran = command("runners.cluster", "submit", "paper=toy", "dry_run=true", argument)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert not list(outputs.glob("slurm/*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which command? submit, status, cancel"),
        (("paper=toy",), "which command?"),
        (("sumbit", "paper=toy"), "unknown command 'sumbit'; nearest: submit"),
        (("submit",), "which paper?"),
        (("status", "paper=toy", "seeds=3"), "unknown option 'seeds'"),
        (("cancel", "paper=toy", "seeds=3"), "unknown option 'seeds'"),
    ],
)
def test_bad_commands(arguments: tuple[str, ...], message: str, command: Any) -> None:
    ran = command("runners.cluster", *arguments)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert message in ran.err


# -- a cluster's own values ---------------------------------------------------------------------------------------


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: Any) -> Any:
    """``profile(text)`` writes the user's cluster profile."""
    path = tmp_path / "cluster.yaml"
    monkeypatch.setenv("REPRISE_CLUSTER", str(path))
    return path.write_text


def test_profile(profile: Any, commands: Path, command: Any, outputs: Path) -> None:
    profile("slurm: {partition: gpu, setup: [module load python], extra: {constraint: h100}, minutes: 20}\n")
    ran = command("runners.cluster", "submit", *TOY, "experiment=bowl", "dry_run=true")
    assert ran.code == 2  # a paper is sent as a whole
    ran = command("runners.cluster", "submit", *TOY, "dry_run=true", "launcher.minutes=30")
    assert ran.code == 0, ran.err
    assert "partition=gpu" in ran.out
    assert "time=30" in ran.out  # the command line counts more
    local = command("runners.reproduce", *TOY, "dry_run=true")
    assert local.code == 0  # which is none of the local launcher's


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slurm: {partitoin: gpu}", "unknown key 'launcher.partitoin'; nearest: launcher.partition"),
        ("slrum: {partition: gpu}", "unknown launcher 'slrum'; nearest: slurm"),
        ("slurm: {chunk_runs: many}", "launcher.chunk_runs='many'"),
        ("slurm: gpu", "slurm: expected a mapping"),
        ("- slurm", "unknown launcher '['slurm']'"),
        ("slurm: {partition: [", "cluster.yaml: line 2: not valid YAML"),
    ],
)
def test_bad_profile(text: str, message: str, profile: Any, command: Any) -> None:
    profile(text)
    ran = command("runners.cluster", "submit", *TOY, "dry_run=true")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert message in ran.err
    assert "cluster.yaml" in ran.err


# -- submit, status, cancel ---------------------------------------------------------------------------------------


def write(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder of made-up Slurm commands, first on the path: squeue shows the file `queue`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "queue").touch()
    write(folder, "squeue", f"cat {folder}/queue")
    write(folder, "scancel", f'echo "$@" >> {folder}/cancelled')
    write(
        folder,
        "sbatch",
        f'cat "$1" >> {folder}/batch; echo >> {folder}/count\n'
        f'echo "Submitted batch job $((40 + $(wc -l < {folder}/count)))"',
    )
    write(folder, "scontrol", "echo 'MaxArraySize = 1001'")
    write(folder, "srun", "exit 1")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def lines(ran: SimpleNamespace) -> dict[str, str]:
    """What a command printed, by the words before the first colon."""
    return {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in ran.out.splitlines())
    }


def test_submit_status_cancel(commands: Path, command: Any, outputs: Path, store: Store) -> None:
    """What is in the queue is not sent again; what has left it without a word is told from what was never sent."""
    plan = command("runners.cluster", "submit", *TOY, "dry_run=true", "launcher.chunk_minutes=9000")
    assert plan.code == 0, plan.err
    assert not (commands / "batch").exists()
    assert "3 jobs now, at most" in plan.out  # the race and the artifact have one each
    state = lines(command("runners.cluster", "status", *TOY))
    assert state["bowl"] == "16 not sent"
    assert state["tuned (tuning)"] == "18 not sent"
    assert state["second_round"] == "follows what it needs"
    assert state["huge"].startswith("not run")

    sent = command("runners.cluster", "submit", *TOY, "launcher.chunk_minutes=9000")
    assert sent.code == 0, sent.err
    assert "sent 36 runs in 3 jobs; 0 runs on their way already" in sent.out  # the artifact's come later
    assert set(Ledger(outputs).jobs()) == {
        "41_0",
        "41_1",
        "42",
    }  # the artifact and what fills a job, as an array
    assert "--requeue" in (commands / "batch").read_text()
    (commands / "queue").write_text("41 0 RUNNING\n41 1 PENDING\n")
    again = command("runners.cluster", "submit", *TOY)
    assert "sent 0 runs in 0 jobs; 36 runs on their way already" in again.out
    state = lines(command("runners.cluster", "status", *TOY))
    assert state["artifact reprise_toy.tasks.build_table"] == "1 running"

    other = command("runners.cluster", "cancel", "paper=hdm")
    assert other.out.startswith("0 jobs")
    gone = command("runners.cluster", "cancel", "paper=toy")
    assert gone.out == "3 jobs of toy cancelled\n"
    assert (commands / "cancelled").read_text() == "--quiet 41_0 41_1 42\n"
    assert Ledger(outputs).jobs() == {}


def test_states_of_runs(commands: Path, command: Any, outputs: Path, store: Store) -> None:
    from runners.cluster import _sweep

    sweep = _sweep_of_bowls(_sweep)
    cells = sweep.expected["bowl"]
    folders = [store.folder(cell.config, cell.id) for cell in cells]
    for folder in folders[:6]:
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
    (folders[0] / "claim").touch()
    store.record_failure(cells[1].config, cells[1].id, "failed", "it did")
    store.record_failure(cells[2].config, cells[2].id, "interrupted", "stopped")
    ledger = Ledger(outputs)
    for name, chosen in {"7_0": cells[0:1], "7_1": cells[6:8]}.items():
        ledger.note(name, [Job(cell.id, cell.config, labels={"paper": "toy"}) for cell in chosen])
    (commands / "queue").write_text("7 0 RUNNING\n7 1 PENDING\n")
    state = lines(command("runners.cluster", "status", *TOY))
    assert state["bowl"] == "1 failed, 1 interrupted, 8 not sent, 1 running, 3 vanished, 2 waiting"


def _sweep_of_bowls(make: Any) -> Any:
    from runners.paper import Paper

    return make(Paper("toy"), "smoke", {"_target_": "runners.cluster.Peek"})


SHARED = """
title: Twice
experiments:
  one: {asks: Once, grid: {method: toy/descent, task: toy/bowl, task.steps: 2, seed: range(3)}}
  two: {asks: Again, grid: {method: [toy/descent, toy/sign], task: toy/bowl, task.steps: 2, seed: range(3)}}
"""


def test_a_run_that_experiments_share_counts_once(commands: Path, command: Any, conf: Any) -> None:
    """Nobody takes a run that is still to be made for one that is done, before or while it is made."""
    conf("paper/twice.yaml", SHARED)
    state = lines(command("runners.cluster", "status", "paper=twice", "scale=smoke"))
    assert state == {"one": "3 not sent", "two": "3 not sent, 3 shared with another experiment"}
    ran = command("runners.reproduce", "paper=twice", "scale=smoke", "launcher.workers=1")
    assert ran.err.strip().endswith("one 3/3; two 3/3, 3 shared")
    state = lines(command("runners.cluster", "status", "paper=twice", "scale=smoke"))
    assert state == {"one": "3 done", "two": "3 done, 3 shared with another experiment"}


def test_without_slurm(command: Any, monkeypatch: Any, outputs: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert command("runners.cluster", "submit", *TOY, "dry_run=true").code == 0
    assert command("runners.cluster", "status", *TOY).code == 0
    for arguments in (("submit", *TOY), ("cancel", "paper=toy")):
        ran = command("runners.cluster", *arguments)
        assert ran.code == 2
        assert "login node" in ran.err.splitlines()[-1]


def test_sbatch_refuses(commands: Path, command: Any) -> None:
    write(commands, "sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    ran = command("runners.cluster", "submit", *TOY, "launcher.partition=gpu")
    assert ran.code == 2
    assert "sbatch refuses" in ran.err
    assert "invalid partition specified: gpu" in ran.err


def test_the_controller_is_waited_for(commands: Path) -> None:
    """It restarts now and then; when it stays away, that is one line."""
    write(
        commands,
        "squeue",
        f"if [ -e {commands}/up ]; then echo '7 N/A RUNNING'; else touch {commands}/up; echo no >&2; exit 1; fi",
    )
    assert queue(patience=30) == {"7": "RUNNING"}
    write(commands, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ConfigError, match="squeue does not answer: Unable to contact"):
        queue(patience=0)


def test_queue_states(commands: Path) -> None:
    """Completing is still in the queue: a requeued job passes through it."""
    text = "5 0 COMPLETING\n5 1 COMPLETED\n5 2 PENDING\n6 N/A CANCELLED\n8 N/A SUSPENDED\n9 N/A NODE_FAIL\n"
    (commands / "queue").write_text(text)
    assert queue() == {"5_0": "COMPLETING", "5_2": "PENDING", "8": "SUSPENDED"}


def test_ledger_forgets(outputs: Path, commands: Path) -> None:
    ledger = Ledger(outputs)
    ledger.note("7", [job("a")])
    assert ledger.queued() == {"a": "SENT"}  # squeue may lag
    old = ledger.folder / "7.json"
    write_atomic(old, json.dumps(json.loads(old.read_text())))
    os.utime(old, (1, 1))
    assert ledger.queued() == {}
    assert (ledger.folder / "7.left").exists()
    assert shutil.which("squeue") == str(commands / "squeue")
