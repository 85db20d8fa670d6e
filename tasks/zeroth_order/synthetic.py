"""Minimizing a test function of which only values are seen."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from tasks.run import Run
from tasks.zeroth_order.interface import Method, Optimizer

CHECKPOINT_SECONDS = 60.0


class Synthetic:
    """A fixed number of steps from a standard normal start; a run is one start and one stream of directions.

    Curves: `gap` (the objective above its minimum) and `gradient_sq` (squared norm of the true gradient), at
    the start, at every `log_every`-th step and at the end.

    Summary:
        steps_to_target: updates before the gap is first at most `target` times the initial one; None if never.
        steps: updates in all.
        initial_gap, final_gap.
        mean_gradient_sq: mean of `gradient_sq` over the logged points but the last.
        function_values: what the optimizer paid for.

    Args:
        function: points [n, d] -> values [n].
        dim: d.
        steps: number of updates.
        target: fraction of the initial gap, in (0, 1).
        log_every: steps between two points of a curve.
        minimum: the least value of the function.
        dtype: floating-point type of the points, unless the run names one.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        dim: int,
        steps: int,
        target: float,
        log_every: int,
        minimum: float = 0.0,
        dtype: str = "float64",
    ) -> None:
        if dim < 1 or steps < 1 or log_every < 1:
            raise ValueError("dim, steps and log_every must be at least 1")
        if not 0 < target < 1:
            raise ValueError(f"target must be in (0, 1), not {target}")
        self.function, self.dim, self.steps, self.target = function, dim, steps, target
        self.log_every, self.minimum, self.dtype = log_every, minimum, getattr(torch, dtype)

    def evaluate(self, method: Method, run: Run) -> None:
        """Run the optimizer and record its path."""
        dtype = run.dtype or self.dtype
        start = torch.randn(self.dim, generator=run.generator("start"))
        x = start.to(run.device, dtype).requires_grad_()
        directions = run.generator("directions")
        optimizer = method([x], generator=directions)
        values = _Counter(self.function)

        first, hit, total, points, initial = 0, None, 0.0, 0, math.nan
        if state := run.restore():
            first, hit, total, points, initial = state["loop"]
            with torch.no_grad():
                x.copy_(state["x"])
            optimizer.load_state_dict(state["optimizer"])
            directions.set_state(state["directions"])
            values.count = state["count"]
        saved = time.monotonic()

        for step in run.track(range(first, self.steps), total=self.steps - first):
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                loop = (step, hit, total, points, initial)
                run.save(self._state(loop, x, optimizer, directions, values))
                saved = time.monotonic()
            if step % self.log_every == 0:
                gap, gradient_sq = self._look(x)
                run.log(step=step, gap=gap, gradient_sq=gradient_sq)
                total, points = total + gradient_sq, points + 1
                initial = gap if step == 0 else initial
            gap = optimizer.step(batched=values).item() - self.minimum
            if hit is None and gap <= self.target * initial:
                hit = step
        gap, gradient_sq = self._look(x)
        run.log(step=self.steps, gap=gap, gradient_sq=gradient_sq)
        if hit is None and gap <= self.target * initial:
            hit = self.steps
        run.summary(
            steps_to_target=hit,
            steps=self.steps,
            initial_gap=initial,
            final_gap=gap,
            mean_gradient_sq=total / points,
            function_values=values.count,
        )

    def _look(self, x: Tensor) -> tuple[float, float]:
        """Gap and squared gradient norm at x, which the optimizer does not get to see."""
        with torch.enable_grad():
            point = x.detach().unsqueeze(0).requires_grad_()
            value = self.function(point).sum()
            (gradient,) = torch.autograd.grad(value, point)
        return value.item() - self.minimum, gradient.square().sum().item()

    @staticmethod
    def _state(
        loop: tuple[int, int | None, float, int, float],
        x: Tensor,
        optimizer: Optimizer,
        directions: torch.Generator,
        values: "_Counter",
    ) -> dict[str, object]:
        return {
            "loop": loop,
            "x": x.detach(),
            "optimizer": optimizer.state_dict(),
            "directions": directions.get_state(),
            "count": values.count,
        }


class _Counter:
    """Counts the function values that are paid for."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function, self.count = function, 0

    def __call__(self, points: Tensor) -> Tensor:
        self.count += len(points)
        return self.function(points)
