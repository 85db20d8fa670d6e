"""A quadratic under heavy-tailed noise, thousands of runs at once."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tasks.minimize.independent import Method
from tasks.run import Run
from tasks.training.recipe import call

CHUNK = 2**20  # numbers drawn at once


class Noise(Protocol):
    """A law of independent noise with mean 0."""

    def sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws in double precision, one after the other in the order of the result's entries."""


class HeavyTailedQuadratic:
    """f(x) = ‖x‖²/2 with gradients x + ξ: how far from 0 are runs after T steps, and how far are the worst of them?

    A block is a fixed number of independent runs; its noise comes from a generator of its own, so methods are paired
    by their noise and a block's numbers do not depend on the number of blocks.

    Rows (unit `block`), over the block's runs:
        median, q95, q99, mse: of ‖x_T‖ (mse: mean of ‖x_T‖²).
        signed_mean: ‖mean of x_T‖, in which large deviations of either sign cancel.
        tail_slope: slope of log q(1 - δ) on log(1/δ), where q are the quantiles of ‖x_T‖ and δ runs over `levels`; a
            tail P(‖x_T‖ > t) ~ t^(-a) has slope 1/a.

    Rows (unit `tail`), one for every block and δ: inverse_level 1/δ, and distance q(1 - δ).

    Curves: median, q95, q99 and signed_mean over the runs of all blocks, at about `points` steps, denser at the start.

    Summary: means of the rows over blocks.

    Args:
        noise: law of ξ.
        dim: d.
        start: every coordinate of x_0.
        steps: T.
        runs: runs a block.
        blocks: number of blocks.
        levels: δ's in (0, 1), at least two.
        points: points of a curve.
    """

    def __init__(
        self,
        noise: Noise,
        dim: int,
        start: float,
        steps: int,
        runs: int,
        blocks: int,
        levels: Sequence[float],
        points: int = 60,
    ) -> None:
        if min(dim, steps, runs, blocks) < 1:
            raise ValueError("dim, steps, runs and blocks must be at least 1")
        if len(levels) < 2 or not all(0 < level < 1 for level in levels):
            raise ValueError(f"levels must be at least two numbers in (0, 1), not {list(levels)}")
        self.noise, self.dim, self.start, self.steps = noise, dim, start, steps
        self.runs, self.blocks, self.levels, self.points = runs, blocks, tuple(levels), points

    def evaluate(self, method: Method, run: Run) -> None:
        """Run all blocks together."""
        x = torch.full((self.blocks * self.runs, self.dim), self.start, dtype=torch.float64)
        optimizer = call(method, [x], total_steps=self.steps)
        looks = set((np.linspace(0, self.steps**0.5, self.points + 1) ** 2).round().astype(int).tolist())
        self._log(run, 0, x)
        draws = noise_steps(self.noise, run, self.blocks, (self.runs, self.dim), self.steps)
        for step in run.track(range(1, self.steps + 1), total=self.steps):
            x.grad = next(draws).add_(x)
            optimizer.step()
            if step in looks:
                self._log(run, step, x)
        blocks = list(x.view(self.blocks, self.runs, self.dim).numpy())
        rows = [self._row(block) for block in blocks]
        run.rows("block", rows)
        run.rows("tail", [tail for i, block in enumerate(blocks) for tail in self._tail(i, block)])
        run.summary(**{name: float(np.mean([row[name] for row in rows])) for name in rows[0]})

    def _row(self, x: np.ndarray) -> dict[str, float]:
        """One row from the last points [runs, d] of a block."""
        distances, levels = np.linalg.norm(x, axis=1), np.asarray(self.levels)
        tails = np.quantile(distances, 1 - levels)
        return {
            **_quantiles(distances),
            "mse": float(np.square(distances).mean()),
            "signed_mean": float(np.linalg.norm(x.mean(0))),
            "tail_slope": float(np.polyfit(-np.log(levels), np.log(tails), 1)[0]),
        }

    def _tail(self, i: int, x: np.ndarray) -> list[dict[str, float]]:
        levels = np.asarray(self.levels)
        tails = np.quantile(np.linalg.norm(x, axis=1), 1 - levels)
        return [
            {"i": i, "inverse_level": float(1 / level), "distance": float(tail)}
            for level, tail in zip(levels, tails, strict=True)
        ]

    def _log(self, run: Run, step: int, x: Tensor) -> None:
        distances = torch.linalg.vector_norm(x, dim=1).numpy()
        signed = torch.linalg.vector_norm(x.mean(0)).item()
        run.log(step=step, **_quantiles(distances), signed_mean=signed)


def noise_steps(
    noise: Noise, run: Run, blocks: int, shape: tuple[int, ...], steps: int, chunk: int = CHUNK
) -> Iterator[Tensor]:
    """Noise of every step for all blocks, [blocks · shape[0], ...]; block i draws from `run.generator("noise", i)`."""
    generators = [run.generator("noise", i) for i in range(blocks)]
    at_once = max(1, chunk // (blocks * int(np.prod(shape))))
    for first in range(0, steps, at_once):
        count = min(at_once, steps - first)
        drawn = torch.cat([noise.sample((count, *shape), generator) for generator in generators], dim=1)
        yield from drawn.unbind(0)


def _quantiles(distances: np.ndarray) -> dict[str, float]:
    median, q95, q99 = np.quantile(distances, [0.5, 0.95, 0.99])
    return {"median": float(median), "q95": float(q95), "q99": float(q99)}
