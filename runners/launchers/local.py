"""Local launcher: persistent worker processes on this machine (pebble), one thread each.

A worker that dies (killed for memory, segmentation fault) or hangs loses its own run only; the pool starts another.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import forkserver
from typing import Any

import pebble

from runners import provenance
from runners.errors import ConfigError, StoreError, unwritable
from runners.execute import Outcome
from runners.fingerprint import targets
from runners.group import STOP_SECONDS, Gpu, gpus_asked, visible_gpus
from runners.launchers import Job, Settings, Watcher, worker
from runners.recorder import STOP_FILE
from runners.store import Store

TICK = 0.5
MAX_RENEWALS = 5
LOOKAHEAD = 50  # runs that may overtake one whose GPUs, ranks or memory are not free yet
GRACE_SECONDS = 60.0  # after its own deadline a run may still write its checkpoint


class Local:
    """See the module.

    Args:
        workers: processes (None: one per core); a run of several ranks takes as many of them.
        memory_gb: memory shared by the runs that ask for some (None: 90% of the machine's).
        gpus: numbers (or CUDA names) of the GPUs to use (None: those that are visible).
        per_gpu: runs that share one GPU.
    """

    def __init__(
        self,
        workers: int | None = None,
        memory_gb: float | None = None,
        gpus: list[Gpu] | None = None,
        per_gpu: int = 1,
    ):
        for name, value in (("workers", workers), ("per_gpu", per_gpu)):
            if value is not None and not (type(value) is int and value >= 1):
                raise ConfigError(f"launcher.{name}={value!r}: expected a whole number of at least 1")
        if memory_gb is not None and not (type(memory_gb) in (int, float) and memory_gb > 0):
            raise ConfigError(f"launcher.memory_gb={memory_gb!r}: expected a number above 0")
        if gpus is not None and not (isinstance(gpus, list) and all(map(_is_gpu, gpus))):
            raise ConfigError(f"launcher.gpus={gpus!r}: expected a list of numbers, like [0, 1]")
        self.workers = workers or len(os.sched_getaffinity(0))
        total = provenance.hardware()["memory_gb"] or 4.0
        self.memory_gb = memory_gb or 0.9 * total
        self.gpus, self.per_gpu = gpus, per_gpu
        self._pool: pebble.ProcessPool | None = None
        self._made_for: tuple[Any, ...] = ()

    def __enter__(self) -> Local:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(stop=kind is not None)

    def _close(self, stop: bool) -> None:
        if self._pool is not None:
            self._pool.stop() if stop else self._pool.close()
            self._pool.join()
            self._pool = None

    def _workers(self, jobs: Sequence[Job], settings: Settings) -> pebble.ProcessPool:
        wanted = (str(settings.root), repr(settings.tracker), settings.stale)
        if self._pool is not None and self._made_for != wanted:
            self._close(stop=False)
        if self._pool is None:
            provenance.limit_threads(1)  # inherited by the workers before they import anything
            context = multiprocessing.get_context("forkserver")
            modules = {target.rpartition(".")[0] for job in jobs for target in targets(job.config)}
            context.set_forkserver_preload(["runners.launchers.worker", *sorted(modules)])
            with _deaf_to_ctrl_c():
                forkserver.ensure_running()
            self._pool = pebble.ProcessPool(
                max_workers=self.workers,
                context=context,
                initializer=worker.start,
                initargs=(str(settings.root), settings.tracker, settings.stale, dict(os.environ)),
            )
            self._made_for = wanted
        return self._pool

    def renew(self, jobs: Sequence[Job], settings: Settings) -> pebble.ProcessPool:
        """A new pool in place of a broken one."""
        self._close(stop=True)
        return self._workers(jobs, settings)

    def launch(self, jobs: Sequence[Job], settings: Settings, watcher: Watcher) -> dict[str, Outcome]:
        """Execute jobs (see :class:`runners.launchers.Launcher`)."""
        if not jobs:
            return {}
        return _Sweep(self, jobs, settings, watcher, self._workers(jobs, settings)).run()


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What starts inside ignores Ctrl-C from its first instruction on: it is the parent's to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Torchrun(Local):
    """Local launcher whose distributable tasks run on ``nproc`` ranks; other runs are dealt out over as many."""

    def __init__(
        self,
        nproc: int = 2,
        memory_gb: float | None = None,
        gpus: list[Gpu] | None = None,
        per_gpu: int = 1,
    ):
        if not (type(nproc) is int and nproc >= 1):
            raise ConfigError(f"launcher.nproc={nproc!r}: expected a whole number of at least 1")
        super().__init__(workers=nproc, memory_gb=memory_gb, gpus=gpus, per_gpu=per_gpu)


class _Sweep:
    def __init__(
        self,
        local: Local,
        jobs: Sequence[Job],
        settings: Settings,
        watcher: Watcher,
        pool: pebble.ProcessPool,
    ):
        self.local, self.settings, self.watcher, self.pool = local, settings, watcher, pool
        self.jobs, self.renewals = jobs, 0
        self.store = Store(settings.root)
        self.waiting = deque(job for job in jobs if not job.resources.get("exclusive"))
        self.exclusive = deque(job for job in jobs if job.resources.get("exclusive"))
        self.busy: list[tuple[float, Job]] = []  # another process has them: look again later
        self.flying: dict[concurrent.futures.Future[Any], Job] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.overtaken = 0
        self.gpu_load = dict.fromkeys(visible_gpus() if local.gpus is None else local.gpus, 0)
        self.gpus_of: dict[str, tuple[Gpu, ...]] = {}

    def run(self) -> dict[str, Outcome]:
        try:
            ticked = time.monotonic()
            while self.waiting or self.exclusive or self.flying or self.busy:
                self._fill()
                done, _ = concurrent.futures.wait(
                    self.flying, timeout=TICK, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    if future in self.flying:
                        self._ended(self.flying.pop(future), future)
                if time.monotonic() - ticked > TICK:
                    ticked = time.monotonic()
                    self.watcher.tick(self._progress())
        except KeyboardInterrupt:
            self._stop()
            raise
        return self.outcomes

    def _stop(self) -> None:
        """Ctrl-C: let the runs save their checkpoints and end; a second Ctrl-C ends them at once."""
        for future in self.flying:
            if not future.running():
                future.cancel()
        running = {
            future: job for future, job in self.flying.items() if future.running() and not job.artifact
        }
        until = time.monotonic() + STOP_SECONDS
        with contextlib.suppress(KeyboardInterrupt):
            while any(future.running() for future in running) and time.monotonic() < until:
                for (
                    job
                ) in running.values():  # again and again: a run that is just starting clears old ones away
                    with contextlib.suppress(FileNotFoundError):
                        (self.store.folder(job.config, job.id) / STOP_FILE).touch()
                concurrent.futures.wait(running, timeout=TICK)
        for job in running.values():
            if self.store.look(job.config, job.id, None).state == "missing":
                self.store.record_failure(job.config, job.id, "interrupted", "stopped by Ctrl-C")

    def _fill(self) -> None:
        now = time.monotonic()
        for item in [item for item in self.busy if item[0] <= now]:
            self.busy.remove(item)
            self._queue_of(item[1]).append(item[1])
        # Two runs in hand per worker hide the way between the processes; runs with needs of their own get exact room.
        while self.waiting and len(self.flying) < 2 * self.local.workers:
            place = self._next()
            if place is None:
                break
            self.overtaken = self.overtaken + 1 if place else 0
            job = self.waiting[place]
            del self.waiting[place]
            self._submit(job)
        if not self.waiting and not self.flying and not self.busy and self.exclusive:
            self._submit(self.exclusive.popleft())

    def _next(self) -> int | None:
        """Place of the first waiting run that there is room for; one with large needs is not overtaken for ever."""
        reach = LOOKAHEAD if self.overtaken < LOOKAHEAD else 1
        return next((i for i, job in enumerate(islice(self.waiting, reach)) if self._room(job)), None)

    def _room(self, job: Job) -> bool:
        if not self.flying:
            return True
        memory = [float(other.resources.get("memory_gb") or 0) for other in (job, *self.flying.values())]
        ranks = [_ranks(other) for other in (job, *self.flying.values())]
        alone = not memory[0] and max(ranks) == 1 and not _gpus_asked(job)  # a plain run: may wait in hand
        return (
            (alone or sum(ranks) <= self.local.workers)
            and sum(memory) <= self.local.memory_gb
            and self._choose_gpus(job) is not None
        )

    def _choose_gpus(self, job: Job) -> tuple[Gpu, ...] | None:
        """The least loaded GPUs for a run (the one it names, if its device is cuda:<number>); None if not free."""
        asked = _gpus_asked(job)
        gpus = list(self.gpu_load)
        index = str(job.config.get("device") or "").partition(":")[2]
        named = gpus[int(index) : int(index) + 1] if asked == 1 and index else gpus
        free = [gpu for gpu in named if self.gpu_load[gpu] < self.local.per_gpu]
        least = sorted(free, key=self.gpu_load.__getitem__)[:asked]
        return tuple(sorted(least, key=gpus.index)) if len(least) == asked else None

    def _submit(self, job: Job) -> None:
        gpus = self._choose_gpus(job)
        if gpus is None:
            asked, have = _gpus_asked(job), len(self.gpu_load)
            error = f"asks for {asked} GPUs, this machine has {have}"
            self.outcomes[job.id] = self._lost(job, "failed", error)
            self.watcher.ended(job, self.outcomes[job.id])
            return
        for gpu in gpus:
            self.gpu_load[gpu] += 1
        self.gpus_of[job.id] = gpus
        hours = job.resources.get("hours")
        arguments = (job.config, job.id, job.fingerprint, job.labels, job.artifact, self.settings.again, gpus)
        timeout = 3600 * hours + GRACE_SECONDS if hours else None
        if not self.pool.active:
            self._renew()
        future = self.pool.schedule(worker.work, args=arguments, timeout=timeout)
        self.flying[future] = job

    def _queue_of(self, job: Job) -> deque[Job]:
        return self.exclusive if job.resources.get("exclusive") else self.waiting

    def _renew(self) -> None:
        """Make a new pool after workers died between two runs; the runs in hand are submitted again."""
        self.renewals += 1
        if self.renewals > MAX_RENEWALS:
            raise RuntimeError("the worker processes die before they take a run")
        for job in self.flying.values():
            self._queue_of(job).appendleft(job)
        self.flying.clear()
        self.gpu_load = dict.fromkeys(self.gpu_load, 0)
        self.gpus_of.clear()
        self.pool = self.local.renew(self.jobs, self.settings)

    def _ended(self, job: Job, future: concurrent.futures.Future[Any]) -> None:
        for gpu in self.gpus_of.pop(job.id, ()):
            self.gpu_load[gpu] -= 1
        try:
            outcome = Outcome(**future.result())
        except concurrent.futures.TimeoutError:
            outcome = self._lost(job, "timeout", f"no end after {job.resources.get('hours')} hours")
        except pebble.ProcessExpired as problem:
            outcome = self._lost(job, "failed", f"the worker process died (exit code {problem.exitcode})")
        except BrokenProcessPool:
            self._queue_of(job).appendleft(job)
            self._renew()
            return
        except Exception as problem:
            if isinstance(problem, OSError) and unwritable(problem, self.settings.root):
                raise StoreError(
                    f"cannot write under {self.settings.root}: {problem.strerror or problem}"
                ) from problem
            outcome = self._lost(job, "failed", f"{type(problem).__name__}: {problem}")
        if outcome.status == "busy":
            self.busy.append((time.monotonic() + 1.0, job))
            return
        self.outcomes[job.id] = outcome
        self.watcher.ended(job, outcome)
        if self.settings.fail_fast and outcome.status in ("failed", "timeout"):
            self.waiting.clear()
            self.exclusive.clear()
            self.busy.clear()

    def _lost(self, job: Job, status: str, error: str) -> Outcome:
        if not job.artifact:
            try:
                self.store.record_failure(job.config, job.id, status, error)
            except OSError as problem:
                raise StoreError(
                    f"cannot write under {self.settings.root}: {problem.strerror or problem}"
                ) from problem
        return Outcome(job.id, status, error=error)

    def _progress(self) -> dict[str, tuple[int, int]]:
        found = {}
        ids = {job.id for job in self.flying.values()}
        for path in (self.settings.root / ".leases").glob("*.progress"):
            try:
                name, done, total = path.read_text().split()
            except (OSError, ValueError):
                continue
            if name in ids:
                found[name] = (int(done), int(total))
        return found


def _ranks(job: Job) -> int:
    return int(job.config.get("ranks") or 1) if not job.artifact else 1


def _gpus_asked(job: Job) -> int:
    return 0 if job.artifact else gpus_asked(job.config)


def _is_gpu(gpu: Any) -> bool:
    return (type(gpu) is int and gpu >= 0) or (isinstance(gpu, str) and bool(gpu))
