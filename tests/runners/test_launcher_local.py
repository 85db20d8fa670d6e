"""The local launcher: a worker that dies, hangs or leaves loses its own run only; machine-wide needs are kept."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners import identity
from runners.compose import compose_run
from runners.execute import Executor, Outcome
from runners.fingerprint import Fingerprinter
from runners.launchers import Job, Settings, local
from runners.launchers.local import Local


def job(
    *leaves: tuple[str, Any], method: str = "toy/descent", task: str = "toy/bowl", **resources: Any
) -> Job:
    """One run as a job."""
    changes = [*leaves, *((f"task.resources.{key}", value) for key, value in resources.items())]
    config = compose_run(method, task, lambda _: [(path, value, "") for path, value in changes])
    return Job(identity.run_id(config), config, Fingerprinter().of(config), str(leaves))


class Watcher:
    """Remembers what it is told."""

    def __init__(self, hook: Callable[["Watcher"], None] | None = None):
        self.outcomes: list[Outcome] = []
        self.ticks: list[dict[str, tuple[int, int]]] = []
        self.hook = hook

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A job ended."""
        self.outcomes.append(outcome)

    def tick(self, running: dict[str, tuple[int, int]]) -> None:
        """About twice a second."""
        self.ticks.append(running)
        if self.hook:
            self.hook(self)


@pytest.fixture
def launch(outputs: Path) -> Callable[..., dict[str, Outcome]]:
    """``launch(jobs, workers=2)`` executes jobs; returns their outcomes."""

    def run(jobs: Sequence[Job], watcher: Any = None, *, fail_fast: bool = False, **options: Any) -> Any:
        with Local(**{"workers": 2} | options) as launcher:
            return launcher.launch(jobs, Settings(outputs, fail_fast=fail_fast), watcher or Watcher())

    return run


def statuses(jobs: Sequence[Job], outcomes: dict[str, Outcome]) -> list[str]:
    """How the jobs ended, in their order."""
    return [outcomes[job.id].status for job in jobs]


def test_a_batch(launch: Callable[..., Any], store: Any) -> None:
    jobs = [job(("seed", seed)) for seed in range(8)]
    watcher = Watcher()
    outcomes = launch(jobs, watcher)
    assert statuses(jobs, outcomes) == ["done"] * 8
    assert sorted(outcome.id for outcome in watcher.outcomes) == sorted(job.id for job in jobs)
    assert len(store.frame()) == 8
    assert all(outcome.cached for outcome in launch(jobs).values())


def test_each_way_to_go_wrong_costs_one_run(
    launch: Callable[..., Any], outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.5)
    ways = {
        "nan": "diverged",
        "raise": "failed",
        "exit": "failed",
        "die": "failed",
        "loop": "timeout",
        "none": "done",
    }
    bad = [job(("method.how", how), method="toy/bad", hours=0.5 / 3600) for how in ways]
    good = [job(("seed", seed)) for seed in range(6)]
    mixed = [part for pair in zip(bad, good, strict=True) for part in pair]
    outcomes = launch(mixed)
    assert statuses(good, outcomes) == ["done"] * 6
    assert statuses(bad, outcomes) == list(ways.values())
    died, looped = outcomes[bad[3].id], outcomes[bad[4].id]
    assert died.error == "the worker process died (exit code -9)"
    assert looped.error.startswith("no end after")
    executor = Executor(outputs, progress=False)
    for part, status in zip(bad, ways.values(), strict=True):
        failure = executor.store.failure(part.config, part.id)
        assert (failure is None) == (status in ("diverged", "done"))
        if failure:
            assert failure["status"] == status
            assert failure["error"]
    # a run that was killed can be claimed at once
    assert executor.run(job(("method.how", "die2"), method="toy/bad").config).status == "done"
    with executor.claims.claim(executor.store.folder(bad[3].config)) as ours:
        assert ours


def test_a_cooperative_timeout_does_not_cost_the_worker(launch: Callable[..., Any], log: Any) -> None:
    slow = [("task.pause", 0.02), ("task.steps", 1000)]
    jobs = [job(*slow, ("seed", seed), hours=0.2 / 3600) for seed in range(2)] + [job(("seed", 5))]
    outcomes = launch(jobs, workers=1)
    assert statuses(jobs, outcomes) == ["timeout", "timeout", "done"]
    assert len({process for _, _, process in log()}) == 1


def test_workers_that_die_between_runs_are_replaced(launch: Callable[..., Any], outputs: Path) -> None:
    """All of them at once, while the sweep waits for a run that another process has."""
    other = Executor(outputs, progress=False)
    wanted, first = job(("seed", 1)), job(("seed", 2))
    folder = other.store.folder(wanted.config)
    folder.mkdir(parents=True)
    claim = other.claims.claim(folder)
    assert claim.__enter__()
    state = {"killed": False}

    def hook(watcher: Watcher) -> None:
        if watcher.outcomes and not state["killed"]:
            state["killed"] = True
            for child in psutil.Process().children(recursive=True):
                if "pebble" not in child.name() and child.pid in workers_of(outputs):
                    child.kill()
            threading.Timer(0.7, lambda: claim.__exit__(None, None, None)).start()

    outcomes = launch([first, wanted], Watcher(hook))
    assert state["killed"]
    assert statuses([first, wanted], outcomes) == ["done", "done"]


def workers_of(outputs: Path) -> set[int]:
    """Processes that hold a lease on the store."""
    names = [path.name.split("-") for path in (outputs / ".leases").glob("*.claim")]
    return {int(parts[-2]) for parts in names} - {os.getpid()}


def test_workers_that_never_start_are_an_error(
    launch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.worker, "start", _dies)
    monkeypatch.setattr(local, "MAX_RENEWALS", 1)
    with pytest.raises(RuntimeError, match="die before they take a run"):
        launch([job()])


def _dies(*_: Any) -> None:
    os._exit(3)


def test_exclusive_runs_are_alone(launch: Callable[..., Any], log: Any) -> None:
    pause = [("task.pause", 0.02), ("task.steps", 10)]
    jobs = [job(("seed", seed), *pause, exclusive=seed % 2 == 0) for seed in range(6)]
    alone = {job.id for job in jobs[::2]}
    assert statuses(jobs, launch(jobs)) == ["done"] * 6
    inside: set[str] = set()
    for word, run, _ in log():
        inside = inside | {run} if word == "begin" else inside - {run}
        assert not (inside & alone) or len(inside) == 1


def test_an_exclusive_run_that_was_busy_is_still_alone(
    launch: Callable[..., Any], log: Any, outputs: Path
) -> None:
    other = Executor(outputs, progress=False)
    pause = [("task.pause", 0.02), ("task.steps", 20)]
    wanted = job(("seed", 100), *pause, exclusive=True)
    folder = other.store.folder(wanted.config)
    folder.mkdir(parents=True)
    with other.claims.claim(folder):
        jobs = [wanted, *(job(("seed", seed), *pause, exclusive=True) for seed in range(3))]
        releasing = threading.Timer(1.0, lambda: (folder / "claim").unlink())
        releasing.start()
        assert set(statuses(jobs, launch(jobs))) == {"done"}
    words = [word for word, _, _ in log()]
    assert words == ["begin", "end"] * 4


def test_memory_is_shared_out(launch: Callable[..., Any], log: Any) -> None:
    pause = [("task.pause", 0.02), ("task.steps", 8)]
    jobs = [job(("seed", seed), *pause, memory_gb=3) for seed in range(4)] + [job(("seed", 9), memory_gb=50)]
    assert statuses(jobs, launch(jobs, memory_gb=5)) == ["done"] * 5  # the last one alone: better than never
    inside = 0
    for word, _, _ in log():
        inside += 1 if word == "begin" else -1
        assert inside <= 1


def test_each_worker_has_one_thread_and_its_own_process(
    launch: Callable[..., Any], log: Any, store: Any
) -> None:
    jobs = [job(("seed", seed), ("task.pause", 0.02)) for seed in range(6)]
    launch(jobs)
    assert len({process for _, _, process in log()}) == 2
    assert {result["provenance"]["threads"] for result in store.results()} == {1}


def test_progress_is_seen(launch: Callable[..., Any]) -> None:
    slow = job(("task.pause", 0.05), ("task.steps", 60))
    watcher = Watcher()
    launch([slow], watcher)
    seen = [tick[slow.id] for tick in watcher.ticks if slow.id in tick]
    assert seen
    assert all(total == 60 for _, total in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_stopping_at_the_first_failure(launch: Callable[..., Any]) -> None:
    bad = job(method="toy/bad")
    good = [job(("seed", seed), ("task.pause", 0.02)) for seed in range(20)]
    outcomes = launch([bad, *good], fail_fast=True)
    assert outcomes[bad.id].status == "failed"
    assert len(outcomes) < 10


def test_an_error_outside_the_run_costs_that_run(launch: Callable[..., Any], outputs: Path) -> None:
    broken = job()
    broken.config["task"]["resources"] = {"hours": 1.0}
    broken.config["seed"] = "no number"
    outcomes = launch([broken, job(("seed", 3))])
    assert outcomes[broken.id].status == "failed"
    assert "ValueError" in outcomes[broken.id].error
    assert outcomes[job(("seed", 3)).id].status == "done"


def test_nothing_is_left_behind(launch: Callable[..., Any], outputs: Path, fresh_workers: None) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    launch([job(("seed", seed)) for seed in range(4)])
    time.sleep(0.1)
    after = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert all(
        "forkserver" in " ".join(c.cmdline()) or "resource_tracker" in " ".join(c.cmdline()) for c in after
    )
    assert not list(outputs.glob("*/*/*/*/claim"))


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_workers_die_with_their_parent(
    start: Callable[..., Any], tmp_path: Path, sent: signal.Signals, outputs: Path
) -> None:
    log = tmp_path / "toy.log"
    process = start(
        "runners.reproduce",
        *("paper=toy", "scale=smoke", "experiment=bowl", "task.pause=0.5"),
        env={"REPRISE_TOY_LOG": str(log)},
    )
    deadline = time.monotonic() + 60
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = [int(line.split()[2]) for line in log.read_text().splitlines()]
    process.send_signal(sent)
    process.wait(timeout=30)
    deadline = time.monotonic() + 15
    while any(map(psutil.pid_exists, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, workers))
    for path in outputs.glob("*/*/*/*/result.json"):
        json.loads(path.read_bytes())
