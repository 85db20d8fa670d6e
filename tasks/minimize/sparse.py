"""Sparse constrained problems: what a task hands to a method, what it asks of it, and the best a support can do.

min R(w) over w with at most k nonzero entries in a convex set Γ. Points carry a leading axis of R replicates, each a
problem of its own: (R, d).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np


class Projection(Protocol):
    """Euclidean projection onto Γ."""

    @property
    def support_preserving(self) -> bool: ...

    def __call__(self, v: np.ndarray) -> np.ndarray:
        """(..., d) -> (..., d)."""


class Ball(Projection, Protocol):
    """Γ = {w: gauge(w) <= radius}; the radius may be an array (R,)."""

    radius: np.ndarray

    def gauge(self, w: np.ndarray) -> np.ndarray:
        """(..., d) -> (...)."""


class BallFactory(Protocol):
    """Γ of a given size."""

    def __call__(self, *, radius: Any) -> Ball: ...


class Objective(Protocol):
    """R(w), a mean of `terms` terms, with smoothness L; `shape` is that of a point."""

    shape: tuple[int, ...]
    terms: int
    smoothness: Any

    def gradient(self, w: np.ndarray) -> np.ndarray:
        """∇R, (..., d)."""

    def batch_gradient(self, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Mean gradient of the terms `batch`, (..., m), at w, (..., d)."""

    def values(self, points: np.ndarray) -> np.ndarray:
        """R at q points of each replicate: (..., q, d) -> (..., q)."""


class Method(Protocol):
    """An endless iterator of iterates w_1, w_2, ... from w_0 = 0; replicate r draws from the r-th generator."""

    def __call__(
        self,
        objective: Objective,
        k: int,
        projection: Projection | None,
        rng: Sequence[np.random.Generator],
    ) -> Iterator[np.ndarray]: ...


class Operator(Protocol):
    """A map onto the points of Γ with at most k nonzero entries, along the last axis."""

    def __call__(self, w: np.ndarray, k: int, projection: Projection | None) -> np.ndarray: ...


class Regressions:
    """Least squares R(w) = ‖A w - b‖² / (2n), R replicates at once, with a count of what is paid for.

    Args:
        A: (R, n, d).
        b: (R, n).

    Attributes:
        smoothness: L, (R, 1): the largest eigenvalue of AᵀA / n.
        convexity: ν, (R, 1): the smallest.
        paid: gradients of single terms, or function values, of each replicate so far.
    """

    def __init__(self, A: np.ndarray, b: np.ndarray) -> None:
        self.A, self.b = A, b
        self.replicates, self.terms, d = A.shape
        self.shape: tuple[int, ...] = (self.replicates, d)
        self.moment = _times(A.transpose(0, 2, 1), b) / self.terms
        self.gram = A.transpose(0, 2, 1) @ A / self.terms if d <= self.terms else None
        small = A @ A.transpose(0, 2, 1) / self.terms if self.gram is None else self.gram
        eigenvalues = np.linalg.eigvalsh(small)
        self.smoothness: Any = eigenvalues[:, -1:]
        smallest = np.zeros((self.replicates, 1)) if self.gram is None else eigenvalues[:, :1]
        self.convexity = np.maximum(smallest, 0.0)
        self.paid = 0

    def gradient(self, w: np.ndarray) -> np.ndarray:
        self.paid += self.terms
        return self.slope(w)

    def slope(self, w: np.ndarray) -> np.ndarray:
        """The gradient, uncounted."""
        return self._hessian(w) - self.moment

    def batch_gradient(self, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        self.paid += batch.shape[-1]
        out = np.empty_like(w)
        for i, chosen in enumerate(batch):
            rows = self.A[i, chosen]
            out[i] = (rows @ w[i] - self.b[i, chosen]) @ rows / chosen.size
        return out

    def values(self, points: np.ndarray) -> np.ndarray:
        self.paid += points.shape[-2]
        out = np.empty(points.shape[:-1])
        for i, mine in enumerate(points):
            residual = mine @ self.A[i].T - self.b[i]
            out[i] = np.einsum("qn,qn->q", residual, residual) / (2 * self.terms)
        return out

    def value(self, w: np.ndarray) -> np.ndarray:
        """R(w), uncounted: (R, d) -> (R,)."""
        squares: np.ndarray = np.square(_times(self.A, w) - self.b).sum(-1)
        return squares / (2 * self.terms)

    def difference(self, w: np.ndarray, other: np.ndarray) -> np.ndarray:
        """R(w) - R(other), uncounted and without cancellation: (R,)."""
        step = w - other
        found: np.ndarray = ((self.slope(other) + self._hessian(step) / 2) * step).sum(-1)
        return found

    def best(self, supports: np.ndarray, projection: Projection | None) -> np.ndarray:
        """The best point of Γ on one support for each replicate, (R, s) indices: (R, d)."""
        columns = np.take_along_axis(self.A, supports[:, None, :], -1)
        gram = columns.transpose(0, 2, 1) @ columns / self.terms
        moment = np.take_along_axis(self.moment, supports, -1)
        return best_on_support(gram, moment, supports, self.shape[-1], projection)

    def above_own_best(self, w: np.ndarray) -> np.ndarray:
        """R(w) minus the least R on the support of w, without Γ: (R,)."""
        best = np.zeros_like(w)
        for i, row in enumerate(w):
            columns = self.A[i][:, row != 0]
            best[i, row != 0] = np.linalg.lstsq(columns, self.b[i])[0]
        return self.difference(w, best)

    def _hessian(self, w: np.ndarray) -> np.ndarray:
        """AᵀA w / n."""
        if self.gram is not None:
            return _times(self.gram, w)
        return _times(self.A.transpose(0, 2, 1), _times(self.A, w)) / self.terms


def top(w: np.ndarray, k: int) -> np.ndarray:
    """Hard thresholding by a stable sort: (..., d) -> (..., d). Independent of the methods', to check them."""
    kept = np.argsort(-np.abs(w), axis=-1, kind="stable")[..., :k]
    out = np.zeros_like(w)
    np.put_along_axis(out, kept, np.take_along_axis(w, kept, -1), -1)
    return out


def best_on_support(
    gram: np.ndarray,
    moment: np.ndarray,
    support: np.ndarray,
    dim: int,
    projection: Projection | None,
    most: int = 20_000,
    tol: float = 1e-13,
) -> np.ndarray:
    """The minimizer of ½ wᵀGw - mᵀw over the points of Γ on a support: accelerated projected gradient.

    Args:
        gram: rows and columns of G on the support, (..., s, s).
        moment: entries of m on it, (..., s).
        support: indices, (..., s).
        dim: d.
        projection: onto Γ, support-preserving; None: no constraint.
        most: most iterations.
        tol: ends once no entry moves by more, relative to the largest entry.

    Returns:
        (..., d).

    Raises:
        RuntimeError: not there after `most` iterations.
    """

    def spread(part: np.ndarray) -> np.ndarray:
        whole = np.zeros((*part.shape[:-1], dim))
        np.put_along_axis(whole, support, part, -1)
        return whole

    if projection is None:
        return spread(np.linalg.solve(gram, moment[..., None])[..., 0])
    lr = 1 / np.linalg.eigvalsh(gram)[..., -1:]
    w = ahead = np.zeros_like(moment)
    momentum = np.ones((*moment.shape[:-1], 1))
    for _ in range(most):
        moved = ahead - lr * (_times(gram, ahead) - moment)
        after = np.take_along_axis(projection(spread(moved)), support, -1)
        step = after - w
        # restart where the momentum points uphill (O'Donoghue and Candès 2015)
        uphill = ((ahead - after) * step).sum(-1, keepdims=True) > 0
        longer = np.where(uphill, 1.0, (1 + np.sqrt(1 + 4 * momentum**2)) / 2)
        ahead = after + np.where(uphill, 0.0, (momentum - 1) / longer) * step
        w, momentum = after, longer
        if np.abs(step).max() <= tol * np.abs(w).max():
            return spread(w)
    raise RuntimeError(f"the best point of a support still moves after {most} iterations")


def _times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Stacked matrix-vector products: (..., m, d), (..., d) -> (..., m)."""
    product: np.ndarray = (matrix @ vector[..., None])[..., 0]
    return product
