"""Shuffling gradient methods: orders of the components, the proximal step, step sizes and suffix averages.

To minimize F(x) = (1/n) Σ_i f_i(x) + ψ(x), with every f_i convex and Lipschitz, take one component at a time:
x_{t+1} = prox_{η_t ψ}(x_t - η_t ∇f_{i(t)}(x_t)).

Liu, Zhou: Improved Last-Iterate Convergence of Shuffling Gradient Methods for Nonsmooth Convex Optimization
(ICML 2025).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Sampler

from methods.minimize.prox import Prox, closed_form

__all__ = [
    "FullBatch",
    "Incremental",
    "ProximalSGD",
    "RandomReshuffle",
    "SingleShuffle",
    "StepSize",
    "SuffixAverage",
]


class RandomReshuffle(Sampler[int]):
    """RR: a fresh uniform permutation of the components at every epoch.

    Args:
        data_source: anything with a length n >= 1.
        generator: source of the permutations; None is torch's default generator.

    Raises:
        ValueError: there is no component.

    >>> order = RandomReshuffle(range(4), torch.Generator().manual_seed(0))
    >>> list(order), list(order)
    ([0, 1, 3, 2], [0, 2, 3, 1])
    """

    def __init__(self, data_source: Sized, generator: torch.Generator | None = None) -> None:
        self.n, self.generator = _count(data_source), generator

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.n, generator=self.generator).tolist())


class SingleShuffle(Sampler[int]):
    """SS: one uniform permutation, drawn here and used at every epoch. Arguments and errors as `RandomReshuffle`.

    >>> order = SingleShuffle(range(4), torch.Generator().manual_seed(0))
    >>> list(order), list(order)
    ([0, 1, 3, 2], [0, 1, 3, 2])
    """

    def __init__(self, data_source: Sized, generator: torch.Generator | None = None) -> None:
        self.order: list[int] = torch.randperm(_count(data_source), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


class Incremental(Sampler[int]):
    """IG: the same given order at every epoch.

    Args:
        data_source: anything with a length n >= 1.
        order: a permutation of 0..n-1; None: 0, 1, ..., n-1.

    Raises:
        ValueError: there is no component, or `order` is no permutation.

    >>> list(Incremental(range(3))), list(Incremental(range(3), order=[2, 0, 1]))
    ([0, 1, 2], [2, 0, 1])
    """

    def __init__(self, data_source: Sized, order: Sequence[int] | None = None) -> None:
        n = _count(data_source)
        self.order = list(range(n)) if order is None else [int(i) for i in order]
        if sorted(self.order) != list(range(n)):
            raise ValueError(f"order is no permutation of 0..{n - 1}")

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


class FullBatch(Sampler[list[int]]):
    """All components at once, one batch an epoch: with it `ProximalSGD` is proximal gradient descent.

    >>> list(FullBatch(range(3)))
    [[0, 1, 2]]
    """

    def __init__(self, data_source: Sized) -> None:
        self.n = _count(data_source)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[list[int]]:
        yield list(range(self.n))


class ProximalSGD(torch.optim.Optimizer):
    """The proximal stochastic gradient step, x <- prox_{ηψ}(x - η g), after every component.

    Which component g belongs to is the business of whoever computes it, as a rule a `DataLoader` with one of the
    samplers. Taking the prox once an epoch instead is another method (Mishchenko et al., 2022).

    Args:
        params: tensors to optimize; ψ is a sum over them.
        lr: η > 0, or a function of the step t = 1, 2, ... that returns η_t > 0; t counts all steps, not those of an
            epoch. A number can be changed by torch's schedulers.
        prox: a function (v, η) -> prox_{ηψ}(v); or the terms of ψ, as `methods.minimize.prox.closed_form` takes
            them; None: ψ = 0.

    Raises:
        ValueError: lr is not positive; the terms have no prox in closed form; a prox returns another shape.
        TypeError: `prox` is none of the above.

    Source: Algorithm 1 of the paper (its step i(t) is the sampler's).

    >>> from torch.utils.data import DataLoader
    >>> a = torch.tensor([1.0, 2.0, 4.0])  # min_x of the mean of |x - a_i|, plus 0.1 |x|
    >>> x = torch.zeros(1, requires_grad=True)
    >>> order = RandomReshuffle(a, torch.Generator().manual_seed(0))
    >>> optimizer = ProximalSGD([x], lr=lambda t: t**-0.5, prox={"l1": 0.1})
    >>> for epoch in range(50):
    ...     for a_i in DataLoader(a, batch_size=None, sampler=order):
    ...         optimizer.zero_grad()
    ...         (x - a_i).abs().backward()
    ...         optimizer.step()
    >>> bool(abs(x.detach() - 2) < 0.2)
    True
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Callable[[int], float],
        prox: Prox | Mapping[str, Any] | None = None,
    ) -> None:
        self._schedule = lr if callable(lr) else None
        first = lr(1) if callable(lr) else lr
        if not first > 0:
            raise ValueError(f"lr={first}: expected a step > 0")
        if prox is not None and not isinstance(prox, Mapping) and not callable(prox):
            raise TypeError(
                f"prox is a {type(prox).__name__}: expected a function prox(x, step), terms or None"
            )
        self._prox = closed_form(prox) if isinstance(prox, Mapping) else prox
        super().__init__(params, {"lr": first, "steps": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One component; returns what the closure does. Parameters without a gradient stay."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["steps"] += 1
            if self._schedule is not None:
                group["lr"] = self._schedule(group["steps"])
            step = group["lr"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.add_(p.grad, alpha=-step)
                if self._prox is not None:
                    moved = self._prox(p, step)
                    if moved.shape != p.shape:
                        raise ValueError(f"prox returned the shape {tuple(moved.shape)} for {tuple(p.shape)}")
                    p.copy_(moved)
        return loss


@dataclass(frozen=True)
class StepSize:
    """Step sizes from the constants of the problem: a function of the step t = 1, 2, ...

    ``sqrt``: η_t = c D / (G n^p √t), for convex problems. ``inverse``: η_t = 2c / (μ (t + 1)), for strongly convex
    ones. ``constant``: η_t = c. The forms 1/√t and 1/t are the paper's; the factors balance D²/(ηT) against how far
    a scheme's order drags the iterate within an epoch: p = 1/4 for random orders, 1/2 for a fixed one, 0 for
    independent draws and for full gradients.

    Args:
        n: number of components, >= 1.
        G: mean of the Lipschitz constants of the f_i, > 0.
        D: distance from the start to a minimizer, > 0.
        mu: strong convexity of ψ, >= 0; > 0 for ``inverse``.
        schedule: "sqrt", "inverse" or "constant".
        power: p.
        scale: c > 0.

    Raises:
        ValueError: a value out of its range.

    >>> step = StepSize(n=16, G=2.0, D=1.0)
    >>> step(1), step(4)
    (0.25, 0.125)
    """

    n: int
    G: float
    D: float
    mu: float = 0.0
    schedule: Literal["sqrt", "inverse", "constant"] = "sqrt"
    power: float = 0.25
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.schedule not in ("sqrt", "inverse", "constant"):
            raise ValueError(f"schedule={self.schedule!r}: expected sqrt, inverse or constant")
        if self.schedule == "inverse" and not self.mu > 0:
            raise ValueError("schedule=inverse needs a strongly convex problem: mu > 0")
        if not (self.scale > 0 and self.n >= 1 and self.G > 0 and self.D > 0):
            raise ValueError(f"scale, n, G and D must be positive: {self}")

    def __call__(self, t: int) -> float:
        """η_t."""
        if self.schedule == "inverse":
            return self.scale * 2 / (self.mu * (t + 1))
        if self.schedule == "constant":
            return self.scale
        return self.scale * self.D / (self.G * self.n**self.power * math.sqrt(t))


class SuffixAverage:
    """Mean of the parameters over the last `window` of `total` steps, in the memory of one copy.

    Args:
        params: the tensors that the optimizer moves.
        window: number of iterates in the mean, 1..total; n for the last epoch.
        total: T, number of steps.

    Raises:
        ValueError: window or total out of range.

    Source: the paper's Corollary 4.3 bounds a suffix average; the last epoch is our choice of the suffix.

    >>> x = torch.zeros(1)
    >>> average = SuffixAverage([x], window=2, total=4)
    >>> for value in (10.0, 20.0, 1.0, 2.0):
    ...     _ = x.fill_(value)
    ...     average.update()
    >>> average.value()
    [tensor([1.5000])]
    """

    def __init__(self, params: Iterable[Tensor], window: int, total: int) -> None:
        if not 1 <= window <= total:
            raise ValueError(f"window={window}, total={total}: expected 1 <= window <= total")
        self.params = list(params)
        self.window, self.total = window, total
        self.steps = 0
        self._mean = [torch.zeros_like(p, requires_grad=False) for p in self.params]

    @torch.no_grad()
    def update(self) -> None:
        """Call after every step; raises RuntimeError after `total` of them."""
        self.steps += 1
        if self.steps > self.total:
            raise RuntimeError(f"the average is over: it was planned for {self.total} steps")
        count = self.steps - (self.total - self.window)
        if count >= 1:
            for mean, p in zip(self._mean, self.params, strict=True):
                mean.lerp_(p, 1 / count)

    def value(self) -> list[Tensor]:
        """The mean so far, one tensor for each parameter; raises RuntimeError before the suffix begins."""
        if self.steps <= self.total - self.window:
            raise RuntimeError(f"the suffix begins after step {self.total - self.window}")
        return [mean.clone() for mean in self._mean]


def _count(data_source: Sized) -> int:
    n = len(data_source)
    if n < 1:
        raise ValueError("there is no component to sample")
    return n
