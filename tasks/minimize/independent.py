"""What a task asks of a method that solves thousands of small problems at once: one parameter, a row for each."""

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from tasks.training.recipe import Optimizer


class Method(Protocol):
    """Factory of optimizers that treat row r of the parameter [R, d] as a problem of its own.

    An optimizer that works coordinate by coordinate does so anyway (if d = 1, or its coordinates do not meet); one with
    a norm in it needs to know. A factory that names `total_steps` in its signature, and does not set it, is told the
    number of steps.
    """

    def __call__(self, params: Iterable[Tensor], **extras: Any) -> Optimizer: ...
