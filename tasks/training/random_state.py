"""Global random states: kept in checkpoints, and set aside while something draws from a stream of its own."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def capture(device: torch.device) -> dict[str, Any]:
    """States of Python's, NumPy's and PyTorch's global generators (the device's too)."""
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def reinstate(states: dict[str, Any], device: torch.device) -> None:
    """Back to what `capture` saw.

    Example:
        >>> states = capture(torch.device("cpu"))
        >>> first = torch.rand(2)
        >>> reinstate(states, torch.device("cpu"))
        >>> torch.equal(first, torch.rand(2))
        True
    """
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """PyTorch's global generators start from `seed` inside; outside they have not moved."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
