"""Laws of gradient noise, and the least cost at which each lets SGD climb a slope.

Azizian, Iutzeler, Malick, Mertikopoulos: The Global Convergence Time of Stochastic Gradient Descent in Non-Convex
Landscapes (ICML 2025). The cost of moving against the gradient comes from the Hamiltonian of the noise, H(x, p) =
-⟨∇f(x), p⟩ + log E exp⟨p, -Z⟩.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.optimize import brentq

__all__ = ["Gaussian", "Minibatch", "Noise", "Rademacher"]


class Noise(Protocol):
    """Gradient noise Z with mean zero. All randomness is in `draw`, which may be replaced to inject draws."""

    def draw(self, generator: np.random.Generator, steps: int, dim: int) -> np.ndarray:
        """What one run draws for its next steps: (steps, ...)."""

    def at(self, x: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Z at points x (runs, dim), from the draws of one step (runs, ...): (runs, dim)."""


@dataclass(frozen=True)
class Gaussian:
    """Z ~ N(0, std² I); std >= 0."""

    std: float

    def __post_init__(self) -> None:
        _check(self.std)

    def draw(self, generator: np.random.Generator, steps: int, dim: int) -> np.ndarray:
        """Z itself, (steps, dim)."""
        return self.std * generator.standard_normal((steps, dim))

    def at(self, x: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Z does not depend on x."""
        return draws

    def momentum(self, slope: float) -> float:
        """p > 0 with log E exp(-p Z) = p slope, the cost of a unit of length up a slope > 0: 2 slope / std²."""
        return 2 * slope / self.std**2 if self.std else math.inf


@dataclass(frozen=True)
class Rademacher:
    """Coordinates of Z are independent, std or -std with probability 1/2 each; std >= 0."""

    std: float

    def __post_init__(self) -> None:
        _check(self.std)

    def draw(self, generator: np.random.Generator, steps: int, dim: int) -> np.ndarray:
        """Z itself, (steps, dim)."""
        return self.std * (2.0 * generator.integers(0, 2, (steps, dim), dtype=np.int8) - 1.0)

    def at(self, x: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Z does not depend on x."""
        return draws

    def momentum(self, slope: float) -> float:
        """p > 0 with log cosh(std p) = p slope; infinite from slope = std on, which no sequence of draws can climb.

        >>> round(Rademacher(0.6).momentum(0.3), 6), Rademacher(0.6).momentum(0.6)
        (2.03126, inf)
        """
        if slope >= self.std:
            return math.inf
        ratio = slope / self.std
        if ratio < 1e-3:  # log cosh u = u²/2 - u⁴/12 + ...
            return (2 * ratio + 4 * ratio**3 / 3) / self.std
        u = brentq(lambda u: _log_cosh(u) / u - ratio, 2 * ratio, 2 * math.log(2) / (1 - ratio), xtol=1e-13)
        return float(u) / self.std


@dataclass(frozen=True)
class Minibatch:
    """Z = ∇f_B - ∇f for f = mean of n components, B drawn with replacement.

    Args:
        gradients: (points (runs, dim), indices (runs, batch)) -> mean gradient of these components, (runs, dim).
        full: points -> ∇f, (runs, dim).
        components: n, >= 1.
        batch: size of B, >= 1.
    """

    gradients: Callable[[np.ndarray, np.ndarray], np.ndarray]
    full: Callable[[np.ndarray], np.ndarray]
    components: int
    batch: int = 1

    def draw(self, generator: np.random.Generator, steps: int, dim: int) -> Any:
        """Indices of components, (steps, batch)."""
        return generator.integers(0, self.components, (steps, self.batch))

    def at(self, x: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """The batch's gradient minus the full one."""
        return self.gradients(x, draws) - self.full(x)


def _log_cosh(u: float) -> float:
    """For u >= 0, without overflow."""
    return u + math.log1p(math.exp(-2 * u)) - math.log(2)


def _check(std: float) -> None:
    if not (math.isfinite(std) and std >= 0):
        raise ValueError(f"std={std}: expected a finite number >= 0")
