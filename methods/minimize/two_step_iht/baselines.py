"""What the two-step projection is compared with: the exact one, and pipelines that apply Γ or sparsity at the end."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations

import numpy as np

from methods.minimize.two_step_iht.operators import Projection, check, hard_threshold, two_step
from methods.minimize.two_step_iht.solvers import Objective, Rng

__all__ = ["exact_projection", "iht_exact", "iht_then_project", "project_then_threshold"]


@lru_cache(maxsize=4)
def _supports(d: int, k: int) -> np.ndarray:
    """Every support of k of d coordinates, as booleans (C(d, k), d)."""
    chosen = np.array(list(combinations(range(d), k)))
    masks = np.zeros((len(chosen), d), dtype=bool)
    np.put_along_axis(masks, chosen, True, axis=1)
    return masks


def exact_projection(w: np.ndarray, k: int, projection: Projection) -> np.ndarray:
    """The nearest point of Γ with at most k nonzero entries, from all C(d, k) supports.

    Args:
        w: (..., d); d is small.
        k: >= 1.
        projection: onto Γ, support-preserving: so the projection of w on a support stays within it.

    Raises:
        ValueError: Γ is not support-preserving.

    >>> from methods.minimize.two_step_iht.sets import Box
    >>> exact_projection(np.array([3.0, 2.9]), 1, Box(1.0, widths=[1.0, 2.9]))
    array([0. , 2.9])
    """
    check(projection)
    if w.ndim > 1:
        return np.stack([exact_projection(row, k, projection) for row in w])
    candidates = projection(np.where(_supports(w.size, min(k, w.size)), w, 0.0))
    return candidates[np.square(candidates - w).sum(-1).argmin()]


def iht_exact(
    objective: Objective, k: int, projection: Projection, rng: Rng = None, *, step: float = 1.0
) -> Iterator[np.ndarray]:
    """Projected gradient with the exact projection: w_{t+1} = Π_{Γ, k}(w_t - η ∇R(w_t)); arguments as `iht_2sp`."""
    w, lr = np.zeros(objective.shape), step / objective.smoothness
    while True:
        w = exact_projection(w - lr * objective.gradient(w), k, projection)
        yield w


def iht_then_project(
    objective: Objective, k: int, projection: Projection | None = None, rng: Rng = None, *, step: float = 1.0
) -> Iterator[np.ndarray]:
    """Hard thresholding that ignores Γ; what it yields is projected onto Γ. Arguments as `iht_2sp`."""
    w, lr = np.zeros(objective.shape), step / objective.smoothness
    while True:
        w = hard_threshold(w - lr * objective.gradient(w), k)
        yield two_step(w, k, projection)


def project_then_threshold(
    objective: Objective, k: int, projection: Projection | None = None, rng: Rng = None, *, step: float = 1.0
) -> Iterator[np.ndarray]:
    """Projected gradient onto Γ that ignores sparsity; what it yields is thresholded. Arguments as `iht_2sp`."""
    check(projection)
    w, lr = np.zeros(objective.shape), step / objective.smoothness
    while True:
        w = w - lr * objective.gradient(w)
        w = w if projection is None else projection(w)
        yield hard_threshold(w, k)
