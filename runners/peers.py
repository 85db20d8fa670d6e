"""What the ranks of one run tell each other: that all have come to the end, what all have cost, that one has died."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

PEER_SECONDS = 1.0  # how long a rank waits to see whether its error is another one's death
SETTLE_SECONDS = 5.0  # how long a rank that diverged waits for rank 0 to record it


def all_arrived() -> None:
    """Wait for every rank: the result is written when all of them have come to the end."""
    import torch.distributed as dist

    dist.barrier()


def whole_cost(cost: dict[str, Any], status: str, ranks: int) -> dict[str, Any]:
    """Cost of all ranks from that of this one: wall-clock time is shared, the rest adds up.

    Ranks that come to the end exchange theirs; a run that diverged may have lost some, so it counts this one's
    ``ranks`` times.
    """
    costs: list[dict[str, Any]] = [cost] * ranks
    if status == "done":
        import torch.distributed as dist

        dist.all_gather_object(costs, cost)
    whole = {key: round(sum(part[key] for part in costs), 4) for key in cost}
    return whole | {"wall_seconds": cost["wall_seconds"]}


def is_gone(error: str) -> bool:
    """Whether a rank's error only says that another rank has ended (which elastic then deals with).

    Args:
        error: the error's text.
    """
    import psutil

    here = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    until = time.monotonic() + PEER_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(psutil.Error):
            if sum(map(_is_rank, psutil.Process(os.getppid()).children())) < here:
                return True
        time.sleep(0.1)
    elsewhere = here < int(os.environ.get("WORLD_SIZE") or 1)
    return elsewhere and re.search(r"(closed|reset) by peer|refused|remote process", error) is not None


def recorded(folder: Path) -> bool:
    """Whether another rank records how the run ended, soon if it has not yet."""
    until = time.monotonic() + SETTLE_SECONDS
    while not settled(folder) and time.monotonic() < until:
        time.sleep(0.1)
    return settled(folder)


def settled(folder: Path) -> bool:
    """Whether a rank has recorded how the run ended."""
    return any((folder / name).exists() for name in ("result.json", "failure.json"))


def _is_rank(process: Any) -> bool:
    return process.status() != "zombie" and "runners.rank" in process.cmdline()
