"""Preparations of a sweep: the artifacts that its coming runs ask for, each built once, before those runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runners import artifacts
from runners.execute import Outcome
from runners.identity import digest
from runners.launchers import Job, Settings
from runners.live import ARTIFACTS, Board


@dataclass
class Prepared:
    """What came of it.

    Attributes:
        outcomes: of the preparations and of the runs that went along with them.
        sent: ids of those runs.
        failed: digests of artifacts that could not be built.
        awaited: digests of those that are on their way, where the launcher does not wait.
        jobs: the preparations, by id.
        seconds: what they took.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    awaited: set[str] = field(default_factory=set)
    jobs: dict[str, Job] = field(default_factory=dict)
    seconds: float = 0.0


def needs(job: Job) -> set[str]:
    """Digests of the artifacts that a run asks for."""
    return {digest(node) for node in artifacts.nodes(job.config)}


def prepare(
    jobs: Mapping[str, Job],
    shelf: artifacts.ArtifactStore,
    launcher: Any,
    settings: Settings,
    board: Board,
    labels: dict[str, str],
) -> Prepared:
    """Build what is missing, those first that others use.

    Runs that ask for nothing that is missing go along with the first, so that no worker is idle meanwhile.
    """
    wanted = {digest(node): node for job in jobs.values() for node in artifacts.nodes(job.config)}
    missing = {key: node for key, node in wanted.items() if shelf.find(node) is None}
    inner = {digest(part) for node in missing.values() for part in artifacts.nodes(list(node.values()))}
    free = [job for job in jobs.values() if not needs(job) & missing.keys()]
    found = Prepared()
    for stage in ([key for key in missing if key in inner], [key for key in missing if key not in inner]):
        if not stage or found.awaited:
            continue
        made = [
            Job(key, missing[key], label=f"artifact {missing[key]['_target_']}", labels=labels, artifact=True)
            for key in stage
        ]
        board.add(ARTIFACTS, made)
        outcomes = launcher.launch([*made, *free], settings, board)
        found.outcomes |= outcomes
        found.sent |= {job.id for job in free}
        free = []
        found.jobs |= {job.id: job for job in made}
        ended = {key: outcomes[key] for key in stage if key in outcomes}
        found.seconds += sum(outcome.seconds for outcome in ended.values())
        found.failed |= {key for key, outcome in ended.items() if outcome.status != "done"}
        if not getattr(launcher, "wait", True):
            found.awaited |= {key for key in stage if shelf.find(missing[key]) is None} - found.failed
    return found
