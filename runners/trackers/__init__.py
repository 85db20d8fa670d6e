"""Trackers: where metrics go besides our own records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """One run's tracker. A tracker that fails must say so and never stop its run.

    Its class is called with ``config, run_id, labels, folder`` and the options of its YAML. It may have a static
    method ``report(verdicts, folder, **options)``, which is handed a finished report: verdicts and figures.
    """

    def log(self, line: dict[str, Any]) -> None:
        """Take one line of metrics (``step`` and values)."""

    def finish(self, status: str, summary: dict[str, Any]) -> None:
        """Close the run."""


def report(node: dict[str, Any] | None, verdicts: dict[str, Any], folder: Path) -> None:
    """Hand a finished report to the tracker that a config names, if it takes reports."""
    from runners.build import arguments, locate

    if node and node.get("_target_"):
        target = locate(node["_target_"], "tracker")
        if hasattr(target, "report"):
            target.report(verdicts, folder, **arguments(node))
