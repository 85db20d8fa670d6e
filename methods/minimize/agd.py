"""Nesterov's accelerated gradient descent with a known smoothness constant, convex and strongly convex."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from methods.minimize.flat import FlatParams


class AGD(torch.optim.Optimizer):
    """Accelerated gradient descent: y = x + β (x - x_prev), x⁺ = y - ∇f(y) / L.

    Convex: β_k = (λ_k - 1) / λ_{k+1}, λ_1 = 1, λ⁺ = (1 + √(1 + 4λ²)) / 2. Strongly convex:
    β = (√L - √μ) / (√L + √μ). `torch.optim.SGD(nesterov=True)` has a constant β and another time index.

    `step(closure)` calls the closure once, at y; the parameters are x again afterwards, `.grad` is ∇f(y).

    Args:
        params: tensors to optimize (one group, one dtype and device).
        smoothness: L, > 0.
        strong_convexity: μ, in (0, L]; None for the convex form.

    Raises:
        ValueError: L or μ out of range.

    Source: Nesterov, "Introductory Lectures on Convex Optimization" (2004), §2.2.

    >>> x = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = AGD([x], smoothness=4.0, strong_convexity=1.0)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (x[0] ** 2 + 4 * x[1] ** 2) / 2
    ...     loss.backward()
    ...     return loss
    >>> for _ in range(60):
    ...     loss = optimizer.step(closure)
    >>> bool(x.detach().abs().max() < 1e-10)
    True
    """

    def __init__(
        self, params: Iterable[Tensor], smoothness: float, strong_convexity: float | None = None
    ) -> None:
        if not 0 < smoothness < math.inf:
            raise ValueError(f"smoothness={smoothness}: expected a positive, finite number")
        if strong_convexity is not None and not 0 < strong_convexity <= smoothness:
            raise ValueError(f"strong_convexity={strong_convexity}: expected a number in (0, {smoothness}]")
        super().__init__(params, {"smoothness": smoothness, "strong_convexity": strong_convexity})
        if len(self.param_groups) != 1:
            raise ValueError("AGD has one parameter group")
        self._flat = FlatParams(self.param_groups[0]["params"])

    def step(self, closure: Callable[[], Any]) -> float:  # type: ignore[override]
        """One iteration; returns f(y)."""
        group, flat = self.param_groups[0], self._flat
        L, mu = group["smoothness"], group["strong_convexity"]
        state = self.state[flat.params[0]]
        x = flat.read()
        if not state:
            state["lambda"] = 1.0
            state["previous"] = torch.zeros(flat.numel, dtype=flat.dtype, device=flat.device)
            y = x + 0.0
        else:
            if mu is None:
                following = (1 + math.sqrt(1 + 4 * state["lambda"] ** 2)) / 2
                beta = (state["lambda"] - 1) / following
                state["lambda"] = following
            else:
                beta = (math.sqrt(L) - math.sqrt(mu)) / (math.sqrt(L) + math.sqrt(mu))
            y = x + beta * (x - flat.array(state["previous"]))
        flat.array(state["previous"])[...] = x
        flat.write(y)
        with torch.enable_grad():
            loss = closure()
        flat.write(y - flat.read_grad() / L)
        return loss.item() if isinstance(loss, Tensor) else float(loss)
