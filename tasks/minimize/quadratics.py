"""Ill-conditioned quadratics, where every constant of the theory is known."""

import numpy as np

from tasks.minimize import theory
from tasks.minimize.exam import Trace, examine, thin
from tasks.minimize.interface import Method
from tasks.minimize.measures import first_below, first_infinite, never_increases, quarterly_contraction
from tasks.minimize.problems import DiagonalQuadratic
from tasks.run import Run


class Quadratic:
    """f(x) = ½ Σ λ_i x_i², λ equally spaced on a log scale from 1 to `condition`; the start is N(0, I), by
    seed.

    Args:
        dim: n, >= 2.
        condition: κ = L/μ, > 1.
        max_steps: most steps.
        target: the run ends once f is below it, > 0.
        gap: share of f(x_0) to which `steps_to_gap` counts, in (0, 1).
        bounds: check the convergence bounds of the theory (methods with one trial point a step, no momentum,
            null steps).
        regret_lr: η in units of 1/L: check the regret bound of online gradient descent on a diagonal P with
            it; None: do not.

    Records in the summary, None where it does not apply: `steps` to the target; `steps_to_gap`; `q1`..`q4`,
    mean contraction of f per step in the quarters of a run that reached the target; `q_ratio` = q4/q1;
    `accelerating`, q2 > q3 > q4; `overflow_step`, first step after which f is not finite; `monotone`;
    `stalled`, f never left f(x_0); `sublinear_ratio` and `linear_ratio`, f over its bounds at the worst step;
    `regret_ratio`, regret over its bound at the worst step. Curve: `value` after every step, and
    `average_regret`.
    """

    def __init__(
        self,
        dim: int,
        condition: float,
        max_steps: int,
        target: float = 1e-28,
        gap: float = 1e-10,
        bounds: bool = False,
        regret_lr: float | None = None,
    ) -> None:
        if dim < 2 or condition <= 1:
            raise ValueError(f"dim={dim}, condition={condition}: expected dim >= 2 and condition > 1")
        self.problem = DiagonalQuadratic.logspaced(dim, condition)
        self.max_steps, self.target, self.gap = max_steps, target, gap
        self.bounds, self.regret_lr = bounds, regret_lr

    def evaluate(self, method: Method, run: Run) -> None:
        """One run from a random start; record its path and what the theory says of it."""
        start = run.rng("start").standard_normal(self.problem.dim)
        keep = self.bounds or self.regret_lr is not None
        trace = examine(
            method,
            self.problem,
            start,
            tol=0.0,
            max_steps=self.max_steps,
            target=self.target,
            keep=keep,
        )
        run.summary(**self.describe(trace))
        found = theory.feedback(trace) if keep else None
        if found is not None and self.bounds:
            constants = self.problem.constants
            first = trace.values[0]
            radius = np.sqrt(2 * first / constants["mu"])
            run.summary(
                sublinear_ratio=theory.sublinear_ratio(found, float(radius)),
                linear_ratio=theory.linear_ratio(found, first, constants["mu"]),
            )
        average: np.ndarray | None = None
        if found is not None and self.regret_lr is not None:
            scales = self.problem.scales
            total = theory.regret(found, scales)
            bound = theory.regret_bound(found, scales, self.regret_lr / self.problem.constants["L"])
            average = total / np.arange(1, total.size + 1)
            run.summary(regret_ratio=float(np.max(total / bound)), average_regret=float(average[-1]))
        for k in thin(len(trace.path), 140):
            if not np.isfinite(trace.path[k]):
                break
            line = {"value": float(trace.path[k])}
            if average is not None and 1 <= k <= average.size:
                line["average_regret"] = float(average[k - 1])
            run.log(step=int(k), **line)

    def describe(self, trace: Trace) -> dict[str, float | bool | None]:
        """The summary of a path."""
        path = trace.path
        steps = first_below(path, self.target)
        quarters: tuple[float, ...] | None = None
        if steps is not None and steps >= 4 and path[steps] > 0:
            quarters = quarterly_contraction(path[: steps + 1])
        return {
            "steps": steps,
            "steps_to_gap": first_below(path, self.gap * path[0]),
            **{f"q{j + 1}": None if quarters is None else quarters[j] for j in range(4)},
            "q_ratio": None if quarters is None else quarters[3] / quarters[0],
            "accelerating": None if quarters is None else quarters[1] > quarters[2] > quarters[3],
            "overflow_step": first_infinite(path),
            "monotone": never_increases(path),
            "stalled": path[-1] == path[0],
        }
