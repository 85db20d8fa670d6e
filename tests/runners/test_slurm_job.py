"""What runs inside a Slurm job, without Slurm: stop and requeue, refusals, dead hosts, several nodes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from runners import identity, lease
from runners.compose import compose_run
from runners.fingerprint import Fingerprinter
from runners.launchers import Job
from runners.launchers.slurm_job import EDITED, TOO_LONG
from runners.lease import Claims
from runners.store import Store
from tests.runners.conftest import HOME
from tests.runners.walks import attempts, check_undisturbed, processes, wait_for

CODE = """
import json, sys
from runners.launchers.slurm_job import Chunk
print(json.dumps(Chunk(**json.load(open(sys.argv[1]))).run()))
"""


def job(method: str = "toy/descent", task: str = "toy/walk", **leaves: Any) -> Job:
    triples = [(key.replace("__", "."), value, "") for key, value in leaves.items()]
    config = compose_run(method, task, lambda _: triples)
    return Job(identity.run_id(config), config, Fingerprinter().of(config))


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder of made-up Slurm commands: `requeued` notes requeues, `end` holds the job's end."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "end").write_text("N/A")
    (folder / "scontrol").write_text(
        f'#!/bin/sh\nif [ "$1" = requeue ]; then echo "$2" >> {folder}/requeued; else echo localhost; fi\n'
    )
    (folder / "squeue").write_text(f"#!/bin/sh\ncat {folder}/end\n")
    for name in ("scontrol", "squeue"):
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def chunk(commands: Path, tmp_path: Path, outputs: Path) -> Any:
    """``chunk(jobs)`` starts what a Slurm job starts, in a process group of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(jobs: list[Job], **env: str) -> subprocess.Popen[str]:
        spec = tmp_path / f"spec{len(started)}.json"
        record = {
            "jobs": [asdict(job) for job in jobs],
            "root": str(outputs),
            "tracker": None,
            "stale": "rerun",
        }
        spec.write_text(json.dumps(record))
        path = {"PATH": f"{commands}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(spec)],
            cwd=HOME,
            env=os.environ | path | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def statuses(process: "subprocess.Popen[str]") -> dict[str, str]:
    """How a chunk that came to its end says its runs ended."""
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return {entry["id"]: entry["status"] for entry in json.loads(out)} if out else {}


def requeued(commands: Path) -> list[str]:
    return (commands / "requeued").read_text().split() if (commands / "requeued").exists() else []


def going(folder: Path, lines: int = 3) -> Callable[[], bool]:
    metrics = folder / "metrics.jsonl"
    return lambda: metrics.exists() and metrics.read_text().count("\n") >= lines


@pytest.mark.slow
@pytest.mark.parametrize(("number", "goes_back"), [(signal.SIGUSR2, True), (signal.SIGTERM, False)])
def test_a_signal_saves_and_requeues(
    number: int, goes_back: bool, chunk: Any, commands: Path, store: Store
) -> None:
    """Two ranks and their agent hear it too, as under Slurm: none of them dies before the checkpoint is there."""
    walk = job(ranks=2, task__steps=60, task__pause=0.05)
    after = job(task="toy/bowl")
    folder = store.folder(walk.config, walk.id)
    first = chunk([walk, after])
    wait_for(going(folder))
    for process in [first, *processes("runners.rank", str(folder))]:
        os.kill(process.pid, number)
    assert statuses(first) == ({} if goes_back else {walk.id: "interrupted"})
    assert requeued(commands) == (["77"] if goes_back else [])
    assert (folder / "checkpoint.pt").exists()
    assert not processes(str(folder))
    assert not store.folder(after.config, after.id).exists()  # not begun

    second = chunk([walk, after])
    assert statuses(second) == {walk.id: "done", after.id: "done"}
    record = json.loads((folder / "result.json").read_text())
    check_undisturbed(record | {"folder": str(folder)})
    assert sorted(rank for rank, step in attempts(folder) if step > 0) == [0, 1]


def test_a_requeued_job_repeats_neither_results_nor_failures(chunk: Any, store: Store) -> None:
    done, fails = job(task="toy/bowl"), job("toy/bad", "toy/bowl")
    assert statuses(chunk([fails, done])) == {fails.id: "failed", done.id: "done"}
    files = [
        store.folder(fails.config, fails.id) / "failure.json",
        store.folder(done.config, done.id) / "result.json",
    ]
    stamps = [path.stat().st_mtime_ns for path in files]
    assert statuses(chunk([fails, done])) == {fails.id: "failed", done.id: "done"}
    assert [path.stat().st_mtime_ns for path in files] == stamps


def test_edited_code_is_refused(chunk: Any, store: Store) -> None:
    """submitit pickles a reference: the code that a job finds may be another one than was submitted."""
    edited, well = job(task="toy/bowl"), job(task="toy/bowl", seed=1)
    edited.fingerprint = "0" * 16
    assert statuses(chunk([edited, well])) == {edited.id: "failed", well.id: "done"}
    failure = store.failure(edited.config, edited.id)
    assert failure is not None
    assert failure["error"] == EDITED


@pytest.mark.parametrize("checkpoints", [False, True])
def test_no_endless_requeue(checkpoints: bool, chunk: Any, commands: Path, store: Store) -> None:
    """A run that had a job's whole time and saved nothing ends there; one that saves goes on."""
    walk = job(task__steps=400, task__pause=0.05, task__checkpoints=checkpoints)
    (commands / "end").write_text(datetime.fromtimestamp(time.time() + 100).isoformat())
    process = chunk([walk])
    wait_for(going(store.folder(walk.config, walk.id)))
    process.send_signal(signal.SIGUSR2)
    ended = statuses(process)
    failure = store.failure(walk.config, walk.id)
    assert failure is not None
    if checkpoints:
        assert requeued(commands) == ["77"]
        assert failure["status"] == "interrupted"
    else:
        assert ended == {walk.id: "timeout"}
        assert requeued(commands) == []
        assert failure == failure | {"status": "timeout", "error": TOO_LONG}


def test_a_preempted_run_without_checkpoints_goes_back(chunk: Any, commands: Path, store: Store) -> None:
    """With time left, a signal means that others need the machine: the run starts again later."""
    walk = job(task__steps=400, task__pause=0.05, task__checkpoints=False)
    (commands / "end").write_text(datetime.fromtimestamp(time.time() + 9000).isoformat())
    process = chunk([walk])
    wait_for(going(store.folder(walk.config, walk.id)))
    process.send_signal(signal.SIGUSR1)
    statuses(process)
    assert requeued(commands) == ["77"]


def elsewhere(root: Path, folder: Path, seconds: float) -> str:
    """A claim of a process that died with its node: nobody here can see that it is gone."""
    code = (
        "import os, socket, sys; from pathlib import Path\n"
        "socket.gethostname = lambda: 'node17'\n"
        "from runners.lease import Claims\n"
        "Path(sys.argv[2]).mkdir(parents=True)\n"
        "claims = Claims(Path(sys.argv[1]))\n"
        "with claims.claim(Path(sys.argv[2])): print(claims.token, flush=True); os._exit(9)\n"
    )
    command = [sys.executable, "-c", code, str(root), str(folder)]
    env = os.environ | {"REPRISE_LEASE_SECONDS": str(seconds)}
    token = subprocess.run(command, cwd=HOME, env=env, capture_output=True, text=True).stdout.strip()
    path = root / ".leases" / f"{token}.lease"
    path.write_text(path.read_text().replace(f"host={os.uname().nodename}", "host=node17"))
    return token


def test_a_run_of_a_dead_node_is_waited_for(chunk: Any, store: Store, outputs: Path) -> None:
    """Its job is requeued elsewhere before its lease has run out."""
    bowl = job(task="toy/bowl")
    folder = store.folder(bowl.config, bowl.id)
    token = elsewhere(outputs, folder, 2.0)
    assert Claims(outputs).holder(folder) == token
    assert statuses(chunk([bowl], REPRISE_LEASE_SECONDS="2.0")) == {bowl.id: "done"}


def test_a_node_that_is_long_dead_is_known_at_once(outputs: Path, store: Store) -> None:
    """Even by a process that has just started, and whatever lease duration the other one had set."""
    folder = outputs / "toy" / "run"
    token = elsewhere(outputs, folder, 0.5)
    claims = Claims(outputs)
    assert claims.alive(token)
    old = time.time() - 60
    os.utime(outputs / ".leases" / f"{token}.lease", (old, old))
    assert not Claims(outputs).alive(token)
    with Claims(outputs).claim(folder) as ours:
        assert ours
    assert lease.LEASE_SECONDS > 0.5


@pytest.mark.slow
def test_ranks_on_two_nodes(chunk: Any, store: Store) -> None:
    """The meeting point comes from the node list; the second node's agent joins the first one's."""
    walk = job(ranks=2)
    nodes = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_ID": str(os.getpid())}
    chunks = [chunk([walk], SLURM_PROCID=str(process), **nodes) for process in (0, 1)]
    assert statuses(chunks[0]) == {walk.id: "done"}
    assert statuses(chunks[1]) == {}
    folder = store.folder(walk.config, walk.id)
    check_undisturbed(json.loads((folder / "result.json").read_text()) | {"folder": str(folder)})
    assert sorted(attempts(folder)) == [(0, 0), (1, 0)]
    assert (folder / "group.1.log").exists()


def test_a_second_node_ends_with_the_first(chunk: Any, store: Store) -> None:
    """Also where there was nothing to do for it."""
    walk = job(ranks=2)
    walk.fingerprint = "0" * 16
    nodes = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "localhost"}
    chunks = [chunk([walk], SLURM_PROCID=str(process), **nodes) for process in (0, 1)]
    assert statuses(chunks[0]) == {walk.id: "failed"}
    assert statuses(chunks[1]) == {}
