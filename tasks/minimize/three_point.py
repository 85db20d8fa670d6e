"""The three-point inequalities of hard thresholding and of the two-step projection, on random points."""

import inspect
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from tasks.minimize.sparse import Ball, Operator, top
from tasks.run import Run


class ThreePoint:
    """With v = H_k(w), u the two-step projection, and any w̄ in Γ with at most k̄ <= k nonzero entries, β = k̄ / k:

    ‖v - w̄‖² <= ‖w - w̄‖² - ‖w - v‖² + √β ‖v - w̄‖²   and   ‖u - w̄‖² <= ‖w - w̄‖² - ‖w - u‖² + √β ‖v - w̄‖².

    Half of the w̄ are random, half are near the w, where the inequalities are tighter.

    Rows (unit `set`, named in the column `set`):
        draws: number of (w, w̄).
        threshold_excess, two_step_excess: largest left side minus right side of the first, of the second.
        sparsity_excess: most nonzero entries of a u minus k.
        set_excess: largest gauge of a u minus the radius.
        exact_share: share of draws (with d <= 6) where u is the exact projection onto the points of Γ with at most k
            nonzero entries: where no support has a point nearer to w.
        farther: largest ‖w - u‖² by that of the exact projection, minus 1.

    Args:
        sets: name -> factory of Γ; one that takes `weights`, `widths` or `groups` and `budgets` gets random ones.
        draws: of each set, about.
        batch: draws that share d, k, k̄ and Γ.
        most: largest d, from 2.
    """

    def __init__(
        self, sets: dict[str, Callable[..., Ball]], draws: int = 4000, batch: int = 100, most: int = 12
    ) -> None:
        if draws < batch or batch < 1 or most < 2:
            raise ValueError(
                f"draws={draws}, batch={batch}, most={most}: expected draws >= batch >= 1, most >= 2"
            )
        self.sets, self.draws, self.batch, self.most = sets, draws, batch, most

    def evaluate(self, method: Operator, run: Run) -> None:
        """Draw and compare, set by set."""
        rows = []
        for name, factory in self.sets.items():
            rng = run.rng(name)
            batches = [self._batch(method, factory, rng) for _ in range(self.draws // self.batch)]
            exact = np.concatenate([batch["exact"] for batch in batches])
            worst = {
                key: max(float(batch[key].max()) for batch in batches) for key in batches[0] if key != "exact"
            }
            rows.append(
                {"set": name, "draws": len(batches) * self.batch, **worst}
                | {
                    "exact_share": float((exact <= 1e-10).mean()) if exact.size else None,
                    "farther": float(exact.max()) if exact.size else None,
                }
            )
        run.rows("set", rows)

    def _batch(
        self, method: Operator, factory: Callable[..., Ball], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        d = int(rng.integers(2, self.most + 1))
        k = int(rng.integers(1, d))
        fewer = int(rng.integers(1, k + 1))
        ball = random_ball(factory, d, rng)
        w = rng.standard_normal((self.batch, d)) * rng.uniform(0.1, 5)
        other = rng.standard_normal((self.batch, d))
        near = rng.random((self.batch, 1)) < 0.5
        other = ball(top(np.where(near, w + 0.3 * other, 3 * other), fewer)) * rng.uniform(0, 1) ** 0.2
        v, u = top(w, k), method(w, k, ball)
        slack = np.sqrt(fewer / k) * _square(v - other)
        found = {
            "threshold_excess": _square(v - other) - _square(w - other) + _square(w - v) - slack,
            "two_step_excess": _square(u - other) - _square(w - other) + _square(w - u) - slack,
            "sparsity_excess": (u != 0).sum(-1) - k,
            "set_excess": ball.gauge(u) - ball.radius,
            "exact": np.zeros(0),
        }
        if d <= 6:
            nearest = np.full(self.batch, np.inf)
            for support in combinations(range(d), k):
                mask = np.isin(np.arange(d), support)
                nearest = np.minimum(nearest, _square(ball(w * mask) - w))
            found["exact"] = _square(u - w) / nearest - 1
        return found


def random_ball(factory: Callable[..., Ball], d: int, rng: np.random.Generator) -> Ball:
    """Γ in d dimensions, with random weights, widths or groups where the factory takes them."""
    groups = int(rng.integers(1, d + 1))
    offered: dict[str, Any] = {
        "radius": rng.uniform(0.3, 4),
        "weights": rng.uniform(0.3, 3, d),
        "widths": rng.uniform(0.3, 3, d),
        "groups": rng.integers(0, groups, d),
        "budgets": rng.uniform(0.3, 3, groups),
    }
    taken = inspect.signature(factory).parameters
    fixed = getattr(factory, "keywords", {})
    return factory(**{name: value for name, value in offered.items() if name in taken and name not in fixed})


def _square(x: np.ndarray) -> np.ndarray:
    """Squared norms along the last axis."""
    squares: np.ndarray = np.square(x).sum(-1)
    return squares
