"""Launchers: where runs execute. The runs and their numbers are the same under each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from runners.execute import Outcome


@dataclass
class Job:
    """One run (or one artifact, if ``artifact`` is set) to execute."""

    id: str
    config: dict[str, Any]
    fingerprint: str = ""
    label: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    artifact: bool = False
    seconds: float | None = None  # what it likely takes, where earlier runs tell

    @property
    def resources(self) -> dict[str, Any]:
        """What the task's YAML asks of the machine."""
        return dict(self.config.get("task", self.config).get("resources") or {})


@dataclass
class Settings:
    """What every job of a sweep shares."""

    root: Path
    tracker: dict[str, Any] | None = None
    stale: str = "rerun"
    again: bool = False
    fail_fast: bool = False


class Watcher(Protocol):
    """Told what happens while jobs execute (the progress display)."""

    def ended(self, job: Job, outcome: Outcome) -> None:
        """A job ended."""

    def tick(self, running: dict[str, tuple[int, int]]) -> None:
        """About twice a second: {job id: (steps done, steps in all; 0 if unknown)}."""


class Launcher(Protocol):
    """Executes jobs; used as a context manager so that its workers live across stages."""

    def __enter__(self) -> Launcher: ...

    def __exit__(self, *exception: object) -> None: ...

    def launch(self, jobs: Sequence[Job], settings: Settings, watcher: Watcher) -> dict[str, Outcome]:
        """Execute jobs and return their outcomes by id. One bad job never stops the others."""


Factory = Callable[..., Launcher]
