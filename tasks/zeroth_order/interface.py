"""What a task of this kind expects of a method."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class Optimizer(Protocol):
    """Minimizes a function of which only values are seen."""

    param_groups: list[dict[str, Any]]
    state: Mapping[Any, dict[str, Any]]

    def step(
        self,
        closure: Callable[[], Tensor | float] | None = None,
        *,
        batched: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """One update from values of `closure` (the scalar objective at the parameters as they are) or of
        `batched` (points [n, d] -> objectives [n]; a point is the concatenation of the flattened parameters).

        Returns the objective before the update, or an estimate of it that the step already paid for. With R
        replicates `batched` maps [R, n, d] -> [R, n], and [R] objectives come back.
        """

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Back to a checkpoint."""


class Method(Protocol):
    """Makes an optimizer of tensors that it updates in place; its draws come from `generator`.

    A list of R generators asks for R replicates at once: each tensor has a leading axis of length R, replicate r
    draws from the r-th generator alone, and its numbers do not depend on the other replicates, bit for bit.
    """

    def __call__(
        self, params: list[Tensor], *, generator: torch.Generator | list[torch.Generator], **options: Any
    ) -> Optimizer: ...


class Smoothing(Optimizer, Protocol):
    """Ascends the Gaussian smoothing of a transformed fitness, and shows both."""

    spread: float  # standard deviation of the smoothing

    def transform(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The transformed fitness where the objective has these values [n], divided by the exponential of the second
        tensor [1]."""
