"""ZO-SLGH: single-loop Gaussian homotopy from function values (Iwakiri et al., NeurIPS 2022)."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from methods.common.ask_tell import AskTell, count, positive
from methods.common.draws import Generators, Sampler


class SLGH(AskTell):
    """Gradient steps on the Gaussian smoothing E f(x + sigma u), whose width sigma shrinks at every step.

    With standard normal u_j and v_j, j = 1..K::

        x     = x - lr mean_j (f(x + sigma u_j) - f(x)) u_j / sigma
        sigma = gamma sigma                                                     without eta (SLGH_r)
        sigma = max(min(sigma - eta h, gamma sigma), sigma_min)                 with eta (SLGH_d)
        h     = mean_j (|v_j|^2 - d) (f(x + sigma v_j) - f(x)) / sigma^2        at the x before its step

    Source: Iwakiri et al. (2022), Algorithm 3, as the official code of arXiv 2412.05204 has it; its h estimates
    the derivative in t = sigma^2 / 2 while it moves sigma.

    Args:
        params: parameters, or one parameter group.
        lr: learning rate of x, at least 0.
        sigma: first smoothing width, above 0, in units of x.
        gamma: factor of sigma, in (0, 1].
        eta: learning rate of sigma, at least 0; None: sigma shrinks by gamma alone.
        sigma_min: least sigma, above 0; only with eta.
        n_samples: K, at least 1; an update costs K + 1 values, with eta 2K + 1.
        maximize, generator, sampler: see `methods.common.ask_tell.AskTell`.

    Raises:
        ValueError: an argument out of range.

    Example:
        >>> x = torch.tensor([2.0, -1.0], requires_grad=True)
        >>> optimizer = SLGH([x], lr=0.05, sigma=1.0, n_samples=20, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(200):
        ...     loss = optimizer.step(batched=lambda x: (x - 1).square().sum(-1))
        >>> bool((x - 1).norm() < 0.1)
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        sigma: float = 1.0,
        gamma: float = 0.995,
        eta: float | None = None,
        sigma_min: float = 1e-3,
        n_samples: int = 10,
        maximize: bool = False,
        generator: Generators = None,
        sampler: Sampler | None = None,
    ) -> None:
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], not {gamma!r}")
        if eta is not None and not eta >= 0:
            raise ValueError(f"eta must be at least 0, not {eta!r}")
        defaults = {
            "lr": lr,
            "sigma": positive("sigma", sigma),
            "gamma": gamma,
            "eta": eta,
            "sigma_min": positive("sigma_min", sigma_min),
            "n_samples": count("n_samples", n_samples),
        }
        super().__init__(params, defaults, maximize=maximize, generator=generator, sampler=sampler)
        self._normals: Tensor | None = None

    def propose(self, x: Tensor) -> Tensor:
        """x, the points of the u_j and, with eta, those of the v_j: [R, K + 1 or 2K + 1, d]."""
        if "sigma" not in self.memory:
            self.memory["sigma"] = torch.full_like(x[:, :1], self.options["sigma"])
        k = self.options["n_samples"] * (1 if self.options["eta"] is None else 2)
        self._normals = self.draws.normal(k, x.shape[1], like=x)
        probes = x.unsqueeze(1) + self.memory["sigma"].unsqueeze(2) * self._normals
        return torch.cat([x.unsqueeze(1), probes], dim=1)

    def learn(self, x: Tensor, points: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        """One update of x and sigma."""
        assert self._normals is not None
        k, d = self.options["n_samples"], x.shape[1]
        gamma, eta = self.options["gamma"], self.options["eta"]
        sigma = self.memory["sigma"]
        rises = losses[:, 1:] - losses[:, :1]
        gradient = (rises[:, :k].unsqueeze(2) * self._normals[:, :k]).mean(1) / sigma
        if eta is None:
            self.memory["sigma"] = gamma * sigma
        else:
            excess = self._normals[:, k:].square().sum(2) - d
            slope = (excess * rises[:, k:]).mean(1, keepdim=True) / sigma.square()
            shrunk = torch.minimum(sigma - eta * slope, gamma * sigma)
            self.memory["sigma"] = shrunk.clamp_min(self.options["sigma_min"])
        return x - self.options["lr"] * gradient, losses[:, 0]
