"""Slurm launcher: job arrays through submitit, many short runs per job, requeue and resume.

Nothing is kept in memory that a restart would need: what is done stands in the store, what is sent in
``<outputs>/slurm/jobs/``, what is waiting or running is asked of ``squeue``. A second submit sends what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import SoftFileLease

from runners import places
from runners.errors import ConfigError
from runners.execute import Outcome
from runners.launchers import Job, Settings, Watcher
from runners.launchers.slurm_job import Chunk
from runners.lease import LEASE_SECONDS
from runners.store import Store, write_atomic

TORN = "its job vanished without a result"


class Slurm:
    """See the module; the options are explained in ``conf/launcher/slurm.yaml``."""

    def __init__(
        self,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        minutes: int | None = None,
        chunk_minutes: int = 30,
        chunk_runs: int = 200,
        array_parallelism: int = 100,
        cpus: int = 1,
        memory_gb: float | None = None,
        gpu_type: str | None = None,
        ranks_per_node: int = 8,
        setup: list[str] | None = None,
        signal_seconds: int = 90,
        resubmit: int = 2,
        wait: bool = True,
        poll_seconds: float = 5.0,
        extra: dict[str, Any] | None = None,
    ):
        self.partition, self.account, self.qos = partition, account, qos
        self.minutes, self.chunk_minutes, self.chunk_runs = minutes, chunk_minutes, chunk_runs
        self.array_parallelism, self.cpus, self.memory_gb = array_parallelism, cpus, memory_gb
        self.gpu_type, self.ranks_per_node = gpu_type, ranks_per_node
        self.setup, self.signal_seconds, self.resubmit = setup or [], signal_seconds, resubmit
        self.wait, self.poll_seconds, self.extra = wait, poll_seconds, extra or {}
        self.workers = array_parallelism

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: object) -> None:
        """Jobs stay in the queue: Ctrl-C here does not cancel them (``make cancel-<paper>`` does)."""

    def launch(self, jobs: Sequence[Job], settings: Settings, watcher: Watcher) -> dict[str, Outcome]:
        """Send what is not in the queue yet; wait for all of it unless ``wait`` is off."""
        if not jobs:
            return {}
        if shutil.which("sbatch") is None:
            raise ConfigError("launcher=slurm: no sbatch on this machine; run it on the cluster's login node")
        ledger = Ledger(settings.root)
        self._send(jobs, settings, ledger)
        return self._watch(jobs, settings, watcher, ledger) if self.wait else {}

    def plan(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """Chunks: runs of equal needs are put together until a job takes about ``chunk_minutes``."""
        chunks: list[list[Job]] = []
        filling: dict[tuple[Any, ...], tuple[list[Job], float]] = {}
        for job in jobs:
            minutes = _minutes(job)
            alone = _ranks(job) > self.ranks_per_node or bool(job.resources.get("exclusive"))
            needs = self._needs(job)
            chunk, full = filling.get(needs, ([], 0.0))
            if alone or not chunk or len(chunk) >= self.chunk_runs or full + minutes > self.chunk_minutes:
                chunk, full = [], 0.0
                chunks.append(chunk)
            chunk.append(job)
            filling[needs] = ([], 0.0) if alone else (chunk, full + minutes)
        return chunks

    def _needs(self, job: Job) -> tuple[Any, ...]:
        ranks = _ranks(job)
        cuda = str(job.config.get("device") or "cpu").startswith("cuda") and not job.artifact
        gpus = max(ranks, int(job.resources.get("gpus") or 0)) if cuda else 0
        memory = job.resources.get("memory_gb") or self.memory_gb
        return (ranks, gpus, memory, bool(job.resources.get("exclusive")))

    def parameters(self, chunk: Sequence[Job]) -> dict[str, Any]:
        """What sbatch is asked for one chunk (submitit's names)."""
        ranks, gpus, memory, exclusive = self._needs(chunk[0])
        nodes = -(-ranks // self.ranks_per_node)
        per_node = min(ranks, self.ranks_per_node)
        longest = max(60 * float(job.resources.get("hours") or 0) for job in chunk)
        likely = sum(map(_minutes, chunk))
        minutes = self.minutes or int(max(longest * 1.1, likely * 1.5, self.chunk_minutes)) + 1
        gpu = -(-gpus // nodes) if gpus else None
        found = {
            "job_name": "reprise",
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "time": minutes,
            "nodes": nodes,
            "ntasks_per_node": 1,
            "cpus_per_task": self.cpus * per_node,
            "gpus_per_node": f"{self.gpu_type}:{gpu}" if gpu and self.gpu_type else gpu,
            "mem": f"{int(memory * 1024)}M" if memory else None,
            "exclusive": True if exclusive else None,
            "array_parallelism": self.array_parallelism,
            "signal_delay_s": self.signal_seconds,
            "setup": [f"export PYTHONPATH={places.HOME}:$PYTHONPATH", *self.setup],
            "additional_parameters": {"requeue": True, **self.extra},
        }
        return {key: value for key, value in found.items() if value is not None}

    def _send(self, jobs: Sequence[Job], settings: Settings, ledger: Ledger) -> None:
        import submitit

        with ledger.lock():  # two submits at once: the second sees what the first has sent
            queued = ledger.queued()
            fresh = [job for job in jobs if job.id not in queued]
            groups: dict[str, list[list[Job]]] = {}
            for chunk in self.plan(fresh):
                groups.setdefault(json.dumps(self.parameters(chunk)), []).append(chunk)
            for text, chunks in groups.items():
                executor = submitit.SlurmExecutor(folder=ledger.logs / "%j", python=_python())
                executor.update_parameters(**json.loads(text))
                payloads = [
                    Chunk(
                        [asdict(job) for job in chunk], str(settings.root), settings.tracker, settings.stale
                    )
                    for chunk in chunks
                ]
                handles = executor.map_array(_run, payloads)
                for handle, chunk in zip(handles, chunks, strict=True):
                    ledger.note(handle.job_id, chunk)

    def _watch(
        self, jobs: Sequence[Job], settings: Settings, watcher: Watcher, ledger: Ledger
    ) -> dict[str, Outcome]:
        store = Store(settings.root)
        waiting = {job.id: job for job in jobs}
        sent_again = dict.fromkeys(waiting, 0)
        outcomes: dict[str, Outcome] = {}
        while waiting:
            queued = ledger.queued()
            lost = []
            for job in list(waiting.values()):
                outcome = _ended(job, store, settings)
                if outcome is None and job.id not in queued:
                    outcome = _ended(job, store, settings)  # it may have ended between the two looks
                    if outcome is None and sent_again[job.id] < self.resubmit:
                        sent_again[job.id] += 1
                        lost.append(job)
                        continue
                    if outcome is None:
                        error = f"{TORN} {sent_again[job.id] + 1} times (logs in {ledger.logs})"
                        if not job.artifact:
                            store.record_failure(job.config, job.id, "failed", error)
                        outcome = Outcome(job.id, "failed", error=error)
                elif outcome is not None and outcome.status in ("failed", "timeout") and job.id in queued:
                    continue  # an older attempt's record; the new one is still in the queue
                if outcome is not None:
                    outcomes[job.id] = outcome
                    watcher.ended(job, outcome)
                    del waiting[job.id]
            if (
                lost
            ):  # pre-empted by CANCEL, node lost: each alone, so that one bad run cannot take others with it
                for job in lost:
                    self._send([job], settings, ledger)
            watcher.tick({})
            if waiting:
                time.sleep(self.poll_seconds)
        return outcomes


class Ledger:
    """Which job carries which runs: one small file per job under ``<outputs>/slurm/jobs``."""

    def __init__(self, root: Path):
        self.folder = root / "slurm" / "jobs"
        self.logs = root / "slurm" / "logs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)

    def lock(self) -> SoftFileLease:
        """Held while jobs are sent."""
        return SoftFileLease(self.folder.parent / "submit.lock", lease_duration=LEASE_SECONDS)

    def note(self, job_id: str, chunk: Iterable[Job]) -> None:
        """Remember what a job carries."""
        record = {job.id: job.labels for job in chunk}
        write_atomic(self.folder / f"{job_id}.json", json.dumps(record))

    def jobs(self) -> dict[str, dict[str, dict[str, str]]]:
        """{job: {run: labels}} of every job ever sent."""
        return {path.stem: json.loads(path.read_bytes()) for path in sorted(self.folder.glob("*.json"))}

    def queued(self) -> dict[str, str]:
        """{run: state} of what is waiting or running now; jobs that left the queue are forgotten."""
        states = queue()
        found: dict[str, str] = {}
        for job_id, runs in self.jobs().items():
            if job_id in states:
                found |= dict.fromkeys(runs, states[job_id])
            elif time.time() - (self.folder / f"{job_id}.json").stat().st_mtime > 10:
                (self.folder / f"{job_id}.json").rename(self.folder / f"{job_id}.left")
            else:  # just sent: squeue may not show it yet
                found |= dict.fromkeys(runs, "PENDING")
        return found


def queue() -> dict[str, str]:
    """{job: state} of this user's jobs, from squeue (which needs no accounting database)."""
    command = ["squeue", "--noheader", "--array", "--user", str(os.getuid()), "--format", "%F %K %T"]
    for attempt in range(5):
        listed = subprocess.run(command, capture_output=True, text=True)
        if listed.returncode == 0:
            break
        time.sleep(2.0 * (attempt + 1))  # the controller restarts now and then
    else:
        raise ConfigError(f"squeue does not answer: {' '.join(listed.stderr.split())}")
    states = {}
    for line in listed.stdout.splitlines():
        job, task, state = line.split()
        if state not in (
            "COMPLETED",
            "CANCELLED",
            "FAILED",
            "TIMEOUT",
            "NODE_FAIL",
            "PREEMPTED",
            "COMPLETING",
        ):
            states[f"{job}_{task}" if task != "N/A" else job] = state
    return states


def cancel(job_ids: Iterable[str]) -> None:
    """Cancel jobs (scancel)."""
    ids = list(job_ids)
    if ids:
        subprocess.run(["scancel", *ids], check=True)


def _run(chunk: Chunk) -> list[dict[str, Any]]:
    return chunk()


def _ended(job: Job, store: Store, settings: Settings) -> Outcome | None:
    """How a run ended, by what it left; None if it left nothing final."""
    if job.artifact:
        from runners.artifacts import ArtifactStore

        return Outcome(job.id, "done") if ArtifactStore(settings.root).find(job.config) else None
    hit = store.look(job.config, job.id, job.fingerprint, stale=settings.stale)
    if hit.state == "finished" and hit.result is not None:
        return Outcome(job.id, hit.result["status"], hit.result["wall_seconds"])
    failure = store.failure(job.config, job.id)
    if failure is not None and failure["status"] in ("failed", "timeout"):
        return Outcome(job.id, failure["status"], error=failure["error"])
    return None


def _minutes(job: Job) -> float:
    """What a run likely takes: as long as earlier runs of its task, else as long as it may."""
    return job.seconds / 60 if job.seconds is not None else 60 * float(job.resources.get("hours") or 1 / 60)


def _ranks(job: Job) -> int:
    return 1 if job.artifact else int(job.config.get("ranks") or 1)


def _python() -> str:
    import sys

    return sys.executable
