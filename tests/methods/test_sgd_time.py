"""SGD's hitting times: the graph's energy against its definition, costs, critical points, the simulation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq

from methods.minimize.critical_points import CriticalPoint, basin, critical_points, neighbours
from methods.minimize.gradient_noise import Gaussian, Minibatch, Rademacher
from methods.minimize.sgd_time import (
    MinibatchSGD,
    NoisySGD,
    energy,
    eyring_kramers,
    hitting_time,
    transition_graph,
)
from methods.minimize.transition_graph import path_cost

# -- the graph ---------------------------------------------------------------------------------------------------------


def cheapest(graph, vertices, roots, start=None, end=None):
    """Least cost over all choices of one arrow from every vertex outside `roots` without a cycle; with `start`, only
    those in which it leads to `end`."""
    free = [v for v in vertices if v not in roots]
    best = math.inf
    for heads in itertools.product(vertices, repeat=len(free)):
        arrow = dict(zip(free, heads, strict=True))
        ends = {}
        for v in free:
            seen, at = set(), v
            while at in arrow and at not in seen:
                seen.add(at)
                at = arrow[at]
            ends[v] = None if at in arrow else at
        if None in ends.values() or (start is not None and ends.get(start, start) != end):
            continue
        best = min(best, sum(graph.get(pair, math.inf) for pair in arrow.items()))
    return best


def by_definition(graph, start, goal):
    vertices = sorted({v for pair in graph for v in pair})
    outside = [v for v in vertices if v not in goal]
    all_lead = cheapest(graph, vertices, goal)
    return all_lead - min(cheapest(graph, vertices, [*goal, b], start, b) for b in outside)


@given(st.data())
def test_energy_is_the_difference_of_cheapest_graphs(data):
    n = data.draw(st.integers(2, 4))
    costs = st.floats(0, 10) | st.sampled_from([0.0, 1.0, 2.0])
    graph = {pair: data.draw(costs) for pair in itertools.permutations(range(n), 2)}
    goal = [n - 1] if n < 4 or data.draw(st.booleans()) else [n - 1, n - 2]
    start = data.draw(st.integers(0, n - 1 - len(goal)))
    assert energy(graph, start, goal) == pytest.approx(by_definition(graph, start, goal), abs=1e-9)


def test_energy_of_five_vertices_with_gaps():
    rng = np.random.default_rng(0)
    for _ in range(3):
        graph = {(i, i + 1): rng.uniform(0, 3) for i in range(4)} | {
            (i + 1, i): rng.uniform(0, 3) for i in range(4)
        }
        graph[0, 2] = rng.uniform(0, 3)
        assert energy(graph, 0, 4) == pytest.approx(by_definition(graph, 0, [4]), abs=1e-9)


def test_energy_of_the_two_chains_of_wells():
    assert energy({("A", "B"): 1, ("B", "A"): 3, ("B", "C"): 2}, "A", "C") == 2
    assert energy({("A", "B"): 3, ("B", "A"): 0.5, ("B", "C"): 1}, "A", "C") == 3.5
    assert energy({("A", "B"): 3, ("B", "A"): 0.5, ("B", "C"): 1}, "C", ["C"]) == 0


def test_a_dead_end_that_can_be_entered_counts():
    graph = {("A", "T"): 5.0, ("A", "D"): 1.0, ("D", "A"): 7.0}
    assert energy(graph, "A", "T") == pytest.approx(by_definition(graph, "A", ["T"]))
    assert energy(graph, "A", "T") == 11  # stays of exp(7/η) in D, exp(4/η) times
    assert path_cost(graph, "A", "T") == 5


def test_no_way_back_is_for_ever():
    assert energy({("A", "T"): 5.0, ("A", "D"): 1.0, ("D", "A"): math.inf}, "A", "T") == math.inf
    assert energy({("A", "T"): math.inf}, "A", "T") == math.inf
    assert path_cost({("A", "T"): math.inf}, "A", "T") == math.inf


@pytest.mark.parametrize("target", ["X", [], ["T", "X"], "S"])
def test_a_target_without_a_basin_is_one_clear_error(target):
    graph = {("A", "T"): 1.0, ("T", "A"): 1.0, ("S", "A"): 0.0}
    for function in (energy, path_cost):
        with pytest.raises(ValueError, match="has no basin") as caught:
            function(graph, "A", target)
        assert "\n" not in str(caught.value)


def test_other_wrong_arguments():
    with pytest.raises(ValueError, match="start 'X' is no vertex"):
        energy({("A", "T"): 1.0}, "X", "T")
    with pytest.raises(ValueError, match="no critical point is called 'b'"):
        transition_graph({"a": CriticalPoint((0.0,), 0.0, 0)}, [("a", "b")], Gaussian(1.0))
    low, high = CriticalPoint((0.0, 0.0), 0.0, 0), CriticalPoint((1.0, 0.0), 1.0, 1)
    with pytest.raises(ValueError, match="no exponent is known for Rademacher"):
        transition_graph({"a": low, "b": high}, [("a", "b")], Rademacher(2.0))
    for bad in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="std"):
            Gaussian(bad)


# -- noise -------------------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 5), st.floats(1e-4, 0.99))
def test_momentum_solves_its_equation(std, share):
    slope = share * std
    p = Rademacher(std).momentum(slope)
    assert math.log(math.cosh(std * p)) == pytest.approx(p * slope, rel=1e-6, abs=1e-12)
    assert p > 0
    assert p >= Gaussian(std).momentum(slope) * (1 - 1e-9)  # bounded noise climbs at a higher cost
    if share < 1e-2:
        assert p == pytest.approx(2 * slope / std**2, rel=1e-3)


def test_draws_have_mean_zero_and_their_standard_deviation():
    for noise in (Gaussian(0.7), Rademacher(0.7)):
        drawn = noise.draw(np.random.default_rng(0), 20000, 2)
        assert drawn.shape == (20000, 2)
        assert np.abs(drawn.mean(0)).max() < 4 * 0.7 / math.sqrt(20000)
        assert drawn.std(0) == pytest.approx([0.7, 0.7], rel=0.03)
    assert set(np.unique(Rademacher(0.7).draw(np.random.default_rng(0), 100, 1))) == {-0.7, 0.7}


def test_minibatch_noise_is_gradient_minus_mean_gradient():
    slopes = np.array([1.0, 2.0, 6.0])
    noise = Minibatch(
        lambda x, b: slopes[b].mean(1, keepdims=True) * x, lambda x: 3 * x, components=3, batch=2
    )
    drawn = noise.draw(np.random.default_rng(0), 5, 1)
    assert drawn.shape == (5, 2)
    assert noise.at(np.ones((4, 1)), np.array([[0, 0], [0, 1], [2, 2], [1, 2]]))[:, 0].tolist() == [
        -2,
        -1.5,
        3,
        1,
    ]


# -- critical points and costs -----------------------------------------------------------------------------------------


def camel(x):
    a, b = x[..., 0], x[..., 1]
    return np.stack([4 * a - 4.2 * a**3 + a**5 + b, a + 2 * b], axis=-1)


def camel_value(x):
    a, b = x[..., 0], x[..., 1]
    return 2 * a**2 - 1.05 * a**4 + a**6 / 6 + a * b + b**2


def camel_hessian(x):
    a = x[..., 0]
    one = np.ones_like(a)
    first = np.stack([4 - 12.6 * a**2 + 5 * a**4, one], axis=-1)
    return np.stack([first, np.stack([one, 2 * one], axis=-1)], axis=-2)


def test_critical_points_of_the_camel():
    points = critical_points(camel_value, camel, [(-2.5, 2.5), (-2.0, 2.0)], camel_hessian)
    assert [point.index for point in points] == [0, 1, 0, 1, 0]
    assert np.array([point.x for point in points[:3]]) == pytest.approx(
        np.array([(-1.747552, 0.873776), (-1.070542, 0.535271), (0, 0)]), abs=1e-6
    )
    assert [point.value for point in points[:3]] == pytest.approx([0.298638, 0.877362, 0], abs=1e-6)
    assert sorted(neighbours(points, camel, camel_hessian)) == [(1, 0), (1, 2), (3, 2), (3, 4)]
    assert basin(np.array([0.5, -0.25]), points, camel) == 2
    graph = transition_graph(dict(enumerate(points)), neighbours(points, camel, camel_hessian), Gaussian(1.0))
    assert energy(graph, 0, 2) == pytest.approx(1.157446, abs=1e-6)
    wells = [camel_hessian(np.array(point.x)) for point in points]
    assert np.linalg.eigvalsh(wells[0]) == pytest.approx([1.9024, 12.2506], abs=1e-4)
    assert np.linalg.eigvalsh(wells[1]) == pytest.approx([-4.0387, 2.1656], abs=1e-4)
    assert eyring_kramers(wells[0], wells[1]) == pytest.approx(0.95304, abs=1e-5)


def test_costs_on_the_tilted_double_well():
    def value(x):
        return x[..., 0] ** 4 / 4 - x[..., 0] ** 2 / 2 - 0.1 * x[..., 0]

    def grad(x):
        return x**3 - x - 0.1

    points = critical_points(value, grad, [(-3.0, 3.0)])
    assert [point.x[0] for point in points] == pytest.approx([-0.945649, -0.101031, 1.046681], abs=1e-6)
    named, edges = dict(enumerate(points)), neighbours(points, grad)
    bounded = transition_graph(named, edges, Rademacher(0.6), grad=grad)
    assert energy(bounded, 0, 2) == pytest.approx(0.984083, abs=1e-6)
    assert energy(transition_graph(named, edges, Gaussian(0.6)), 0, 2) == pytest.approx(0.875916, abs=1e-6)

    # the same by one's own quadrature, and by the Gaussian law's momentum
    def p(x):
        s = float(grad(np.array([[x]]))[0, 0])
        return brentq(lambda q: math.log(math.cosh(0.6 * q)) - q * s, 1e-3 * s, 60) if s > 1e-6 else 0.0

    own = quad(p, points[0].x[0], points[1].x[0], limit=200)[0]
    assert bounded[0, 1] == pytest.approx(own, rel=1e-5)

    law = Gaussian(0.6)
    up = quad(
        lambda x: law.momentum(max(float(grad(np.array([[x]]))[0, 0]), 0)), points[0].x[0], points[1].x[0]
    )
    assert up[0] == pytest.approx(0.875916, abs=1e-6)
    # noise below the steepest slope never climbs
    steepest = max(float(grad(np.array([[x]]))[0, 0]) for x in np.linspace(-0.9456, -0.1010, 500))
    small = transition_graph(named, edges, Rademacher(0.99 * steepest), grad=grad)
    assert small[0, 1] == math.inf
    assert energy(small, 0, 2) == math.inf


# -- the simulation ----------------------------------------------------------------------------------------------------


def beyond(level):
    return lambda x: x[..., 0] > level


def one_by_one(noise, eta, start, target, max_steps, rng):
    """SGD as it is written: one run, one step at a time."""
    x = np.array([start], dtype=float)
    draws = [noise.draw(rng, 32, x.shape[1]), noise.draw(rng, 64, x.shape[1])]
    for k, z in enumerate(np.concatenate(draws)[:max_steps]):
        x = x - eta * (camel(x) + z)
        if target(x)[0]:
            return k + 1
    return None


@pytest.mark.parametrize("noise", [Gaussian(6.0), Rademacher(6.0)])
def test_hitting_times_are_those_of_the_loop(noise):
    def ball(x):
        return (x**2).sum(-1) < 0.5

    seeds = range(12)
    start = np.array([-1.2, 0.6])
    generators = [np.random.default_rng(seed) for seed in seeds]
    times = hitting_time(camel, noise, 0.02, start, ball, 12, 96, rng=generators)
    for seed, steps, reached in zip(seeds, times.steps, times.reached, strict=True):
        expected = one_by_one(noise, 0.02, start, ball, 96, np.random.default_rng(seed))
        assert reached == (expected is not None)
        assert steps == (expected or 96)
    assert 0 < times.reached.sum() < 12


def test_a_run_does_not_depend_on_the_runs_beside_it():
    def times(seeds):
        generators = [np.random.default_rng(seed) for seed in seeds]
        return hitting_time(
            camel, Gaussian(6.2), 0.02, np.array([-1.7, 0.9]), beyond(0), len(seeds), 10**5, rng=generators
        )

    together, alone = times([0, 1, 2, 3]), times([2])
    assert together.steps[2] == alone.steps[0]


def test_mean_time_of_a_symmetric_walk():
    """Without gradient, from 0 to ±5 in steps of 1: 25 steps in the mean."""
    times = hitting_time(
        np.zeros_like, Rademacher(1.0), 1.0, np.zeros(1), lambda x: np.abs(x[..., 0]) > 4.5, 4000, 10**5,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    spread = times.steps.std() / math.sqrt(4000)
    assert times.reached.all()
    assert abs(times.mean - 25) < 4 * spread


def test_stopped_runs_do_not_bias_an_exponential_mean():
    def walk(max_steps):
        def outside(x):
            return np.abs(x[..., 0]) > 4.5

        rng = np.random.default_rng(1)
        return hitting_time(
            np.zeros_like, Rademacher(1.0), 1.0, np.zeros(1), outside, 2000, max_steps, rng=rng
        )

    long, short = walk(10**5), walk(40)
    assert not short.reached.all()
    assert short.steps.max() == 40
    assert short.mean == pytest.approx(long.mean, rel=0.1)
    assert short.steps[short.reached].mean() < 0.8 * long.mean  # what leaving them out would give


def test_starts_inside_and_starts_of_their_own():
    starts = np.array([[2.0], [0.0]])
    times = hitting_time(
        lambda x: x - 2, Gaussian(0.0), 0.5, starts, beyond(1.5), 2, 100, rng=np.random.default_rng(0)
    )
    assert times.steps.tolist() == [0, 3]  # 0, 1, 1.5, 1.75
    assert times.reached.all()


def test_diverged_runs_are_counted_and_are_no_arrivals():
    times = hitting_time(lambda x: -(x**3), Gaussian(0.0), 1.0, np.array([1.0]), lambda x: x[..., 0] < -1, 3, 1000,
                         rng=np.random.default_rng(0))  # fmt: skip
    assert times.diverged.all()
    assert not times.reached.any()
    assert times.mean == math.inf


def test_arguments_out_of_range():
    options = {"rng": np.random.default_rng(0)}
    for eta, runs, steps in ((0.0, 1, 1), (0.1, 0, 1), (0.1, 1, 0)):
        with pytest.raises(ValueError, match="expected numbers above 0"):
            hitting_time(np.zeros_like, Gaussian(1.0), eta, np.zeros(1), beyond(1), runs, steps, **options)
    with pytest.raises(ValueError, match="target gives shape"):
        hitting_time(np.zeros_like, Gaussian(1.0), 0.1, np.zeros(2), lambda x: x > 1, 3, 5, **options)
    with pytest.raises(ValueError, match="2 generators"):
        hitting_time(
            np.zeros_like, Gaussian(1.0), 0.1, np.zeros(2), beyond(1), 3, 5, rng=[np.random.default_rng()] * 2
        )
    with pytest.raises(ValueError, match="substeps"):
        NoisySGD(Gaussian(1.0), substeps=0)
    with pytest.raises(ValueError, match="batch"):
        MinibatchSGD(0)


def test_the_time_of_a_double_well_is_that_of_eyring_and_kramers():
    """E/η = 3 on (x² - 1)²/4: within the accuracy of the prefactor."""
    std, barrier = 1.0, 2 * 0.25
    eta = barrier / 3
    times = hitting_time(lambda x: x**3 - x, Gaussian(std), eta, np.array([-1.0]), beyond(0.8), 400, 10**5,
                         rng=np.random.default_rng(0))  # fmt: skip
    expected = eyring_kramers(np.array([[2.0]]), np.array([[-1.0]])) / eta * math.exp(3)
    assert 0.7 < times.mean / expected < 1.5


def test_a_diffusion_is_sgd_with_smaller_steps():
    class Bowl:
        @staticmethod
        def gradient(x):
            return x

    def times(substeps):
        generators = np.random.default_rng(0).spawn(1500)
        return NoisySGD(Gaussian(1.0), substeps).hitting_time(
            Bowl, 0.05, np.zeros(1), beyond(0.25), 10**5, generators
        )

    coarse, fine = times(1), times(5)
    assert 0.6 < fine.mean / coarse.mean < 1  # a finer walk sees the target earlier
