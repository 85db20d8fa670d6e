"""Stochastic minimization of a mean of l1 distances plus a piecewise-affine regularizer, many problems at once."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tasks.minimize.interface import Optimizer, bind
from tasks.run import Run
from tasks.training.recipe import call


class Method(Protocol):
    """Factory of optimizers of f + λΨ that are given gradients of f only, and work coordinate by coordinate.

    A factory is told what it names in its signature and does not set: `q` and `a`, the levels and slopes of Ψ, and
    `lam`, λ. A learning rate may be in terms of `step` = R / G.
    """

    def __call__(self, params: Iterable[Tensor], **extras: Any) -> Optimizer: ...


class RegularizedMedians:
    """F(w) = mean_j ‖w - p_j‖_1 + λ Ψ(w), Ψ(w) = Σ_i max_k { a_k (|w_i| - q_k) + b_k } for |w_i| <= q_m.

    Points p_j = c + N(0, I) with c uniform in [-1, 1]^d. Gradients sign(w - p_j) of one point drawn anew at each step;
    w starts at 0. Problem i draws points and steps from generators of its own, so methods are paired and a problem's
    numbers do not depend on how many there are.

    Rows (unit `problem`):
        quantized: share of the coordinates of w at the end that equal a level, to 1e-10.
        optimal_quantized: that share at the minimizer.
        slope: least-squares slope of log gap on log t over `slope_looks`.

    Rows (unit `look`), one for every problem and t of `looks`: t, gap F(w_t) - F*, bound G R (2 + 1.5 log t) / √t, and
    ratio, gap over bound. G = √d (1 + λ a_{m-1}) bounds the subgradients, R = q_m √d half the width of the domain.

    Curves: gap (mean over problems), bound, quantized at the steps of `looks` and `slope_looks`.

    Summary: means of the problem rows.

    Args:
        dim: d.
        points: number of points p_j.
        problems: number of problems.
        steps: T.
        levels: q, from 0 on.
        slopes: a_0, ..., a_{m-1}.
        strength: λ.
        looks, slope_looks: numbers of steps, at most T each.

    Raises:
        ValueError: a value out of range.
    """

    def __init__(
        self,
        dim: int,
        points: int,
        problems: int,
        steps: int,
        levels: Sequence[float],
        slopes: Sequence[float],
        strength: float,
        looks: Sequence[int],
        slope_looks: Sequence[int],
    ) -> None:
        if min(dim, points, problems, steps) < 1 or strength < 0:
            raise ValueError("dim, points, problems and steps must be at least 1, strength at least 0")
        if not all(1 <= look <= steps for look in (*looks, *slope_looks)):
            raise ValueError(f"looks must be steps from 1 to {steps}")
        if len(slopes) != len(levels) - 1:
            raise ValueError("there must be one slope less than there are levels")
        self.dim, self.points, self.problems, self.steps = dim, points, problems, steps
        self.levels, self.slopes, self.strength = list(levels), list(slopes), strength
        self.looks, self.slope_looks = sorted(looks), sorted(slope_looks)
        self.lipschitz = math.sqrt(dim) * (1 + strength * self.slopes[-1])
        self.radius = self.levels[-1] * math.sqrt(dim)

    def evaluate(self, method: Method, run: Run) -> None:
        """Run all problems together."""
        points, order = self._draw(run)
        sampled = points.gather(1, order.unsqueeze(-1).expand(-1, -1, self.dim))  # [problems, T, d]
        minimizer = self.minimizer(points)
        least = self.value(minimizer, points)
        w = torch.zeros(self.problems, self.dim, dtype=torch.float64)
        optimizer = call(
            bind(method, step=self.radius / self.lipschitz),
            [w],
            q=self.levels,
            a=self.slopes,
            lam=self.strength,
        )
        gaps: dict[int, np.ndarray] = {}
        for t in run.track(range(1, self.steps + 1), total=self.steps):
            w.grad = (w - sampled[:, t - 1]).sign_()
            optimizer.step()
            if t in self.looks or t in self.slope_looks:
                gaps[t] = (self.value(w, points) - least).numpy()
                run.log(
                    step=t,
                    gap=gaps[t].mean(),
                    bound=self.bound(t),
                    quantized=self._quantized(w).mean().item(),
                )
        table = [
            {"i": i, "t": t, "gap": gap, "bound": self.bound(t), "ratio": gap / self.bound(t)}
            for t in self.looks
            for i, gap in enumerate(gaps[t].tolist())
        ]
        run.rows("look", table)
        rows = {
            "quantized": self._quantized(w).tolist(),
            "optimal_quantized": self._quantized(minimizer).tolist(),
            "slope": np.polyfit(
                np.log(self.slope_looks), np.log(np.stack([gaps[t] for t in self.slope_looks])), 1
            )[0].tolist(),
        }
        run.rows("problem", rows)
        run.summary(**{name: float(np.mean(values)) for name, values in rows.items()})

    def bound(self, t: int) -> float:
        """Of the expected gap of the last iterate."""
        return self.lipschitz * self.radius * (2 + 1.5 * math.log(t)) / math.sqrt(t)

    def value(self, w: Tensor, points: Tensor) -> Tensor:
        """F of w [problems, d] with points [problems, n, d]."""
        distances = (w.unsqueeze(1) - points).abs().sum(-1).mean(-1)
        return distances + self.strength * self._regularizer(w).sum(-1)

    def minimizer(self, points: Tensor) -> Tensor:
        """[problems, d]. Each coordinate's function is convex and affine between points and levels: one of these
        is its minimizer."""
        p = points.transpose(1, 2).contiguous().sort(-1).values  # [problems, d, n]
        levels = torch.tensor([sign * q for q in self.levels for sign in (-1, 1)], dtype=p.dtype)
        candidates = torch.cat(
            [p.clamp(-self.levels[-1], self.levels[-1]), levels.expand(*p.shape[:2], -1)], -1
        )
        below = torch.searchsorted(p, candidates)
        sums = torch.nn.functional.pad(p.cumsum(-1), (1, 0))
        n, left = p.shape[-1], sums.gather(-1, below)
        distances = (candidates * (2 * below - n) + sums[..., -1:] - 2 * left) / n
        values = distances + self.strength * self._regularizer(candidates)
        return candidates.gather(-1, values.argmin(-1, keepdim=True)).squeeze(-1)

    def _regularizer(self, w: Tensor) -> Tensor:
        """ψ of numbers within ±q_m."""
        size, value, offset = w.abs(), torch.zeros_like(w), 0.0
        for k, slope in enumerate(self.slopes):
            if k:
                offset += self.slopes[k - 1] * (self.levels[k] - self.levels[k - 1])
            value = torch.maximum(value, slope * (size - self.levels[k]) + offset)
        return value

    def _quantized(self, w: Tensor) -> Tensor:
        """Share of coordinates at a level, [problems]."""
        levels = torch.tensor(self.levels, dtype=w.dtype)
        return ((w.abs().unsqueeze(-1) - levels).abs().amin(-1) <= 1e-10).double().mean(-1)

    def _draw(self, run: Run) -> tuple[Tensor, Tensor]:
        """Points [problems, n, d] and the drawn one of every step [problems, T]."""
        points, order = [], []
        for i in range(self.problems):
            generator = run.generator("points", i)
            centre = 2 * torch.rand(self.dim, generator=generator, dtype=torch.float64) - 1
            points.append(
                centre + torch.randn(self.points, self.dim, generator=generator, dtype=torch.float64)
            )
            order.append(torch.randint(self.points, (self.steps,), generator=run.generator("steps", i)))
        return torch.stack(points), torch.stack(order)
