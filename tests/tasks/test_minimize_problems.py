"""Objectives of the kind `minimize`: values, gradients, Hessians, constants."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import approx_fprime

from tasks.minimize.problems import DiagonalQuadratic, LinearClassification


def data(seed=0, rows=40, features=6, density=1.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, features)) * (rng.random((rows, features)) < density)
    return X, np.where(rng.random(rows) < 0.4, 1.0, -1.0)


def test_logistic_value_by_hand():
    problem = LinearClassification(np.array([[2.0]]), np.array([-1.0]), "logistic")
    value, gradient = problem.value_and_gradient(np.array([0.5, 1.0]))  # margin -(2·.5 + 1) = -2
    assert value == pytest.approx(math.log(1 + math.exp(2)))
    p = 1 / (1 + math.exp(-2))
    assert gradient == pytest.approx([2 * p, p])


def test_squared_hinge_value_by_hand():
    problem = LinearClassification(np.array([[2.0], [1.0]]), np.array([1.0, 1.0]), "squared_hinge")
    value, gradient = problem.value_and_gradient(np.array([0.5, 1.0]))  # margins 1 - 1 = 0 and .5 - 1 = -.5
    assert value == pytest.approx(0.5 * (1 + 1.5**2))
    assert gradient == pytest.approx([-(1 * 2 + 1.5 * 1), 1 + 1.5])  # the intercept's column is -1


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
@pytest.mark.parametrize("reg", [0.0, 0.3])
@pytest.mark.parametrize("density", [1.0, 0.1])
def test_gradient_and_hessian_are_derivatives(loss, reg, density):
    X, y = data(density=density)
    problem = LinearClassification(sp.csr_matrix(X), y, loss, reg)
    assert isinstance(problem._A, np.ndarray) == (density == 1.0)
    w = np.random.default_rng(1).standard_normal(problem.dim)
    gradient = problem.value_and_gradient(w)[1]
    assert gradient == pytest.approx(
        approx_fprime(w, lambda x: problem.value_and_gradient(x)[0], 1e-7), abs=2e-4
    )
    numeric = np.array(
        [approx_fprime(w, lambda x, i=i: problem.value_and_gradient(x)[1][i], 1e-7) for i in range(7)]
    )
    assert problem.hessian(w) == pytest.approx(numeric, abs=2e-4)


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_sparse_dense_and_permuted_rows_are_one_problem(loss):
    X, y = data(density=0.1)
    w = np.linspace(-1, 1, 7)
    rows = np.random.default_rng(2).permutation(y.size)
    values = [
        LinearClassification(A, labels, loss).value_and_gradient(w)
        for A, labels in ((X, y), (sp.csr_matrix(X), y), (X[rows], y[rows]))
    ]
    for value, gradient in values[1:]:
        assert value == pytest.approx(values[0][0], rel=1e-12)
        assert gradient == pytest.approx(values[0][1], rel=1e-10)


def test_large_margins_do_not_overflow():
    problem = LinearClassification(np.array([[1.0]]), np.array([-1.0]), "logistic")
    value, gradient = problem.value_and_gradient(np.array([5000.0, 0.0]))
    assert (value, gradient[0]) == (pytest.approx(5000.0), pytest.approx(1.0))
    value, gradient = problem.value_and_gradient(np.array([-5000.0, 0.0]))
    assert (value, gradient[0]) == (0.0, 0.0)


def test_smoothness_is_the_largest_squared_singular_value():
    X, y = data()
    expected = np.linalg.norm(np.hstack([X, np.ones((40, 1))]), 2) ** 2
    assert LinearClassification(X, y, "logistic").constants == {"L": pytest.approx(expected)}
    assert LinearClassification(X, y, "squared_hinge", 0.5).constants == {
        "L": pytest.approx(expected + 0.5),
        "mu": 0.5,
    }
    wide = LinearClassification(
        sp.random(30, 2500, 0.01, random_state=0), np.resize([1.0, -1.0], 30), "logistic"
    )
    assert wide.constants["L"] == pytest.approx(np.linalg.norm(wide._A.toarray(), 2) ** 2)


def test_quadratic():
    problem = DiagonalQuadratic.logspaced(3, 100.0)
    assert problem.scales == pytest.approx([1, 10, 100])
    assert problem.constants == {"L": pytest.approx(100.0), "mu": 1.0}
    value, gradient = problem.value_and_gradient(np.array([1.0, 1.0, -1.0]))
    assert (value, gradient.tolist()) == (pytest.approx(55.5), pytest.approx([1, 10, -100]))


def test_bad_input_is_named():
    X, y = data()
    with pytest.raises(ValueError, match="loss='hinge'"):
        LinearClassification(X, y, "hinge")
    with pytest.raises(ValueError, match="labels must be -1 and 1"):
        LinearClassification(X, (y + 1) / 2, "logistic")
    with pytest.raises(ValueError, match="reg=-1"):
        LinearClassification(X, y, "logistic", reg=-1)
