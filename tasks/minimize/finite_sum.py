"""How a method that takes one component of a finite sum at a time is examined: many random orders at once.

A method of this interface has four slots:

=============  =================================================================================================
``sampler``    ``sampler(range(n))``, with ``generator=`` if the order is random, iterates over one epoch: an index
               for each step, or a list of indices for a step with their mean gradient
``optimizer``  ``optimizer(params, lr=schedule, prox=terms)`` is stepped once `.grad` is set; terms: name -> value of
               the parts of ψ, see `Problem`
``step``       ``step(n=, G=, D=, mu=)`` is the schedule, a function of the step t = 1, 2, ...
``average``    ``average(params, window=, total=)`` has ``update()``, called after every step, and ``value()``
=============  =================================================================================================
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tasks.minimize import shuffling_rates
from tasks.run import Run

Method = Mapping[str, Callable[..., Any]]

REPLICATE_COLUMNS = ("error", "suffix", "uniform", "half")
ROUNDING = 1e-7  # errors are negative by no more than what the least value is uncertain by


class Problem(Protocol):
    """F(x) = (1/n) Σ f_i(x) + ψ(x).

    Attributes:
        n, dim: number of components and of coordinates.
        G: mean of the Lipschitz constants of the f_i.
        D: distance from the start to a minimizer.
        mu: strong convexity of ψ.
        best: the least F: [1], or [R] where every replicate has a problem of its own (equal in all other constants).
        regularizer: the parts of ψ, name -> value.
        start: (dim,).
    """

    n: int
    dim: int
    G: float
    D: float
    mu: float
    best: Tensor
    regularizer: dict[str, Any]
    start: Tensor

    def gradient(self, x: Tensor, index: Tensor) -> Tensor:
        """Mean subgradient of the components `index` at the points [R, dim], replicate by replicate: [R, dim].
        `index` is [R, b], or [1, b] if all replicates take the same components."""

    def value(self, x: Tensor) -> Tensor:
        """F at points [R, dim]: [R]. Points outside the domain of ψ are not checked."""


class Shuffled:
    """R replicates of one method on a finite sum, looked at after several numbers of epochs.

    All replicates start at the same point; replicate i draws its order from a generator of its own. Where neither the
    order nor the problem is random, the method runs once, and its numbers stand in every replicate's row.

    Rows (unit `repeat`), one for each replicate and number of epochs K (column `epochs`); F* is the least F:
        error: F - F* at the last iterate, after K epochs.
        suffix: F - F* at the mean of the iterates of the last epoch.
        uniform: F - F* at the mean of all iterates.
        half: F - F* at the last iterate half an epoch later; None for methods with one step an epoch.
        rr_convex, any_convex, ss_convex, rr_strong, any_strong, ss_strong, and these with the prefix `suffix_`
            or `half_`: the error over the form of a bound, see `tasks.minimize.shuffling_rates`; the last three are
            None if ψ is not strongly convex.

    Curves: the means of the errors against K. Summary: means at the largest K; n, G, D, mu; steps of a replicate.

    Args:
        epochs: numbers of epochs K, increasing.
        repeats: R.
    """

    def __init__(self, epochs: list[int], repeats: int) -> None:
        if not epochs or sorted(set(epochs)) != list(epochs) or epochs[0] < 1 or repeats < 1:
            raise ValueError(
                f"epochs={epochs}, repeats={repeats}: expected increasing numbers >= 1 and repeats >= 1"
            )
        self.epochs, self.repeats = list(epochs), repeats

    def problem(self, run: Run) -> Problem:
        """The finite sum of this run, or of each of its replicates."""
        raise NotImplementedError

    def evaluate(self, method: Method, run: Run) -> None:
        """Run all replicates side by side."""
        problem = self.problem(run)
        constants: dict[str, Any] = {"n": problem.n, "G": problem.G, "D": problem.D, "mu": problem.mu}
        makes = method["sampler"]
        if "generator" in inspect.signature(makes).parameters:
            generators = [run.generator("order", i) for i in range(self.repeats)]
            samplers = [makes(range(problem.n), generator=generator) for generator in generators]
        else:
            samplers = [makes(range(problem.n))]
        x = problem.start.expand(max(len(samplers), len(problem.best)), -1).clone()
        optimizer = method["optimizer"]([x], lr=method["step"](**constants), prox=problem.regularizer)
        found: dict[str, list[np.ndarray]] = {name: [] for name in REPLICATE_COLUMNS}
        uniform: Any = None
        last, steps = self.epochs[-1], 0
        for epoch in run.track(range(1, last + 2), total=last + 1):
            order = _epoch(samplers)
            middle = len(order) // 2 if epoch - 1 in self.epochs else None
            if middle == 0:
                found["half"].append(np.full(len(x), np.nan))
            if epoch > last:
                order = order[: middle or 0]
            if uniform is None:
                uniform = method["average"]([x], window=len(order) * last, total=len(order) * last)
            averages = [uniform] if epoch <= last else []
            if epoch in self.epochs:
                averages.append(method["average"]([x], window=len(order), total=len(order)))
            for position, index in enumerate(order, start=1):
                x.grad = problem.gradient(x, index)
                optimizer.step()
                for average in averages:
                    average.update()
                if position == middle:
                    found["half"].append(_error(problem, x))
            steps += len(order)
            if epoch in self.epochs:
                found["error"].append(_error(problem, x))
                found["suffix"].append(_error(problem, averages[-1].value()[0]))
                found["uniform"].append(_error(problem, uniform.value()[0]))
        self._record(found, constants, run)
        run.summary(**constants, steps=steps)

    def _record(self, found: dict[str, list[np.ndarray]], constants: dict[str, Any], run: Run) -> None:
        means: dict[str, float | None] = {}
        for j, epochs in enumerate(self.epochs):
            # One trajectory of a method without randomness is every replicate's.
            columns = {name: np.broadcast_to(found[name][j], self.repeats) for name in REPLICATE_COLUMNS}
            columns |= shuffling_rates.over_bounds(columns, epochs=epochs, **constants)
            run.rows(
                "repeat",
                {"i": range(self.repeats), "epochs": [epochs] * self.repeats}
                | {name: _or_none(values) for name, values in columns.items()},
            )
            means = {name: _mean(values) for name, values in columns.items()}
            run.log(step=epochs, **{name: value for name, value in means.items() if value is not None})
        run.summary(**means)


def _epoch(samplers: list[Iterable[Any]]) -> list[Tensor]:
    """The next epoch of every sampler: for each step the indices [samplers, b]."""
    drawn = np.stack([np.array(list(sampler), dtype=np.int64) for sampler in samplers])
    stacked = drawn.reshape(len(samplers), drawn.shape[1], -1)
    return list(torch.from_numpy(np.ascontiguousarray(stacked.swapaxes(0, 1))).unbind())


def _error(problem: Problem, x: Tensor) -> np.ndarray:
    """F - F* of each replicate."""
    error = (problem.value(x) - problem.best).numpy()
    if (error < -ROUNDING).any():
        raise RuntimeError(f"F is {-error.min():g} below what was taken for its least value")
    return error.clip(min=0.0)


def _or_none(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _mean(values: np.ndarray) -> float | None:
    return None if np.isnan(values).any() else float(values.mean())
