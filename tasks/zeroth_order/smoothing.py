"""What the smoothing of a transformed fitness looks like, and how well it is estimated."""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from tasks.run import Run
from tasks.zeroth_order.interface import Method, Smoothing


class SmoothedMaximizer:
    """Where the smoothed transformed fitness F_N(mu) of a function of one variable is largest: no randomness.

    F_N is the sum over a grid on [low, high) of f_N(x) times the Gaussian density of x around mu; outside, f_N counts
    as 0. The method's smoothing width and transform are asked from it (`tasks.zeroth_order.interface.Smoothing`).

    Curves: `surrogate` (F_N over its maximum) and `mu`, one step a grid point; `transformed` (f_N over its maximum).

    Summary: maximizer (the first grid point with the largest F_N), distance (from the function's minimizer).

    Args:
        function: points [n, 1] -> values [n], to be minimized.
        minimizer: of the function.
        low, high: ends of the grid.
        cells: grid points.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], minimizer: float, low: float, high: float, cells: int
    ) -> None:
        if not low < high or cells < 2:
            raise ValueError("low must be below high and cells at least 2")
        self.function, self.minimizer, self.low, self.high, self.cells = function, minimizer, low, high, cells

    def evaluate(self, method: Method, run: Run) -> None:
        """Compute F_N on the grid."""
        grid = self.low + (self.high - self.low) / self.cells * torch.arange(self.cells, dtype=torch.float64)
        optimizer = cast(
            Smoothing,
            method([torch.zeros(1, dtype=torch.float64)], generator=run.generator("directions")),
        )
        transformed, _ = optimizer.transform(self.function(grid.unsqueeze(1)))
        density = (-(grid.unsqueeze(1) - grid).square() / (2 * optimizer.spread**2)).exp()
        smoothed = (density * transformed).sum(1)
        smoothed, transformed = smoothed / smoothed.max(), transformed / transformed.max()
        for step, (mu, value, own) in enumerate(zip(grid, smoothed, transformed, strict=True)):
            run.log(step=step, mu=mu.item(), surrogate=value.item(), transformed=own.item())
        maximizer = grid[smoothed.argmax()].item()
        run.summary(maximizer=maximizer, distance=abs(maximizer - self.minimizer))


class EstimatorError:
    """The exponential transform's estimate of sigma^2 grad F_N against its closed form, on a quadratic.

    For the fitness -|x - c|^2 / 2, with s = N sigma^2,
    E (x - mu) e^{N f(x)} = s / (1 + s) (c - mu) (1 + s)^{-d/2} exp(-N |mu - c|^2 / (2 (1 + s))). The method must
    leave its estimate in the state as `estimate` times the exponential of `log_scale`, and have `N` and `spread`.

    Rows (unit `block`): samples (K) and rms_error, the root of the mean of |estimate - exact|^2 over the block's
    estimates, over |exact|. One row a block and K.

    Rows (unit `level`): samples and z, the largest distance over coordinates between the mean of all estimates and
    the exact value, in standard errors of the mean. One row a K.

    Args:
        dim: d.
        offset: every coordinate of c; mu is 0.
        samples: the K.
        blocks: number of blocks, at least 2.
        estimates: number of estimates in a block.
    """

    def __init__(self, dim: int, offset: float, samples: list[int], blocks: int, estimates: int) -> None:
        if blocks < 2 or estimates < 1 or dim < 1:
            raise ValueError("blocks must be at least 2, estimates and dim at least 1")
        self.dim, self.offset, self.samples = dim, offset, samples
        self.blocks, self.estimates = blocks, estimates

    def evaluate(self, method: Method, run: Run) -> None:
        """Estimate at mu = 0, again and again."""
        blocks: list[dict[str, float]] = []
        levels: list[dict[str, float]] = []
        for samples in run.track(self.samples, total=len(self.samples)):
            parts = []
            for block in range(self.blocks):
                estimates, exact = self._block(method, run, samples, block)
                parts.append(estimates)
                error = (estimates - exact).square().sum(1).mean().sqrt() / exact.norm()
                blocks.append({"i": block, "samples": samples, "rms_error": error.item()})
            every = torch.cat(parts)
            z = (every.mean(0) - exact).abs() / (every.std(0) / math.sqrt(len(every)))
            levels.append({"i": len(levels), "samples": samples, "z": z.max().item()})
        run.rows("block", blocks)
        run.rows("level", levels)
        run.summary(largest_z=max(row["z"] for row in levels))

    def _block(self, method: Method, run: Run, samples: int, block: int) -> tuple[Tensor, Tensor]:
        """Estimates of one block, [estimates, d], and the exact value, [d]."""
        first = block * self.estimates
        generators = [run.generator(f"block {samples}", first + i) for i in range(self.estimates)]
        mu = torch.zeros(self.estimates, self.dim, dtype=torch.float64, device=run.device)
        optimizer = method([mu], generator=generators, lr=0.0, n_samples=samples)
        optimizer.step(batched=lambda x: (x - self.offset).square().sum(-1) / 2)
        state = optimizer.state[mu]
        N, spread = optimizer.param_groups[0]["N"], cast(Smoothing, optimizer).spread
        estimates = (state["estimate"] * state["log_scale"].exp()).cpu()
        center = torch.full((self.dim,), self.offset, dtype=torch.float64)
        return estimates, smoothed_quadratic(torch.zeros_like(center), center, N, spread)


def smoothed_quadratic(mu: Tensor, center: Tensor, N: float, sigma: float) -> Tensor:
    """E (x - mu) exp(-N |x - center|^2 / 2) for x ~ N(mu, sigma^2 I): [d].

    Example:
        >>> smoothed_quadratic(torch.zeros(1), torch.ones(1), N=1.0, sigma=1.0).item()
        0.275347
    """
    s = N * sigma**2
    distance = (mu - center).square().sum()
    return s / (1 + s) * (center - mu) * (1 + s) ** (-len(mu) / 2) * torch.exp(-N * distance / (2 * (1 + s)))
