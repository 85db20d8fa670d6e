"""Label noises of the linear model and the drift φ that signSGD has under each.

Any object with `sample`, `phi` and `variance` (the protocol `Noise`) can stand in for these classes.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, erfcx, gammaln, hyperu

__all__ = ["Cauchy", "Gaussian", "Noise", "Noiseless", "Rademacher", "StudentT", "Uniform"]

FLOOR = 1e-14  # a risk below it counts as this: φ and the drift divide by the risk


class Noise(Protocol):
    """A symmetric law of the label noise ε."""

    @property
    def variance(self) -> float:
        """v² = E ε²; infinite for heavy tails."""

    def sample(self, size: Any, rng: np.random.Generator) -> np.ndarray:
        """Independent draws of ε, of shape `size`."""

    def phi(self, risk: ArrayLike) -> np.ndarray:
        """φ(R) = (2/π) E exp(-ε²/(4R)) at noise-free risks R >= 0 of any shape: between 0 and 2/π."""


@dataclass(frozen=True)
class Noiseless:
    """ε = 0.

    >>> float(Noiseless().phi(1.0)) == 2 / math.pi
    True
    """

    @property
    def variance(self) -> float:
        return 0.0

    def sample(self, size: Any, rng: np.random.Generator) -> np.ndarray:
        """Zeros; nothing is drawn."""
        return np.zeros(size)

    def phi(self, risk: ArrayLike) -> np.ndarray:
        """φ = 2/π."""
        return np.full(np.shape(risk), 2 / math.pi)


@dataclass(frozen=True)
class Gaussian:
    """ε ~ N(0, scale²).

    Raises:
        ValueError: scale is not above 0.

    >>> float(Gaussian(1.0).phi(0.5))
    0.4501582
    """

    scale: float

    def __post_init__(self) -> None:
        _positive(scale=self.scale)

    @property
    def variance(self) -> float:
        return self.scale**2

    def sample(self, size: Any, rng: np.random.Generator) -> np.ndarray:
        """Draws of ε."""
        return self.scale * rng.standard_normal(size)

    def phi(self, risk: ArrayLike) -> np.ndarray:
        """φ(R) = (2/π) √(2R / (2R + v²))."""
        R = _floored(risk)
        return 2 / math.pi * np.sqrt(2 * R / (2 * R + self.scale**2))


@dataclass(frozen=True)
class Rademacher:
    """ε = ± scale, with equal chances.

    Raises:
        ValueError: scale is not above 0.

    >>> float(Rademacher(1.0).phi(0.25))
    0.2341993
    """

    scale: float

    def __post_init__(self) -> None:
        _positive(scale=self.scale)

    @property
    def variance(self) -> float:
        return self.scale**2

    def sample(self, size: Any, rng: np.random.Generator) -> np.ndarray:
        """Draws of ε."""
        return self.scale * (2.0 * rng.integers(0, 2, size) - 1)

    def phi(self, risk: ArrayLike) -> np.ndarray:
        """φ(R) = (2/π) exp(-scale²/(4R))."""
        return 2 / math.pi * np.exp(-(self.scale**2) / (4 * _floored(risk)))


@dataclass(frozen=True)
class Uniform:
    """ε uniform on [-scale, scale].

    Raises:
        ValueError: scale is not above 0.

    >>> float(Uniform(1.0).phi(0.25))   # erf(1) / √π
    0.4754430
    """

    scale: float

    def __post_init__(self) -> None:
        _positive(scale=self.scale)

    @property
    def variance(self) -> float:
        return self.scale**2 / 3

    def sample(self, size: Any, rng: np.random.Generator) -> np.ndarray:
        """Draws of ε."""
        return rng.uniform(-self.scale, self.scale, size)

    def phi(self, risk: ArrayLike) -> np.ndarray:
        """φ(R) = erf(z) / (√π z), z = scale / (2√R)."""
        z = self.scale / (2 * np.sqrt(_floored(risk)))
        return erf(z) / (z * math.sqrt(math.pi))


@dataclass(frozen=True)
class StudentT:
    """ε = scale · T with T of Student's law, `df` degrees of freedom: variance df / (df - 2) · scale² for df > 2.

    Raises:
        ValueError: df or scale is not above 0.

    >>> float(StudentT(df=1.0).phi(0.3)), float(Cauchy().phi(0.3))
    (0.2881436, 0.2881436)
    """

    df: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        _positive(df=self.df, scale=self.scale)

    @property
    def variance(self) -> float:
        return self.scale**2 * self.df / (self.df - 2) if self.df > 2 else math.inf

    def sample(self, size: Any, rng: np.random.Generator) -> np.ndarray:
        """Draws of ε."""
        return self.scale * rng.standard_t(self.df, size)

    def phi(self, risk: ArrayLike) -> np.ndarray:
        """φ(R) = (2/π) Γ((ν+1)/2) / Γ(ν/2) · U(1/2, 1 - ν/2, ν scale²/(4R)), U Tricomi's function, ν = df."""
        nu = self.df
        z = nu * self.scale**2 / (4 * _floored(risk))
        factor = math.exp(gammaln((nu + 1) / 2) - gammaln(nu / 2))
        return 2 / math.pi * factor * hyperu(0.5, 1 - nu / 2, z)


@dataclass(frozen=True)
class Cauchy:
    """ε = scale · T, T of Cauchy's law: neither mean nor variance.

    Raises:
        ValueError: scale is not above 0.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        _positive(scale=self.scale)

    @property
    def variance(self) -> float:
        return math.inf

    def sample(self, size: Any, rng: np.random.Generator) -> np.ndarray:
        """Draws of ε."""
        return self.scale * rng.standard_cauchy(size)

    def phi(self, risk: ArrayLike) -> np.ndarray:
        """φ(R) = (2/π) exp(z²) erfc(z), z = scale / (2√R)."""
        return 2 / math.pi * erfcx(self.scale / (2 * np.sqrt(_floored(risk))))


def _floored(risk: ArrayLike) -> np.ndarray:
    return np.maximum(np.asarray(risk, dtype=float), FLOOR)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a number above 0, not {value!r}")
