"""The transition graph of SGD between critical points, and the exponent of its hitting time.

Azizian, Iutzeler, Malick, Mertikopoulos: The Global Convergence Time of Stochastic Gradient Descent in Non-Convex
Landscapes (ICML 2025); Freidlin and Wentzell: Random Perturbations of Dynamical Systems, chapter 6.
"""

import heapq
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from itertools import count
from typing import Any, TypeVar

import numpy as np
from scipy.integrate import quad

from methods.minimize.critical_points import CriticalPoint
from methods.minimize.gradient_noise import Gaussian

__all__ = ["energy", "path_cost", "transition_graph"]

V = TypeVar("V", bound=Hashable)
Graph = Mapping[tuple[V, V], float]


def transition_graph(
    critical_points: Mapping[V, CriticalPoint],
    edges: Iterable[tuple[V, V]],
    noise: Any,
    *,
    grad: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[tuple[V, V], float]:
    """Cost B_ij of moving from each critical point to a neighbour, in units of 1/η: exp(-B_ij/η) is its chance.

    With Gaussian noise B_ij = 2 max(f_j - f_i, 0) / std². With other noise, in one dimension, B_ij is the integral of
    the momentum p over the way up, where log E exp(-p Z) = p |f'|.

    Args:
        critical_points: by name; their values of f (and, for noise that is not Gaussian, places) are read.
        edges: pairs of neighbours, each in one direction or both; a pair stands for both directions.
        noise: `Gaussian`, or any noise with `momentum`.
        grad: ∇f, (n, 1) -> (n, 1); needed for noise that is not Gaussian.

    Returns:
        (i, j) -> B_ij >= 0, infinite where the noise is too small ever to climb.

    Raises:
        ValueError: an edge names no critical point; the noise has no exponent known here.

    >>> points = {"a": CriticalPoint((-1.0,), 0.0, 0), "s": CriticalPoint((0.0,), 0.25, 1)}
    >>> transition_graph(points, [("a", "s")], Gaussian(std=0.5))
    {('a', 's'): 2.0, ('s', 'a'): 0.0}
    """
    costs: dict[tuple[V, V], float] = {}
    for pair in edges:
        for i, j in (pair, pair[::-1]):
            missing = [name for name in (i, j) if name not in critical_points]
            if missing:
                raise ValueError(f"edge {pair}: no critical point is called {missing[0]!r}")
            costs[i, j] = _cost(critical_points[i], critical_points[j], noise, grad)
    return costs


def energy(graph: Graph[V], start: V, target: V | Collection[V]) -> float:
    r"""E with mean hitting time exp((E + o(1))/η) of the target, for SGD attracted to the vertex `start`.

    E = min over G(Q) of Σ B_ij - min over G(start ↛ Q) of Σ B_ij: G(Q) are the graphs with one arrow from every vertex
    outside the target Q that all lead to Q; G(start ↛ Q) those with one arrow from every vertex outside Q ∪ {β}, for
    some β outside Q, in which the start leads to β.

    It is computed without listing graphs. Let jumps i → j have rates exp(-B_ij/η); eliminating the vertices one by one
    (Grassmann, Taksar and Heyman's elimination, which subtracts nothing) gives the mean hitting time, and the exponents
    of a sum and of a product are the largest and the sum of the terms' exponents: O(n³) operations.

    Args:
        graph: (i, j) -> cost, as `transition_graph` gives it.
        start: a vertex.
        target: a vertex, or a list or set of them.

    Returns:
        E >= 0; infinite where an infinite cost, or a place without a way out, keeps SGD away for ever.

    Raises:
        ValueError: the start is no vertex; the target has no basin, as it holds no vertex or no edge leads there from
            the start.

    >>> energy({("A", "B"): 1, ("B", "A"): 3, ("B", "C"): 2}, "A", "C")
    2.0
    >>> energy({("A", "B"): 3, ("B", "A"): 0.5, ("B", "C"): 1}, "A", "C")
    3.5
    """
    goal, sink = _goal(graph, target), object()
    if start in goal:
        return 0.0
    if start not in {name for pair in graph for name in pair}:
        raise ValueError(f"start {start!r} is no vertex of the graph")
    everything: dict[Any, dict[Any, float]] = {}
    for (i, j), value in graph.items():
        if i not in goal and i != j:
            end, row = sink if j in goal else j, everything.setdefault(i, {})
            row[end] = min(value, row.get(end, math.inf))
    if sink not in _reachable(everything, start):
        raise ValueError(f"the target {target!r} has no basin: no edges lead there from {start!r}")
    cost = {i: {j: v for j, v in row.items() if math.isfinite(v)} for i, row in everything.items()}
    ways = _reachable(cost, start)
    if any(sink not in _reachable(cost, i) for i in ways - {sink}):
        return math.inf
    stay = dict.fromkeys(ways - {sink}, 0.0)  # exponent of the time counted at each vertex
    for k in list(stay):
        if k == start:
            continue
        out = cost.pop(k)
        least = min(out.values())
        held = stay.pop(k)
        for i in stay:
            if k not in cost[i]:
                continue
            into = cost[i].pop(k) - least
            stay[i] = max(stay[i], held - into)
            for j, value in out.items():
                if j != i:
                    cost[i][j] = min(cost[i].get(j, math.inf), into + value)
    return stay[start] + cost[start][sink]


def path_cost(graph: Graph[V], start: V, target: V | Collection[V]) -> float:
    """Least sum of costs along a path from `start` to the target: not the exponent, which E may be above or below.

    Raises:
        ValueError: as `energy`.

    >>> path_cost({("A", "B"): 1, ("B", "A"): 3, ("B", "C"): 2}, "A", "C")
    3.0
    """
    goal, best, turn = _goal(graph, target), {start: 0.0}, count()
    heap = [(0.0, next(turn), start)]
    while heap:
        so_far, _, i = heapq.heappop(heap)
        if i in goal:
            return so_far
        for (a, j), value in graph.items():
            if a == i and (j not in best or so_far + value < best[j]):
                best[j] = so_far + value
                heapq.heappush(heap, (best[j], next(turn), j))
    raise ValueError(f"the target {target!r} has no basin: no edges lead there from {start!r}")


def _cost(low: CriticalPoint, high: CriticalPoint, noise: Any, grad: Any) -> float:
    rise = high.value - low.value
    if rise <= 0:
        return 0.0
    if isinstance(noise, Gaussian):
        return 2 * rise / noise.std**2 if noise.std else math.inf
    if not hasattr(noise, "momentum") or grad is None or len(low.x) > 1:
        raise ValueError(
            f"no exponent is known for {type(noise).__name__} noise here: it takes Gaussian noise, or one dimension, "
            "a law with `momentum`, and grad"
        )
    a, b = low.x[0], high.x[0]
    sign = 1.0 if b > a else -1.0

    def momentum(x: float) -> float:
        slope = sign * float(grad(np.array([[x]]))[0, 0])
        return float(noise.momentum(slope)) if slope > 0 else 0.0

    if any(math.isinf(momentum(x)) for x in np.linspace(a, b, 1001)):
        return math.inf
    return float(quad(momentum, a, b, epsabs=1e-12, epsrel=1e-10, limit=200)[0]) * sign


def _goal(graph: Graph[V], target: V | Collection[V]) -> frozenset[V]:
    vertices = {name for pair in graph for name in pair}
    several = isinstance(target, list | set | frozenset)  # a tuple may be a vertex
    wanted = frozenset(target) if several else frozenset([target])  # type: ignore[arg-type]
    if not wanted or not wanted <= vertices:
        raise ValueError(f"the target {target!r} has no basin: it is no vertex of the graph")
    return wanted  # type: ignore[return-value]


def _reachable(cost: Mapping[Any, Mapping[Any, float]], start: Any) -> set[Any]:
    seen, stack = {start}, [start]
    while stack:
        new = set(cost.get(stack.pop(), ())) - seen
        seen |= new
        stack += new
    return seen
