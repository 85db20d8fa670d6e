"""signSGD, and what its risk does in high dimension: the equations, their solutions, the noises they know.

Xiao, Marshall, Agarwala and Paquette (2025), *Exact Risk Curves of signSGD in High-Dimensions: Quantifying
Preconditioning and Noise-Compression Effects*, arXiv 2411.12135.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from methods.minimize.sign_noise import Cauchy, Gaussian, Noise, Noiseless, Rademacher, StudentT, Uniform
from methods.minimize.sign_risk import (
    matched_rate,
    matched_sgd_ode,
    risk_ode,
    scheduled_risk,
    sgd_risk_ode,
    sgd_scheduled_risk,
    sgd_stationary_risk,
    sign_covariance,
    stationary_risk,
)
from methods.minimize.sign_sde import simulate_sde

__all__ = [
    "Cauchy",
    "Gaussian",
    "Noise",
    "Noiseless",
    "Rademacher",
    "SignSGD",
    "StudentT",
    "Uniform",
    "matched_rate",
    "matched_sgd_ode",
    "risk_ode",
    "scheduled_risk",
    "sgd_risk_ode",
    "sgd_scheduled_risk",
    "sgd_stationary_risk",
    "sign_covariance",
    "simulate_sde",
    "stationary_risk",
]


class SignSGD(torch.optim.Optimizer):
    """θ ← θ - lr · sign(∇f(θ)), the sign of each coordinate, sign(0) = 0.

    In d dimensions the risk curves of `risk_ode` are those of lr = η/d.

    Args:
        params: parameters or parameter groups.
        lr: length of the step of every coordinate, >= 0.
        maximize: step along the sign, not against it.

    Raises:
        ValueError: lr is negative.

    >>> x = torch.tensor([0.2, -0.1, 0.3], requires_grad=True)
    >>> optimizer = SignSGD([x], lr=0.5)
    >>> (x[0] - 2 * x[1]).backward()   # the gradient is (1, -2, 0)
    >>> optimizer.step()
    >>> x.detach()
    tensor([-0.3000,  0.4000,  0.3000])
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, *, maximize: bool = False) -> None:
        if not lr >= 0:
            raise ValueError(f"lr must be at least 0, not {lr!r}")
        super().__init__(params, {"lr": lr, "maximize": maximize})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; returns what the closure, if there is one, does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            length = group["lr"] if group["maximize"] else -group["lr"]
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(_sign(p.grad), alpha=length)
        return loss


def _sign(gradient: Tensor) -> Tensor:
    return (gradient.to_dense() if gradient.is_sparse else gradient).sign()
