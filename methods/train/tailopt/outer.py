"""What the server makes of the pseudo-gradient: the mean move of the nodes, a direction of descent, so it is added."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from methods.train.tailopt.clip import biclip, check_finite

__all__ = [
    "OuterAdagrad",
    "OuterAdam",
    "OuterAverage",
    "OuterBiClip",
    "OuterNesterov",
    "OuterOptimizer",
    "OuterRMSProp",
]


class OuterOptimizer:
    """x <- x + lr · direction(Δ), once a round; base of all.

    State is kept by the place of a parameter in the list, so every call must bring the same parameters. Subclasses
    say what the direction is.

    Args:
        lr: η̃ > 0.

    Raises:
        ValueError: a hyperparameter out of its range.
    """

    buffers: tuple[str, ...] = ()  # what is kept, tensors like the parameters

    def __init__(self, lr: float = 1.0) -> None:
        if not (math.isfinite(lr) and lr > 0):
            raise ValueError(f"lr must be above 0, not {lr}")
        self.lr = lr
        self.rounds = 0
        self.state: dict[str, list[Tensor]] = {}

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], delta: Sequence[Tensor]) -> None:
        """Move the parameters in place.

        Args:
            params: x, the server's.
            delta: Δ, of the same shapes, in single precision or better; not changed.

        Raises:
            FloatingPointError: a number of Δ is not finite; parameters and state are as before.
        """
        delta = list(delta)
        check_finite(delta, "the pseudo-gradient")
        if not self.state:
            self.state = {name: [torch.zeros_like(part) for part in delta] for name in self.buffers}
        self.rounds += 1
        directions = self._directions(delta)
        torch._foreach_add_(list(params), directions, alpha=self._rate())

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"rounds": self.rounds, "state": {name: list(parts) for name, parts in self.state.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Back to a checkpoint."""
        self.rounds = state_dict["rounds"]
        self.state = {name: [t.clone() for t in parts] for name, parts in state_dict["state"].items()}

    def _rate(self) -> float:
        return self.lr

    def _directions(self, delta: list[Tensor]) -> list[Tensor]:
        raise NotImplementedError


class OuterAverage(OuterOptimizer):
    """x += lr · Δ; lr = 1 is federated averaging.

    >>> x = torch.zeros(2, dtype=torch.float64)
    >>> OuterAverage().step([x], [torch.tensor([0.045, -1.0], dtype=torch.float64)])
    >>> x.tolist()
    [0.045, -1.0]
    """

    def _directions(self, delta: list[Tensor]) -> list[Tensor]:
        return delta


class OuterNesterov(OuterOptimizer):
    """Nesterov's momentum: b <- momentum · b + Δ, x += lr · (Δ + momentum · b).

    As `torch.optim.SGD(nesterov=True)` with the gradient -Δ, the outer optimizer of DiLoCo (lr 0.7, momentum 0.9).

    Args:
        lr: > 0.
        momentum: in [0, 1).
    """

    buffers = ("momentum",)

    def __init__(self, lr: float = 0.7, momentum: float = 0.9) -> None:
        super().__init__(lr)
        _check_beta("momentum", momentum)
        self.momentum = momentum

    def _directions(self, delta: list[Tensor]) -> list[Tensor]:
        memory = self.state["momentum"]
        torch._foreach_mul_(memory, self.momentum)
        torch._foreach_add_(memory, delta)
        return list(torch._foreach_add(delta, memory, alpha=self.momentum))


class _Adaptive(OuterOptimizer):
    """x += lr · m / (√s + τ) with a running m of Δ and s of Δ²."""

    def __init__(self, lr: float, beta1: float, tau: float) -> None:
        super().__init__(lr)
        _check_beta("beta1", beta1)
        if not tau > 0:
            raise ValueError(f"tau must be above 0, not {tau}")
        self.beta1, self.tau = beta1, tau
        self.buffers = ("exp_avg", "squares") if beta1 else ("squares",)

    def _directions(self, delta: list[Tensor]) -> list[Tensor]:
        m = delta
        if self.beta1:
            m = self.state["exp_avg"]
            torch._foreach_lerp_(m, delta, 1 - self.beta1)
        self._update(self.state["squares"], delta)
        first, second = self._corrections()
        roots = torch._foreach_sqrt(self.state["squares"])
        torch._foreach_div_(roots, math.sqrt(second))
        torch._foreach_add_(roots, self.tau)
        directions = torch._foreach_div(m, roots)
        if first != 1:
            torch._foreach_div_(directions, first)
        return list(directions)

    def _update(self, squares: list[Tensor], delta: list[Tensor]) -> None:
        raise NotImplementedError

    def _corrections(self) -> tuple[float, float]:
        """What m and s are divided by, as they start from 0."""
        return 1.0, 1.0


class OuterAdagrad(_Adaptive):
    """s <- s + Δ², x += lr · Δ / (√s + τ): FedAdagrad, with momentum if beta1 > 0.

    Args:
        lr: > 0.
        tau: τ > 0, beside the root.
        beta1: in [0, 1).

    Source: the form of the authors' other code for adaptive federated optimization; s starts from 0.

    >>> x = torch.zeros(1, dtype=torch.float64)
    >>> outer = OuterAdagrad(lr=1.0, tau=0.5)
    >>> outer.step([x], [torch.tensor([1.5], dtype=torch.float64)])
    >>> x.item()
    0.75
    """

    def __init__(self, lr: float = 0.1, tau: float = 1e-3, beta1: float = 0.0) -> None:
        super().__init__(lr, beta1, tau)

    def _update(self, squares: list[Tensor], delta: list[Tensor]) -> None:
        torch._foreach_addcmul_(squares, delta, delta)


class OuterRMSProp(_Adaptive):
    """s <- β₂ s + (1 - β₂) Δ², x += lr · Δ / (√s + τ): FedRMSProp.

    Args:
        lr: > 0.
        beta2: in [0, 1).
        tau: τ > 0, beside the root.

    Source: as `OuterAdagrad`.
    """

    def __init__(self, lr: float = 0.1, beta2: float = 0.999, tau: float = 1e-3) -> None:
        super().__init__(lr, 0.0, tau)
        _check_beta("beta2", beta2)
        self.beta2 = beta2

    def _update(self, squares: list[Tensor], delta: list[Tensor]) -> None:
        torch._foreach_mul_(squares, self.beta2)
        torch._foreach_addcmul_(squares, delta, delta, 1 - self.beta2)


class OuterAdam(OuterRMSProp):
    """m <- β₁ m + (1 - β₁) Δ, s as `OuterRMSProp`; x += lr · m̂ / (√ŝ + τ), corrected by 1 - βᵗ: FedAdam.

    Args:
        lr: > 0.
        betas: β₁, β₂ in [0, 1).
        tau: τ > 0, beside the root; large relative to Δ at 1e-3 where the nodes move little.

    Source: as `OuterAdagrad`; t is the round.
    """

    def __init__(self, lr: float = 0.1, betas: tuple[float, float] = (0.9, 0.999), tau: float = 1e-3) -> None:
        _Adaptive.__init__(self, lr, betas[0], tau)
        _check_beta("beta2", betas[1])
        self.beta2 = betas[1]

    def _corrections(self) -> tuple[float, float]:
        return 1 - self.beta1**self.rounds, 1 - self.beta2**self.rounds


class OuterBiClip(OuterOptimizer):
    """x += lr·tᵛ · BiClip(u·t^ζ, d·t^γ, Δ): the outer step of Bi²Clip; no state but the round t.

    Args:
        lr: η̃ > 0; the paper's algorithm may have none of its own, so the default is 1.
        u, d: thresholds ũ and d̃, 0 <= d <= u.
        nu, zeta, gamma: exponents of the round for lr, u and d; 0: constant.

    Source: Algorithm 4; the powers as those of the inner steps in the authors' code.

    >>> x = torch.zeros(1, dtype=torch.float64)
    >>> OuterBiClip(u=0.03, d=0.01).step([x], [torch.tensor([0.045], dtype=torch.float64)])
    >>> x.item()
    0.03
    """

    def __init__(
        self,
        lr: float = 1.0,
        u: float = math.inf,
        d: float = 0.0,
        nu: float = 0.0,
        zeta: float = 0.0,
        gamma: float = 0.0,
    ) -> None:
        super().__init__(lr)
        if not 0 <= d <= u or u == 0 or math.isinf(d):
            raise ValueError(f"thresholds must satisfy 0 <= d <= u, 0 < u and d < inf, not d={d} and u={u}")
        self.u, self.d, self.nu, self.zeta, self.gamma = u, d, nu, zeta, gamma

    def _rate(self) -> float:
        return float(self.lr * self.rounds**self.nu)

    def _directions(self, delta: list[Tensor]) -> list[Tensor]:
        u = float(self.u * self.rounds**self.zeta)
        return biclip(delta, u, min(float(self.d * self.rounds**self.gamma), u))


def _check_beta(name: str, beta: float) -> None:
    if not 0 <= beta < 1:
        raise ValueError(f"{name} must be in [0, 1), not {beta}")
