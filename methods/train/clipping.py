"""Gradient clipping that leaves `.grad` as it is and never lets a gradient pass that is not finite."""

from functools import reduce
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["ClipMode", "check_clip", "clipped", "over_rows", "sum_of_squares"]

ClipMode = Literal["none", "global", "layer", "coordinate"]


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
        FloatingPointError: a gradient is not finite.

    >>> [h.tolist() for h in clipped([torch.tensor([3.0, -4.0]), torch.tensor([0.5])], "layer", 1.0)]
    [[0.6, -0.8], [0.5]]
    """
    norms = _finite_norms(gradients, rows)
    if mode == "none":
        return list(gradients)
    if mode == "coordinate":
        if all(g.is_cpu for g in gradients):
            return [g.clamp(-level, level) for g in gradients]  # one pass, where foreach takes two
        bounded = torch._foreach_clamp_min(gradients, -level)
        torch._foreach_clamp_max_(bounded, level)
        return list(bounded)
    if mode == "global":
        norms = torch.linalg.vector_norm(norms, dim=0, keepdim=True).expand_as(norms)
    if rows:
        scales = (level / norms).clamp_(max=1.0)
        return [g * over_rows(scale, g) for scale, g in zip(scales, gradients, strict=True)]
    shares = [min(1.0, level / norm) if norm > 0 else 1.0 for norm in norms.tolist()]
    return list(gradients if min(shares) == 1.0 else torch._foreach_mul(gradients, shares))


def sum_of_squares(tensors: list[Tensor], rows: bool = False) -> Tensor:
    """‖v‖² of all tensors jointly: a scalar, or one number for each row."""
    return _norms(tensors, rows, _at_least_single(tensors)).square_().sum(0)


def over_rows(scale: Tensor, like: Tensor) -> Tensor:
    """Numbers [R] in a shape that multiplies the rows of a tensor [R, ...]."""
    return scale.view(-1, *[1] * (like.dim() - 1))


def _finite_norms(gradients: list[Tensor], rows: bool) -> Tensor:
    """Euclidean norms, one for each tensor [n] or for each tensor and row [n, R]."""
    norms = _norms(gradients, rows, _at_least_single(gradients))
    if not norms.isfinite().all():
        # The norm of finite numbers may overflow in single precision.
        norms = _norms(gradients, rows, torch.float64)
        finite = norms.isfinite().flatten(1).all(1) if rows else norms.isfinite()
        if not finite.all():
            worst = int(finite.logical_not().nonzero()[0])
            raise FloatingPointError(
                f"the gradient of parameter {worst} (of those with a gradient, shape "
                f"{tuple(gradients[worst].shape)}) is not finite: nothing has been changed"
            )
    return norms


def _norms(tensors: list[Tensor], rows: bool, dtype: torch.dtype) -> Tensor:
    if rows:
        return torch.stack([torch.linalg.vector_norm(t.flatten(1), dim=1, dtype=dtype) for t in tensors])
    norms = torch._foreach_norm(tensors, 2, dtype=dtype)
    return torch.stack([norm.to(norms[0].device) for norm in norms])


def _at_least_single(tensors: list[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, {t.dtype for t in tensors}, torch.float32)
