"""What runs inside a Slurm job: a chunk of runs, one after another, that can be stopped, requeued and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from runners import provenance
from runners.recorder import STOP_FILE

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


class Chunk:
    """Runs of one job. submitit pickles it (a reference to this class and plain data, no code)."""

    def __init__(self, jobs: list[dict[str, Any]], root: str, tracker: dict[str, Any] | None, stale: str):
        self.jobs, self.root, self.tracker, self.stale = jobs, root, tracker, stale

    def __call__(self) -> list[dict[str, Any]]:
        """Execute every run that has no result yet; on a signal save, requeue and leave."""
        from runners.execute import Executor, Outcome
        from runners.fingerprint import Fingerprinter
        from runners.launchers import Job

        provenance.limit_threads(1)
        _offline()
        if int(os.environ.get("SLURM_PROCID") or 0) > 0:
            return self._follow()
        _rendezvous()
        executor = Executor(Path(self.root), tracker=self.tracker, stale=self.stale)
        watch = _SignalWatch()
        fingerprints = Fingerprinter()
        outcomes = []
        for entry in self.jobs:
            job = Job(**entry)
            if watch.received is not None:
                break
            if job.artifact:
                executor.artifacts.get(_artifact(job.config))
                outcomes.append(Outcome(job.id, "done").as_dict())
                continue
            if fingerprints.of(job.config) != job.fingerprint:
                error = "the code changed since this run was submitted: submit it again"
                executor.store.record_failure(job.config, job.id, "failed", error)
                outcomes.append(Outcome(job.id, "failed", error=error).as_dict())
                continue
            folder = executor.store.folder(job.config, job.id)
            watch.folder = folder
            outcome = executor.run(
                job.config,
                run_id=job.id,
                fingerprint=job.fingerprint,
                labels=job.labels,
                gpus=_gpus(job.config),
            )
            watch.folder = None
            outcomes.append(outcome.as_dict())
        executor.claims.close()
        if watch.received in (signal.SIGUSR1, signal.SIGUSR2):  # told by Slurm or an operator: go on later
            _requeue()
        return outcomes

    def _follow(self) -> list[dict[str, Any]]:
        """On further nodes of a job: the torch-elastic agent of the job's one distributed run."""
        from runners.group import agent
        from runners.identity import folder
        from runners.launchers import Job

        _rendezvous()
        job = Job(**self.jobs[0])
        place = Path(self.root) / folder(job.config, job.id)
        started = time.time()
        while not (place / "group.json").exists() or (place / "group.json").stat().st_mtime < started - 60:
            if (place / "result.json").exists():
                return []
            time.sleep(0.5)
        agent(job.config, place, log=f"group.{os.environ['SLURM_PROCID']}.log")
        return []


class _SignalWatch:
    """Turns a signal into a stop file in the running run's folder: the run saves and stops by itself."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.folder: Path | None = None
        self.before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {
            number: signal.signal(number, self._got) for number in SIGNALS
        }

    def _got(self, number: int, _: FrameType | None) -> None:
        self.received = number
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / STOP_FILE).touch()


def _requeue() -> None:
    """Requeue this job: of an array, this task only."""
    job = os.environ.get("SLURM_JOB_ID")
    if job:
        subprocess.run(["scontrol", "requeue", job], check=True)
        time.sleep(30)  # Slurm ends this process


def _rendezvous() -> None:
    """Name the meeting point of a job that has several nodes: a port of its own on the first one."""
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
    if nodes > 1:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
            capture_output=True,
            text=True,
            check=True,
        )
        port = 20_000 + int(os.environ["SLURM_JOB_ID"]) % 40_000
        os.environ["REPRISE_NODES"] = str(nodes)
        os.environ["REPRISE_RENDEZVOUS"] = f"{listed.stdout.split()[0]}:{port}"


def _offline() -> None:
    """Compute nodes have no network: data was fetched on the login node (``make fetch-<paper>``)."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "REPRISE_OFFLINE"):
        os.environ.setdefault(name, "1")


def _gpus(config: dict[str, Any]) -> list[int]:
    """GPUs of this job on this node, for a run on them."""
    if not str(config.get("device") or "cpu").startswith("cuda"):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [int(part) for part in visible.split(",") if part.strip().isdigit()]


def _artifact(node: dict[str, Any]) -> Any:
    from runners.build import Artifact

    return Artifact(node)
