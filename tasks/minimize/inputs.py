"""Streams of inputs x of a linear model, each with the covariance K that a theory needs to know."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol

import numpy as np
import scipy.sparse as sp

Draw = Callable[[int], np.ndarray]


class Inputs(Protocol):
    """A law of inputs in `dim` dimensions."""

    dim: int

    def covariance(self, rng: np.random.Generator) -> np.ndarray:
        """K: [d], its diagonal, or [d, d]."""

    def sampler(self, K: np.ndarray, rng: np.random.Generator) -> Draw:
        """A function that returns the next n inputs, [n, d]; its numbers do not depend on how they are asked for."""


class GaussianInputs:
    """x ~ N(0, K) with a chosen spectrum.

    Args:
        dim: d.
        spectrum: eigenvalues of K: "linear", evenly spaced from `low` to `high`; "log", the same on a log scale;
            "power", i^-`exponent` for i = 1..d.
        low, high, exponent: of the spectrum.
        rotated: eigenvectors are uniform (Haar) instead of the coordinates.

    Raises:
        ValueError: an unknown spectrum, or an eigenvalue that is not above 0.

    >>> GaussianInputs(4, "power", exponent=1.0).covariance(np.random.default_rng(0)).round(2).tolist()
    [1.0, 0.5, 0.33, 0.25]
    """

    def __init__(
        self,
        dim: int,
        spectrum: Literal["linear", "log", "power"] = "linear",
        low: float = 1.0,
        high: float = 1.0,
        exponent: float = 0.5,
        rotated: bool = False,
    ) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, not {dim}")
        if spectrum not in ("linear", "log", "power"):
            raise ValueError(f"spectrum must be linear, log or power, not {spectrum!r}")
        if not 0 < low <= high:
            raise ValueError(f"low and high must be above 0 and in order, not {low} and {high}")
        self.dim, self.rotated = dim, rotated
        if spectrum == "linear":
            self.eigenvalues = np.linspace(low, high, dim)
        elif spectrum == "log":
            self.eigenvalues = np.geomspace(low, high, dim)
        else:
            self.eigenvalues = np.arange(1.0, dim + 1) ** -exponent

    def covariance(self, rng: np.random.Generator) -> np.ndarray:
        """K; draws a rotation if it is rotated."""
        if not self.rotated:
            return self.eigenvalues
        Q, upper = np.linalg.qr(rng.standard_normal((self.dim, self.dim)))
        Q *= np.sign(np.diag(upper))
        K = (Q * self.eigenvalues) @ Q.T
        return (K + K.T) / 2

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """v0 ~ N(0, I/d), [d]."""
        return rng.standard_normal(self.dim) / np.sqrt(self.dim)

    def sampler(self, K: np.ndarray, rng: np.random.Generator) -> Draw:
        """Independent draws of N(0, K)."""
        return _normal(K, rng)


class TableInputs:
    """Rows of a real data set in random order, reshuffled at every pass; features are standardised.

    Constant features are left out. A standardised entry that is 0, which has no sign, is moved to ±1e-6.

    Args:
        data: its `load()` gives a table with features X, [rows, features].
        ridge: K is the sample covariance of the standardised features plus this times I.
        gaussian: draw inputs from N(0, K) instead of the rows: all that a theory sees of the data, and no more.
    """

    def __init__(self, data: Any, ridge: float = 1e-3, gaussian: bool = False) -> None:
        X = data.load().X
        X = np.asarray(X.toarray() if sp.issparse(X) else X, dtype=float)
        X = X[:, X.std(0) > 0]
        X = (X - X.mean(0)) / X.std(0)
        zero = X == 0
        X[zero] = np.where(np.indices(X.shape).sum(0)[zero] % 2 == 0, 1e-6, -1e-6)
        self.X, self.ridge, self.gaussian, self.dim = X, ridge, gaussian, X.shape[1]

    def covariance(self, rng: np.random.Generator) -> np.ndarray:
        """The sample covariance with its ridge, [d, d]; nothing is drawn."""
        return self.X.T @ self.X / len(self.X) + self.ridge * np.eye(self.dim)

    def sampler(self, K: np.ndarray, rng: np.random.Generator) -> Draw:
        """Rows without replacement, then again in another order."""
        if self.gaussian:
            return _normal(K, rng)
        order = self._order(rng)
        return lambda n: self.X[[next(order) for _ in range(n)]]

    def _order(self, rng: np.random.Generator) -> Iterator[int]:
        while True:
            yield from rng.permutation(len(self.X)).tolist()


def _normal(K: np.ndarray, rng: np.random.Generator) -> Draw:
    """Independent draws of N(0, K)."""
    root = np.sqrt(K) if K.ndim == 1 else np.linalg.cholesky(K)

    def draw(n: int) -> np.ndarray:
        z = rng.standard_normal((n, len(K)))
        return z * root if root.ndim == 1 else z @ root.T

    return draw
