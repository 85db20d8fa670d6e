"""One unlucky gradient of probability δ: how many more steps does it cost?"""

import inspect
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from tasks.minimize.independent import Method
from tasks.run import Run
from tasks.training.recipe import call


class OneSpike:
    """Huber's function under noise in the first gradient only: ±A with probability δ each, else 0.

    A = σ/√(2δ), so that the noise has variance σ² for every δ. The run is conditioned on the unlucky draw, -A, which
    pushes x away from the minimum at 0, and is deterministic. K(δ) is the least number of steps with f(x_K) <= ε: a
    method is within ε with probability above 1 - δ only if it makes K(δ) steps. (A method whose parameters depend on K
    is run anew for K = 1, 2, ..., each at least `growth` times the last, so its K is known up to that factor.)

    Rows (unit `delta`): delta, inverse_delta, K (None: more than `max_steps`).

    Summary: slope, of log K on log(1/δ) (None unless all K are there); K_last, for the last δ.

    Args:
        deltas: δ's in (0, 1/2], at least two.
        sigma: σ > 0.
        start: x_0 > 0.
        threshold: from where f is linear, with slope `threshold`.
        eps: ε > 0, at most threshold²/2.
        max_steps: largest K tried.
        growth: above 1.
    """

    def __init__(
        self,
        deltas: Sequence[float],
        sigma: float,
        start: float,
        threshold: float,
        eps: float,
        max_steps: int,
        growth: float,
    ) -> None:
        if len(deltas) < 2 or not all(0 < delta <= 0.5 for delta in deltas):
            raise ValueError(f"deltas must be at least two numbers in (0, 1/2], not {list(deltas)}")
        if not 0 < eps <= threshold**2 / 2:
            raise ValueError(f"eps must be in (0, threshold²/2], not {eps}")
        if growth <= 1:
            raise ValueError(f"growth must be above 1, not {growth}")
        self.deltas, self.sigma, self.start, self.threshold = tuple(deltas), sigma, start, threshold
        self.radius, self.max_steps, self.growth = math.sqrt(2 * eps), max_steps, growth

    def evaluate(self, method: Method, run: Run) -> None:
        """Find K for every δ."""
        counts = [self._least(method, -self.sigma / (2 * delta) ** 0.5) for delta in run.track(self.deltas)]
        inverse = [1 / delta for delta in self.deltas]
        run.rows("delta", {"delta": list(self.deltas), "inverse_delta": inverse, "K": counts})
        known = [count for count in counts if count is not None]
        slope = float(np.polyfit(np.log(inverse), np.log(known), 1)[0]) if len(known) == len(counts) else None
        run.summary(slope=slope, K_last=counts[-1])

    def _least(self, method: Method, spike: float) -> int | None:
        steps = self.max_steps
        if not _asks_for_steps(method):
            return self._first_hit(method, spike, steps, steps)
        steps = 2
        while steps <= self.max_steps:
            if self._hits(method, spike, steps):
                return steps
            steps = max(steps + 1, math.ceil(steps * self.growth))
        return None

    def _first_hit(self, method: Method, spike: float, steps: int, total: int) -> int | None:
        """Number of steps after which x first lies in the target, at most `steps`."""
        for count, x in enumerate(self._path(method, spike, steps, total), start=1):
            if abs(x) <= self.radius:
                return count
        return None

    def _hits(self, method: Method, spike: float, steps: int) -> bool:
        *_, last = self._path(method, spike, steps, steps)
        return abs(last) <= self.radius

    def _path(self, method: Method, spike: float, steps: int, total: int) -> Iterator[float]:
        """x_1, x_2, ..."""
        x = torch.tensor([[self.start]], dtype=torch.float64)
        x.grad = torch.empty_like(x)
        optimizer = call(method, [x], total_steps=total)
        position = self.start
        for step in range(steps):
            slope = max(-self.threshold, min(self.threshold, position))
            x.grad.fill_(slope + (spike if step == 0 else 0.0))
            optimizer.step()
            position = x.item()
            yield position


def _asks_for_steps(method: Method) -> bool:
    """Whether the method's parameters depend on the number of steps."""
    named = inspect.signature(method).parameters
    return "total_steps" in named and "total_steps" not in getattr(method, "keywords", {})
