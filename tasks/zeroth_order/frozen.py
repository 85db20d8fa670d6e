"""What an adaptive zeroth-order optimizer knows about a gradient that does not change."""

import torch

from tasks.run import Run
from tasks.zeroth_order.functions import linear
from tasks.zeroth_order.interface import Method


class FrozenLinear:
    """Steps with learning rate 0 on a linear function, whose gradient a is drawn once a repeat.

    The estimate must be unbiased (Gaussian directions, or the sphere with the factor d), and the optimizer must
    keep its moments as `exp_avg` and `exp_avg_sq`, as torch.optim.Adam does; the estimates g_t are recovered
    from the first moment. With s_i^2 the variance of an estimate's coordinate i, rows (unit `repeat`) hold:
        estimate_error: mean over steps of |g - a|^2 / |a|^2.
        variance_ratio: variance of the first moment over that of the estimate, after the burn-in.
        second_moment_error: mean over coordinates of |mean v_i - a_i^2|, v averaged over the steps after the
            burn-in, in units of the mean of s_i^2 over coordinates.

    Args:
        dim: dimension d.
        steps: steps in all.
        burn_in: steps before the moments are looked at; at least 100.
        repeats: independent repeats.
    """

    def __init__(self, dim: int, steps: int, burn_in: int, repeats: int) -> None:
        if not 100 <= burn_in < steps:
            raise ValueError(f"burn_in must be at least 100 and below steps, not {burn_in}")
        self.dim, self.steps, self.burn_in, self.repeats = dim, steps, burn_in, repeats

    def evaluate(self, method: Method, run: Run) -> None:
        """One row a repeat."""
        rows = [self._repeat(method, run, i) for i in run.track(range(self.repeats), total=self.repeats)]
        run.rows("repeat", rows)
        for name in rows[0]:
            run.summary(**{name: sum(row[name] for row in rows) / len(rows)})

    def _repeat(self, method: Method, run: Run, i: int) -> dict[str, float]:
        slope = torch.randn(self.dim, generator=run.generator("slope", i), dtype=torch.float64).to(run.device)
        x = torch.zeros_like(slope).requires_grad_()
        optimizer = method([x], generator=run.generator("directions", i), lr=0.0)
        beta = optimizer.param_groups[0]["betas"][0]
        estimate_error = estimate_variance = first_variance = 0.0
        before, second = torch.zeros_like(slope), torch.zeros_like(slope)
        kept = self.steps - self.burn_in
        for step in range(self.steps):
            optimizer.step(batched=lambda points: linear(points, slope))
            first = optimizer.state[x]["exp_avg"]
            estimate = (first - beta * before) / (1 - beta)
            before = first.clone()
            error = (estimate - slope).square().sum().item()
            estimate_error += error / self.steps
            if step >= self.burn_in:
                estimate_variance += error / kept
                first_variance += (first - slope).square().sum().item() / kept
                second += optimizer.state[x]["exp_avg_sq"] / kept
        scale = slope.square().sum().item()
        return {
            "estimate_error": estimate_error / scale,
            "variance_ratio": first_variance / estimate_variance,
            "second_moment_error": (second - slope.square()).abs().sum().item() / estimate_variance,
        }
