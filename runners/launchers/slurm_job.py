"""What runs inside a Slurm job: a chunk of runs, one after another, that can be stopped, requeued and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners import provenance
from runners.lease import LEASE_SECONDS
from runners.recorder import STOP_FILE

if TYPE_CHECKING:
    from runners.execute import Executor, Outcome
    from runners.launchers import Job

USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
EDITED = "the code changed since this run was submitted: submit it again"
TOO_LONG = "no checkpoint within its job's time: give it more (resources.hours, launcher.minutes)"


class Chunk:
    """Runs of one job. submitit pickles it (a reference to this class and plain data, no code)."""

    def __init__(self, jobs: list[dict[str, Any]], root: str, tracker: dict[str, Any] | None, stale: str):
        self.jobs, self.root, self.tracker, self.stale = jobs, root, tracker, stale

    def run(self) -> list[dict[str, Any]]:
        """Execute every run that has no result yet; on a signal save, requeue and leave."""
        watch = Watch()
        provenance.limit_threads(1)
        _offline()
        from runners.execute import Executor
        from runners.launchers import Job

        jobs = [Job(**entry) for entry in self.jobs]
        _meet()
        if int(os.environ.get("SLURM_PROCID") or 0) > 0:
            self._follow(jobs[0])
            return []
        executor = Executor(Path(self.root), tracker=self.tracker, stale=self.stale)
        try:
            outcomes = self._lead(jobs, executor, watch)
        finally:
            executor.claims.close()
            self._over.touch()
        left = [job for job in jobs if outcomes.get(job.id, "") in ("", "interrupted", "busy")]
        if left and watch.received in USER_SIGNALS:  # from Slurm or an operator: go on later
            _requeue()
        return [{"id": key, "status": status} for key, status in outcomes.items()]

    def _lead(self, jobs: list[Job], executor: Executor, watch: Watch) -> dict[str, str]:
        """Status of each run that this job has looked at."""
        outcomes: dict[str, str] = {}
        until = time.monotonic() + 3 * LEASE_SECONDS
        first = True  # whether the coming run has had all of the job's time
        while jobs:
            for job in jobs:
                if watch.received is not None:
                    return outcomes
                with watch.over(None if job.artifact else executor.store.folder(job.config, job.id)):
                    started = time.time()
                    outcome = self._one(job, executor)
                if outcome.status == "interrupted" and first and _out_of_time(watch):
                    outcome = _without_progress(job, executor, started) or outcome
                first = first and (outcome.cached or outcome.status == "busy")
                outcomes[job.id] = outcome.status
            # Another process has them. If that died with its node, its lease runs out before we give up.
            jobs = [job for job in jobs if outcomes[job.id] == "busy" and time.monotonic() < until]
            if jobs:
                time.sleep(1.0)
        return outcomes

    def _one(self, job: Job, executor: Executor) -> Outcome:
        from runners.execute import Outcome
        from runners.fingerprint import Fingerprinter
        from runners.launchers.worker import prepare

        if job.artifact:
            return prepare(executor, job.config, job.id, job.labels)
        failure = executor.store.failure(job.config, job.id)
        if failure is not None and failure["status"] != "interrupted":  # before this job was requeued
            return Outcome(job.id, failure["status"], cached=True)
        if Fingerprinter().of(job.config) != job.fingerprint:
            executor.store.record_failure(job.config, job.id, "failed", EDITED)
            return Outcome(job.id, "failed", error=EDITED)
        return executor.run(
            job.config,
            run_id=job.id,
            fingerprint=job.fingerprint,
            labels=job.labels,
            gpus=_gpus(job.config),
        )

    @property
    def _over(self) -> Path:
        """Appears when this job's leader has ended."""
        job = os.environ.get("SLURM_JOB_ID", "0")
        attempt = os.environ.get("SLURM_RESTART_COUNT") or "0"
        path = Path(self.root) / "slurm" / "over" / f"{job}.{attempt}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _follow(self, job: Job) -> None:
        """On further nodes of a job: the torch-elastic agent of the job's one distributed run."""
        from runners.group import agent
        from runners.identity import folder

        place = Path(self.root) / folder(job.config, job.id)
        started = time.time()
        while not self._over.exists():
            spec = place / "group.json"
            if spec.exists() and spec.stat().st_mtime > started - 60:
                return agent(job.config, place, log=f"group.{os.environ['SLURM_PROCID']}.log")
            time.sleep(0.5)
        return None


class Watch:
    """Turns a signal into a stop file in the running run's folder: the run saves and stops by itself.

    Slurm may signal all processes of a job at once. User signals are blocked here and taken by a thread: what a run
    starts inherits the block, so that it is not killed by them. SIGTERM is noted and left at that.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._folder: Path | None = None
        signal.pthread_sigmask(signal.SIG_BLOCK, USER_SIGNALS)
        signal.signal(signal.SIGTERM, lambda number, _: self._got(number))
        threading.Thread(target=self._wait, name="signals", daemon=True).start()
        threading.Thread(target=self._remind, name="stop", daemon=True).start()

    def over(self, folder: Path | None) -> Watch:
        """Context in which a run works in ``folder``."""
        self._folder = folder
        return self

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder = None

    def _wait(self) -> None:
        while True:
            self._got(signal.sigwait(USER_SIGNALS))

    def _got(self, number: int) -> None:
        if self.received is None or number in USER_SIGNALS:
            self.received = number

    def _remind(self) -> None:
        """Put the stop file there, again and again: a run that is just starting clears old ones away."""
        while True:
            folder = self._folder
            if self.received is not None and folder is not None and folder.exists():
                (folder / STOP_FILE).touch()
            time.sleep(0.2)


def _out_of_time(watch: Watch) -> bool:
    """Whether a signal came because the job's time is nearly over (Slurm may send it a minute early)."""
    if watch.received not in USER_SIGNALS:
        return False
    asked = ["squeue", "--noheader", "--job", os.environ["SLURM_JOB_ID"], "--format", "%e"]
    end = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    delay = float(os.environ.get("REPRISE_SIGNAL_SECONDS") or 90)
    try:
        return time.time() > datetime.fromisoformat(end).timestamp() - delay - 60
    except ValueError:  # no limit, or no answer
        return False


def _without_progress(job: Job, executor: Executor, started: float) -> Outcome | None:
    """A run that had a whole job's time and saved nothing would be requeued for ever: it ends here."""
    from runners.execute import Outcome

    checkpoint = executor.store.folder(job.config, job.id) / "checkpoint.pt"
    if checkpoint.exists() and checkpoint.stat().st_mtime >= started:
        return None
    executor.store.record_failure(job.config, job.id, "timeout", TOO_LONG)
    return Outcome(job.id, "timeout", error=TOO_LONG)


def _requeue() -> None:
    """Requeue this job (of an array, this task only) and leave."""
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=True)
    sys.exit(0)


def _meet() -> None:
    """Name the meeting point of a job that has several nodes: a port of its own on the first one."""
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
    if nodes > 1:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
            capture_output=True,
            text=True,
            check=True,
        )
        port = (
            20_000 + int(os.environ["SLURM_JOB_ID"]) % 12_000
        )  # below the range of ports given out to others
        os.environ["REPRISE_NODES"] = str(nodes)
        os.environ["REPRISE_RENDEZVOUS"] = f"{listed.stdout.split()[0]}:{port}"


def _offline() -> None:
    """Compute nodes have no network: data was fetched on the login node (``make fetch-<paper>``)."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "REPRISE_OFFLINE"):
        os.environ.setdefault(name, "1")


def _gpus(config: dict[str, Any]) -> list[int | str]:
    """GPUs of this job on this node, for a run on them."""
    from runners.group import visible_gpus

    return visible_gpus() if str(config.get("device") or "cpu").startswith("cuda") else []
