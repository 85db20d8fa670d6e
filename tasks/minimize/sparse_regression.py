"""Random sparse regressions, many at once: what the theory bounds, rates, and what accuracy costs."""

import math
from itertools import count
from typing import Any

import numpy as np

from tasks.minimize.exam import thin
from tasks.minimize.sparse import Ball, BallFactory, Method, Regressions, top
from tasks.run import Run

FLOOR = 1e-12  # gaps below it count as it: they are rounding, or a better support than the reference's
RATE_FLOOR = 1e-10  # a rate is read off gaps above it
TAIL = 10  # iterations over which a settled gap is looked at


class SparseRegression:
    """b = A w* + noise, w* with a few entries ±U(1, 2); least squares with at most k nonzero entries in Γ.

    Each replicate draws its own problem, so methods are paired. The gap of an iterate is R minus its value at the end
    of the reference method, which runs first.

    Rows (unit `repeat`); None where something never happens:
        ratio: least R over iterates by R of the comparator, the best point of Γ on the support of w*.
        excess: least R minus the bound (1 + 2ρ) R(comparator); None without `rho`.
        gap_after: after `iterations` iterations.
        gap, tail_gap: where the budget or the pacer's cost is first spent (else at the end), and the median over the 10
            iterations up to there.
        own_gap_after, own_gap: at the same places, R minus the least R on the iterate's own support; None within Γ.
        factor, r_squared, factor_excess: contraction of the gap an iteration, a fit of its logarithm from t = 1 until
            it is below 1e-10; how straight the fit is; factor minus 1 - ν / (4L), at most which it should be.
        inequality: largest left side minus right side of the analysis' inequality an iteration, against two points of
            Γ; None without `inequality`.
        sparsity_excess, set_excess: most nonzero entries of an iterate minus k; largest gauge minus radius.
        cost: of everything done, gradients of single terms or function values.
        iterations_to_target, cost_to_target: until the gap is first at most `target`.

    Curve: `gap`, the median over replicates, and `cost`.

    Args:
        rows, dim, support: n, d and the number of nonzero entries of w*.
        k: most nonzero entries.
        rho: ρ in (0, 1/2]: the theorem's ⌈4 (1 - ρ)² κ² / ρ² support⌉, with κ of `spectrum`, takes the place of k; or
            None.
        spectrum: smallest and largest eigenvalue of AᵀA / n, equally spaced between; None: A is Gaussian.
        noise: standard deviation.
        constraint: Γ of a given size.
        share: radius of Γ in terms of the gauge of w*; 0: no Γ.
        repeats: R.
        iterations: fewest iterations.
        budget: cost at which a run ends, if that is later than `iterations`; None: no such cost.
        target: a gap.
        reference: method whose end the gap is counted from, with its number of iterations.
        pacer: in place of a budget, a method: each replicate may spend what the pacer spends on it to the target.
        inequality: check the inequality of an iteration (methods with the whole gradient and step 1/L).
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        support: int,
        k: int,
        constraint: BallFactory,
        reference: Method,
        reference_iterations: int = 400,
        rho: float | None = None,
        spectrum: tuple[float, float] | None = None,
        noise: float = 0.1,
        share: float = 0.6,
        repeats: int = 10,
        iterations: int = 100,
        budget: int | None = None,
        target: float = 1e-6,
        pacer: Method | None = None,
        inequality: bool = False,
    ) -> None:
        if spectrum is not None and (rows < dim or not 0 < spectrum[0] <= spectrum[1]):
            raise ValueError(f"spectrum={spectrum} needs rows >= dim and 0 < smallest <= largest")
        if rho is not None:
            if spectrum is None or not 0 < rho <= 0.5:
                raise ValueError(f"rho={rho} needs a spectrum and lies in (0, 1/2]")
            k = sparsity(rho, spectrum[1] / spectrum[0], support)
        if not support <= k <= dim:
            raise ValueError(f"support={support}, k={k}, dim={dim}: expected them to increase")
        if repeats < 1 or iterations < 1 or reference_iterations < 1 or share < 0:
            raise ValueError(
                f"repeats={repeats}, iterations={iterations}, reference_iterations={reference_iterations}, "
                f"share={share}: expected the first three at least 1, the last at least 0"
            )
        self.rows, self.dim, self.support, self.k, self.rho = rows, dim, support, k, rho
        self.spectrum, self.noise, self.constraint, self.share = spectrum, noise, constraint, share
        self.reference, self.reference_iterations = reference, reference_iterations
        self.repeats, self.iterations, self.budget, self.target = repeats, iterations, budget, target
        self.pacer, self.inequality = pacer, inequality

    def evaluate(self, method: Method, run: Run) -> None:
        """Run the method on all replicates and record how near it comes, how fast, and at what cost."""
        problem, truth = self._draw(run)
        ball = None
        if self.share:
            ball = self.constraint(radius=self.share * self.constraint(radius=1.0).gauge(truth))
        supports = np.stack([np.flatnonzero(row) for row in truth])
        comparator = problem.best(supports, ball)
        end = self._end(problem, ball)
        limits = self._limits(problem, ball, end)
        watch = _Watch(self, problem, ball, comparator, run)
        problem.paid = 0
        gaps: list[np.ndarray] = []
        costs: list[int] = []
        settled = np.zeros(self.repeats, dtype=bool)
        gap, tail, own, own_after = (np.full(self.repeats, np.nan) for _ in range(4))
        iterates = method(problem, self.k, ball, [run.rng("draws", i) for i in range(self.repeats)])
        w = np.zeros(problem.shape)
        for t in run.track(count(1), total=self.iterations):
            before, w = w, next(iterates)
            watch.see(before, w)
            gaps.append(np.maximum(problem.difference(w, end), FLOOR))
            costs.append(problem.paid)
            now = ~settled & (problem.paid >= limits) & (t >= TAIL)
            if self.ends(t, settled | now):
                now = ~settled
            if ball is None and (now.any() or t == self.iterations):
                above = np.maximum(problem.above_own_best(w), FLOOR)
                own[now] = above[now]
                own_after = above if t == self.iterations else own_after
            if now.any():
                gap[now] = gaps[-1][now]
                tail[now] = np.median(gaps[-TAIL:], axis=0)[now]
                settled |= now
            if self.ends(t, settled):
                break
        path = np.array(gaps)
        for t in thin(len(path), 100):
            run.log(step=int(t) + 1, gap=float(np.median(path[t])), cost=float(costs[t]))
        table = {
            **watch.table(),
            **self._rates(path, problem),
            **self._targets(path, np.array(costs)),
            "gap_after": path[self.iterations - 1],
            "gap": gap,
            "tail_gap": tail,
            "own_gap_after": own_after,
            "own_gap": own,
            "cost": np.full(self.repeats, problem.paid),
        }
        run.rows("repeat", [_present(table, i) for i in range(self.repeats)])
        run.summary(k=self.k, cost=problem.paid, iterations=len(path))

    def ends(self, t: int, settled: np.ndarray) -> bool:
        """Whether a run ends after t iterations."""
        limited = self.pacer is not None or self.budget is not None
        return t >= self.iterations and (bool(settled.all()) or not limited)

    def _draw(self, run: Run) -> tuple[Regressions, np.ndarray]:
        """The problems and their w*, (R, d)."""
        drawn = [self._one(run.rng("problem", i)) for i in range(self.repeats)]
        A, b, truth = (np.stack(parts) for parts in zip(*drawn, strict=True))
        return Regressions(A, b), truth

    def _one(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        A = rng.standard_normal((self.rows, self.dim))
        if self.spectrum is not None:
            left = np.linalg.qr(A)[0]
            right = np.linalg.qr(rng.standard_normal((self.dim, self.dim)))[0]
            A = left * np.sqrt(self.rows * np.linspace(*self.spectrum, self.dim)) @ right.T
        truth = np.zeros(self.dim)
        where = rng.choice(self.dim, self.support, replace=False)
        truth[where] = rng.uniform(1, 2, self.support) * rng.choice([-1.0, 1.0], self.support)
        return A, A @ truth + self.noise * rng.standard_normal(self.rows), truth

    def _end(self, problem: Regressions, ball: Ball | None) -> np.ndarray:
        """Where the reference ends, (R, d)."""
        iterates = self.reference(problem, self.k, ball, [])
        for _ in range(self.reference_iterations - 1):
            next(iterates)
        return next(iterates)

    def _limits(self, problem: Regressions, ball: Ball | None, end: np.ndarray) -> np.ndarray:
        """Cost at which each replicate is looked at, (R,): the pacer's to the target, the budget, or infinite."""
        if self.pacer is None:
            return np.full(self.repeats, np.inf if self.budget is None else self.budget)
        problem.paid, spent = 0, np.full(self.repeats, np.inf)
        iterates = self.pacer(problem, self.k, ball, [])
        for _ in range(self.reference_iterations):
            near = problem.difference(next(iterates), end) <= self.target
            spent[near & np.isinf(spent)] = problem.paid
            if np.isfinite(spent).all():
                return spent
        raise RuntimeError(
            f"the pacer is not at a gap of {self.target} after {self.reference_iterations} iterations"
        )

    def _rates(self, path: np.ndarray, problem: Regressions) -> dict[str, np.ndarray]:
        factor, straight = np.full(self.repeats, np.nan), np.full(self.repeats, np.nan)
        for i, gaps in enumerate(path.T):
            low = np.flatnonzero(gaps < RATE_FLOOR)
            end = low[0] if low.size else gaps.size
            if end >= 3:
                t, y = np.arange(end), np.log(gaps[:end])
                slope, level = np.polyfit(t, y, 1)
                factor[i] = math.exp(slope)
                spread = np.square(y - y.mean()).sum()
                if spread > 0:
                    straight[i] = 1 - np.square(y - slope * t - level).sum() / spread
        limit = 1 - (problem.convexity / (4 * problem.smoothness))[:, 0]
        return {"factor": factor, "r_squared": straight, "factor_excess": factor - limit}

    def _targets(self, path: np.ndarray, costs: np.ndarray) -> dict[str, np.ndarray]:
        near = path <= self.target
        first = near.argmax(0)
        reached = near.any(0)
        return {
            "iterations_to_target": np.where(reached, first + 1.0, np.nan),
            "cost_to_target": np.where(reached, costs[first], np.nan),
        }


class _Watch:
    """What must hold at every iterate."""

    def __init__(
        self,
        task: SparseRegression,
        problem: Regressions,
        ball: Ball | None,
        comparator: np.ndarray,
        run: Run,
    ) -> None:
        self.task, self.problem, self.ball, self.comparator = task, problem, ball, comparator
        self.least = np.full(task.repeats, np.inf)  # R minus R(comparator)
        self.nonzero = np.full(task.repeats, -np.inf)
        self.outside = np.full(task.repeats, -np.inf)
        self.violation = np.full(task.repeats, -np.inf)
        self.others = [comparator]
        if task.inequality:
            other = np.stack([run.rng("other", i).standard_normal(task.dim) for i in range(task.repeats)])
            other = top(other, task.support)
            self.others.append(other if ball is None else ball(other))

    def see(self, before: np.ndarray, w: np.ndarray) -> None:
        self.least = np.minimum(self.least, self.problem.difference(w, self.comparator))
        self.nonzero = np.maximum(self.nonzero, (w != 0).sum(-1) - self.task.k)
        if self.ball is not None:
            self.outside = np.maximum(self.outside, self.ball.gauge(w) - self.ball.radius)
        if self.task.inequality:
            for other in self.others:
                self.violation = np.maximum(self.violation, self._inequality(before, w, other))

    def _inequality(self, before: np.ndarray, w: np.ndarray, other: np.ndarray) -> np.ndarray:
        """R(w⁺) - R(w̄) - L/2 [(1 - ν/L) ‖w - w̄‖² - ‖w⁺ - w̄‖² + √β ‖v⁺ - w̄‖²], β = (entries of w̄) / k: (R,)."""
        L, nu = self.problem.smoothness[:, 0], self.problem.convexity[:, 0]
        v = top(before - self.problem.slope(before) / L[:, None], self.task.k)
        beta = math.sqrt(self.task.support / self.task.k)
        squares = [np.square(point - other).sum(-1) for point in (before, w, v)]
        right = L / 2 * ((1 - nu / L) * squares[0] - squares[1] + beta * squares[2])
        return self.problem.difference(w, other) - right

    def table(self) -> dict[str, np.ndarray]:
        level = self.problem.value(self.comparator)
        found: dict[str, np.ndarray] = {
            "ratio": (level + self.least) / level,
            "sparsity_excess": self.nonzero,
        }
        if self.ball is not None:
            found["set_excess"] = self.outside
        if self.task.rho is not None:
            found["excess"] = self.least - 2 * self.task.rho * level
        if self.task.inequality:
            found["inequality"] = self.violation
        return found


def sparsity(rho: float, kappa: float, support: int) -> int:
    """⌈4 (1 - ρ)² κ² / ρ² support⌉, the sparsity of the theorem.

    >>> [sparsity(rho, 1.21, 2) for rho in (0.5, 0.3, 0.2)]
    [12, 64, 188]
    """
    return math.ceil(4 * (1 - rho) ** 2 * kappa**2 / rho**2 * support)


def _present(table: dict[str, np.ndarray], i: int) -> dict[str, Any]:
    return {name: None if np.isnan(column[i]) else float(column[i]) for name, column in table.items()}
