"""Bounds and measures, on runs whose numbers are known by hand."""

import functools

import numpy as np
import pytest
import torch

from tasks.minimize import theory
from tasks.minimize.exam import Trace, examine
from tasks.minimize.measures import first_below, first_infinite, never_increases, quarterly_contraction
from tasks.minimize.problems import DiagonalQuadratic
from tasks.minimize.quadratics import Quadratic
from tests.fake_run import FakeRun

PROBLEM = DiagonalQuadratic(np.array([1.0, 4.0]))


def gradient_descent(steps=20):
    sgd = functools.partial(torch.optim.SGD, lr="1/L")
    return examine(sgd, PROBLEM, np.ones(2), tol=0.0, max_steps=steps, keep=True)


def test_feedback_by_hand():
    # from (1, 1): f = 2.5, g = (1, 4); x⁺ = (.75, 0): f⁺ = .28125
    found = theory.feedback(gradient_descent(2))
    assert found.h == pytest.approx([(0.28125 - 2.5) / 17])
    assert found.g == pytest.approx(np.array([[1.0, 4.0]]))
    assert found.g_trial == pytest.approx(np.array([[0.75, 0.0]]))
    assert found.after == pytest.approx([0.28125])
    assert found.squared == pytest.approx([17.0])


def test_a_rejected_trial_point_is_a_null_step():
    g = np.array([1.0, 0.0])
    trace = Trace(values=[1.0, 2.0, 0.5], gradients=[g, 3 * g, 0.5 * g])
    kept = theory.feedback(trace)
    assert kept.h.tolist() == [1.0, -0.5]
    assert kept.after.tolist() == [1.0, 0.5]
    assert kept.g.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    followed = theory.feedback(trace, null_steps=False)
    assert followed.h.tolist() == [1.0, pytest.approx(-1.5 / 9)]


def test_bounds_of_gradient_descent_on_one_eigenvector():
    # on the μ-eigenvector every step has h = -(1/L)(1 - μ/2L) and f shrinks by exactly 1 - 2μ(-h)
    problem = DiagonalQuadratic(np.array([1.0, 4.0]))
    sgd = functools.partial(torch.optim.SGD, lr="1/L")
    trace = examine(sgd, problem, np.array([1.0, 0.0]), tol=0.0, max_steps=30, keep=True)
    found = theory.feedback(trace)
    assert found.h == pytest.approx(np.full(29, -(1 - 1 / 8) / 4))
    assert theory.linear_ratio(found, 0.5, 1.0) == pytest.approx(1.0)
    progress = np.cumsum(-found.h)
    assert theory.sublinear_ratio(found, 1.0) == pytest.approx(np.max(found.after * progress))


def test_ratios_notice_a_violated_bound():
    found = theory.Feedback(np.array([-0.1]), np.ones((1, 2)), np.ones((1, 2)), np.array([0.95]))
    assert theory.linear_ratio(found, 1.0, mu=1.0) == pytest.approx(0.95 / 0.8)
    assert theory.sublinear_ratio(found, radius=0.1) == pytest.approx(9.5)


def test_regret_by_hand():
    found = theory.feedback(gradient_descent(2))
    # best P = diag(1, 1/4): h = -½ (1 + 16/4)/17 = -2.5/17
    assert theory.regret(found, PROBLEM.scales) == pytest.approx([(0.28125 - 2.5 + 2.5) / 17])
    # ∇h = -(.75·1, 0)/17; ‖P̂‖² = 1 + 1/16
    expected = (1 + 1 / 16) / 2 / 0.1 + 0.05 * (0.75 / 17) ** 2
    assert theory.regret_bound(found, PROBLEM.scales, 0.1) == pytest.approx([expected])


def test_quarterly_contraction_of_a_known_sequence():
    rates = [0.9] * 4 + [0.8] * 4 + [0.5] * 4 + [0.1] * 4
    values = np.cumprod([1.0, *rates])
    assert quarterly_contraction(values) == pytest.approx((0.9, 0.8, 0.5, 0.1))
    with pytest.raises(ValueError, match="no quarters"):
        quarterly_contraction([1.0, 0.5])


def test_small_measures():
    assert first_below([3, 2, 1, 2], 2) == 1
    assert first_below([3.0], 1) is None
    assert first_infinite([1.0, np.inf, np.nan]) == 1
    assert first_infinite([1.0]) is None
    assert never_increases([3.0, 3.0, 1.0])
    assert not never_increases([1.0, 1.1])
    assert not never_increases([1.0, np.nan])


def test_quadratic_task_describes_gradient_descent():
    task = Quadratic(dim=3, condition=10.0, max_steps=2000, target=1e-20, bounds=True, regret_lr=1.0)
    run = FakeRun(seed=4)
    task.evaluate(functools.partial(torch.optim.SGD, lr="1/L"), run)
    summary = run.summaries
    assert summary["monotone"] is True
    assert summary["overflow_step"] is None
    assert summary["q4"] == pytest.approx(0.81, abs=0.005)  # (1 - 1/κ)²
    assert 0 < summary["linear_ratio"] <= 1
    assert 0 < summary["sublinear_ratio"] <= 1
    assert 0 < summary["steps_to_gap"] < summary["steps"] < 2000
    assert len(run.metrics) <= 140
    again = FakeRun(seed=4)
    task.evaluate(functools.partial(torch.optim.SGD, lr="1/L"), again)
    assert again.metrics == run.metrics


def test_quadratic_task_shows_divergence():
    task = Quadratic(dim=3, condition=10.0, max_steps=2000)
    run = FakeRun()
    task.evaluate(functools.partial(torch.optim.SGD, lr="3*L"), run)
    assert run.summaries["overflow_step"] > 0
    assert run.summaries["monotone"] is False
    assert run.summaries["steps"] is None
    with pytest.raises(ValueError, match="dim=1"):
        Quadratic(dim=1, condition=10.0, max_steps=1)
