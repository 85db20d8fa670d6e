"""Progress on the terminal: a live table where there is one, plain lines elsewhere. Failures show as they happen."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runners.execute import Outcome
    from runners.launchers import Job

PLAIN_SECONDS = 15.0
ARTIFACTS = "artifacts"  # the group of preparations: what one costs says nothing of a run


class Board:
    """Counts jobs per group (experiment) and shows how far they are."""

    def __init__(self, title: str, workers: int, stream: Any = None, quiet: bool = False):
        self.title, self.workers, self.quiet = title, max(1, workers), quiet
        self.stream = stream or sys.stderr
        self.groups: dict[str, dict[str, float]] = {}
        self.failures: list[str] = []
        self.refused: Counter[str] = Counter()  # bad input that runs failed by: what is wrong -> how many
        self.started = time.monotonic()
        self._running: dict[str, tuple[int, int]] = {}
        self._since: dict[str, float] = {}  # when a running job was first seen
        self._group_of: dict[str, str] = {}
        self._live: Any = None
        self._plain_at = self.started

    def __enter__(self) -> Board:
        if self.stream.isatty() and not self.quiet:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(file=self.stream), get_renderable=self._table, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._line()

    def add(self, group: str, jobs: Sequence[Job], stored: int = 0, shared: int = 0) -> None:
        """Announce a group: its jobs, how many more the store has, how many more a group before it counts."""
        entry = self._entry(group)
        entry["total"] += len(jobs) + stored
        entry["done"] += stored
        entry["stored"] += stored
        entry["shared"] += shared
        for job in jobs:
            self._group_of[job.id] = group

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A job ended."""
        entry = self._entry(self._group_of.get(job.id, ""))
        entry["done"] += 1
        entry["seconds"] += outcome.seconds
        entry["ran"] += 1
        if outcome.status in ("failed", "timeout"):
            entry["failed"] += 1
            text = f"{outcome.status}: {job.label} {job.id}: {outcome.error}"
            self.failures.append(text)
            if outcome.refused:
                self.refused[outcome.error] += 1
            if self.refused[outcome.error] <= 1:  # what all runs refuse is said once
                self._say(text)
        elif outcome.status == "diverged":
            entry["diverged"] += 1

    def tick(self, running: dict[str, tuple[int, int]]) -> None:
        """Show progress (called about twice a second)."""
        self._running = running
        now = time.monotonic()
        self._since = {job: self._since.get(job, now) for job in running}
        if self._live is None and time.monotonic() - self._plain_at > PLAIN_SECONDS:
            self._line()

    def eta(self) -> float | None:
        """Seconds left, from the mean cost of the runs that ended and the progress of those that run.

        Before any has ended, their cost is what the progress of those that run comes to.
        """
        left = sum(entry["total"] - entry["done"] for entry in self.groups.values())
        if not left:
            return 0.0
        seconds = 0.0
        for entry in self.groups.values():
            rest = entry["total"] - entry["done"]
            if rest and entry["ran"]:
                seconds += rest * entry["seconds"] / entry["ran"]
            elif rest:
                mean = self._mean()
                if mean is None:
                    return None
                seconds += rest * mean
        parts = [done / total for done, total in self._running.values() if total]
        if parts and left:
            seconds *= max(0.0, 1 - sum(parts) / left)
        return seconds / self.workers

    def _mean(self) -> float | None:
        """Seconds of a run of whatever group."""
        ended = [entry for name, entry in self.groups.items() if entry["ran"] and name != ARTIFACTS]
        if ended:
            return sum(entry["seconds"] for entry in ended) / sum(entry["ran"] for entry in ended)
        now = time.monotonic()
        guesses = [
            (now - self._since[job]) * total / done
            for job, (done, total) in self._running.items()
            if done and total and job in self._since and self._group_of.get(job) != ARTIFACTS
        ]
        return sum(guesses) / len(guesses) if guesses else None

    def _entry(self, group: str) -> dict[str, float]:
        keys = ("total", "done", "stored", "shared", "ran", "failed", "diverged", "seconds")
        return self.groups.setdefault(group, dict.fromkeys(keys, 0.0))

    def _say(self, text: str) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(text, style="red"))
        else:
            print(text, file=self.stream, flush=True)

    def _line(self) -> None:
        self._plain_at = time.monotonic()
        parts: list[str] = []
        if self.quiet:
            return
        for name, entry in self.groups.items():
            kinds = ("stored", "shared", "failed", "diverged")
            extra = "".join(f", {int(entry[kind])} {kind}" for kind in kinds if entry[kind])
            parts.append(f"{name} {int(entry['done'])}/{int(entry['total'])}{extra}")
        if parts:
            clock = _clock(time.monotonic() - self.started)
            print(
                f"[{self.title} {clock}, left {_clock(self.eta())}] " + "; ".join(parts),
                file=self.stream,
                flush=True,
            )

    def _table(self) -> Any:
        from rich.table import Table

        table = Table(
            title=f"{self.title}   {_clock(time.monotonic() - self.started)}, left {_clock(self.eta())}"
        )
        for column in ("experiment", "done", "of", "stored", "shared", "failed", "diverged", "now"):
            table.add_column(column, justify="left" if column == "experiment" else "right")
        now: dict[str, list[str]] = {}
        for job, (done, total) in self._running.items():
            now.setdefault(self._group_of.get(job, ""), []).append(
                f"{100 * done / total:.0f}%" if total else f"{done}"
            )
        for name, entry in self.groups.items():
            keys = ("done", "total", "stored", "shared", "failed", "diverged")
            counts = [str(int(entry[key])) for key in keys]
            table.add_row(name, *counts, " ".join(now.get(name, [])))
        return table


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
