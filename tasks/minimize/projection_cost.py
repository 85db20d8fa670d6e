"""Time and result of sparse methods side by side, on a set whose exact sparse projection has no closed form."""

import time
from collections.abc import Mapping

import numpy as np

from tasks.minimize.sparse import Method, Regressions
from tasks.minimize.three_point import random_ball
from tasks.run import Run

TURN = 10  # iterations; shorter turns would charge a cheap method for refilling the caches that another one swept


class ProjectionCost:
    """Sparse least squares within a weighted ball of l1; several methods take turns, ten iterations each.

    Rows (unit `repeat`, with a column `method`): seconds (processor time of an iteration, median), value (R at
    the end).

    Args:
        rows, dim, support, k: n, d, entries of w*, most nonzero entries of an iterate.
        constraint: factory of Γ; weights, if it takes them, are random.
        share: radius in terms of the gauge of w*.
        noise: standard deviation.
        iterations: of each method.
        repeats: problems.
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        support: int,
        k: int,
        constraint: object,
        share: float = 0.6,
        noise: float = 0.1,
        iterations: int = 60,
        repeats: int = 10,
    ) -> None:
        if not 1 <= support <= k <= dim or iterations < 1 or repeats < 1:
            raise ValueError(
                f"support={support}, k={k}, dim={dim}, iterations={iterations}, repeats={repeats}: "
                "expected 1 <= support <= k <= dim, and the others at least 1"
            )
        self.rows, self.dim, self.support, self.k = rows, dim, support, k
        self.constraint, self.share, self.noise = constraint, share, noise
        self.iterations, self.repeats = iterations, repeats

    def evaluate(self, methods: Mapping[str, Method], run: Run) -> None:
        """Run all methods on every problem."""
        table = []
        for i in run.track(range(self.repeats)):
            rng = run.rng("problem", i)
            A = rng.standard_normal((self.rows, self.dim))
            truth = np.zeros(self.dim)
            where = rng.choice(self.dim, self.support, replace=False)
            truth[where] = rng.uniform(1, 2, self.support) * rng.choice([-1.0, 1.0], self.support)
            b = A @ truth + self.noise * rng.standard_normal(self.rows)
            problem = _One(Regressions(A[None], b[None]))
            ball = random_ball(self.constraint, self.dim, rng)  # type: ignore[arg-type]
            ball.radius = np.asarray(self.share * ball.gauge(truth))
            iterates = {name: make(problem, self.k, ball, [rng]) for name, make in methods.items()}
            seconds: dict[str, list[float]] = {name: [] for name in methods}
            end = {}
            for start in range(0, self.iterations, TURN):
                for name, points in iterates.items():
                    for _ in range(start, min(start + TURN, self.iterations)):
                        began = time.thread_time()
                        end[name] = next(points)
                        seconds[name].append(time.thread_time() - began)
            for name, w in end.items():
                value = float(problem.problem.value(w[None])[0])
                table.append(
                    {"i": i, "method": name, "seconds": float(np.median(seconds[name])), "value": value}
                )
        run.rows("repeat", table)


class _One:
    """One of the replicates, points (d,)."""

    def __init__(self, problem: Regressions) -> None:
        assert problem.gram is not None  # there are more rows than unknowns
        self.problem, self.gram, self.terms = problem, problem.gram[0], problem.terms
        self.shape = problem.shape[1:]
        self.smoothness = float(problem.smoothness[0, 0])

    def gradient(self, w: np.ndarray) -> np.ndarray:
        return self.gram @ w - self.problem.moment[0]

    def batch_gradient(self, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        return self.problem.batch_gradient(w[None], batch[None])[0]

    def values(self, points: np.ndarray) -> np.ndarray:
        return self.problem.values(points[None])[0]
