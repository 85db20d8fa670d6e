"""Convex sets with cheap projections, for `two_step`.

All but `Simplex` are support-preserving. Sizes (`radius`, `total`) may be arrays that broadcast over the leading axes
of the points, one set for each of many replicates.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

__all__ = ["Ball", "Box", "GroupBudget", "L1Ball", "L2Ball", "Simplex", "SubSimplex", "WeightedL1Ball"]


class Ball:
    """{w: gauge(w) <= radius} for a norm, or for something like one.

    Args:
        radius: > 0; a number, or an array that broadcasts over leading axes.

    Raises:
        ValueError: a radius that is not positive.
    """

    support_preserving: ClassVar[bool] = True

    def __init__(self, radius: float | np.ndarray = 1.0) -> None:
        self.radius = np.asarray(radius, dtype=float)
        if not (self.radius > 0).all():
            raise ValueError(f"{type(self).__name__}: the size must be positive, not {radius}")

    def __repr__(self) -> str:
        size = float(self.radius) if self.radius.ndim == 0 else f"{self.radius.size} sizes"
        return f"{type(self).__name__}({size})"

    def gauge(self, w: np.ndarray) -> np.ndarray:
        """Least radius of a set of this shape that holds w: (..., d) -> (...)."""
        raise NotImplementedError

    def __call__(self, v: np.ndarray) -> np.ndarray:
        """Projection along the last axis, (..., d) -> (..., d)."""
        raise NotImplementedError


class L1Ball(Ball):
    """Σ|w_i| <= radius.

    >>> L1Ball(4.0)(np.array([3.0, 0.0, 0.0, 2.9]))
    array([2.05, 0.  , 0.  , 1.95])
    """

    def gauge(self, w: np.ndarray) -> np.ndarray:
        return np.abs(w).sum(-1)

    def __call__(self, v: np.ndarray) -> np.ndarray:
        return _shrink(v, 1.0, self.radius)


class WeightedL1Ball(Ball):
    """Σ c_i |w_i| <= radius: sign-free, but neither symmetric in its coordinates nor separable.

    Args:
        weights: c, (d,), > 0.
        radius: as `Ball`.

    >>> WeightedL1Ball([1.0, 2.0], 4.0)(np.array([4.0, 3.0]))
    array([2.8, 0.6])
    """

    def __init__(self, weights: Sequence[float] | np.ndarray, radius: float | np.ndarray = 1.0) -> None:
        super().__init__(radius)
        self.weights = np.asarray(weights, dtype=float)
        if not (self.weights > 0).all():
            raise ValueError("WeightedL1Ball: the weights must be positive")

    def gauge(self, w: np.ndarray) -> np.ndarray:
        return (self.weights * np.abs(w)).sum(-1)

    def __call__(self, v: np.ndarray) -> np.ndarray:
        return _shrink(v, self.weights, self.radius)


class L2Ball(Ball):
    """‖w‖ <= radius.

    >>> L2Ball()(np.array([3.0, 0.0, 0.0, 4.0]))
    array([0.6, 0. , 0. , 0.8])
    """

    def gauge(self, w: np.ndarray) -> np.ndarray:
        return np.sqrt(np.square(w).sum(-1))

    def __call__(self, v: np.ndarray) -> np.ndarray:
        norm = self.gauge(v)
        factor = np.where(norm > self.radius, self.radius / np.maximum(norm, np.finfo(float).tiny), 1.0)
        return v * factor[..., None]


class Box(Ball):
    """|w_i| <= radius c_i; the ball of l∞ if all c_i are 1.

    Args:
        radius: as `Ball`.
        widths: c, (d,), > 0; None: ones.

    >>> Box(1.0, widths=[1.0, 2.9])(np.array([3.0, 0.0]))
    array([1., 0.])
    """

    def __init__(self, radius: float | np.ndarray = 1.0, widths: Sequence[float] | None = None) -> None:
        super().__init__(radius)
        self.widths = np.asarray(1.0 if widths is None else widths, dtype=float)
        if not (self.widths > 0).all():
            raise ValueError("Box: the widths must be positive")

    def gauge(self, w: np.ndarray) -> np.ndarray:
        return (np.abs(w) / self.widths).max(-1)

    def __call__(self, v: np.ndarray) -> np.ndarray:
        bound = self.radius[..., None] * self.widths
        return np.clip(v, -bound, bound)


class GroupBudget(Ball):
    """Σ_{i in g} |w_i| <= radius D_g for every group g.

    Args:
        groups: group of each coordinate, (d,), integers from 0 to G - 1.
        budgets: D, (G,), > 0.
        radius: as `Ball`.

    >>> GroupBudget([0, 0, 1], [1.0, 5.0])(np.array([2.0, 0.0, 3.0]))
    array([1., 0., 3.])
    """

    def __init__(
        self, groups: Sequence[int], budgets: Sequence[float], radius: float | np.ndarray = 1.0
    ) -> None:
        super().__init__(radius)
        self.groups, self.budgets = np.asarray(groups, dtype=int), np.asarray(budgets, dtype=float)
        if not (self.budgets > 0).all():
            raise ValueError("GroupBudget: the budgets must be positive")
        if self.groups.min() < 0 or self.groups.max() >= self.budgets.size:
            raise ValueError(f"GroupBudget: groups 0 to {self.budgets.size - 1} have a budget")
        self._members = [np.flatnonzero(self.groups == g) for g in range(self.budgets.size)]

    def gauge(self, w: np.ndarray) -> np.ndarray:
        sums = [
            np.abs(w[..., members]).sum(-1) / budget
            for members, budget in zip(self._members, self.budgets, strict=True)
        ]
        return np.max(sums, axis=0)

    def __call__(self, v: np.ndarray) -> np.ndarray:
        out = np.array(v, dtype=float)
        for members, budget in zip(self._members, self.budgets, strict=True):
            out[..., members] = _shrink(out[..., members], 1.0, self.radius * budget)
        return out


class SubSimplex(Ball):
    """w >= 0, Σ w_i <= radius. Not sign-free, yet support-preserving: the projection is max(v - θ, 0) with θ >= 0.

    >>> SubSimplex()(np.array([0.2, 0.0, -3.0])), SubSimplex()(np.array([2.0, 0.0, 0.0]))
    (array([0.2, 0. , 0. ]), array([1., 0., 0.]))
    """

    def gauge(self, w: np.ndarray) -> np.ndarray:
        return np.where((w >= 0).all(-1), w.sum(-1), np.inf)

    def __call__(self, v: np.ndarray) -> np.ndarray:
        return _shrink(np.maximum(v, 0.0), 1.0, self.radius)


class Simplex(Ball):
    """w >= 0, Σ w_i = radius: not support-preserving, so `two_step` refuses it.

    >>> Simplex()(np.array([0.2, 0.0, 0.0])).round(4)
    array([0.4667, 0.2667, 0.2667])
    """

    support_preserving: ClassVar[bool] = False

    def gauge(self, w: np.ndarray) -> np.ndarray:
        return np.where((w >= 0).all(-1), w.sum(-1), np.inf)

    def __call__(self, v: np.ndarray) -> np.ndarray:
        total = self.radius[..., None]
        ordered = -np.sort(-v, axis=-1)
        levels = (ordered.cumsum(-1) - total) / np.arange(1, v.shape[-1] + 1)
        last = (ordered > levels).sum(-1, keepdims=True) - 1
        return np.maximum(v - np.take_along_axis(levels, last, -1), 0.0)


def _shrink(v: np.ndarray, weights: float | np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Projection onto Σ c_i |v_i| <= radius: sign(v) max(|v| - θ c, 0), θ from the sorted |v_i| / c_i."""
    size = np.abs(v)
    outside = (weights * size).sum(-1) > radius
    if not outside.any():
        return np.array(v, dtype=float)
    if isinstance(weights, float):
        ordered = -np.sort(-size, axis=-1)
        levels = (ordered.cumsum(-1) - radius[..., None]) / np.arange(1, v.shape[-1] + 1)
    else:
        order = np.argsort(-size / weights, axis=-1)
        c = weights[order]
        sorted_size = np.take_along_axis(size, order, -1)
        ordered = sorted_size / c
        levels = ((c * sorted_size).cumsum(-1) - radius[..., None]) / (c * c).cumsum(-1)
    last = np.maximum((ordered > levels).sum(-1, keepdims=True) - 1, 0)
    theta = np.where(outside[..., None], np.take_along_axis(levels, last, -1), 0.0)
    return np.sign(v) * np.maximum(size - theta * weights, 0.0)
