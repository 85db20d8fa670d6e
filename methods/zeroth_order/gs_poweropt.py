"""GS-PowerOpt: Gaussian smoothing of a power-transformed objective (Xu, ICML 2025)."""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from methods.common.ask_tell import AskTell, count, positive
from methods.common.draws import Generators, Sampler
from methods.common.gradient_estimator import Function

__all__ = ["GSPowerOpt", "Result"]

Variant = Literal["epgs", "pgs"]
Selection = Literal["last", "best"] | Callable[[Tensor, Tensor], int]


class Result(NamedTuple):
    """What `GSPowerOpt.minimize` found.

    Attributes:
        x: the chosen iterate, [d].
        value: f(x).
        chosen: which iterate it is, 0 (the start) to T.
        path: all iterates, [T + 1, d].
        values: f along the path, [T + 1].
    """

    x: Tensor
    value: float
    chosen: int
    path: Tensor
    values: Tensor


class GSPowerOpt(AskTell):
    """Ascends the Gaussian smoothing of a transformed fitness, in steps of a set length.

    The fitness is ``shift - loss`` (with `maximize` ``shift + value``). It is transformed to f_N = e^{N fitness}
    ("epgs") or f_N = fitness^N ("pgs"), which moves the maximizer of the smoothed function
    F_N(mu) = E f_N(mu + sigma z) towards the global one as N grows. One update, with z_1..z_K standard normal::

        g  = mean_j (x_j - mu) f_N(x_j),   x_j = mu + sigma z_j        (sigma^2 times the gradient of F_N)
        mu = mu + lr_k g / |g|

    As g is normalised, any common factor of the f_N(x_j) drops out: they are divided by the largest. Where g is 0
    (no direction at all), mu stays. An update costs K + 1 values: f(mu), for whoever selects an iterate by it, and
    the f(x_j). The iterate ends about one step length away from a solution; see `minimize` for a choice of iterate.

    Source: arXiv 2412.05204, Algorithm 1 and its official code (chen-research/GS-PowerTransform), from which the
    normalisation and the schedules come: constant (`exp_gs`), `decay_steps` 1000 (`exp_gs_adapt`) and 5000
    (`power_gs_baseline`).

    Args:
        params: parameters, or one parameter group.
        lr: length of a step, in units of x, at least 0.
        sigma: standard deviation of the smoothing, in units of x, above 0.
        N: the power, above 0.
        n_samples: number of draws K, at least 1.
        variant: "epgs" or "pgs".
        decay_steps: s: update k = 0, 1, ... has step length lr s / (s + k); None keeps it.
        shift: added to the fitness; "pgs" needs a fitness above 0, "epgs" does not depend on it.
        sigma_is_variance: the smoothing has variance (not standard deviation) sigma, as in the official `power_gs`.
        nonpositive: what "pgs" does with a fitness of at most 0: "error", or "power": takes the power, as the
            official code does, a whole N provided (an odd one turns the sign of the weight).
        stable: False computes f_N as it stands, as the official code does.
        maximize: values are to be maximized.
        generator, sampler: source of the z, or a stream of fixed ones, and replicates: see
            `methods.common.ask_tell.AskTell`.

    Raises:
        ValueError: an argument out of range; a fitness of at most 0 with "pgs" and "error".
        FloatingPointError: N times the fitness (or its logarithm) is NaN or infinite; without `stable`, f_N
            overflows, or all f_N(x_j) underflow to 0.

    Example:
        >>> mu = torch.tensor([2.0, -1.0], requires_grad=True)
        >>> optimizer = GSPowerOpt([mu], lr=0.1, sigma=0.5, N=2.0, n_samples=50, decay_steps=100,
        ...                        generator=torch.Generator().manual_seed(0))
        >>> for _ in range(100):
        ...     values = (optimizer.ask() - 1).square().sum(-1)
        ...     loss = optimizer.tell(values)
        >>> bool((mu - 1).norm() < 0.1)
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        *,
        sigma: float = 1.0,
        N: float = 1.0,
        n_samples: int = 10,
        variant: Variant = "epgs",
        decay_steps: float | None = None,
        shift: float = 0.0,
        sigma_is_variance: bool = False,
        nonpositive: Literal["error", "power"] = "error",
        stable: bool = True,
        maximize: bool = False,
        generator: Generators = None,
        sampler: Sampler | None = None,
    ) -> None:
        if variant not in ("epgs", "pgs"):
            raise ValueError(f"variant must be 'epgs' or 'pgs', not {variant!r}")
        if nonpositive not in ("error", "power"):
            raise ValueError(f"nonpositive must be 'error' or 'power', not {nonpositive!r}")
        if nonpositive == "power" and variant == "pgs" and round(N) != N:
            raise ValueError(f"a negative fitness has no power N = {N!r}: N must be whole")
        if not math.isfinite(positive("N", N)):
            raise ValueError(f"N must be finite, not {N!r}")
        defaults = {
            "lr": lr,
            "decay_steps": decay_steps,
            "sigma": positive("sigma", sigma),
            "N": N,
            "n_samples": count("n_samples", n_samples),
            "variant": variant,
            "shift": shift,
            "sigma_is_variance": sigma_is_variance,
            "nonpositive": nonpositive,
            "stable": stable,
        }
        super().__init__(params, defaults, maximize=maximize, generator=generator, sampler=sampler)
        self._noise: Tensor | None = None

    @property
    def spread(self) -> float:
        """Standard deviation of the smoothing."""
        sigma: float = self.options["sigma"]
        return math.sqrt(sigma) if self.options["sigma_is_variance"] else sigma

    def propose(self, x: Tensor) -> Tensor:
        """mu, then the x_j: [R, K + 1, d]."""
        self._noise = self.spread * self.draws.normal(self.options["n_samples"], x.shape[1], like=x)
        return torch.cat([x.unsqueeze(1), x.unsqueeze(1) + self._noise], dim=1)

    def learn(self, x: Tensor, points: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        """One update; leaves g in the state as `estimate` times the exponential of `log_scale` ([R, 1])."""
        assert self._noise is not None
        weights, log_scale = self._weights(self.options["shift"] - losses[:, 1:])
        estimate = (self._noise * weights.unsqueeze(2)).mean(1)
        self.memory["estimate"], self.memory["log_scale"] = estimate, log_scale
        length = torch.linalg.vector_norm(estimate, dim=1, keepdim=True)
        direction = torch.where(length > 0, estimate / length, torch.zeros_like(estimate))
        return x + self.options["lr"] * direction, losses[:, 0]

    def transform(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """f_N where the objective has these values [..., K], up to a factor of each row.

        Returns:
            f_N divided by the largest of its row (as it is, without `stable`), and the logarithm of the divisor,
            [..., 1].

        Raises:
            ValueError, FloatingPointError: see the class.
        """
        return self._weights(self.options["shift"] + (values if self.maximize else -values))

    def _weights(self, fitness: Tensor) -> tuple[Tensor, Tensor]:
        sign, logs = self._logarithms(fitness)
        if self.options["stable"]:
            log_scale = logs.amax(-1, keepdim=True)
            return sign * (logs - log_scale).exp(), log_scale
        raw = logs.exp()
        limit = math.log(torch.finfo(raw.dtype).max)
        if bool(raw.isinf().any()) or bool((raw == 0).all(-1).any()):
            reach = f"{logs.min().item():.6g} to {logs.max().item():.6g}, against a limit of {limit:.1f}"
            raise FloatingPointError(
                f"N = {self.options['N']:g} overflows exp: log f_N ranges from {reach}; take a smaller N or stable=True"
            )
        return sign * raw, torch.zeros_like(logs[..., :1])

    def _logarithms(self, fitness: Tensor) -> tuple[Tensor, Tensor]:
        """Sign and log of the absolute value of f_N."""
        N = self.options["N"]
        sign = torch.ones_like(fitness)
        if self.options["variant"] == "epgs":
            logs = N * fitness
        else:
            if self.options["nonpositive"] == "error" and bool((fitness <= 0).any()):
                least = fitness.min().item()
                raise ValueError(f"pgs needs a fitness above 0, not {least:.6g}: give a larger shift")
            logs = N * fitness.abs().log()
            if round(N) % 2:
                sign = torch.where(fitness < 0, -sign, sign)
        # A fitness of -inf (an infeasible point) has weight 0, as long as there are others.
        best = logs.amax(-1)
        if not bool(best.isfinite().all()) or bool(logs.isnan().any()):
            raise FloatingPointError(
                f"N = {N:g} overflows exp: log f_N is {logs.max().item()} at a fitness of {fitness.max().item():.6g}"
            )
        return sign, logs

    @classmethod
    def minimize(
        cls,
        f: Function,
        mu0: Tensor,
        sigma: float = 1.0,
        N: float = 1.0,
        lr: float = 0.1,
        K: int = 10,
        T: int = 1000,
        variant: Variant = "epgs",
        *,
        schedule: Callable[[int], float] | None = None,
        select: Selection = "last",
        shift: float = 0.0,
        maximize: bool = False,
        generator: torch.Generator | None = None,
        sampler: Sampler | None = None,
        **options: Any,
    ) -> Result:
        """T updates from mu0.

        Args:
            f: maps points [n, d] to values [n].
            mu0: start, [d]; left as it is.
            sigma, N, lr, variant, shift, maximize, generator, sampler: see the class.
            K: draws an update.
            T: number of updates, at least 1.
            schedule: factor of the step length at update k = 0, 1, ...; None is 1.
            select: which iterate to return: "last", "best" (the best f; it was paid for), or a function of the path
                [T + 1, d] and its values [T + 1] that returns an index.
            options: further arguments of the class.

        Example:
            >>> found = GSPowerOpt.minimize(lambda x: (x - 1).square().sum(-1), torch.zeros(3), sigma=0.5, N=2.0,
            ...                             K=100, T=60, select="best", generator=torch.Generator().manual_seed(0))
            >>> bool((found.x - 1).norm() < 0.1), found.path.shape
            (True, torch.Size([61, 3]))
        """
        count("T", T)
        mu = torch.as_tensor(mu0).detach().clone().requires_grad_()
        optimizer = cls(
            [mu],
            lr,
            sigma=sigma,
            N=N,
            n_samples=K,
            variant=variant,
            shift=shift,
            maximize=maximize,
            generator=generator,
            sampler=sampler,
            **options,
        )
        path, values = [mu.detach().reshape(-1).clone()], []
        for k in range(T):
            if schedule is not None:
                optimizer.options["lr"] = lr * schedule(k)
            values.append(optimizer.step(batched=f))
            path.append(mu.detach().reshape(-1).clone())
        with torch.no_grad():
            values.append(f(path[-1].unsqueeze(0))[0])
        steps, found = torch.stack(path), torch.stack(values)
        if select == "last":
            index = T
        elif select == "best":
            index = int(found.argmax() if maximize else found.argmin())
        else:
            index = int(select(steps, found))
        return Result(steps[index], found[index].item(), index, steps, found)
