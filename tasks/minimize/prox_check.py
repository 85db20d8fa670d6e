"""A proximal map in closed form against the minimization that it stands for."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tasks.run import Run


class Map(Protocol):
    """The proximal map of strength · Ψ, Ψ(w) = Σ_i max_k { a_k (|w_i| - q_k) + b_k } for |w_i| <= q_m."""

    def __call__(self, u: Tensor, levels: Sequence[float], slopes: Sequence[float]) -> Tensor: ...


class ProxCheck:
    """Random levels 0 = q_0 < ... < q_m and slopes, random u; the least ψ(x) + (x - u)²/2 over a grid of x in ±q_m.

    Rows (unit `problem`): error, the largest distance between the map and the grid's minimizer, in grid steps. The map
    is right only if it is at most 1.

    Args:
        problems: number of random regularizers.
        numbers: u's of each.
        grid: points of the grid.
        levels: largest m.
    """

    def __init__(self, problems: int, numbers: int, grid: int, levels: int) -> None:
        if min(problems, numbers, levels) < 1 or grid < 3:
            raise ValueError("problems, numbers and levels must be at least 1, grid at least 3")
        self.problems, self.numbers, self.grid, self.levels = problems, numbers, grid, levels

    def evaluate(self, method: Map, run: Run) -> None:
        """Compare them on every problem."""
        errors = []
        for i in run.track(range(self.problems), total=self.problems):
            generator = run.generator("problem", i)
            m = 1 + i % self.levels
            q = [0.0, *torch.rand(m, generator=generator, dtype=torch.float64).add(0.05).cumsum(0).tolist()]
            a = torch.rand(m, generator=generator, dtype=torch.float64).cumsum(0).tolist()
            if i % 2:
                a[0] = 0.0  # then 0 is no kink
            u = (2 * torch.rand(self.numbers, generator=generator, dtype=torch.float64) - 1) * (
                q[-1] + a[-1] + 1
            )
            x = torch.linspace(-q[-1], q[-1], self.grid, dtype=torch.float64)
            offsets = [0.0]
            for k in range(m - 1):
                offsets.append(offsets[-1] + a[k] * (q[k + 1] - q[k]))
            psi = torch.stack([a[k] * (x.abs() - q[k]) + offsets[k] for k in range(m)]).amax(0)
            best = torch.stack([x[(psi + (x - number) ** 2 / 2).argmin()] for number in u])
            errors.append(((method(u, q, a) - best).abs().max() / (x[1] - x[0])).item())
        run.rows("problem", {"error": errors})
        run.summary(error=max(errors))
