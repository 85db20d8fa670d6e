"""Accelerated gradient descent and SciPy's solvers as torch optimizers."""

import numpy as np
import pytest
import torch
from scipy import optimize

from methods.minimize.agd import AGD
from methods.minimize.scipy_minimize import SciPyMinimize

SCALES = np.logspace(0, 2, 6)


def run(optimizer, x, steps):
    values = []

    def closure():
        x.grad = torch.from_numpy(SCALES * x.numpy())
        return 0.5 * float(SCALES @ x.numpy() ** 2)

    for _ in range(steps):
        optimizer.step(closure)
        values.append(0.5 * float(SCALES @ x.numpy() ** 2))
    return values


def test_convex_agd_is_its_recursion_and_keeps_its_bound():
    x = torch.ones(6, dtype=torch.float64)
    values = run(AGD([x], smoothness=100.0), x, 200)
    point, previous, lam = np.ones(6), np.ones(6), 1.0
    for k in range(200):
        if k:
            following = (1 + np.sqrt(1 + 4 * lam**2)) / 2
            beta, lam = (lam - 1) / following, following
        else:
            beta = 0.0
        y = point + beta * (point - previous)
        point, previous = y - SCALES * y / 100.0, point
        assert values[k] == pytest.approx(0.5 * SCALES @ point**2, rel=1e-9, abs=1e-12)
        assert values[k] <= 2 * 100.0 * 6 / (k + 2) ** 2
    assert x.numpy() == pytest.approx(point)


def test_strongly_convex_agd_keeps_its_bound():
    x = torch.ones(6, dtype=torch.float64)
    values = run(AGD([x], smoothness=100.0, strong_convexity=1.0), x, 150)
    first = 0.5 * SCALES.sum()
    for k, value in enumerate(values, start=1):
        assert value <= (1 - 1 / 10) ** k * (first + 0.5 * 6) * (1 + 1e-9)


@pytest.mark.parametrize(("smoothness", "mu"), [(0.0, None), (-1.0, None), (1.0, 2.0), (1.0, 0.0)])
def test_agd_rejects_bad_constants(smoothness, mu):
    with pytest.raises(ValueError, match="expected"):
        AGD([torch.zeros(2)], smoothness=smoothness, strong_convexity=mu)


@pytest.mark.parametrize(("method", "options"), [("BFGS", {"gtol": 1e-6}), ("L-BFGS-B", {"maxcor": 3})])
def test_scipy_step_is_scipys_solve(method, options):
    x = torch.ones(6, dtype=torch.float64)
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        x.grad = torch.from_numpy(SCALES * x.numpy())
        return 0.5 * float(SCALES @ x.numpy() ** 2)

    optimizer = SciPyMinimize([x], method=method, options=options)
    value = optimizer.step(closure)
    reference = optimize.minimize(
        lambda x: 0.5 * SCALES @ x**2, np.ones(6), jac=lambda x: SCALES * x, method=method, options=options
    )
    assert (x.numpy() == reference.x).all()
    assert value == reference.fun
    assert calls == reference.njev
    optimizer.step(closure)  # a finished solve evaluates nothing more
    assert calls == reference.njev


def test_scipy_takes_several_float32_parameters():
    parts = [torch.ones(2, 2, requires_grad=True), torch.ones(2, requires_grad=True)]
    optimizer = SciPyMinimize(parts, method="BFGS")

    def closure():
        optimizer.zero_grad()
        loss = sum(((p - 3) ** 2).sum() for p in parts)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert all(torch.allclose(p, torch.full_like(p, 3.0), atol=1e-4) for p in parts)
