"""The same config and seed give bitwise the same numbers: any order, worker, process, batch, or interruption."""

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runners.compose import compose_run
from runners.execute import Executor
from runners.launchers import Settings
from runners.launchers.local import Local
from runners.recorder import Recorder
from runners.store import tables
from tests.runners.conftest import numbers
from tests.runners.test_launcher_local import Watcher, job


def jobs() -> list[Any]:
    """Runs of several kinds; those with global draws see what else ran in their process."""
    runs = [
        job(("seed", seed), ("task.repeats", 3), method=f"toy/{name}")
        for seed in range(3)
        for name in METHODS
    ]
    runs += [job(("seed", seed), ("task.use_global", True), task="toy/draws") for seed in range(2)]
    runs += [job(("seed", seed), task="toy/chain") for seed in range(2)]
    runs.append(job(("method.how", "leak"), ("task.use_global", True), method="toy/bad", task="toy/draws"))
    return runs


METHODS = ("descent", "sign")


def in_process(root: Path, runs: list[Any]) -> dict[str, Any]:
    """Execute one after another, here."""
    executor = Executor(root, progress=False)
    for run in runs:
        assert executor.run(run.config).status == "done"
    return numbers(root)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All runs in this process, in order."""
    return in_process(tmp_path_factory.mktemp("expected"), jobs())


def test_in_any_order(expected: dict[str, Any], tmp_path: Path) -> None:
    assert in_process(tmp_path, jobs()[::-1]) == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_in_any_number_of_workers(expected: dict[str, Any], tmp_path: Path, workers: int) -> None:
    with Local(workers=workers) as launcher:
        launcher.launch(jobs(), Settings(tmp_path), Watcher())
    assert numbers(tmp_path) == expected


def test_alone_in_a_process_of_its_own(
    expected: dict[str, Any], process: Callable[..., SimpleNamespace], outputs: Path
) -> None:
    ended = process(
        *("runners.run", "method=toy/descent", "task=toy/draws", "task.use_global=true", "seed=1"),
        *("task.resources.hours=1",),
    )
    assert ended.code == 0, ended.err
    ((name, found),) = numbers(outputs).items()
    assert found == expected[name]


@pytest.mark.parametrize("batch", [1, 5, 12, 100])
def test_in_any_batch_of_rows(tmp_path: Path, batch: int) -> None:
    executor = Executor(tmp_path, progress=False)
    found = []
    for size in (4, batch):
        config = compose_run("toy/descent", "toy/draws", lambda _, size=size: [("task.batch", size, "")])
        executor.run(config)
        rows = tables(executor.store.folder(config), "image").set_index("i").sort_index()
        assert len(rows) == 12
        found.append([value.hex() for value in rows["gap"]])
    assert found[0] == found[1]


class Interrupted(Exception):
    """Plays a run's death."""


@pytest.mark.parametrize("stop", [0, 3, 5, 6, 22, 39])
def test_resumed_after_any_step(
    expected: dict[str, Any], tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run dies after some line of metrics and is started again."""
    run = job(("seed", 1), task="toy/chain")
    log = Recorder.log

    def dies(self: Recorder, step: int, **metrics: Any) -> None:
        log(self, step, **metrics)
        if step == stop:
            raise Interrupted

    executor = Executor(tmp_path, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "log", dies)
        assert executor.run(run.config).status == "failed"
    assert executor.run(run.config).status == "done"
    assert numbers(tmp_path) == {run.id: expected[run.id]}


def test_killed_on_its_way_and_started_again(
    expected: dict[str, Any],
    process: Callable[..., SimpleNamespace],
    outputs: Path,
    tmp_path: Path,
) -> None:
    kill, log = tmp_path / "kill", tmp_path / "toy.log"
    kill.touch()
    env = {"REPRISE_TOY_KILL": str(kill), "REPRISE_TOY_LOG": str(log)}
    command = ("runners.run", "method=toy/descent", "task=toy/chain", "seed=1")
    assert process(*command, env=env).code == -signal.SIGKILL
    assert not numbers(outputs)
    assert next(outputs.glob("*/*/*/*/checkpoint.pt")).is_file()
    ended = process(*command, env=env)
    assert ended.code == 0, ended.err
    ((name, found),) = numbers(outputs).items()
    assert found == expected[name]
    words = [line.split()[0] for line in log.read_text().splitlines()]
    assert words == ["begin", "from-0", "begin", "from-25"]  # 40 * 2 // 3 = 26, saved every 5 steps
    assert not list(outputs.glob("*/*/*/*/checkpoint.pt"))


def test_seeds_differ(expected: dict[str, Any]) -> None:
    assert len({(found[1].get("gap"), found[2], found[3]) for found in expected.values()}) == len(expected)
