"""Aggregate proximal stochastic gradient (AProx) and proximal SGD for a piecewise-affine regularizer.

Jin, Ma, Liu, Gromov, Defazio, Xiao: PARQ (ICML 2025), section 3.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from methods.train.prox_maps import nearest_level, par_prox

__all__ = ["AProx", "ProxSGD"]


class _Proximal(torch.optim.Optimizer):
    """η_t = lr or lr / √t, for t = 1, 2, ...; one pass over all parameters that have a gradient."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        lam: float,
        q: Sequence[float],
        a: Sequence[float] | None,
        decay: Literal["sqrt", "none"],
    ) -> None:
        if not lr > 0 or not lam >= 0:
            raise ValueError(f"lr must be above 0 and lam at least 0, not {lr} and {lam}")
        if decay not in ("sqrt", "none"):
            raise ValueError(f"decay must be sqrt or none, not {decay!r}")
        if a is not None:
            par_prox(torch.zeros(1), q, a)  # levels or slopes that do not fit
        defaults = {"lr": lr, "lam": lam, "q": tuple(q), "a": None if a is None else tuple(a), "decay": decay}
        super().__init__(params, defaults)
        for group in self.param_groups:
            if any(not p.is_floating_point() for p in group["params"]):
                raise ValueError(f"{type(self).__name__} takes real floating-point parameters only")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what the closure returns.

        Raises:
            FloatingPointError: a gradient is not finite; parameters and state are as before.
            RuntimeError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moving = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if any(p.grad.is_sparse for p, _ in moving):
            raise RuntimeError(f"{type(self).__name__} does not take sparse gradients")
        if not all(bool(p.grad.isfinite().all()) for p, _ in moving):
            raise FloatingPointError("a gradient is not finite")
        for p, group in moving:
            state = self.state[p]
            t = state["step"] = state.get("step", 0) + 1
            self._update(p, state, group, group["lr"] / t**0.5 if group["decay"] == "sqrt" else group["lr"])
        return loss

    def _update(self, p: Tensor, state: dict[str, Any], group: dict[str, Any], rate: float) -> None:
        raise NotImplementedError


class AProx(_Proximal):
    r"""u -= η_t g_t (g_t taken at w), γ_t = Σ η_s, w = prox of γ_t λ Ψ at u; u starts at w.

    The regularizer weighs in with the sum of all step sizes, so that its flat pieces keep their width, and weights stay
    on the levels, as η_t falls.

    Args:
        params: w.
        lr: η > 0.
        lam: λ >= 0.
        q, a: levels 0 = q_0 < ... < q_m and slopes of Ψ, see `par_prox`. a = None: Ψ is 0 on ±q and ∞ elsewhere, which
            gives BinaryConnect, or the straight-through estimator: w is the nearest level of u.
        decay: "sqrt": η_t = η / √t, "none": η_t = η.

    Raises:
        ValueError: a value out of its range.

    Source: the paper's AProx.

    >>> w = torch.tensor([1.0, 0.2], requires_grad=True)
    >>> optimizer = AProx([w], lr=1.0, lam=1.0, q=[0, 1], a=[0.3], decay="none")
    >>> for _ in range(2):
    ...     w.grad = torch.tensor([-1.0, -0.4])
    ...     optimizer.step()
    >>> [round(x, 6) for x in w.tolist()]  # u = (3, 1), λγ = 2: pulled down by 0.6, bounded by 1
    [1.0, 0.4]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        lam: float = 1.0,
        q: Sequence[float] = (0.0, 1.0),
        a: Sequence[float] | None = (0.5,),
        decay: Literal["sqrt", "none"] = "sqrt",
    ) -> None:
        super().__init__(params, lr, lam, q, a, decay)

    def _update(self, p: Tensor, state: dict[str, Any], group: dict[str, Any], rate: float) -> None:
        if "latent" not in state:
            state["latent"], state["gamma"] = p.detach().clone(), 0.0
        u = state["latent"].sub_(p.grad, alpha=rate)
        state["gamma"] += rate
        if group["a"] is None:
            levels = torch.tensor(
                sorted({sign * level for level in group["q"] for sign in (-1, 1)}), dtype=p.dtype
            )
            nearest_level(u, levels.to(p.device), out=p.detach())
        else:
            p.copy_(par_prox(u, group["q"], group["a"], state["gamma"] * group["lam"]))


class ProxSGD(_Proximal):
    r"""Proximal SGD: w = prox of η_t λ Ψ at w - η_t g_t. Its flat pieces shrink with η_t.

    Args:
        params, lr, lam, q, a, decay: as `AProx`; a may not be None.

    Raises:
        ValueError: a value out of its range.

    >>> w = torch.tensor([1.0, 0.2], requires_grad=True)
    >>> optimizer = ProxSGD([w], lr=0.1, lam=1.0, q=[0, 1], a=[0.3], decay="none")
    >>> w.grad = torch.tensor([1.0, -0.4])
    >>> optimizer.step()
    >>> [round(x, 6) for x in w.tolist()]
    [0.87, 0.21]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        lam: float = 1.0,
        q: Sequence[float] = (0.0, 1.0),
        a: Sequence[float] = (0.5,),
        decay: Literal["sqrt", "none"] = "sqrt",
    ) -> None:
        super().__init__(params, lr, lam, q, a, decay)

    def _update(self, p: Tensor, state: dict[str, Any], group: dict[str, Any], rate: float) -> None:
        assert p.grad is not None
        p.copy_(par_prox(p - rate * p.grad, group["q"], group["a"], rate * group["lam"]))
