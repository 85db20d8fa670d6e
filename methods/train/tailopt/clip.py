"""Clipped local steps: both from above and from below, number by number (BiClip) or by the whole gradient's norm.

Lee, Zaheer, Li: Efficient Distributed Optimization under Heavy-Tailed Noise (ICML 2025).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["BiClipSGD", "L2ClipSGD", "biclip", "check_finite", "l2clip"]


def biclip(tensors: Sequence[Tensor], u: float, d: float = 0.0) -> list[Tensor]:
    """BiClip(u, d, g) = sgn(g) · min(max(|g|, d), u), number by number; 0 stays 0.

    Args:
        tensors: g; not changed. Half-precision tensors are clipped in single precision.
        u, d: 0 <= d <= u.

    Source: abstract and algorithms of the paper.

    >>> g = torch.tensor([0, 1e-9, -0.02, 0.05, -0.3, 0.5, -7])
    >>> biclip([g], u=0.5, d=0.1)[0]
    tensor([ 0.0000,  0.1000, -0.1000,  0.1000, -0.3000,  0.5000, -0.5000])
    """
    exact = [_at_least_single(t) for t in tensors]
    if d == 0:
        if math.isinf(u):
            return exact
        return [t.clamp(-u, u) for t in exact]
    sizes = torch._foreach_abs(exact)
    torch._foreach_clamp_min_(sizes, d)
    if not math.isinf(u):
        torch._foreach_clamp_max_(sizes, u)
    torch._foreach_mul_(sizes, torch._foreach_sign(exact))  # copysign would lift exact zeros
    return list(sizes)


def l2clip(tensors: Sequence[Tensor], u: float, d: float = 0.0, rows: bool = False) -> list[Tensor]:
    """Rescale g so that d <= ‖g‖ <= u, where ‖g‖ is the Euclidean norm of all tensors jointly; 0 stays 0.

    Args:
        tensors: g; not changed. Half-precision tensors are clipped in single precision.
        u, d: 0 <= d <= u.
        rows: the first dimension of every tensor counts independent models, each clipped by its own norm.

    Source: u as in the paper, d as in the authors' code.

    >>> l2clip([torch.tensor([3.0, -4.0]), torch.tensor([12.0])], u=6.5)
    [tensor([ 1.5000, -2.0000]), tensor([6.])]
    """
    exact = [_at_least_single(t) for t in tensors]
    norm = _joint_norm(exact, rows)
    if norm.isinf().any():  # the squares of finite numbers may overflow
        norm = _joint_norm([t.double() for t in exact], rows)
    target = norm.clamp(d, u)
    factor = torch.where(norm > 0, target / norm, torch.zeros_like(norm))
    factor = torch.where(target == norm, torch.ones_like(factor), factor)
    if rows:
        return [t * factor.view(-1, *[1] * (t.dim() - 1)).to(t.dtype) for t in exact]
    return list(torch._foreach_mul(exact, float(factor)))


def check_finite(tensors: Sequence[Tensor], what: str) -> None:
    """Raise FloatingPointError where a number of the tensors is not finite."""
    largest = torch._foreach_norm(list(tensors), math.inf)
    home = largest[0].device
    if not torch.stack([n.float().to(home) for n in largest]).isfinite().all():
        bad = next(i for i, t in enumerate(tensors) if not t.isfinite().all())
        shape = tuple(tensors[bad].shape)
        raise FloatingPointError(
            f"{what} of parameter {bad} (shape {shape}) is not finite: nothing has been changed"
        )


class _Clipped(torch.optim.Optimizer):
    """p -= lr_t · clip(g), then p *= 1 - lr_t · weight_decay; lr, u and d may follow powers of the round t."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        u: float,
        d: float,
        nu: float,
        zeta: float,
        gamma: float,
        weight_decay: float,
        **own: Any,
    ) -> None:
        for name, value in {"lr": lr, "weight_decay": weight_decay}.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a number of at least 0, not {value}")
        _check_thresholds(u, d)
        powers = {"nu": nu, "zeta": zeta, "gamma": gamma}
        defaults = {"lr": lr, "u": u, "d": d, **powers, "weight_decay": weight_decay, "round": 1}
        super().__init__(params, {**defaults, **own})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; every hyperparameter may be its own.

        Raises:
            ValueError: a complex parameter.
        """
        super().add_param_group(param_group)
        if any(p.is_complex() for p in self.param_groups[-1]["params"]):
            self.param_groups.pop()
            raise ValueError(
                f"{type(self).__name__} does not take complex parameters: optimize torch.view_as_real of it"
            )

    def next_round(self) -> None:
        """t <- t + 1, for the powers of t; `NestedTrainer` sets t by itself."""
        for group in self.param_groups:
            group["round"] += 1

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient; returns what the closure returns.

        Raises:
            FloatingPointError: a gradient is not finite; parameters are as before.
            RuntimeError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        gradients = [[p.grad for p in params] for params in found]
        for gradient in (g for part in gradients for g in part):
            if gradient.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not take sparse gradients")
        if flat := [g for part in gradients for g in part]:
            check_finite(flat, "the gradient")
        for params, part, group in zip(found, gradients, self.param_groups, strict=True):
            if not params:
                continue
            t = group["round"]
            lr, u, d = (
                _power(group, "lr", "nu", t),
                _power(group, "u", "zeta", t),
                _power(group, "d", "gamma", t),
            )
            _add(params, self._clip(part, u, min(d, u), group), -lr)
            if group["weight_decay"]:
                torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        return loss

    def _clip(self, gradients: list[Tensor], u: float, d: float, group: dict[str, Any]) -> list[Tensor]:
        raise NotImplementedError


class BiClipSGD(_Clipped):
    r"""Stochastic gradient descent with every number of the gradient clipped from above and from below.

    In round t: p -= lr·tᵛ · BiClip(u·t^ζ, d·t^γ, g), see `biclip`; then p *= 1 - lr·tᵛ · weight_decay. d = 0 is
    coordinate clipping, d = u sign descent, d = 0 with u = inf plain SGD. There is no state beyond the parameters.

    Args:
        params: real tensors or groups of them.
        lr: >= 0.
        u, d: thresholds, 0 <= d <= u; d is cut to u where the powers of t let them cross.
        nu, zeta, gamma: exponents of t for lr, u and d; 0: constant.
        weight_decay: decoupled, >= 0, so that it cannot make an exact zero of the gradient another number.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    Source: inner steps of Algorithms 1 and 4; the powers and weight decay as in the authors' code.

    >>> x = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    >>> x.grad = torch.tensor([-4.0, 0.02, 0.0], dtype=torch.float64)
    >>> BiClipSGD([x], lr=0.1, u=1.0, d=0.1).step()
    >>> x.tolist()
    [1.1, 0.99, 1.0]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        u: float = math.inf,
        d: float = 0.0,
        nu: float = 0.0,
        zeta: float = 0.0,
        gamma: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr, u, d, nu, zeta, gamma, weight_decay)

    def _clip(self, gradients: list[Tensor], u: float, d: float, group: dict[str, Any]) -> list[Tensor]:
        return biclip(gradients, u, d)


class L2ClipSGD(_Clipped):
    r"""Stochastic gradient descent with the norm of the whole gradient clipped from above (and from below, if d > 0).

    As `BiClipSGD`, with `l2clip`. The norm is that of each parameter group jointly; with one group, of all parameters.

    Args:
        rows: the first dimension of every parameter counts independent models, each clipped by its own norm.
        others: as `BiClipSGD`; d > 0 is the two-sided form of the authors' code.

    Raises:
        ValueError: a hyperparameter out of its range, a complex parameter.

    Source: Algorithm 1; see `BiClipSGD`.

    >>> x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    >>> x.grad = torch.tensor([3.0, -4.0, 12.0], dtype=torch.float64)
    >>> L2ClipSGD([x], lr=1.0, u=6.5).step()
    >>> x.tolist()
    [-1.5, 2.0, -6.0]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        u: float = 1.0,
        d: float = 0.0,
        nu: float = 0.0,
        zeta: float = 0.0,
        gamma: float = 0.0,
        weight_decay: float = 0.0,
        rows: bool = False,
    ) -> None:
        super().__init__(params, lr, u, d, nu, zeta, gamma, weight_decay, rows=rows)

    def _clip(self, gradients: list[Tensor], u: float, d: float, group: dict[str, Any]) -> list[Tensor]:
        return l2clip(gradients, u, d, group["rows"])


def _check_thresholds(u: float, d: float) -> None:
    if not 0 <= d <= u or u == 0 or math.isinf(d):
        raise ValueError(f"thresholds must satisfy 0 <= d <= u, 0 < u and d < inf, not d={d} and u={u}")


def _power(group: dict[str, Any], name: str, exponent: str, t: int) -> float:
    """A hyperparameter in round t."""
    return float(group[name] * t ** group[exponent])


def _at_least_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _joint_norm(tensors: Sequence[Tensor], rows: bool) -> Tensor:
    """Norm of all tensors together: a scalar, or one number for each row."""
    if rows:
        norms = torch.stack([torch.linalg.vector_norm(t.flatten(1), dim=1) for t in tensors])
        return torch.linalg.vector_norm(norms, dim=0)
    home = tensors[0].device
    norms = torch.stack([norm.to(home) for norm in torch._foreach_norm(list(tensors), 2)])
    return torch.linalg.vector_norm(norms)


def _add(params: list[Tensor], directions: list[Tensor], factor: float) -> None:
    """p += factor · direction, rounded once to the parameter's type."""
    torch._foreach_add_(params, directions, alpha=factor)
