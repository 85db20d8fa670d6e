"""The exam of deterministic problems: what is counted, when it stops, how hyperparameters are filled in."""

import functools

import numpy as np
import pytest
import torch

from tasks.minimize.exam import examine, thin
from tasks.minimize.interface import bind
from tasks.minimize.problems import DiagonalQuadratic

PROBLEM = DiagonalQuadratic(np.array([1.0, 4.0]))
SGD = functools.partial(torch.optim.SGD, lr="1/L")


class Searcher(torch.optim.Optimizer):
    """Evaluates three times a step and then has nothing more to do."""

    def __init__(self, params, steps):
        super().__init__(params, {})
        self.left = steps
        self.state[self.param_groups[0]["params"][0]]["memory"] = torch.zeros(2)

    def step(self, closure):
        if self.left:
            self.left -= 1
            for _ in range(3):
                closure()


def test_gradient_descent_is_counted_at_its_iterates():
    trace = examine(SGD, PROBLEM, np.ones(2), tol=1e-3, max_steps=100, keep=True)
    x = np.ones(2)
    for k, point in enumerate(trace.points):  # x_k, k = 0, 1, ...
        assert point == pytest.approx(x)
        assert trace.norms[k] == pytest.approx(np.abs(PROBLEM.scales * x).max())
        assert trace.values[k] == pytest.approx(0.5 * PROBLEM.scales @ x**2)
        x = x - PROBLEM.scales * x / 4
    assert trace.solved_at == trace.evaluations == trace.steps
    assert trace.norms[-1] < 1e-3 <= trace.norms[-2]


def test_limits_and_idle_steps_end_the_exam():
    trace = examine(SGD, PROBLEM, np.ones(2), tol=0.0, max_steps=7)
    assert (trace.solved_at, trace.evaluations, trace.steps) == (None, 7, 7)
    trace = examine(SGD, PROBLEM, np.ones(2), tol=0.0, max_steps=7, max_evaluations=5)
    assert trace.evaluations == 5
    trace = examine(functools.partial(Searcher, steps=2), PROBLEM, np.ones(2), tol=0.0, max_steps=100)
    assert (trace.evaluations, trace.steps) == (6, 3)
    assert trace.state_floats == 4


def test_a_solved_start_costs_one_evaluation():
    trace = examine(SGD, PROBLEM, np.zeros(2), tol=1e-9, max_steps=10)
    assert (trace.solved_at, trace.steps) == (1, 1)


def test_target_and_path():
    trace = examine(SGD, PROBLEM, np.ones(2), tol=0.0, max_steps=500, target=1e-6)
    assert trace.path[0] == 2.5
    assert trace.path[-1] < 1e-6 <= trace.path[-2]
    assert len(trace.path) == trace.steps + 1
    assert trace.path[:-1] == pytest.approx(trace.values)


def test_divergence_ends_the_exam_with_its_values():
    sgd = functools.partial(torch.optim.SGD, lr="1e5*L")
    trace = examine(sgd, PROBLEM, np.ones(2), tol=0.0, max_steps=500, target=0.0)
    assert trace.steps < 100
    assert not np.isfinite(trace.path[-1])


def test_the_start_is_not_changed():
    start = np.ones(2)
    examine(SGD, PROBLEM, start, tol=0.0, max_steps=3)
    assert start.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/L", 0.25),
        ("10/L", 2.5),
        ("0.5*L", 2.0),
        ("L", 4.0),
        (" 1e-3 ", 0.001),
        ("-2", -2.0),
        (".5/mu", 0.5),
        ("diagonal", "diagonal"),
        ("L-BFGS-B", "L-BFGS-B"),
        ("2 L", "2 L"),
        (3, 3),
        (None, None),
        ("", ""),
    ],
)
def test_expressions(text, value):
    filled = bind(functools.partial(dict, key=text), L=4.0, mu=1.0)
    assert filled.keywords == {"key": value}


def test_an_unknown_constant_is_named():
    with pytest.raises(ValueError, match=r"lr='1/nu': this problem states no nu \(its constants: L\)"):
        bind(functools.partial(torch.optim.SGD, lr="1/nu"), L=4.0)
    assert bind(torch.optim.SGD, L=1.0) is torch.optim.SGD


def test_thin_keeps_the_ends():
    assert thin(5).tolist() == [0, 1, 2, 3, 4]
    kept = thin(10_000)
    assert len(kept) <= 40
    assert (kept[0], kept[-1]) == (0, 9999)
    assert (np.diff(kept) > 0).all()
