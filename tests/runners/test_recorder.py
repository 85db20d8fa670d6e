"""The recorder: lines in the file at once, tables, checkpoints that cut back, numbers that depend on names alone."""

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from runners.recorder import DeadlineReached, Diverged, Recorder, _Lines
from runners.store import read_lines, tables
from tasks.run import Run

CONFIG: dict[str, Any] = {"seed": 3, "device": "cpu", "dtype": None}


def recorder(folder: Path, **options: Any) -> Recorder:
    """A recorder on a folder."""
    return Recorder(folder, CONFIG | options.pop("config", {}), fingerprint="code", **options)


def test_it_is_what_tasks_expect(tmp_path: Path) -> None:
    run = recorder(tmp_path, config={"dtype": "bfloat16"})
    assert isinstance(run, Run)
    assert (run.seed, run.device, run.dtype) == (3, torch.device("cpu"), torch.bfloat16)
    assert recorder(tmp_path).dtype is None


def test_a_line_is_in_the_file_when_log_returns(tmp_path: Path) -> None:
    run = recorder(tmp_path)
    run.log(step=0, loss=torch.tensor(0.5), n=np.int64(3), ok=np.bool_(True), none=None, name="x")
    assert read_lines(tmp_path / "metrics.jsonl") == [
        {"step": 0, "loss": 0.5, "n": 3, "ok": True, "none": None, "name": "x"}
    ]
    run.log(step=1.5, loss=np.float32(0.25))
    assert read_lines(tmp_path / "metrics.jsonl")[1] == {"step": 1.5, "loss": 0.25}


def test_numbers_survive_bit_by_bit(tmp_path: Path) -> None:
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, float(np.float32(0.1)), -0.0]
    run = recorder(tmp_path)
    run.rows("image", {"x": values})
    for step, value in enumerate(values):
        run.log(step=step, x=value)
    stored = [line["x"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert [value.hex() for value in stored] == [value.hex() for value in values]
    assert [value.hex() for value in tables(tmp_path, "image")["x"]] == [value.hex() for value in values]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, torch.tensor(math.nan), np.float32(np.inf)])
def test_what_is_not_finite_ends_the_run_with_the_rest_recorded(tmp_path: Path, bad: Any) -> None:
    run = recorder(tmp_path)
    with pytest.raises(Diverged, match="step 4: loss is not finite"):
        run.log(step=4, loss=bad, other=2.0)
    assert read_lines(tmp_path / "metrics.jsonl") == [{"step": 4, "other": 2.0}]
    with pytest.raises(FloatingPointError):
        run.summary(best=1.0, last=bad)
    assert run.values == {"best": 1.0}


@pytest.mark.parametrize("bad", [[1, 2], {"a": 1}, np.ones(2), torch.ones(2), object(), 1j])
def test_what_is_no_scalar_is_refused(tmp_path: Path, bad: Any) -> None:
    run = recorder(tmp_path)
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        run.log(step=0, loss=bad)
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        run.summary(loss=bad)


def test_rows_of_every_shape(tmp_path: Path) -> None:
    run = recorder(tmp_path)
    run.rows("image", pd.DataFrame({"loss": [0.1, 0.2]}))
    run.rows("image", {"loss": torch.tensor([0.3, 0.4]), "i": np.array([2, 3])})
    run.rows("image", [{"i": 4, "loss": 0.5}, {"i": 5, "hit": True}])
    frame = tables(tmp_path, "image")
    assert list(frame["i"]) == [0, 1, 2, 3, 4, 5]
    assert list(frame["loss"][:5]) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    with pytest.raises(ValueError, match=r"rows\('image'\): columns of different lengths \[1, 2\]"):
        run.rows("image", {"a": [1], "b": [1, 2]})


def test_a_restart_without_a_checkpoint_starts_with_empty_files(tmp_path: Path) -> None:
    first = recorder(tmp_path)
    first.log(step=0, x=1.0)
    first.rows("image", {"x": [1]})
    second = recorder(tmp_path)
    assert second.restore() is None
    second.log(step=0, x=2.0)
    second.close(ended=True)
    assert read_lines(tmp_path / "metrics.jsonl") == [{"step": 0, "x": 2.0}]
    assert not (tmp_path / "rows.jsonl").exists()


def saved(folder: Path) -> None:
    """A killed attempt: a checkpoint after two steps, and lines after it."""
    run = recorder(folder)
    run.summary(best=1)
    for step in range(4):
        run.log(step=step, x=float(step))
        run.rows("image", {"x": [step]})
        if step == 1:
            run.save({"step": 2, "weight": torch.ones(2)})
    run.summary(best=4)


def test_restoring_cuts_back_to_the_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "x"')
    run = recorder(tmp_path)
    state = run.restore()
    assert state is not None
    assert state["step"] == 2
    assert torch.equal(state["weight"], torch.ones(2))
    assert run.values == {"best": 1}
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [0, 1]
    assert list(tables(tmp_path, "image")["x"]) == [0, 1]
    assert run.restore() is None  # only at the start
    run.log(step=2, x=9.0)
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [0, 1, 2]
    run.close(ended=True)
    run.finish()
    assert not (tmp_path / "checkpoint.pt").exists()


def test_a_task_that_does_not_restore_starts_afresh(tmp_path: Path) -> None:
    saved(tmp_path)
    run = recorder(tmp_path)
    run.log(step=0, x=7.0)
    assert read_lines(tmp_path / "metrics.jsonl") == [{"step": 0, "x": 7.0}]
    assert run.restore() is None
    assert not (tmp_path / "checkpoint.pt").exists()


def test_checkpoints_that_cannot_be_used_are_not(tmp_path: Path) -> None:
    other_code = tmp_path / "code"
    other_code.mkdir()
    saved(other_code)
    assert Recorder(other_code, CONFIG, fingerprint="other").restore() is None
    for name, spoil in {
        "empty": lambda folder: (folder / "checkpoint.pt").write_bytes(b""),
        "torn": lambda folder: (folder / "checkpoint.pt").write_bytes(
            (folder / "checkpoint.pt").read_bytes()[:100]
        ),
        "lost-lines": lambda folder: (folder / "metrics.jsonl").write_bytes(b'{"step": 0'),
        "lost-file": lambda folder: (folder / "rows.jsonl").unlink(),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        saved(folder)
        spoil(folder)
        run = recorder(folder)
        assert run.restore() is None, name
        run.log(step=0, x=1.0)
        assert read_lines(folder / "metrics.jsonl") == [{"step": 0, "x": 1.0}], name


def test_draws_depend_on_seed_name_and_replicate_alone(tmp_path: Path) -> None:
    run = recorder(tmp_path)
    first = torch.rand(3, generator=run.generator("noise", 2))
    run.rng("noise", 2).normal(size=10)
    torch.rand(5)
    assert torch.equal(first, torch.rand(3, generator=recorder(tmp_path).generator("noise", 2)))
    others = [run.generator("noise", 1), run.generator("noise"), run.generator("noises", 2)]
    others.append(recorder(tmp_path, config={"seed": 4}).generator("noise", 2))
    assert all(not torch.equal(first, torch.rand(3, generator=other)) for other in others)
    assert run.rng("a", 1).random() == recorder(tmp_path).rng("a", 1).random() != run.rng("a", 2).random()
    # a name cannot be confused with another one and its number
    assert run.generator("a1", 2).initial_seed() != run.generator("a", 12).initial_seed()


def test_progress_and_deadline(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    run = recorder(tmp_path, progress_file=progress)
    assert list(run.track(range(3))) == [0, 1, 2]
    assert progress.read_text().split() == [tmp_path.name, "0", "3"]
    late = recorder(tmp_path, deadline=time.monotonic() - 1)
    with pytest.raises(DeadlineReached, match="out of time after 0 of 3 steps"):
        list(late.track(range(3)))
    with pytest.raises(DeadlineReached, match=r"after 0 of \? steps"):
        list(late.track(iter(range(3))))


def test_progress_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    run = recorder(tmp_path, progress_file=tmp_path / "nowhere" / "progress")
    assert list(run.track([1, 2])) == [1, 2]


class _Full:
    """A disk that takes a few bytes at a time, and then none."""

    def __init__(self, room: int):
        self.room, self.data = room, b""

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = data[: min(5, self.room)]
        self.room -= len(taken)
        self.data += taken
        return len(taken)


def test_a_short_write_is_continued_or_fails(tmp_path: Path) -> None:
    lines = _Lines(tmp_path / "lines")
    lines._file = disk = _Full(1000)  # type: ignore[assignment]
    lines.add({"step": 0, "value": "x" * 40})
    assert json.loads(disk.data) == {"step": 0, "value": "x" * 40}
    lines._file = _Full(12)  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left"):
        lines.add({"step": 0, "value": "x" * 40})


def test_an_artifact_needs_its_mark(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="_artifact_: true"):
        recorder(tmp_path).artifact({"_target_": "x.y"})  # type: ignore[arg-type]
