"""Global random states: kept in checkpoints, and set aside while something draws from a stream of its own."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def capture(device: torch.device) -> dict[str, Any]:
    """States of Python's, NumPy's and PyTorch's global generators (the device's too)."""
    legacy = np.random.get_state()  # noqa: NPY002  (the global one is what a library may draw from)
    states = {"python": random.getstate(), "numpy": legacy, "torch": torch.get_rng_state()}
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
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """PyTorch's global generators (CPU's and the device's) start from `seed` inside; outside they have not moved.

    `torch.manual_seed` also seeds every other kind of device, which takes longer than a small network's step.

    Example:
        >>> with seeded(1, torch.device("cpu")):
        ...     first = torch.rand(2)
        >>> with seeded(1, torch.device("cpu")):
        ...     print(torch.equal(first, torch.rand(2)))
        True
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
