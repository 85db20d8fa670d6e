"""Critical points of a smooth function, and which basins its saddles connect."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq, root

__all__ = ["CriticalPoint", "basin", "critical_points", "neighbours"]

Field = Callable[[np.ndarray], np.ndarray]
SAME = 1e-5  # points nearer than this, in units of the box, are one


@dataclass(frozen=True)
class CriticalPoint:
    """A point x with ∇f(x) = 0.

    Attributes:
        x: its coordinates.
        value: f(x).
        index: number of directions in which f falls: 0 a minimum, 1 a saddle (in one dimension a maximum).
    """

    x: tuple[float, ...]
    value: float
    index: int


def critical_points(
    value: Field, grad: Field, box: Sequence[tuple[float, float]], hess: Field | None = None, grid: int = 0
) -> list[CriticalPoint]:
    """All critical points that searches from a grid over the box find, in lexicographic order of x.

    Args:
        value, grad, hess: f (n, d) -> (n,), ∇f -> (n, d), ∇²f -> (n, d, d); `hess` is not needed in one dimension.
        box: (low, high) of each coordinate; points outside are left out.
        grid: starts per coordinate; 0: 1,000 in one dimension, 15 in more.

    Raises:
        ValueError: nothing is found; no `hess` in several dimensions.

    >>> wells = critical_points(lambda x: (x[:, 0] ** 2 - 1) ** 2, lambda x: 4 * x * (x**2 - 1), [(-2.0, 2.0)])
    >>> [(round(point.x[0], 6) + 0.0, point.index) for point in wells]
    [(-1.0, 0), (0.0, 1), (1.0, 0)]
    """
    if len(box) == 1:
        found = _on_a_line(grad, box[0], grid or 1000)
    elif hess is None:
        raise ValueError(f"critical points in {len(box)} dimensions take hess")
    else:
        found = _in_a_box(grad, hess, box, grid or 15)
    if not found:
        raise ValueError(f"no critical point is found in the box {list(box)}")
    return [CriticalPoint(x, float(value(np.array([x]))[0]), index) for x, index in sorted(found)]


def neighbours(
    points: Sequence[CriticalPoint], grad: Field, hess: Field | None = None
) -> list[tuple[int, int]]:
    """Pairs (saddle, critical point) of positions in `points` that gradient flow off the saddle leads to.

    In one dimension these are the points next to each other. Points of index 2 and more take no part: the cheapest
    ways between basins lead over saddles of index 1.
    """
    if len(points[0].x) == 1:
        order = sorted(range(len(points)), key=lambda i: points[i].x)
        pairs = list(pairwise(order))
        return [(i, j) if points[i].index else (j, i) for i, j in pairs]
    assert hess is not None
    found: dict[tuple[int, int], None] = {}
    for k, point in enumerate(points):
        if point.index != 1:
            continue
        direction = np.linalg.eigh(hess(np.array([point.x]))[0])[1][:, 0]
        for side in (1.0, -1.0):
            end = basin(np.array(point.x) + 1e-3 * side * direction, points, grad)
            found[k, end] = None
    return list(found)


def basin(x: np.ndarray, points: Sequence[CriticalPoint], grad: Field, time: float = 200.0) -> int:
    """Position in `points` of the one that gradient flow from x (d,) leads to.

    Raises:
        ValueError: it comes near none of them within `time`.
    """
    flow = solve_ivp(lambda _, y: -grad(y[None])[0], (0, time), x, method="LSODA", rtol=1e-8, atol=1e-10)
    ends = np.array([point.x for point in points])
    distances = np.linalg.norm(ends - flow.y[:, -1], axis=1)
    nearest = int(distances.argmin())
    if not distances[nearest] < 1e-3:
        raise ValueError(f"gradient flow from {x} ends at {flow.y[:, -1]}, at no critical point of the list")
    return nearest


def _on_a_line(grad: Field, ends: tuple[float, float], grid: int) -> list[tuple[tuple[float, ...], int]]:
    """Sign changes of f' between points of the grid at which it is not zero."""
    x = np.linspace(*ends, grid)
    slopes = grad(x[:, None])[:, 0]
    x, slopes = x[slopes != 0], slopes[slopes != 0]
    found: list[tuple[tuple[float, ...], int]] = []
    for k in np.flatnonzero(slopes[:-1] * slopes[1:] < 0):
        place = brentq(lambda t: float(grad(np.array([[t]]))[0, 0]), x[k], x[k + 1], xtol=1e-14)
        found.append(((float(place),), int(slopes[k] > 0)))
    return found


def _in_a_box(
    grad: Field, hess: Field, box: Sequence[tuple[float, float]], grid: int
) -> list[tuple[tuple[float, ...], int]]:
    """Newton's method from each point of the grid."""
    widths = np.array([high - low for low, high in box])
    found: list[tuple[tuple[float, ...], int]] = []
    for start in product(*(np.linspace(low, high, grid) for low, high in box)):
        solved = root(lambda x: grad(x[None])[0], start, jac=lambda x: hess(x[None])[0], tol=1e-12)
        inside = all(low <= t <= high for t, (low, high) in zip(solved.x, box, strict=True))
        if not inside or np.abs(solved.fun).max() > 1e-8:
            continue
        if all(np.abs((solved.x - np.array(x)) / widths).max() > SAME for x, _ in found):
            eigenvalues = np.linalg.eigvalsh(hess(solved.x[None])[0])
            found.append((tuple(map(float, solved.x)), int((eigenvalues < 0).sum())))
    return found
