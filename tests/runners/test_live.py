"""What a sweep shows of itself: counts, time left, failures as they happen."""

import io
import time
from typing import Any

import pytest

from runners.execute import Outcome
from runners.launchers import Job
from runners.live import Board, _clock


def jobs(count: int, first: int = 0) -> list[Job]:
    """Some jobs."""
    return [Job(f"id{index}", {}, label=f"job {index}") for index in range(first, first + count)]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def filled(stream: Any) -> Board:
    """A board with two groups, some of them ended."""
    board = Board("paper smoke", 2, stream)
    some = jobs(6)
    board.add("one", some, stored=4, shared=2)
    board.add("two", jobs(10, first=10))
    for index, status in enumerate(["done", "diverged", "failed", "timeout"]):
        board.ended(some[index], Outcome(some[index].id, status, 2.0, error="why"))
    return board


def test_counts_and_failures_on_plain_lines() -> None:
    stream = io.StringIO()
    board = filled(stream)
    assert stream.getvalue() == "failed: job 2 id2: why\ntimeout: job 3 id3: why\n"
    assert board.failures == stream.getvalue().splitlines()
    board._line()
    assert "one 8/10, 4 stored, 2 shared, 2 failed, 1 diverged; two 0/10" in stream.getvalue()


def test_the_time_left_goes_by_what_runs_cost() -> None:
    board = filled(io.StringIO())
    assert board.eta() == pytest.approx((2 + 10) * 2.0 / 2)
    board._running = {"id4": (50, 100), "id5": (0, 0)}
    assert board.eta() == pytest.approx((2 + 10) * 2.0 / 2 * (1 - 0.5 / 12))
    assert Board("x", 2, io.StringIO()).eta() == 0.0
    unknown = Board("x", 2, io.StringIO())
    unknown.add("one", jobs(3))
    assert unknown.eta() is None


def test_the_first_run_tells_the_time_left_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    board = Board("x", 1, io.StringIO())
    board.add("one", jobs(3))
    board.tick({"id0": (0, 10)})
    assert board.eta() is None
    now[0] += 4.0
    board.tick({"id0": (2, 10)})
    assert board.eta() == pytest.approx(3 * 20 - 4)
    board.ended(jobs(1)[0], Outcome("id0", "done", 30.0))
    board.tick({})
    assert board.eta() == pytest.approx(2 * 30)


def test_a_terminal_has_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with filled(stream) as board:
        board.tick({"id4": (50, 100), "id12": (3, 0)})
        board.ended(jobs(1, first=5)[0], Outcome("id5", "failed", 1.0, error="[red] is no colour"))
        time.sleep(0.05)
    shown = stream.getvalue()
    for text in (
        "paper smoke",
        "one",
        "two",
        "50%",
        "stored",
        "shared",
        "failed: job 5 id5: [red] is no colour",
    ):
        assert text in shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600, "1:00:00"), (None, "?")]
)
def test_clock(seconds: float | None, text: str) -> None:
    assert _clock(seconds) == text
