"""Global search from random starts, all repeats at once."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from tasks.run import Run
from tasks.zeroth_order.interface import Method


class Repeats:
    """A fixed number of steps on a function with a known minimizer, from R random starts at once.

    Repeat i draws its start and its directions from generators of its own, so methods are paired by their starts
    and a repeat's numbers do not depend on R. The mean squared error (MSE) of an iterate is the mean over coordinates
    of its squared distance to the minimizer. Three iterates of each repeat are looked at: the one nearest to the
    minimizer, which nobody who searches for it could pick; the one with the least objective; and the last.

    Rows (unit `repeat`); None where an iterate is not finite:
        nearest_mse, nearest_loss, nearest_step: of the nearest iterate; steps count from 1.
        best_mse, best_loss, best_step: of the iterate with the least objective.
        last_mse, last_loss: of the last iterate.
        steps_to_target: steps until the MSE is first at most `target`; None if never.

    Curves: `mse` of the current iterate and `nearest_mse` of the nearest so far, means over repeats, at about `points`
    steps (none where a mean is not finite).

    Summary: the means of all row values but steps_to_target (None if one is missing); reached: share of repeats that
    reach the target; mean_steps_to_target, where never counts as `steps`; values_per_step: function values that a
    repeat pays for a step.

    Args:
        function: points [..., d] -> values [...], to be minimized.
        minimizer: every coordinate of it, or all of them.
        dim: d.
        start: "normal" or "uniform".
        center: of the start; one number for all coordinates, or d of them.
        spread: standard deviation of the start, or half the width of its box.
        repeats: R.
        steps: number of updates.
        target: an MSE.
        points: points of a curve.
        dtype: floating-point type of the points, unless the run names one.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        minimizer: float | list[float],
        dim: int,
        start: Literal["normal", "uniform"],
        center: float | list[float],
        spread: float,
        repeats: int,
        steps: int,
        target: float,
        points: int = 100,
        dtype: str = "float64",
    ) -> None:
        if dim < 1 or repeats < 1 or steps < 1:
            raise ValueError("dim, repeats and steps must be at least 1")
        if start not in ("normal", "uniform"):
            raise ValueError(f"start must be 'normal' or 'uniform', not {start!r}")
        for name, value in (("minimizer", minimizer), ("center", center)):
            if isinstance(value, list) and len(value) != dim:
                raise ValueError(f"{name} has {len(value)} coordinates, not {dim}")
        self.function, self.minimizer, self.dim = function, minimizer, dim
        self.start, self.center, self.spread = start, center, spread
        self.repeats, self.steps, self.target, self.points = repeats, steps, target, points
        self.dtype = getattr(torch, dtype)

    def evaluate(self, method: Method, run: Run) -> None:
        """Search from every start and look back at the iterates."""
        dtype = run.dtype or self.dtype
        starts = torch.stack([self._start(run.generator("start", i)) for i in range(self.repeats)])
        x = starts.to(run.device, dtype).requires_grad_()
        optimizer = method([x], generator=[run.generator("directions", i) for i in range(self.repeats)])
        function = _Counter(self.function)
        first = x.detach().clone()
        path = torch.empty(self.steps, self.repeats, self.dim, dtype=dtype, device=run.device)
        for step in run.track(range(self.steps), total=self.steps):
            optimizer.step(batched=function)
            path[step] = x.detach()
        errors = self._mse(path)
        losses = self.function(path.transpose(0, 1)).T
        rows = self._rows(errors, losses)
        run.rows("repeat", rows)
        self._log(run, torch.cat([self._mse(first).unsqueeze(0), errors]))
        hits = [self.steps if row["steps_to_target"] is None else row["steps_to_target"] for row in rows]
        run.summary(
            **{name: _mean([row[name] for row in rows]) for name in rows[0] if name != "steps_to_target"},
            reached=sum(row["steps_to_target"] is not None for row in rows) / len(rows),
            mean_steps_to_target=sum(hits) / len(hits),
            values_per_step=function.count / self.steps / self.repeats,
        )

    def _start(self, generator: torch.Generator) -> Tensor:
        """One start, [d], in double precision."""
        center = torch.tensor(self.center, dtype=torch.float64)
        if self.start == "normal":
            return center + self.spread * torch.randn(self.dim, generator=generator, dtype=torch.float64)
        return center + self.spread * (2 * torch.rand(self.dim, generator=generator, dtype=torch.float64) - 1)

    def _mse(self, x: Tensor) -> Tensor:
        """MSE of points [..., d]."""
        return (x - torch.tensor(self.minimizer, dtype=x.dtype, device=x.device)).square().mean(-1)

    def _rows(self, errors: Tensor, losses: Tensor) -> list[dict[str, Any]]:
        """One row a repeat from MSEs and losses [T, R]."""
        infinite = torch.full_like(errors, torch.inf)
        errors = torch.where(errors.isfinite(), errors, infinite)
        losses = torch.where(losses.isfinite(), losses, infinite)
        rows = []
        for error, loss in zip(errors.T.cpu(), losses.T.cpu(), strict=True):
            nearest, best = int(error.argmin()), int(loss.argmin())
            hits = (error <= self.target).nonzero()
            row = {
                "nearest_mse": error[nearest].item(),
                "nearest_loss": loss[nearest].item(),
                "nearest_step": nearest + 1,
                "best_mse": error[best].item(),
                "best_loss": loss[best].item(),
                "best_step": best + 1,
                "last_mse": error[-1].item(),
                "last_loss": loss[-1].item(),
                "steps_to_target": int(hits[0]) + 1 if len(hits) else None,
            }
            rows.append({name: None if value == float("inf") else value for name, value in row.items()})
        return rows

    def _log(self, run: Run, errors: Tensor) -> None:
        """Curves of the MSEs [T + 1, R]."""
        means, nearest = errors.mean(1), errors.cummin(0).values.mean(1)
        for step in torch.linspace(0, self.steps, min(self.points, self.steps) + 1).round().int().tolist():
            now, least = means[step].item(), nearest[step].item()
            if all(torch.tensor([now, least]).isfinite()):
                run.log(step=step, mse=now, nearest_mse=least)


class _Counter:
    """Counts the function values that are paid for."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function, self.count = function, 0

    def __call__(self, points: Tensor) -> Tensor:
        self.count += points.shape[:-1].numel()
        return self.function(points)


def _mean(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if len(present) == len(values) else None
