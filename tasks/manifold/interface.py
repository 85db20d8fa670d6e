"""What a task of the kind `manifold` asks of a method: the shape of geoopt's optimizers."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch


class Optimizer(Protocol):
    """A torch optimizer that keeps geoopt's `ManifoldParameter`s on their manifolds."""

    state: Any

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters along their manifolds, by their Euclidean `.grad`.

        With a closure, which evaluates the loss and sets the gradients, a step may ask for them any number of times.
        """


class Method(Protocol):
    """A factory of optimizers. Parameters are `geoopt.ManifoldParameter`s or plain tensors (Euclidean)."""

    def __call__(self, params: Iterable[torch.Tensor]) -> Optimizer: ...
