"""The two-step projection after the step of a torch optimizer."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from methods.minimize.flat import FlatParams
from methods.minimize.two_step_iht.operators import Projection, check, two_step

__all__ = ["TwoStepIHT"]


class TwoStepIHT(torch.optim.Optimizer):
    r"""Gradient step, then Π_Γ(H_k(·)) of all parameters as one vector.

    With the gradient of the whole objective it is IHT-2SP; with minibatches that grow it is HSG-HT-2SP; with gradients
    estimated from function values, HZO-HT-2SP.

    Args:
        params: tensors to optimize (one group, one dtype and device).
        lr: η > 0. The theory takes 1/L.
        k: most nonzero entries over all parameters, >= 1.
        projection: onto Γ, on vectors of all parameters in order; None: no constraint but sparsity.

    Raises:
        ValueError: a hyperparameter is out of its range; Γ is not support-preserving.

    >>> from methods.minimize.two_step_iht.sets import L1Ball
    >>> target, w = torch.tensor([3.0, 1.0, -2.0]), torch.zeros(3, requires_grad=True)
    >>> optimizer = TwoStepIHT([w], lr=1.0, k=2, projection=L1Ball(3.0))
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     loss = (w - target).square().sum() / 2
    ...     loss.backward()
    ...     _ = optimizer.step()
    >>> w.tolist(), loss.item()
    ([2.0, 0.0, -1.0], 1.5)
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, k: int, projection: Projection | None = None
    ) -> None:
        if not lr > 0 or k < 1:
            raise ValueError(f"lr={lr}, k={k}: expected lr above 0 and k at least 1")
        check(projection)
        super().__init__(params, {"lr": lr})
        if len(self.param_groups) != 1:
            raise ValueError("TwoStepIHT has one parameter group: k counts over all parameters")
        self.k, self.projection = k, projection
        self._flat = FlatParams(self.param_groups[0]["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One iteration; returns what the closure returns, the loss before it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = self._flat.read() - self.param_groups[0]["lr"] * self._flat.read_grad()
        self._flat.write(two_step(moved, self.k, self.projection))
        return loss
