"""Particle swarm optimization with a constriction factor (Clerc and Kennedy, 2002)."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from methods.common.ask_tell import AskTell, count, positive
from methods.common.draws import Generators, Sampler


class PSO(AskTell):
    """A swarm drawn towards each particle's and the whole swarm's best point; the parameters are the latter.

    With uniform r and s in [0, 1], for every particle and coordinate::

        velocity = inertia velocity + pull r (own best - position) + pull s (swarm's best - position)
        position = position + velocity

    The first particle starts at the parameters, the others around them with standard deviation sigma, all at rest.

    Source: Clerc and Kennedy (2002), with the constants of their constriction factor.

    Args:
        params: parameters, or one parameter group.
        sigma: spread of the first swarm, above 0, in units of x.
        n_samples: particles, at least 2; an update costs that many values.
        inertia, pull: constants of the update.
        maximize, generator, sampler: see `methods.common.ask_tell.AskTell`.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> x = torch.tensor([2.0, -1.0], requires_grad=True)
        >>> optimizer = PSO([x], sigma=1.0, n_samples=20, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(100):
        ...     best = optimizer.step(batched=lambda x: (x - 1).square().sum(-1))
        >>> bool((x - 1).norm() < 1e-3)
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        sigma: float = 1.0,
        n_samples: int = 10,
        inertia: float = 0.729844,
        pull: float = 1.49618,
        maximize: bool = False,
        generator: Generators = None,
        sampler: Sampler | None = None,
    ) -> None:
        defaults = {
            "sigma": positive("sigma", sigma),
            "n_samples": count("n_samples", n_samples, 2),
            "inertia": inertia,
            "pull": pull,
        }
        super().__init__(params, defaults, maximize=maximize, generator=generator, sampler=sampler)

    def propose(self, x: Tensor) -> Tensor:
        """The swarm: [R, K, d]."""
        k, d = self.options["n_samples"], x.shape[1]
        if not self.memory:
            others = x.unsqueeze(1) + self.options["sigma"] * self.draws.normal(k - 1, d, like=x)
            swarm = torch.cat([x.unsqueeze(1), others], dim=1)
            unseen = torch.full_like(swarm[..., 0], torch.inf)
            self.memory.update(swarm=swarm, velocity=torch.zeros_like(swarm), own=swarm, own_loss=unseen)
        return self.memory["swarm"]

    def learn(self, x: Tensor, points: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        """One flight; the returned losses are those of the best point so far (at first, of the start)."""
        memory, k, d = self.memory, self.options["n_samples"], x.shape[1]
        before = memory["own_loss"].amin(1)
        before = torch.where(before.isinf(), losses[:, 0], before)
        better = losses < memory["own_loss"]
        memory["own_loss"] = torch.where(better, losses, memory["own_loss"])
        memory["own"] = torch.where(better.unsqueeze(2), points, memory["own"])
        first = memory["own_loss"].argmin(1)
        best = memory["own"].gather(1, first[:, None, None].expand(-1, 1, d))
        pulls = self.options["pull"] * self.draws.uniform(2 * k, d, like=x)
        memory["velocity"] = (
            self.options["inertia"] * memory["velocity"]
            + pulls[:, :k] * (memory["own"] - points)
            + pulls[:, k:] * (best - points)
        )
        memory["swarm"] = points + memory["velocity"]
        return best.squeeze(1), before
