"""Trackers: where metrics go besides our own records."""

from __future__ import annotations

from typing import Any, Protocol


class Tracker(Protocol):
    """One run's tracker. A tracker that fails must say so and never stop its run."""

    def log(self, line: dict[str, Any]) -> None:
        """Take one line of metrics (``step`` and values)."""

    def finish(self, status: str, summary: dict[str, Any]) -> None:
        """Close the run."""
