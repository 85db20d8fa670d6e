"""CMA-ES of the package `cma` as an optimizer of this kind."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from methods.common.ask_tell import AskTell, count, positive
from methods.common.draws import Generators


class CMAES(AskTell):
    """pycma's evolution strategy; the parameters are the best point it has seen so far.

    A replicate that pycma's own criteria stop (numerically there is nothing left to gain) stays where it is.

    Source: Hansen and Ostermeier (2001); package `cma`.

    Args:
        params: parameters, or one parameter group; their value is the first mean, whose objective the first update
            asks for too.
        sigma: first standard deviation, above 0, in units of x.
        n_samples: population, at least 2; an update costs that many values.
        options: further options of `cma.CMAEvolutionStrategy`.
        maximize, generator: see `methods.common.ask_tell.AskTell`; each replicate's NumPy generator is seeded from
            its torch generator.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> x = torch.tensor([2.0, -1.0], requires_grad=True)
        >>> optimizer = CMAES([x], sigma=0.5, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(60):
        ...     best = optimizer.step(batched=lambda x: (x - 1).square().sum(-1))
        >>> bool((x - 1).norm() < 1e-3)
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        sigma: float = 0.5,
        n_samples: int = 10,
        options: dict[str, Any] | None = None,
        maximize: bool = False,
        generator: Generators = None,
    ) -> None:
        defaults = {"sigma": positive("sigma", sigma), "n_samples": count("n_samples", n_samples, 2)}
        super().__init__(
            params, defaults | {"cma": dict(options or {})}, maximize=maximize, generator=generator
        )

    def propose(self, x: Tensor) -> Tensor:
        """A population a replicate (before the first update with the start ahead): [R, K or K + 1, d]."""
        first = not self.memory
        if first:
            self._begin(x)
        populations = [
            np.stack(search.ask())
            if not search.stop()
            else np.repeat(here[None], self.options["n_samples"], axis=0)
            for search, here in zip(self.memory["searches"], x.double().cpu().numpy(), strict=True)
        ]
        points = torch.from_numpy(np.stack(populations)).to(x)
        return torch.cat([x.unsqueeze(1), points], dim=1) if first else points

    def learn(self, x: Tensor, points: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        """One update of every search that is not over."""
        memory, k = self.memory, self.options["n_samples"]
        if memory["best"] is None:
            memory["best"] = losses[:, 0].clone()
        before = memory["best"].to(losses)
        populations, values = points[:, -k:].double().cpu().numpy(), losses[:, -k:].double().cpu().numpy()
        for search, population, value in zip(memory["searches"], populations, values, strict=True):
            if not search.stop():
                search.tell(list(population), list(value))
        least, where = losses[:, -k:].min(dim=1)
        better = least < before
        memory["best"] = torch.where(better, least, before)
        newest = points[:, -k:].gather(1, where[:, None, None].expand(-1, 1, x.shape[1])).squeeze(1)
        return torch.where(better.unsqueeze(1), newest, x), before

    def _begin(self, x: Tensor) -> None:
        import cma

        searches = []
        for start, generator in zip(x.double().cpu().numpy(), self.draws.generators, strict=True):
            seed = int(torch.randint(2**62, (), generator=generator))
            options = {
                "popsize": self.options["n_samples"],
                "verbose": -9,
                "seed": np.nan,  # pycma leaves NumPy's global generator alone
                "randn": _Normals(np.random.default_rng(seed)),
                **self.options["cma"],
            }
            searches.append(cma.CMAEvolutionStrategy(start, self.options["sigma"], options))
        self.memory.update(searches=searches, best=None)


class _Normals:
    """What pycma calls for standard normal numbers; can be pickled with it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def __call__(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape)
