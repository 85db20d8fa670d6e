"""Hard thresholding, and the two-step projection: threshold first, then project onto the convex set."""

from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

__all__ = ["Array", "Projection", "check", "hard_threshold", "keep_largest", "two_step"]

Array = Any
T = TypeVar("T", np.ndarray, Tensor)


class Projection(Protocol):
    """Euclidean projection onto a closed convex set Γ; any object with these two members serves.

    Attributes:
        support_preserving: whether the projection of a k-sparse vector never has a nonzero entry where the vector has
            none (the paper's Definition 2.3). True for norm balls, boxes around 0, budgets on sums of absolute values
            and whatever else is symmetric in every sign; false for affine sets such as the simplex.
    """

    @property
    def support_preserving(self) -> bool: ...

    def __call__(self, v: np.ndarray) -> np.ndarray:
        """The nearest point of Γ, along the last axis: (..., d) -> (..., d)."""


def keep_largest(w: T, k: int) -> T:
    """Which entries `hard_threshold` keeps: booleans (..., d), exactly min(k, d) true ones along the last axis."""
    if isinstance(w, Tensor):
        size = w.abs().nan_to_num(nan=torch.inf)  # NaN counts as large, so that it is never thresholded away
        level = size.topk(k, dim=-1).values[..., -1:] if 0 < k < w.shape[-1] else None
    else:
        size = np.where(np.isnan(w), np.inf, np.abs(w))
        cut = w.shape[-1] - k
        level = np.partition(size, cut, axis=-1)[..., cut : cut + 1] if 0 < k < w.shape[-1] else None
    if level is None:
        return size >= 0 if k > 0 else size < 0
    above, ties = size > level, size == level
    return above | (ties & (ties.cumsum(-1) <= k - above.sum(-1)[..., None]))


def hard_threshold(w: T, k: int) -> T:
    """H_k: the k entries of largest magnitude, zeros elsewhere. Of equal ones, those with the lowest index stay.

    Args:
        w: (..., d), NumPy array or torch tensor; thresholded along the last axis.
        k: >= 1. With k >= d nothing changes.

    Raises:
        ValueError: k is below 1.

    >>> hard_threshold(np.array([3.0, -1.0, 0.5, 2.9]), 2)
    array([3. , 0. , 0. , 2.9])
    """
    if k < 1:
        raise ValueError(f"k={k}: expected at least 1 nonzero entry")
    if isinstance(w, Tensor):
        return w.where(keep_largest(w, k), torch.zeros_like(w))
    return np.where(keep_largest(w, k), w, 0.0)


def two_step(w: T, k: int, projection: Projection | None = None) -> T:
    r"""Two-step projection Π_Γ(H_k(w)): a point of Γ with at most k nonzero entries.

    It is the exact projection onto {w in Γ: \|w\|_0 <= k} where Γ is symmetric in signs and coordinates (balls of
    l1, l2, l∞); elsewhere it is cheaper than the exact one, and another point.

    Args:
        w: (..., d), NumPy array or torch tensor.
        k: most nonzero entries, >= 1.
        projection: onto Γ; None: no constraint but sparsity.

    Raises:
        ValueError: k is below 1; Γ is not support-preserving, by its own word or as its result shows.

    >>> from methods.minimize.two_step_iht.sets import L1Ball, Simplex
    >>> two_step(np.array([3.0, -1.0, 0.5, 2.9]), 2, L1Ball(4.0))
    array([2.05, 0.  , 0.  , 1.95])
    >>> two_step(np.array([0.2, 0.0, 0.0]), 1, Simplex())
    Traceback (most recent call last):
    ValueError: Simplex(1.0) is not support-preserving, so the two-step projection would not stay k-sparse: take ...
    """
    sparse = hard_threshold(w, k)
    if projection is None:
        return sparse
    check(projection)
    if isinstance(sparse, Tensor):
        moved = projection(sparse.detach().cpu().double().numpy())
        result: T = torch.from_numpy(moved).to(sparse)
    else:
        result = projection(sparse)
    if ((result != 0) & (sparse == 0)).any():
        raise _not_preserving(projection)
    return result


def check(projection: Projection | None) -> None:
    """Raise ValueError for a set that says that it is not support-preserving."""
    if projection is not None and not projection.support_preserving:
        raise _not_preserving(projection)


def _not_preserving(projection: Projection) -> ValueError:
    return ValueError(
        f"{projection!r} is not support-preserving, so the two-step projection would not stay k-sparse: "
        "take a support-preserving set (in place of the simplex, SubSimplex: w >= 0 with a sum of at most the total)"
    )
