"""Gradient clipping that leaves `.grad` as it is and never lets a gradient pass that is not finite."""

import math
from dataclasses import dataclass
from functools import reduce
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = [
    "ClipMode",
    "Plan",
    "Scaled",
    "check_clip",
    "clipped",
    "over_rows",
    "parts",
    "plan_clip",
    "sum_of_squares",
]

ClipMode = Literal["none", "global", "layer", "coordinate"]

SMALLEST = 1e-9  # a factor whose square single precision holds with ease


def check_clip(mode: str, level: float) -> None:
    """Raise ValueError for an unknown mode or a level that is not above 0."""
    if mode not in get_args(ClipMode):
        raise ValueError(f"clip_mode must be one of {', '.join(get_args(ClipMode))}, not {mode!r}")
    if not level > 0:
        raise ValueError(f"clip must be above 0, not {level}")


def clipped(gradients: list[Tensor], mode: ClipMode, level: float, rows: bool = False) -> list[Tensor]:
    """clip(v, λ) = min(1, λ/‖v‖) v, with clip(0, λ) = 0.

    Args:
        gradients: one tensor for each parameter; they are not changed.
        mode: what v is: all gradients jointly ("global"), each tensor ("layer"), each number ("coordinate"), or
            nothing ("none").
        level: λ > 0.
        rows: the first dimension of every tensor counts independent problems, each clipped on its own.

    Returns:
        New tensors, or the given ones if there is nothing to clip.

    Raises:
        FloatingPointError: a gradient is not finite, or, where nothing is clipped, too large to be squared.

    >>> [h.tolist() for h in clipped([torch.tensor([3.0, -4.0]), torch.tensor([0.5])], "layer", 1.0)]
    [[0.6, -0.8], [0.5]]
    """
    if not rows or mode in ("none", "coordinate"):
        return plan_clip(gradients, mode, level, rows).of(gradients).tensors_scaled()
    norms = _joined(_finite_norms(gradients, mode, rows), mode)
    scales = (level / norms).clamp_(max=1.0)
    return [g * over_rows(scale, g) for scale, g in zip(scales, gradients, strict=True)]


@dataclass(frozen=True)
class Scaled:
    """The tensors h_i = factors_i · tensors_i, not yet multiplied out: that would take another pass and more memory."""

    tensors: list[Tensor]
    factors: list[float]

    def tensors_scaled(self) -> list[Tensor]:
        """h; the tensors themselves if all factors are 1."""
        if min(self.factors) == max(self.factors) == 1:
            return list(self.tensors)
        return list(torch._foreach_mul(self.tensors, self.factors))

    def average_into(self, averages: list[Tensor], weight: float) -> None:
        """a = (1 - weight) a + weight h, in place."""
        low, high = min(self.factors), max(self.factors)
        if low == high == 1:
            torch._foreach_lerp_(averages, self.tensors, weight)
            return
        torch._foreach_mul_(averages, 1 - weight)
        if low == high:
            torch._foreach_add_(averages, self.tensors, alpha=weight * low)
        elif all(average.is_cpu for average in averages):
            for average, tensor, factor in zip(averages, self.tensors, self.factors, strict=True):
                average.add_(tensor, alpha=weight * factor)
        else:  # few launches count for more than memory
            weights = [weight * factor for factor in self.factors]
            torch._foreach_add_(averages, torch._foreach_mul(self.tensors, weights))

    def add_squares_to(self, sums: list[Tensor], weight: float) -> None:
        """s += weight h², in place."""
        weights = [weight * factor**2 for factor in self.factors]
        torch._foreach_addcmul_(sums, self.tensors, self.tensors, weights)


@dataclass(frozen=True)
class Plan:
    """How gradients are to be clipped: by a factor each, or number by number to [-bound, bound]."""

    factors: list[float]
    bound: float | None

    def of(self, gradients: list[Tensor], part: slice = slice(None)) -> Scaled:
        """Those of the gradients that `part` names, clipped; h without the other parts' memory."""
        chosen, factors = gradients[part], self.factors[part]
        if self.bound is not None:
            if all(g.is_cpu for g in chosen):
                return Scaled(
                    [g.clamp(-self.bound, self.bound) for g in chosen], factors
                )  # foreach: two passes
            bounded = torch._foreach_clamp_min(chosen, -self.bound)
            torch._foreach_clamp_max_(bounded, self.bound)
            return Scaled(list(bounded), factors)
        scaled = Scaled(chosen, factors)
        return scaled if min(factors) > SMALLEST else Scaled(scaled.tensors_scaled(), [1.0] * len(chosen))


def plan_clip(gradients: list[Tensor], mode: ClipMode, level: float, rows: bool = False) -> Plan:
    """The part of `clipped` that has to see all gradients.

    `rows` makes no difference but to what is checked, and goes with "none" and "coordinate" only.
    """
    norms = _finite_norms(gradients, mode, rows)
    if mode in ("none", "coordinate"):
        return Plan([1.0] * len(gradients), level if mode == "coordinate" else None)
    return Plan([min(1.0, level / norm) if norm > 0 else 1.0 for norm in _joined(norms, mode).tolist()], None)


def parts(tensors: list[Tensor], numbers: int = 2**19) -> list[slice]:
    """On a CPU, stretches of about so many numbers, which stay in its caches from one kernel to the next; else all."""
    if not all(tensor.is_cpu for tensor in tensors):
        return [slice(None)]
    found, first, count = [], 0, 0
    for place, tensor in enumerate(tensors):
        if count and count + tensor.numel() > numbers:
            found.append(slice(first, place))
            first, count = place, 0
        count += tensor.numel()
    return [*found, slice(first, len(tensors))]


def sum_of_squares(tensors: list[Tensor], rows: bool = False) -> Tensor:
    """‖v‖² of all tensors jointly: a scalar, or one number for each row."""
    return _norms(tensors, rows, _at_least_single(tensors)).square_().sum(0)


def over_rows(scale: Tensor, like: Tensor) -> Tensor:
    """Numbers [R] in a shape that multiplies the rows of a tensor [R, ...]."""
    return scale.view(-1, *[1] * (like.dim() - 1))


def _joined(norms: Tensor, mode: ClipMode) -> Tensor:
    """Norms by which the tensors are clipped, from those of the tensors [n, ...]."""
    if mode == "layer":
        return norms
    return torch.linalg.vector_norm(norms, dim=0, keepdim=True).expand_as(norms)


def _finite_norms(gradients: list[Tensor], mode: ClipMode, rows: bool) -> Tensor:
    """Euclidean norms, one for each tensor [n] or for each tensor and row [n, R]."""
    norms = _norms(gradients, rows, _at_least_single(gradients))
    if math.isfinite(norms.sum().item()):
        return norms
    # In single precision the norm of finite numbers may overflow; clipped, they are as good as others.
    precise = _norms(gradients, rows, torch.float64)
    if mode != "none" and math.isfinite(precise.sum().item()):
        return precise
    finite = (norms if math.isfinite(precise.sum().item()) else precise).isfinite()
    worst = int((finite.all(1) if rows else finite).logical_not().nonzero()[0])
    what = "too large to be squared" if precise[worst].isfinite().all() else "not finite"
    raise FloatingPointError(
        f"the gradient of parameter {worst} (of those with a gradient, shape {tuple(gradients[worst].shape)}) "
        f"is {what}: nothing has been changed"
    )


def _norms(tensors: list[Tensor], rows: bool, dtype: torch.dtype) -> Tensor:
    if rows:
        return torch.stack([torch.linalg.vector_norm(t.flatten(1), dim=1, dtype=dtype) for t in tensors])
    norms = torch._foreach_norm(tensors, 2, dtype=dtype)
    home = norms[0].device
    return torch.stack([norm if norm.device == home else norm.to(home) for norm in norms])


def _at_least_single(tensors: list[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, {t.dtype for t in tensors}, torch.float32)
