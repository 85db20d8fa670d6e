"""What Slurm has of ours: which job carries which runs, and what is waiting or running now."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from filelock import SoftFileLease

from runners.errors import ConfigError
from runners.launchers import Job
from runners.store import write_atomic

Labels = dict[str, str]
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
SENT = "SENT"  # sbatch has taken it, squeue does not show it (yet, or no more)
GRACE_SECONDS = 10.0  # how long that is believed
LOCK_SECONDS = 60.0
PATIENCE_SECONDS = 30.0


class Ledger:
    """Which job carries which runs: one small file per job under ``<outputs>/slurm/jobs``."""

    def __init__(self, root: Path):
        self.folder = root / "slurm" / "jobs"
        self.logs = root / "slurm" / "logs"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._read: dict[str, dict[str, Labels]] = {}

    def lock(self) -> SoftFileLease:
        """Held while jobs are sent."""
        return SoftFileLease(self.folder.parent / "submit.lock", lease_duration=LOCK_SECONDS)

    def note(self, job_id: str, chunk: Iterable[Job]) -> None:
        """Remember what a job carries."""
        record = {job.id: job.labels for job in chunk}
        write_atomic(self.folder / f"{job_id}.json", json.dumps(record))

    def jobs(self) -> dict[str, dict[str, Labels]]:
        """{job: {run: labels}} of every job that has not left the queue for all that is known."""
        names = {path.stem: path for path in sorted(self.folder.glob("*.json"))}
        for name in self._read.keys() - names.keys():
            del self._read[name]
        for name in names.keys() - self._read.keys():
            self._read[name] = json.loads(names[name].read_bytes())
        return {name: self._read[name] for name in names}

    def queued(self, patience: float = PATIENCE_SECONDS) -> dict[str, str]:
        """{run: state} of what is waiting or running now; jobs that left the queue are forgotten."""
        states = queue(patience)
        found: dict[str, str] = {}
        for job_id, runs in self.jobs().items():
            if job_id in states:
                found |= dict.fromkeys(runs, states[job_id])
            elif self._age(job_id) > GRACE_SECONDS:
                self.forget(job_id)
            else:
                found |= dict.fromkeys(runs, SENT)
        return found

    def forget(self, job_id: str) -> None:
        """A job has left the queue; its file stays for the curious, under another name."""
        path = self.folder / f"{job_id}.json"
        path.rename(path.with_suffix(".left"))

    def last_words(self, run_id: str) -> str:
        """The line on stderr that tells most of the last job that carried a run ("" if there is none)."""
        files = [*self.folder.glob("*.left"), *self.folder.glob("*.json")]
        for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
            if run_id in json.loads(path.read_bytes()):
                logs = sorted((self.logs / path.stem).glob("*.err"), key=lambda log: log.stat().st_mtime)
                lines = [
                    line.strip() for log in logs for line in log.read_text(errors="replace").splitlines()
                ]
                for telling in (r"[\w.]*(Error|Exception)\b", r".*\berror:", r"."):
                    if found := [line for line in lines if re.match(telling, line)]:
                        return found[-1]
        return ""

    def _age(self, job_id: str) -> float:
        return time.time() - (self.folder / f"{job_id}.json").stat().st_mtime


def queue(patience: float = PATIENCE_SECONDS) -> dict[str, str]:
    """{job: state} of this user's jobs, from squeue, which needs no accounting database.

    Args:
        patience: seconds to wait for a controller that does not answer (it restarts now and then).
    """
    command = ["squeue", "--noheader", "--array", "--user", str(os.getuid()), "--format", "%F %K %T"]
    until = time.monotonic() + patience
    while True:
        listed = subprocess.run(command, capture_output=True, text=True)
        if listed.returncode == 0:
            break
        if time.monotonic() > until:
            raise ConfigError(f"squeue does not answer: {' '.join(listed.stderr.split())}")
        time.sleep(1.0)
    states = {}
    for line in listed.stdout.splitlines():
        job, task, state = line.split()
        if state not in ENDED:  # COMPLETING is still in: it may be on its way back into the queue
            states[f"{job}_{task}" if task != "N/A" else job] = state
    return states


def cancel(job_ids: Iterable[str]) -> None:
    """Cancel jobs, some of which may have ended (scancel)."""
    ids = list(job_ids)
    for first in range(0, len(ids), 500):
        subprocess.run(["scancel", "--quiet", *ids[first : first + 500]], check=True)


def longest_array() -> int:
    """Most jobs that an array may have (Slurm's MaxArraySize; its default where it does not tell)."""
    shown = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True).stdout
    for line in shown.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdigit():
            return max(1, int(value) - 1)
    return 1000
