"""Learning-rate schedules: the factor on every group's learning rate, a pure function of the step."""

import math
from collections.abc import Sequence
from typing import Protocol


class Schedule(Protocol):
    """Factor of step `step` (0, 1, ..., steps - 1)."""

    def __call__(self, step: int, steps: int) -> float: ...


def _ramp(warmup: float, step: int, steps: int) -> tuple[float, int]:
    """Linear warm-up's factor (at most 1) and its length in steps."""
    if warmup < 0:
        raise ValueError(f"warmup must be at least 0, not {warmup}")
    length = round(warmup * steps) if warmup < 1 else round(warmup)
    return min(1.0, (step + 1) / length) if length else 1.0, length


class Constant:
    """1 after the warm-up.

    Args:
        warmup: length of the linear warm-up, whose k-th step has the factor k / length: below 1 a share of all
            steps, from 1 on a number of steps.

    Example:
        >>> [Constant(warmup=4)(step, 100) for step in (0, 1, 3, 50)]
        [0.25, 0.5, 1.0, 1.0]
    """

    def __init__(self, warmup: float = 0.0) -> None:
        self.warmup = warmup

    def __call__(self, step: int, steps: int) -> float:
        """Factor of a step."""
        return _ramp(self.warmup, step, steps)[0]


class Steps:
    """Multiplied by `gamma` from each of `at` on.

    Args:
        at: shares of all steps, each in (0, 1).
        gamma: factor, above 0.
        warmup: as `Constant`.

    Example:
        >>> [round(Steps(at=[0.5, 0.75])(step, 100), 3) for step in (49, 50, 75)]
        [1.0, 0.1, 0.01]
    """

    def __init__(self, at: Sequence[float], gamma: float = 0.1, warmup: float = 0.0) -> None:
        if any(not 0 < share < 1 for share in at):
            raise ValueError(f"at must hold shares of all steps in (0, 1), not {list(at)}")
        self.at, self.gamma, self.warmup = tuple(at), gamma, warmup

    def __call__(self, step: int, steps: int) -> float:
        """Factor of a step."""
        passed = sum(step >= round(share * steps) for share in self.at)
        return _ramp(self.warmup, step, steps)[0] * self.gamma**passed


class Linear:
    """Falls linearly from 1 after the warm-up to `floor` after the last step.

    Args:
        floor: in [0, 1].
        warmup: as `Constant`.

    Example:
        >>> [Linear()(step, 4) for step in range(4)]
        [1.0, 0.75, 0.5, 0.25]
    """

    def __init__(self, floor: float = 0.0, warmup: float = 0.0) -> None:
        self.floor, self.warmup = floor, warmup

    def __call__(self, step: int, steps: int) -> float:
        """Factor of a step."""
        ramp, length = _ramp(self.warmup, step, steps)
        return ramp if step < length else 1 - (1 - self.floor) * (step - length) / max(1, steps - length)


class Cosine:
    """Falls as half a cosine from 1 after the warm-up to `floor` after the last step (Loshchilov and Hutter, 2017).

    Args:
        floor: in [0, 1].
        warmup: as `Constant`.

    Example:
        >>> [round(Cosine(warmup=2)(step, 6), 3) for step in range(6)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """

    def __init__(self, floor: float = 0.0, warmup: float = 0.0) -> None:
        self.floor, self.warmup = floor, warmup

    def __call__(self, step: int, steps: int) -> float:
        """Factor of a step."""
        ramp, length = _ramp(self.warmup, step, steps)
        if step < length:
            return ramp
        share = (step - length) / max(1, steps - length)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2
