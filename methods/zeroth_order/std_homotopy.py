"""Standard homotopy: Gaussian smoothing whose width shrinks level by level."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from methods.common.ask_tell import AskTell, count, positive
from methods.common.draws import Generators, Sampler


class STDHomotopy(AskTell):
    """Ascends the Gaussian smoothing E f(mu + sigma z) in steps of a set length, and shrinks sigma now and then.

    Of the fitness f = ``shift - loss`` (with `maximize` ``shift + value``), one update is::

        g  = mean_j (x_j - mu) f(x_j),   x_j = mu + sigma z_j
        mu = mu + lr_k g / |g|

    A level ends after `level_steps` updates, or once the last `patience` - 1 values f(mu) are no better than the
    one before them; then sigma is multiplied by `decay`. The search ends when the last values of the last
    `levels` - 1 levels are no better than that of the level before them; from then on mu stays.

    The estimate depends on the shift: f(x_j) alone weighs the draws. With `baseline`, f(mu) is subtracted.

    Source: the baseline of arXiv 2412.05204 as its official code has it (`STD_Homotopy`).

    Args:
        params: parameters, or one parameter group.
        lr: length of a step, in units of x, at least 0.
        sigma: standard deviation of the first level, above 0.
        decay: factor of sigma from level to level, in (0, 1).
        n_samples: number of draws K, at least 1; an update costs K + 1 values.
        level_steps: most updates of a level.
        patience: at least 2.
        levels: at least 2.
        decay_steps: s: update k = 0, 1, ... has step length lr s / (s + k); None keeps it.
        shift: added to the fitness.
        baseline: subtract f(mu) from the f(x_j).
        maximize, generator, sampler: see `methods.common.ask_tell.AskTell`.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> mu = torch.tensor([2.0, -1.0], requires_grad=True)
        >>> optimizer = STDHomotopy([mu], lr=0.1, sigma=1.0, n_samples=50, baseline=True,
        ...                         generator=torch.Generator().manual_seed(0))
        >>> for _ in range(200):
        ...     loss = optimizer.step(batched=lambda x: (x - 1).square().sum(-1))
        >>> bool((mu - 1).norm() < 0.2)
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        *,
        sigma: float = 1.0,
        decay: float = 0.5,
        n_samples: int = 10,
        level_steps: int = 500,
        patience: int = 100,
        levels: int = 10,
        decay_steps: float | None = 500,
        shift: float = 0.0,
        baseline: bool = False,
        maximize: bool = False,
        generator: Generators = None,
        sampler: Sampler | None = None,
    ) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"decay must be in (0, 1), not {decay!r}")
        defaults = {
            "lr": lr,
            "decay_steps": decay_steps,
            "sigma": positive("sigma", sigma),
            "decay": decay,
            "n_samples": count("n_samples", n_samples),
            "level_steps": count("level_steps", level_steps),
            "patience": count("patience", patience, 2),
            "levels": count("levels", levels, 2),
            "shift": shift,
            "baseline": baseline,
        }
        super().__init__(params, defaults, maximize=maximize, generator=generator, sampler=sampler)
        self._noise: Tensor | None = None

    def propose(self, x: Tensor) -> Tensor:
        """mu, then the x_j: [R, K + 1, d]."""
        if not self.memory:
            self._begin(x)
        sigma = self.memory["sigma"].unsqueeze(2)
        self._noise = sigma * self.draws.normal(self.options["n_samples"], x.shape[1], like=x)
        return torch.cat([x.unsqueeze(1), x.unsqueeze(1) + self._noise], dim=1)

    def learn(self, x: Tensor, points: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        """One update, and the end of the level or of the search where it has come."""
        assert self._noise is not None
        here = self.options["shift"] - losses[:, 0]
        fitness = self.options["shift"] - losses[:, 1:]
        if self.options["baseline"]:
            fitness = fitness - here.unsqueeze(1)
        estimate = (self._noise * fitness.unsqueeze(2)).mean(1)
        length = torch.linalg.vector_norm(estimate, dim=1, keepdim=True)
        step = torch.where(length > 0, estimate / length, torch.zeros_like(estimate)) * self.options["lr"]
        running = self.memory["running"].bool()
        self._end_levels(here, running)
        return torch.where(running, x + step, x), losses[:, 0]

    def _begin(self, x: Tensor) -> None:
        """Numbers are kept as floats of x's type, [R, 1] or [R, window], so that any checkpoint restores them."""
        worst = torch.full_like(x[:, :1], -torch.inf)
        self.memory.update(
            sigma=torch.full_like(worst, self.options["sigma"]),
            running=torch.ones_like(worst),
            steps=torch.zeros_like(worst),
            level=torch.zeros_like(worst),
            fits=worst.repeat(1, self.options["patience"]),  # f(mu), the newest last
            level_fits=worst.repeat(1, self.options["levels"]),
        )

    def _end_levels(self, here: Tensor, running: Tensor) -> None:
        memory, patience, levels = self.memory, self.options["patience"], self.options["levels"]
        memory["fits"] = torch.cat([memory["fits"][:, 1:], here.unsqueeze(1)], dim=1)
        steps = memory["steps"]  # before this update
        stuck = (steps > patience) & ~_improved(memory["fits"])
        over = running & (stuck | (steps + 1 >= self.options["level_steps"]))
        memory["steps"] = torch.where(over, torch.zeros_like(steps), steps + 1)
        newer = torch.cat([memory["level_fits"][:, 1:], here.unsqueeze(1)], dim=1)
        memory["level_fits"] = torch.where(over, newer, memory["level_fits"])
        memory["sigma"] = torch.where(over, memory["sigma"] * self.options["decay"], memory["sigma"])
        memory["level"] = memory["level"] + over.to(here)
        done = over & (memory["level"] >= levels) & ~_improved(memory["level_fits"])
        memory["running"] = memory["running"] * (~done).to(here)


def _improved(window: Tensor) -> Tensor:
    """Whether any later value of a window [R, n] is above the first: [R, 1]."""
    return window[:, 1:].amax(1, keepdim=True) > window[:, :1]
