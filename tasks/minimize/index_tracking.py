"""Following a stock index with few stocks, against the best subset there is."""

from itertools import combinations
from typing import Any

import numpy as np

from tasks.minimize.sparse import Method, Projection, Regressions, best_on_support
from tasks.run import Run

CHUNK = 512


class IndexTracking:
    """R(w) = mean of (stocks @ w - index)² / 2 over the first days; the later days are a test. Nothing is random.

    For each factor c, the method may hold c times as many stocks as the best subset it is compared with.

    Summary, for each factor c: ratio_c, R at the end by R of the best subset of `support` stocks within Γ;
    tracking_error_c and test_error_c, root mean squared daily error on first and later days, and sum_c, Σ|w_i|.
    best_value, best_error and best_test_error of the best subset, and best_subset, its stocks; binding, whether the
    best subset without Γ is outside Γ; condition, κ.

    Curve: `ratio` of each factor along the iterations.

    Args:
        data: door with `load() -> Returns`.
        days: first days, to fit on.
        support: size of the best subset.
        factors: c; k = c support.
        constraint: Γ, or None.
        iterations: of the method.
    """

    def __init__(
        self,
        data: Any,
        support: int,
        factors: list[int],
        days: int = 6000,
        constraint: Projection | None = None,
        iterations: int = 3000,
    ) -> None:
        if support < 1 or iterations < 1 or not factors or min(factors) < 1:
            raise ValueError(
                f"support={support}, factors={factors}, iterations={iterations}: expected all at least 1"
            )
        self.data, self.support, self.factors = data, support, factors
        self.days, self.constraint, self.iterations = days, constraint, iterations

    def evaluate(self, method: Method, run: Run) -> None:
        """Track with every number of stocks."""
        returns = self.data.load()
        problem = Regressions(returns.stocks[None, : self.days], returns.index[None, : self.days])
        assert problem.gram is not None  # there are more days than stocks
        best = best_subset(problem.gram[0], problem.moment[0], self.support, self.constraint)
        level = float(problem.value(best[None])[0])
        free = (
            best
            if self.constraint is None
            else best_subset(problem.gram[0], problem.moment[0], self.support, None)
        )
        found: dict[str, float | str | bool] = {
            "best_value": level,
            "best_error": _error(returns.stocks[: self.days], returns.index[: self.days], best),
            "best_test_error": _error(returns.stocks[self.days :], returns.index[self.days :], best),
            "best_subset": " ".join(returns.names[i] for i in np.flatnonzero(best)),
            "binding": self.constraint is not None
            and bool(np.abs(self.constraint(free) - free).max() > 1e-9),
            "condition": float(problem.smoothness[0, 0] / problem.convexity[0, 0]),
        }
        shown = set(np.unique(np.geomspace(1, self.iterations, 60).round().astype(int)).tolist())
        curves: dict[int, dict[str, float]] = {t: {} for t in sorted(shown)}
        for factor in self.factors:
            iterates = method(problem, factor * self.support, self.constraint, [run.rng("draws")])
            w = np.zeros(problem.shape)
            for t in range(1, self.iterations + 1):
                w = next(iterates)
                if t in shown:
                    curves[t][f"ratio_{factor}"] = float(problem.value(w)[0]) / level
            found |= {
                f"ratio_{factor}": float(problem.value(w)[0]) / level,
                f"tracking_error_{factor}": _error(
                    returns.stocks[: self.days], returns.index[: self.days], w[0]
                ),
                f"test_error_{factor}": _error(returns.stocks[self.days :], returns.index[self.days :], w[0]),
                f"sum_{factor}": float(np.abs(w).sum()),
            }
        for t, line in curves.items():
            run.log(step=t, **line)
        run.summary(**found)


def _error(stocks: np.ndarray, index: np.ndarray, w: np.ndarray) -> float:
    return float(np.sqrt(np.square(stocks @ w - index).mean()))


def best_subset(gram: np.ndarray, moment: np.ndarray, size: int, projection: Projection | None) -> np.ndarray:
    """The minimizer of ½ wᵀGw - mᵀw over the points of Γ with at most `size` nonzero entries, (d,).

    Every subset's minimum without Γ is computed; within Γ, subsets are tried in the order of these until no further one
    can be better.
    """
    d = moment.size
    subsets = np.array(list(combinations(range(d), size)))
    inner = gram[subsets[:, :, None], subsets[:, None, :]]
    free = np.linalg.solve(inner, moment[subsets][..., None])[..., 0]
    bound = -0.5 * (moment[subsets] * free).sum(-1)
    order = np.argsort(bound, kind="stable")
    best, least = np.zeros(d), np.inf
    if projection is None:
        best[subsets[order[0]]] = free[order[0]]
        return best
    for start in range(0, order.size, CHUNK):
        chosen = order[start : start + CHUNK]
        if bound[chosen[0]] >= least:
            break
        points = best_on_support(inner[chosen], moment[subsets[chosen]], subsets[chosen], d, projection)
        values = ((0.5 * points @ gram - moment) * points).sum(-1)
        if values.min() < least:
            least, best = float(values.min()), points[values.argmin()]
    return best
