"""The three methods as iterators: gradient, minibatch gradient or function values, then the two-step projection.

An objective may stand for R independent replicates: its points then have shape (R, d), else (d,). The paper's text for
the growth of minibatches and directions is not public. Those here follow HSG-HT (Zhou, Yuan, Feng 2018) and SZOHT (de
Vazelhes et al. 2022), on which the names are built; every number is an argument.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from methods.minimize.two_step_iht.operators import Projection, check, two_step

__all__ = ["LeastSquares", "Objective", "hsg_ht_2sp", "hzo_ht_2sp", "iht_2sp", "sphere_directions"]

Rng = np.random.Generator | Sequence[np.random.Generator] | None


class Objective(Protocol):
    """What the methods ask of R(w); each needs one of the last three members only.

    Attributes:
        shape: of a point: (d,), or (R, d) for R replicates.
        terms: n, where R is the mean of n terms.
        smoothness: L, a number or an array (R, 1).
    """

    shape: tuple[int, ...]
    terms: int
    smoothness: Any

    def gradient(self, w: np.ndarray) -> np.ndarray:
        """∇R(w): (..., d) -> (..., d)."""

    def batch_gradient(self, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Mean gradient of the terms in `batch`, (..., m) indices: (..., d)."""

    def values(self, points: np.ndarray) -> np.ndarray:
        """R at q points of each replicate: (..., q, d) -> (..., q)."""


class LeastSquares:
    """R(w) = ‖A w - b‖² / (2n), with L the largest eigenvalue of AᵀA / n.

    Args:
        A: (n, d).
        b: (n,).

    >>> objective = LeastSquares(np.eye(2) * 2, np.ones(2))
    >>> objective.gradient(np.zeros(2)), objective.smoothness
    (array([-1., -1.]), 2.0)
    """

    def __init__(self, A: np.ndarray, b: np.ndarray) -> None:
        self.A, self.b = A, b
        self.terms = A.shape[0]
        self.shape: tuple[int, ...] = (A.shape[1],)
        self.smoothness: Any = float(np.linalg.norm(A, 2) ** 2 / self.terms)

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return self.A.T @ (self.A @ w - self.b) / self.terms

    def batch_gradient(self, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        rows = self.A[batch]
        return rows.T @ (rows @ w - self.b[batch]) / batch.size

    def values(self, points: np.ndarray) -> np.ndarray:
        return np.square(points @ self.A.T - self.b).sum(-1) / (2 * self.terms)


def iht_2sp(
    objective: Objective, k: int, projection: Projection | None = None, rng: Rng = None, *, step: float = 1.0
) -> Iterator[np.ndarray]:
    """IHT-2SP: w_{t+1} = Π_Γ(H_k(w_t - η ∇R(w_t))) from w_0 = 0, without end.

    Args:
        objective: R; its `gradient` is called once an iteration.
        k: most nonzero entries, >= 1.
        projection: onto Γ; None: no constraint but sparsity.
        rng: not used.
        step: η in units of 1/L. The theory takes 1.

    Yields:
        w_1, w_2, ...; new arrays.

    Raises:
        ValueError: Γ is not support-preserving; k or step out of range.

    >>> from itertools import islice
    >>> from methods.minimize.two_step_iht.sets import L1Ball
    >>> objective = LeastSquares(np.eye(3) * 3**0.5, np.array([3.0, 1.0, -2.0]) * 3**0.5)
    >>> [w.round(9).tolist() for w in islice(iht_2sp(objective, 2, L1Ball(3.0)), 2)]
    [[2.0, 0.0, -1.0], [2.0, 0.0, -1.0]]
    """
    lr = _learning_rate(objective, k, projection, step)

    def iterates() -> Iterator[np.ndarray]:
        w = np.zeros(objective.shape)
        while True:
            w = two_step(w - lr * objective.gradient(w), k, projection)
            yield w

    return iterates()


def hsg_ht_2sp(
    objective: Objective,
    k: int,
    projection: Projection | None = None,
    rng: Rng = None,
    *,
    step: float = 1 / 3,
    size: int = 8,
    growth: float = 1.2,
    sampler: Callable[[int, int], np.ndarray] | None = None,
) -> Iterator[np.ndarray]:
    """HSG-HT-2SP: as IHT-2SP, with the gradient of a minibatch that grows geometrically.

    Iteration t = 0, 1, ... draws min(n, ⌈size growth^t⌉) of the n terms without replacement; once that is n, it is
    IHT-2SP with this step.

    Args:
        objective: R; its `batch_gradient` is called once an iteration (`gradient` once the batch is everything).
        k, projection: as `iht_2sp`.
        rng: source of the minibatches: a generator, or R of them for R replicates.
        step: η in units of 1/L.
        size: of the first minibatch, >= 1.
        growth: >= 1; 1 keeps the size (plain stochastic hard thresholding).
        sampler: ``sampler(n, m)`` returns the indices of the next minibatch, (..., m), in place of `rng`.

    Yields:
        w_1, w_2, ...; new arrays.

    Raises:
        ValueError: as `iht_2sp`; neither or both of `rng` and `sampler`.

    >>> A = np.random.default_rng(0).standard_normal((200, 5))
    >>> objective = LeastSquares(A, A @ np.array([1.0, 0, 0, -2, 0]))
    >>> iterates = hsg_ht_2sp(objective, 2, rng=np.random.default_rng(1))
    >>> [next(iterates) for _ in range(60)][-1].round(6).tolist()
    [1.0, 0.0, 0.0, -2.0, 0.0]
    """
    lr = _learning_rate(objective, k, projection, step)
    if size < 1 or growth < 1:
        raise ValueError(f"size={size}, growth={growth}: expected both at least 1")
    draw = _drawn(rng, sampler, lambda generator, n, m: generator.choice(n, m, replace=False))

    def iterates() -> Iterator[np.ndarray]:
        w, n = np.zeros(objective.shape), objective.terms
        wanted = float(size)
        while True:
            m = math.ceil(wanted)
            g = objective.gradient(w) if m >= n else objective.batch_gradient(w, draw(n, m))
            w = two_step(w - lr * g, k, projection)
            wanted = min(wanted * growth, float(n))
            yield w

    return iterates()


def hzo_ht_2sp(
    objective: Objective,
    k: int,
    projection: Projection | None = None,
    rng: Rng = None,
    *,
    step: float = 1 / 3,
    directions: int = 60,
    growth: float = 1.1,
    mu: float = 1e-5,
    support: int | None = None,
    sampler: Callable[[int, int], np.ndarray] | None = None,
) -> Iterator[np.ndarray]:
    """HZO-HT-2SP: as IHT-2SP, with a gradient estimated from function values along more and more random directions.

    Iteration t = 0, 1, ... takes q = ⌈directions growth^t⌉ unit vectors u_i and the forward differences
    g = d / (q μ) Σ_i [R(w + μ u_i) - R(w)] u_i, at q + 1 function values. With growth = 1 the error of g stays, and
    with it an error of the result (SZOHT of de Vazelhes et al. 2022).

    Args:
        objective: R; its `values` is called twice an iteration, with 1 and with q points.
        k, projection: as `iht_2sp`.
        rng: source of the directions: a generator, or R of them for R replicates.
        step: η in units of 1/L.
        directions: first q, >= 1.
        growth: >= 1.
        mu: μ > 0, length of a difference; float64 wants about 1e-6 or more.
        support: coordinates that a direction has, a random subset; None: all d.
        sampler: ``sampler(q, d)`` returns the next directions, (..., q, d), in place of `rng`.

    Yields:
        w_1, w_2, ...; new arrays.

    Raises:
        ValueError: as `iht_2sp`; a number out of its range; neither or both of `rng` and `sampler`.

    >>> A = np.random.default_rng(0).standard_normal((200, 5))
    >>> objective = LeastSquares(A, A @ np.array([1.0, 0, 0, -2, 0]))
    >>> iterates = hzo_ht_2sp(objective, 2, rng=np.random.default_rng(1))
    >>> [next(iterates) for _ in range(60)][-1].round(4).tolist()
    [1.0, 0.0, 0.0, -2.0, 0.0]
    """
    lr = _learning_rate(objective, k, projection, step)
    d = objective.shape[-1]
    if directions < 1 or growth < 1 or not mu > 0 or not 1 <= (support or d) <= d:
        raise ValueError(
            f"directions={directions}, growth={growth}, mu={mu}, support={support}: "
            f"expected at least 1, at least 1, above 0, and from 1 to {d}"
        )
    draw = _drawn(rng, sampler, lambda generator, q, d: sphere_directions(generator, q, d, support))

    def iterates() -> Iterator[np.ndarray]:
        w, wanted = np.zeros(objective.shape), float(directions)
        while True:
            q = math.ceil(wanted)
            u, here = draw(q, d), w[..., None, :]
            slopes = (objective.values(here + mu * u) - objective.values(here)) / mu
            g = (d / q) * (slopes[..., None, :] @ u)[..., 0, :]
            w = two_step(w - lr * g, k, projection)
            wanted *= growth
            yield w

    return iterates()


def sphere_directions(
    generator: np.random.Generator, q: int, d: int, support: int | None = None
) -> np.ndarray:
    """q unit vectors, (q, d): uniform on the sphere of a random subset of `support` coordinates (None: of all)."""
    u = generator.standard_normal((q, d))
    if support is not None and support < d:
        chosen = generator.random((q, d)).argpartition(support, axis=1)[:, :support]
        mask = np.zeros((q, d))
        np.put_along_axis(mask, chosen, 1.0, axis=1)
        u *= mask
    return u / np.linalg.norm(u, axis=1, keepdims=True)


def _learning_rate(objective: Objective, k: int, projection: Projection | None, step: float) -> Any:
    check(projection)
    if k < 1 or not step > 0:
        raise ValueError(f"k={k}, step={step}: expected k at least 1 and step above 0")
    return step / objective.smoothness


def _drawn(
    rng: Rng,
    sampler: Callable[[int, int], np.ndarray] | None,
    draw: Callable[[np.random.Generator, int, int], np.ndarray],
) -> Callable[[int, int], np.ndarray]:
    """`sampler`, or draws from one generator, or stacked ones from several."""
    if (rng is None) == (sampler is None):
        raise ValueError("random draws need either rng or sampler")
    if sampler is not None:
        return sampler
    if isinstance(rng, np.random.Generator):
        return lambda first, second: draw(rng, first, second)
    generators = list(rng or [])
    return lambda first, second: np.stack([draw(generator, first, second) for generator in generators])
