"""Slurm launcher: job arrays through submitit, many short runs per job, requeue and resume.

Nothing is kept in memory that a restart would need: what is done stands in the store, what is sent in
``<outputs>/slurm/jobs/``, what is waiting or running is asked of ``squeue``. A second submit sends what is missing.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from runners import places
from runners.artifacts import ArtifactStore
from runners.errors import ConfigError
from runners.execute import Outcome
from runners.group import gpus_asked
from runners.launchers import Job, Settings, Watcher
from runners.launchers.slurm_job import Chunk
from runners.launchers.slurm_ledger import Ledger, longest_array
from runners.lease import Claims
from runners.store import FINAL, Store

OUTAGE_SECONDS = 3600.0  # how long a sweep that waits puts up with a controller that does not answer
WHOLE = (
    "minutes",
    "chunk_minutes",
    "chunk_runs",
    "array_parallelism",
    "cpus",
    "ranks_per_node",
    "signal_seconds",
)


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
        given = dict(locals())
        for name in WHOLE:
            value = given[name]
            if not (type(value) is int and value >= 1) and not (name == "minutes" and value is None):
                raise ConfigError(f"launcher.{name}={value!r}: expected a whole number of at least 1")
        if memory_gb is not None and not (type(memory_gb) in (int, float) and memory_gb > 0):
            raise ConfigError(f"launcher.memory_gb={memory_gb!r}: expected a number above 0")
        if not all(isinstance(line, str) for line in setup or []):
            raise ConfigError(f"launcher.setup={setup!r}: expected a list of shell lines")
        self.partition, self.account, self.qos = partition, account, qos
        self.minutes, self.chunk_minutes, self.chunk_runs = minutes, chunk_minutes, chunk_runs
        self.array_parallelism, self.cpus, self.memory_gb = array_parallelism, cpus, memory_gb
        self.gpu_type, self.ranks_per_node = gpu_type, ranks_per_node
        self.setup, self.signal_seconds, self.resubmit = setup or [], signal_seconds, resubmit
        self.wait, self.poll_seconds, self.extra = wait, poll_seconds, extra or {}
        self.workers = array_parallelism
        self.sent = (0, 0)  # runs and jobs that this process has sent
        self.on_their_way = 0  # runs that were in the queue already

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
        ended = self._send(jobs, settings, ledger)
        return self._watch(jobs, settings, watcher, ledger) if self.wait else ended

    # -- what is asked for ---------------------------------------------------------------------------------------

    def plan(self, jobs: Sequence[Job], alone: frozenset[str] = frozenset()) -> list[list[Job]]:
        """Chunks: runs of equal needs are put together until a job takes about ``chunk_minutes``.

        Args:
            jobs: what is to be run.
            alone: ids of runs that get a job of their own.
        """
        chunks: list[list[Job]] = []
        filling: dict[tuple[Any, ...], tuple[list[Job], float]] = {}
        for job in jobs:
            minutes = _minutes(job)
            needs = (*self._needs(job), job.artifact)
            if job.id in alone or _ranks(job) > self.ranks_per_node or job.resources.get("exclusive"):
                chunks.append([job])
                continue
            chunk, full = filling.get(needs, ([], 0.0))
            if not chunk or len(chunk) >= self.chunk_runs or full + minutes > self.chunk_minutes:
                chunk, full = [], 0.0
                chunks.append(chunk)
            chunk.append(job)
            filling[needs] = (chunk, full + minutes)
        return chunks

    def _needs(self, job: Job) -> tuple[Any, ...]:
        gpus = 0 if job.artifact else gpus_asked(job.config)
        memory = job.resources.get("memory_gb") or self.memory_gb
        return (_ranks(job), gpus, memory, bool(job.resources.get("exclusive")))

    def parameters(self, chunk: Sequence[Job]) -> dict[str, Any]:
        """What sbatch is asked for one chunk (submitit's names)."""
        ranks, gpus, memory, exclusive = self._needs(chunk[0])
        nodes = -(-ranks // self.ranks_per_node)
        if ranks % nodes:
            raise ConfigError(
                f"ranks={ranks} cannot be spread evenly over {nodes} nodes of {self.ranks_per_node}: "
                "set launcher.ranks_per_node"
            )
        per_node = ranks // nodes
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
            "setup": [
                f"export PYTHONPATH={places.HOME}:$PYTHONPATH REPRISE_SIGNAL_SECONDS={self.signal_seconds}",
                *self.setup,
            ],
            "additional_parameters": {"requeue": True, **self.extra},
        }
        return {key: value for key, value in found.items() if value is not None}

    # -- sending and waiting -------------------------------------------------------------------------------------

    def _send(self, jobs: Sequence[Job], settings: Settings, ledger: Ledger) -> dict[str, Outcome]:
        """Send every run that is neither finished nor in the queue; return how those that have ended did so.

        A run that failed is sent once more, but what follows it does not wait for that.
        """
        import submitit
        from submitit.core.utils import FailedJobError

        store = Store(settings.root)
        with ledger.lock():  # two submits at once: the second sees what the first has sent
            queued = ledger.queued()
            fresh = [job for job in jobs if job.id not in queued]
            self.on_their_way += len(jobs) - len(fresh)
            ended = {job.id: outcome for job in fresh if (outcome := _ended(job, store, settings))}
            fresh = [job for job in fresh if job.id not in ended or ended[job.id].status not in FINAL]
            # A run that started and left no trace may have taken its job down: it gets one of its own.
            alone = frozenset(job.id for job in fresh if vanished(job, store))
            for job in fresh:
                _clear(job, store, settings)
            for parameters, chunks in self._arrays(self.plan(fresh, alone)):
                executor = submitit.SlurmExecutor(folder=ledger.logs / "%j", python=sys.executable)
                executor.update_parameters(**parameters)
                payloads = [_payload(chunk, settings) for chunk in chunks]
                try:
                    handles = executor.map_array(Chunk.run, payloads)
                except FailedJobError as problem:
                    raise ConfigError(f"sbatch refuses: {' '.join(str(problem).split())}") from problem
                for handle, chunk in zip(handles, chunks, strict=True):
                    ledger.note(handle.job_id, chunk)
                self.sent = (self.sent[0] + sum(map(len, chunks)), self.sent[1] + len(chunks))
        return ended

    def _arrays(self, chunks: Sequence[list[Job]]) -> Iterator[tuple[dict[str, Any], list[list[Job]]]]:
        """Chunks that ask for the same, in arrays of a length that Slurm takes."""
        groups: dict[str, list[list[Job]]] = {}
        for chunk in chunks:
            groups.setdefault(json.dumps(self.parameters(chunk)), []).append(chunk)
        most = longest_array() if groups else 1
        for text, alike in groups.items():
            for first in range(0, len(alike), most):
                yield json.loads(text), alike[first : first + most]

    def _watch(
        self, jobs: Sequence[Job], settings: Settings, watcher: Watcher, ledger: Ledger
    ) -> dict[str, Outcome]:
        store, claims = Store(settings.root), Claims(settings.root)
        waiting = {job.id: job for job in jobs}
        losses = _Losses(store)
        losses.sent(jobs)
        outcomes: dict[str, Outcome] = {}
        while waiting:
            queued = ledger.queued(OUTAGE_SECONDS)
            ended, lost = {}, []
            for job in waiting.values():
                if queued.get(job.id) == "PENDING":
                    continue
                outcome = _ended(job, store, settings)
                if outcome is None and job.id not in queued and not _is_held(job, store, claims):
                    outcome = _ended(job, store, settings)  # it may have ended between the looks
                    if outcome is None:
                        lost.append(job)
                if outcome is not None:
                    ended[job.id] = outcome
            losses.count(lost, progress=len(ended))
            again = [job for job in lost if losses.of[job.id] <= self.resubmit]
            for job in lost:
                if job not in again:
                    ended[job.id] = self._give_up(job, store, ledger, losses.of[job.id])
            for key, outcome in ended.items():
                watcher.ended(waiting.pop(key), outcome)
            outcomes |= ended
            if again:  # pre-empted by CANCEL, out of time, node lost
                self._send(again, settings, ledger)
                losses.sent(again)
            watcher.tick({})
            if waiting:
                time.sleep(self.poll_seconds)
        return outcomes

    def _give_up(self, job: Job, store: Store, ledger: Ledger, times: int) -> Outcome:
        error = f"its job vanished without a result {times} times (logs in {ledger.logs})"
        if words := ledger.last_words(job.id):
            error += f": {words}"
        if not job.artifact:
            store.record_failure(job.config, job.id, "failed", error)
        return Outcome(job.id, "failed", error=error)


class _Losses:
    """How often each run was lost in vain, ``of[run]``: without a new checkpoint, and by no other run's doing."""

    def __init__(self, store: Store):
        self.store = store
        self.of: Counter[str] = Counter()
        self._events = (
            0  # results, failures and counted losses so far: the sweep goes on as long as there are some
        )
        self._before: dict[str, tuple[int, float]] = {}

    def sent(self, jobs: Sequence[Job]) -> None:
        """Jobs go into the queue."""
        self._before |= {job.id: (self._events, self._saved(job)) for job in jobs}

    def count(self, lost: Sequence[Job], progress: int) -> None:
        """Some jobs are lost; so many others have ended since the last call."""
        self._events += progress
        culprits = {job.id for job in lost if vanished(job, self.store)}
        for job in sorted(lost, key=lambda job: job.id not in culprits):
            events, saved = self._before[job.id]
            innocent = job.id not in culprits and self._events > events
            if not innocent and self._saved(job) <= saved:
                self.of[job.id] += 1
                self._events += 1

    def _saved(self, job: Job) -> float:
        if job.artifact:
            return 0.0
        try:
            return (self.store.folder(job.config, job.id) / "checkpoint.pt").stat().st_mtime
        except FileNotFoundError:
            return 0.0


def vanished(job: Job, store: Store) -> bool:
    """Whether a run started some time and neither ended nor was stopped in order."""
    if job.artifact:
        return False
    folder = store.folder(job.config, job.id)
    return (folder / "config.yaml").exists() and not any(
        (folder / name).exists() for name in ("result.json", "failure.json")
    )


def _payload(chunk: Sequence[Job], settings: Settings) -> Chunk:
    return Chunk(
        [asdict(job) for job in chunk], str(settings.root.resolve()), settings.tracker, settings.stale
    )


def _clear(job: Job, store: Store, settings: Settings) -> None:
    """Drop the record of an older attempt's failure: the new one is to be told from it."""
    if job.artifact:
        ArtifactStore(settings.root).failure_log(job.config).unlink(missing_ok=True)
    else:
        (store.folder(job.config, job.id) / "failure.json").unlink(missing_ok=True)


def _ended(job: Job, store: Store, settings: Settings) -> Outcome | None:
    """How a run ended, by what it left; None if it left nothing final."""
    if job.artifact:
        shelf = ArtifactStore(settings.root)
        if shelf.find(job.config):
            return Outcome(job.id, "done")
        log = shelf.failure_log(job.config)
        return Outcome(job.id, "failed", error=f"traceback in {log}") if log.exists() else None
    hit = store.look(job.config, job.id, job.fingerprint, stale=settings.stale)
    if hit.state == "finished" and hit.result is not None:
        return Outcome(job.id, hit.result["status"], hit.result["wall_seconds"])
    failure = store.failure(job.config, job.id)
    if failure is not None and failure["status"] in ("failed", "timeout"):
        refused = failure.get("refused", False)
        return Outcome(job.id, failure["status"], error=failure["error"], refused=refused)
    return None


def _is_held(job: Job, store: Store, claims: Claims) -> bool:
    """Whether a process (another sweep's, on any machine) works on it now."""
    return not job.artifact and claims.holder(store.folder(job.config, job.id)) is not None


def _minutes(job: Job) -> float:
    """What a run likely takes: as long as earlier runs of its task, else as long as it may."""
    return job.seconds / 60 if job.seconds is not None else 60 * float(job.resources.get("hours") or 1 / 60)


def _ranks(job: Job) -> int:
    return 1 if job.artifact else int(job.config.get("ranks") or 1)
