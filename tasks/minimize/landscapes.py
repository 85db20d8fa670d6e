"""Functions with several minima: points (..., d) -> values (...), gradients (..., d), Hessians (..., d, d)."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

Box = Sequence[tuple[float, float]]


class Landscape(Protocol):
    """A function f on R^d; `gradient` gives a new array with the memory order of its points.

    Attributes:
        box: (low, high) of each coordinate; all critical points lie inside.
        hessian: ∇²f, or None where f is not twice differentiable (one dimension only).
    """

    box: Box

    @property
    def hessian(self) -> "HessianField | None": ...

    def value(self, x: np.ndarray) -> np.ndarray: ...

    def gradient(self, x: np.ndarray) -> np.ndarray: ...


class HessianField(Protocol):
    """points (..., d) -> (..., d, d)."""

    def __call__(self, x: np.ndarray, /) -> np.ndarray: ...


class Camel:
    """The three-hump camel, 2x² - 1.05x⁴ + x⁶/6 + xy + y²: the global minimum 0 between two local ones.

    >>> Camel().value(np.array([1.747552, -0.873776])).item()
    0.298638
    """

    box: Box = ((-2.5, 2.5), (-2.0, 2.0))

    def value(self, x: np.ndarray) -> np.ndarray:
        a, b = x[..., 0], x[..., 1]
        return 2 * a**2 - 1.05 * a**4 + a**6 / 6 + a * b + b**2

    def gradient(self, x: np.ndarray) -> np.ndarray:
        a, b, out = x[..., 0], x[..., 1], np.empty_like(x)
        square = a * a
        slope = square - 4.2
        slope *= square
        slope += 4.0
        slope *= a
        np.add(slope, b, out=out[..., 0])
        np.add(b, b, out=slope)
        np.add(slope, a, out=out[..., 1])
        return out

    def hessian(self, x: np.ndarray) -> np.ndarray:
        square = x[..., 0] ** 2
        out = np.ones((*x.shape, 2))
        out[..., 0, 0] = 4 - 12.6 * square + 5 * square**2
        out[..., 1, 1] = 2.0
        return out


class DoubleWell:
    """x⁴/4 - x²/2 - tilt x in one dimension.

    Args:
        tilt: below 2/√27 in absolute value, so that there are two minima.
    """

    box: Box = ((-3.0, 3.0),)

    def __init__(self, tilt: float) -> None:
        if abs(tilt) >= 2 / np.sqrt(27):
            raise ValueError(f"tilt={tilt}: expected less than 0.3849 in absolute value")
        self.tilt = tilt

    def value(self, x: np.ndarray) -> np.ndarray:
        t = x[..., 0]
        return t**4 / 4 - t**2 / 2 - self.tilt * t

    def gradient(self, x: np.ndarray) -> np.ndarray:
        out = x * x
        out -= 1.0
        out *= x
        out -= self.tilt
        return out

    def hessian(self, x: np.ndarray) -> np.ndarray:
        return (3 * x**2 - 1)[..., None]


class Wells:
    """A chain of wells in one dimension: cubic pieces with zero slope at -2, -1, 0, 1, 2, quadratic beyond.

    Args:
        heights: f at these places: minima at -2, 0 and 2, maxima between.
        scale: multiplies f, > 0.
    """

    box: Box = ((-3.0, 3.0),)
    hessian = None  # the curvature jumps from piece to piece

    def __init__(self, heights: list[float], scale: float = 1.0) -> None:
        steps = np.diff(heights)
        if len(heights) != 5 or not (steps * np.array([1, -1, 1, -1]) > 0).all() or scale <= 0:
            raise ValueError(
                f"heights={heights}: expected minima and maxima in turn, five of them, and scale > 0"
            )
        self.heights, self.steps = scale * np.asarray(heights, dtype=float), scale * steps

    def value(self, x: np.ndarray) -> np.ndarray:
        piece = np.clip(np.floor(x[..., 0]), -2, 1)
        t, k = x[..., 0] - piece, piece.astype(int) + 2
        low, step = self.heights[k], self.steps[k]
        inside = low + step * (3 * t**2 - 2 * t**3)
        return np.where(
            t < 0, low + 3 * step * t**2, np.where(t > 1, low + step - 3 * step * (t - 1) ** 2, inside)
        )

    def gradient(self, x: np.ndarray) -> np.ndarray:
        piece = np.clip(np.floor(x), -2, 1)
        t = x - piece
        out = 6 * self.steps[piece.astype(np.int64) + 2]
        out *= np.minimum(t, 1.0)
        out *= np.minimum(1.0 - t, 1.0)
        return out


class Ridge:
    """(x² - 1)²/4 + y²/2: two global minima, a strict saddle at 0, no other minimum."""

    box: Box = ((-2.0, 2.0), (-2.0, 2.0))

    def value(self, x: np.ndarray) -> np.ndarray:
        return (x[..., 0] ** 2 - 1) ** 2 / 4 + x[..., 1] ** 2 / 2

    def gradient(self, x: np.ndarray) -> np.ndarray:
        a, out = x[..., 0], np.empty_like(x)
        np.multiply(a * a - 1.0, a, out=out[..., 0])
        out[..., 1] = x[..., 1]
        return out

    def hessian(self, x: np.ndarray) -> np.ndarray:
        out = np.zeros((*x.shape, 2))
        out[..., 0, 0] = 3 * x[..., 0] ** 2 - 1
        out[..., 1, 1] = 1.0
        return out


class PhaseRetrieval:
    """Mean over n measurements of (⟨a_i, x⟩² - y_i)²/4 in the plane, y_i = ⟨a_i, (1, 0)⟩² + error_i.

    The two signs of the signal are minima of equal value. The errors keep the noise of single measurements alive there.

    Args:
        components: n, >= 3.
        error: standard deviation of the errors, >= 0.
        data_seed: draws the a_i (standard normal) and the errors.
    """

    box: Box = ((-2.5, 2.5), (-2.5, 2.5))

    def __init__(self, components: int, error: float, data_seed: int) -> None:
        if components < 3 or error < 0:
            raise ValueError(f"components={components}, error={error}: expected at least 3, and 0")
        rng = np.random.default_rng(data_seed)
        self.components = components
        self.rows = rng.standard_normal((components, 2))
        self.labels = self.rows[:, 0] ** 2 + error * rng.standard_normal(components)

    def value(self, x: np.ndarray) -> np.ndarray:
        return (((x @ self.rows.T) ** 2 - self.labels) ** 2).mean(-1) / 4

    def gradient(self, x: np.ndarray) -> np.ndarray:
        products = x @ self.rows.T
        products *= products**2 - self.labels
        return products @ self.rows / self.components

    def hessian(self, x: np.ndarray) -> np.ndarray:
        weights = 3 * (x @ self.rows.T) ** 2 - self.labels
        return np.einsum("...n,ni,nj->...ij", weights, self.rows, self.rows) / self.components

    def component_gradients(self, x: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Mean gradient of the components `batch` (runs, size) at points (runs, 2)."""
        rows = self.rows[batch]
        products = np.einsum("rbi,ri->rb", rows, x)
        products *= products**2 - self.labels[batch]
        return np.einsum("rb,rbi->ri", products, rows) / batch.shape[1]


class Ball:
    """Points nearer than `radius` to `center`."""

    def __init__(self, center: list[float], radius: float) -> None:
        self.center, self.radius = np.asarray(center, dtype=float), radius

    def __call__(self, x: np.ndarray) -> np.ndarray:
        squares = (x[..., 0] - self.center[0]) ** 2
        for k in range(1, len(self.center)):
            squares += (x[..., k] - self.center[k]) ** 2
        return squares < self.radius**2


class Beyond:
    """Points whose first coordinate (its absolute value if `both_sides`) is above `level`."""

    def __init__(self, level: float, both_sides: bool = False) -> None:
        self.level, self.both_sides = level, both_sides

    def __call__(self, x: np.ndarray) -> np.ndarray:
        first = x[..., 0]
        return (np.abs(first) if self.both_sides else first) > self.level
