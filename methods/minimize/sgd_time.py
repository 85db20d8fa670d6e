"""The global convergence time of SGD: simulated, and predicted by large deviations.

Azizian, Iutzeler, Malick, Mertikopoulos: The Global Convergence Time of Stochastic Gradient Descent in Non-Convex
Landscapes: Sharp Estimates via Large Deviations (ICML 2025, arXiv 2503.16398).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from methods.minimize.critical_points import basin, critical_points, neighbours
from methods.minimize.gradient_noise import Gaussian, Minibatch, Noise
from methods.minimize.transition_graph import energy, path_cost, transition_graph

__all__ = [
    "Forecast",
    "HittingTimes",
    "MinibatchSGD",
    "NoisySGD",
    "energy",
    "eyring_kramers",
    "hitting_time",
    "transition_graph",
]

FIRST_BLOCK, LONGEST_BLOCK = 32, 512  # steps between two looks at the target


@dataclass(frozen=True)
class HittingTimes:
    """What became of each run; arrays (runs,).

    Attributes:
        steps: τ, the first k with x_k in the target; for a run that does not get there, the steps it made.
        reached: whether it got there.
        diverged: whether it left every bound before: NaN or infinity.
    """

    steps: np.ndarray
    reached: np.ndarray
    diverged: np.ndarray

    @property
    def mean(self) -> float:
        """Steps over arrivals, of the runs that stay finite: the maximum-likelihood mean of exponential times, which
        runs that were stopped at `max_steps` do not bias. Infinite without an arrival."""
        arrivals = int(self.reached.sum())
        return float(self.steps[~self.diverged].sum() / arrivals) if arrivals else math.inf


def hitting_time(
    grad: Callable[[np.ndarray], np.ndarray],
    noise: Noise,
    eta: float,
    x0: np.ndarray,
    target: Callable[[np.ndarray], np.ndarray],
    runs: int,
    max_steps: int,
    *,
    rng: np.random.Generator | Sequence[np.random.Generator],
) -> HittingTimes:
    """First times at which SGD, x ← x - η (∇f(x) + Z), is in the target: all runs at once, those that end drop out.

    Args:
        grad: ∇f, points (n, d) -> (n, d).
        noise: law of Z, as in `gradient_noise`.
        eta: η, constant step size, > 0.
        x0: start, (d,) or one for each run, (runs, d).
        target: points (..., d) -> whether each is in Q, (...).
        runs: number of runs, >= 1.
        max_steps: most steps of a run, >= 1.
        rng: one generator for each run, or one that spawns them. A run's numbers depend on its own generator alone,
            not on the runs beside it.

    Raises:
        ValueError: an argument is out of its range.

    >>> times = hitting_time(lambda x: x, Gaussian(1.0), 0.5, np.zeros(1), lambda x: x[..., 0] > 1, 100, 10**6,
    ...                      rng=np.random.default_rng(0))
    >>> bool(times.reached.all()), 5 < times.mean < 50
    (True, True)
    """
    if not eta > 0 or runs < 1 or max_steps < 1:
        raise ValueError(f"eta={eta}, runs={runs}, max_steps={max_steps}: expected numbers above 0")
    generators = rng.spawn(runs) if isinstance(rng, np.random.Generator) else rng
    start = np.atleast_1d(np.asarray(x0, dtype=float))
    if len(generators) != runs or start.shape[:-1] not in ((), (runs,)):
        raise ValueError(f"{len(generators)} generators and a start of shape {start.shape} for {runs} runs")
    # Coordinates lie one after the other in memory, runs within a coordinate are contiguous.
    x = np.asfortranarray(np.broadcast_to(start, (runs, start.shape[-1])))
    dim = x.shape[1]
    steps = np.zeros(runs, dtype=np.int64)
    reached, diverged = target(x), np.zeros(runs, dtype=bool)
    if np.shape(reached) != (runs,):
        raise ValueError(f"target gives shape {np.shape(reached)} for {runs} points: expected ({runs},)")
    reached = np.array(reached, dtype=bool)
    alive = np.flatnonzero(~reached)
    x, done, block = x[alive], 0, FIRST_BLOCK
    with np.errstate(over="ignore", invalid="ignore"):
        while alive.size and done < max_steps:
            block = min(block, max_steps - done)
            draws = np.stack([noise.draw(generators[i], block, dim) for i in alive.tolist()], axis=-1)
            path = np.empty((block, dim, alive.size))
            for drawn, place in zip(draws, path, strict=True):
                step = grad(x) + noise.at(x, drawn.T)
                step *= -eta
                x = np.add(x, step, out=place.T)
            hits = target(path.transpose(0, 2, 1))
            first, hit = hits.argmax(axis=0), hits.any(axis=0)
            last = np.where(hit, first, block - 1)
            finite = np.isfinite(path[last, :, np.arange(alive.size)]).all(axis=1)
            steps[alive] = done + 1 + last
            reached[alive], diverged[alive] = hit & finite, ~finite
            stays = finite & ~hit
            x, alive, done = np.asfortranarray(x[stays]), alive[stays], done + block
            block = min(2 * block, LONGEST_BLOCK)
    return HittingTimes(steps, reached, diverged)


@dataclass(frozen=True)
class Forecast:
    """What is predicted of the hitting time τ, None where nothing is.

    Attributes:
        exponent: E, with mean τ = exp((E + o(1))/η).
        variance_exponent: E for Gaussian noise of the same variance.
        path_exponent: least sum of costs along a path to the target.
        prefactor: C, with mean τ ≈ C/η exp(E/η) (Eyring and Kramers): Gaussian noise, one saddle between start and
            target, and a Hessian there.
    """

    exponent: float | None = None
    variance_exponent: float | None = None
    path_exponent: float | None = None
    prefactor: float | None = None


class NoisySGD:
    """SGD on a landscape with noise that does not depend on the place.

    Args:
        noise: `Gaussian` or `Rademacher`.
        substeps: 1 is SGD. With n the step η is split into n steps of η/n and the noise enlarged by √n: the Euler
            scheme of the diffusion dX = -∇f dt + √η std dW over the same time; τ stays in units of η.
    """

    def __init__(self, noise: Any, substeps: int = 1) -> None:
        if substeps < 1:
            raise ValueError(f"substeps={substeps}: expected an integer >= 1")
        self.noise, self.substeps = noise, substeps

    def hitting_time(
        self,
        landscape: Any,
        eta: float,
        start: np.ndarray,
        target: Callable[[np.ndarray], np.ndarray],
        max_steps: int,
        generators: Sequence[np.random.Generator],
    ) -> HittingTimes:
        """One run for each generator."""
        n = self.substeps
        noise = type(self.noise)(self.noise.std * math.sqrt(n))
        times = hitting_time(
            landscape.gradient, noise, eta / n, start, target, len(generators), max_steps * n, rng=generators
        )
        return HittingTimes(times.steps / n, times.reached, times.diverged)

    def forecast(
        self, landscape: Any, start: np.ndarray, target: Callable[[np.ndarray], np.ndarray]
    ) -> Forecast:
        """Find critical points and basins of the landscape, build the transition graph, read the exponents off it.

        Raises:
            ValueError: the target has no basin: no minimum lies in it.
        """
        grad, hess = landscape.gradient, landscape.hessian
        found = critical_points(landscape.value, grad, landscape.box, hess)
        edges = neighbours(found, grad, hess)
        goal = [k for k, point in enumerate(found) if point.index == 0 and target(np.array([point.x]))[0]]
        if not goal:
            raise ValueError("the target has no basin: no minimum of the landscape lies in it")
        home = basin(np.asarray(start, dtype=float), found, grad)
        points = dict(enumerate(found))
        graph = transition_graph(points, edges, self.noise, grad=grad)
        gaussian = transition_graph(points, edges, Gaussian(self.noise.std))
        prefactor = None
        pass_over = [
            k for k, end in edges if end == home and any((k, g) in edges for g in goal) and home not in goal
        ]
        if isinstance(self.noise, Gaussian) and len(pass_over) == 1 and hess is not None:
            well, saddle = (hess(np.array([found[k].x]))[0] for k in (home, pass_over[0]))
            prefactor = eyring_kramers(well, saddle)
        return Forecast(
            energy(graph, home, goal), energy(gaussian, home, goal), path_cost(graph, home, goal), prefactor
        )


class MinibatchSGD:
    """SGD on a mean of n functions, with batches drawn with replacement. No exponent is known in closed form.

    Args:
        batch: components a step, >= 1.
    """

    def __init__(self, batch: int = 1) -> None:
        if batch < 1:
            raise ValueError(f"batch={batch}: expected an integer >= 1")
        self.batch = batch

    def hitting_time(
        self,
        landscape: Any,
        eta: float,
        start: np.ndarray,
        target: Callable[[np.ndarray], np.ndarray],
        max_steps: int,
        generators: Sequence[np.random.Generator],
    ) -> HittingTimes:
        """One run for each generator."""
        full = landscape.gradient
        noise = Minibatch(landscape.component_gradients, full, landscape.components, self.batch)
        return hitting_time(full, noise, eta, start, target, len(generators), max_steps, rng=generators)

    def forecast(
        self, landscape: Any, start: np.ndarray, target: Callable[[np.ndarray], np.ndarray]
    ) -> Forecast:
        """Nothing."""
        return Forecast()


def eyring_kramers(well: np.ndarray, saddle: np.ndarray) -> float:
    """C in mean τ ≈ C/η exp(E/η), from the Hessians at the start's minimum and at the saddle, (d, d) each.

    C = 2π/|λ| √(|det H_saddle| / det H_well), λ the negative eigenvalue at the saddle; it holds where η ‖H‖ is small
    against 1 and E/η is 3 or more.

    >>> round(eyring_kramers(np.array([[2.0]]), np.array([[-1.0]])), 6)
    4.442883
    """
    down = abs(float(np.linalg.eigvalsh(saddle)[0]))
    return 2 * math.pi / down * math.sqrt(abs(np.linalg.det(saddle)) / np.linalg.det(well))
