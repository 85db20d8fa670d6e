"""Hypergradient descent: hand-checked numbers, invariants, an independent statement of HDM-Best."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize as scipy_minimize

from methods.minimize.hdm import HDM, minimize
from methods.minimize.hdm_rule import HDMOptions, HDMRule
from methods.minimize.preconditioner import OGD, AdaGrad, Diagonal, Matrix, Scalar

BEST = {"learner": "adagrad", "momentum": "heavy_ball", "adaptive": True}


def quadratic(scales):
    scales = np.asarray(scales, dtype=float)
    return (lambda x: 0.5 * float(scales @ x**2)), (lambda x: scales * x)


def classification(seed, rows=200, dim=20):
    """A logistic problem: f, its gradient, and σ_max²."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, dim)) * np.logspace(0, -1, dim)
    y = np.sign(A @ rng.standard_normal(dim) + rng.standard_normal(rows))
    Z = A * y[:, None]
    return (
        lambda w: float(np.logaddexp(0, -Z @ w).sum()),
        lambda w: -Z.T @ (1 / (1 + np.exp(Z @ w))),
        float(np.linalg.norm(Z, 2) ** 2),
    )


# -- one step, by hand -----------------------------------------------------------------------------------


def test_feedback_and_hypergradients_by_hand():
    # A = diag(1, 4), x = (1, 1), P = diag(.5, .1): x⁺ = (.5, .6), f = 2.5, f⁺ = .845, ‖g‖² = 17
    A, x, P = np.array([1.0, 4.0]), np.ones(2), np.array([0.5, 0.1])
    g = A * x
    trial = x - Diagonal().apply(P, g)
    assert trial == pytest.approx([0.5, 0.6])
    f, f_trial = 0.5 * A @ x**2, 0.5 * A @ trial**2
    assert (f_trial - f) / (g @ g) == pytest.approx(-0.0973529, abs=5e-8)
    h = Diagonal().hypergradient(A * trial, g, g @ g)
    assert h == pytest.approx([-0.0294118, -0.5647059], abs=5e-8)
    assert Scalar().hypergradient(A * trial, g, g @ g) == pytest.approx(-0.5941176, abs=5e-8)
    assert Matrix().hypergradient(A * trial, g, g @ g) == pytest.approx(-np.outer(A * trial, g) / 17)
    assert Matrix().apply(np.diag(P), g) == pytest.approx(P * g)
    OGD().update(P, h, None, 0.1)
    assert pytest.approx([0.5029412, 0.1564706], abs=5e-8) == P


def test_a_step_from_a_given_preconditioner():
    options = HDMOptions(lr=0.1)
    arrays = {name: np.zeros(shape) for name, shape in HDMRule.shapes(options, 2).items()}
    rule = HDMRule(options, {}, arrays, tiny=1e-300)
    f, grad = quadratic([1, 4])
    x = np.ones(2)
    rule.start(x, f(x), grad(x))
    arrays["P"][...] = [0.5, 0.1]
    iteration = rule.step(x)
    trial = next(iteration)
    with pytest.raises(StopIteration) as end:
        iteration.send((f(trial), grad(trial)))
    assert end.value.value is trial
    assert trial == pytest.approx([0.5, 0.6])
    assert arrays["P"] == pytest.approx([0.5029412, 0.1564706], abs=5e-8)
    assert rule.numbers["value"] == pytest.approx(0.845)


def test_adagrad_divides_by_the_root_of_the_sum_of_squares():
    P, G = np.zeros(2), np.zeros(2)
    AdaGrad().update(P, np.array([3.0, 0.0]), G, 0.5)
    assert pytest.approx([-0.5, 0.0]) == P
    AdaGrad().update(P, np.array([4.0, 0.0]), G, 0.5)
    assert (pytest.approx([-0.5 - 0.5 * 4 / 5, 0.0]), pytest.approx([25.0, 0.0])) == (P, G)


@pytest.mark.parametrize("learner", ["ogd", "adagrad"])
def test_the_first_step_is_null_and_teaches(learner):
    f, grad = quadratic([1, 4, 9])
    x = torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)

    def closure():
        x.grad = torch.from_numpy(grad(x.numpy()))
        return f(x.numpy())

    optimizer = HDM([x], lr=0.05, learner=learner)
    assert optimizer.step(closure) == 0.5 + 18
    assert x.tolist() == [1.0, 0.0, -2.0]
    P = optimizer.state[x]["P"]
    if learner == "adagrad":  # the sign of g²: η wherever g_i is not 0
        assert P.tolist() == pytest.approx([0.05, 0.0, 0.05])
    else:
        g = np.array([1.0, 0.0, -18.0])
        assert P.numpy() == pytest.approx(0.05 * g**2 / (g @ g))


# -- invariants ------------------------------------------------------------------------------------------

SETTINGS = st.fixed_dictionaries(
    {
        "preconditioner": st.sampled_from(["diagonal", "scalar", "matrix"]),
        "learner": st.sampled_from(["ogd", "adagrad"]),
        "momentum": st.sampled_from(["none", "heavy_ball"]),
        "momentum_shape": st.sampled_from(["scalar", "diagonal"]),
        "momentum_lr": st.sampled_from([0.01, 1.0, 100.0]),
        "adaptive": st.booleans(),
    }
)


@given(SETTINGS, st.integers(0, 10_000), st.floats(-2, 2))
def test_with_null_steps_f_never_increases(settings, seed, log_lr):
    rng = np.random.default_rng(seed)
    scales = 10 ** rng.uniform(-1, 2, 6)
    f, grad = quadratic(scales)
    values, points = [], []
    x0 = rng.standard_normal(6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # large η may overflow
        result = minimize(
            f,
            grad,
            x0,
            lr=10**log_lr / scales.max(),
            smoothness=scales.max(),
            max_iter=60,
            tol=0.0,
            callback=lambda x, value: (points.append(x), values.append(value)),
            **settings,
        )
    assert (np.diff([f(x0), *values]) <= 0).all()
    assert values == [f(x) for x in points]  # the value belongs to the point
    for before, after, value_before, value_after in zip(
        [x0, *points], points, [f(x0), *values], values, strict=False
    ):
        if value_after == value_before:  # a null step restores x bit for bit
            assert (before == after).all()
    assert result.njev == result.nit + 1


@given(st.integers(0, 10_000), st.floats(0.1, 3))
def test_regret_of_online_gradient_descent_is_bounded(seed, eta_in_units_of_1_over_L):
    rng = np.random.default_rng(seed)
    scales = 10 ** rng.uniform(0, 2, 5)
    f, grad = quadratic(scales)
    lr = eta_in_units_of_1_over_L / scales.max()
    x, P, regret, slopes = rng.standard_normal(5), np.zeros(5), 0.0, 0.0
    best = 1 / scales
    options = HDMOptions(lr=lr)
    arrays = {name: np.zeros(shape) for name, shape in HDMRule.shapes(options, 5).items()}
    rule = HDMRule(options, {}, arrays, tiny=1e-300)
    rule.start(x, f(x), grad(x))
    for _ in range(40):
        g = grad(x)
        if g @ g < 1e-200:
            break
        P = arrays["P"].copy()
        iteration = rule.step(x)
        trial = next(iteration)
        assert trial == pytest.approx(x - P * g, rel=1e-12, abs=1e-300)
        regret += (f(trial) - f(x - best * g)) / (g @ g)
        slopes += np.sum((grad(trial) * g / (g @ g)) ** 2)
        with pytest.raises(StopIteration) as end:
            iteration.send((f(trial), grad(trial)))
        x = end.value.value.copy()
        assert regret <= best @ best / (2 * lr) + lr / 2 * slopes + 1e-9


def test_steps_without_null_steps_and_momentum_are_the_classical_method():
    scales = np.array([1.0, 5.0, 20.0])
    f, grad = quadratic(scales)
    x = np.array([1.0, -2.0, 0.5])
    points = []
    minimize(
        f, grad, x, lr=0.004, null_step=False, tol=0, max_iter=30, callback=lambda x, _: points.append(x)
    )
    P = np.zeros(3)
    for point in points:
        g = grad(x)
        following = x - P * g
        P = P + 0.004 * grad(following) * g / (g @ g)
        x = following
        assert point == pytest.approx(x, rel=1e-12)


def test_momentum_feedback_is_divided_by_its_own_norm():
    f, grad = quadratic([1.0, 3.0])
    options = HDMOptions(lr=0.1, momentum="heavy_ball", momentum_lr=0.1, nu=2.0)
    arrays = {name: np.zeros(shape) for name, shape in HDMRule.shapes(options, 2).items()}
    rule = HDMRule(options, {}, arrays, tiny=1e-300)
    x = np.ones(2)
    rule.start(x, f(x), grad(x))
    for _ in range(3):  # null, accepted without momentum, with momentum
        P, beta, before, g = arrays["P"].copy(), rule.numbers["beta"], arrays["previous"].copy(), grad(x)
        d = x - before
        iteration = rule.step(x)
        trial = next(iteration)
        with pytest.raises(StopIteration) as end:
            iteration.send((f(trial), grad(trial)))
        x = end.value.value.copy()
    norm = g @ g + 2.0 * d @ d
    assert d @ d > 0
    assert trial == pytest.approx(x if f(x) == f(trial) else before - P * g + beta * d)
    assert rule.numbers["beta"] == pytest.approx(min(beta - 0.1 * grad(trial) @ d / norm, 0.9995))
    assert arrays["P"] == pytest.approx(P + 0.1 * grad(trial) * g / norm)


# -- against independent statements ----------------------------------------------------------------------


def best_by_the_book(f, grad, x, T, tol, lr, lr_beta, L):
    """HDM-Best written out step by step, as its description reads."""
    P, G, beta, G_beta = np.zeros_like(x), np.zeros_like(x), 0.95, 0.0
    old, guessed, c, ratios, lr0 = x, False, 0, [], lr
    fx, g = f(x), grad(x)
    calls = 1
    for i in range(1, T + 1):
        if np.abs(g).max() < tol:
            break
        trial = x - P * g + beta * (x - old)
        f_trial, g_trial = f(trial), grad(trial)
        calls += 1
        N = g @ g + (0.25 * np.sum((x - old) ** 2) * L**2 if guessed else 1e-12)
        q = -g_trial * g / N
        G = G + q**2
        P = np.clip(P - lr * q / (np.sqrt(G) + 1e-12), 0, 1e10 / L)
        s = g_trial @ (x - old) / N
        G_beta += s**2
        beta = min(max(beta - lr_beta * s / (np.sqrt(G_beta) + 1e-12), 0), 0.9995)
        if i % 50 == 49 and not guessed:
            lr = max(0.8 * lr, 1e-3 * lr0)
        old = x
        if f_trial < fx:
            if np.linalg.norm(trial - x) > 1e-3:
                ratios.append(np.linalg.norm(g_trial - g) / np.linalg.norm(trial - x))
            x, fx, g, c = trial, f_trial, g_trial, c + 1
        else:
            c = max(0, c - 2)
        if c > max(min(T / 4, 200), 20) and not guessed:
            L = np.mean(ratios)
            lr = lr0 = 1 / L
            G = np.zeros_like(x)
            guessed = True
    return x, calls, guessed


@pytest.mark.parametrize(("factor", "lr_beta"), [(0.1, 1.0), (1.0, 3.0), (10.0, 10.0)])
def test_hdm_best_is_its_description(factor, lr_beta):
    f, grad, L = classification(0)
    x0 = np.full(20, 0.1)
    # T = 80: the estimation of L starts after 20 accepted steps; few enough steps for rounding not to show
    x, calls, guessed = best_by_the_book(f, grad, x0, 80, 1e-9, factor / L, lr_beta, L)
    result = minimize(
        f, grad, x0, lr=factor / L, momentum_lr=lr_beta, smoothness=L, max_iter=80, tol=1e-9, **BEST
    )
    assert guessed
    assert result.njev == calls
    assert result.x == pytest.approx(x, rel=1e-6, abs=1e-8)


def test_hdm_best_finds_scipys_minimum():
    f, grad, L = classification(1)
    reference = scipy_minimize(f, np.zeros(20), jac=grad, method="BFGS", options={"gtol": 1e-8})
    result = minimize(f, grad, np.zeros(20), lr=10 / L, smoothness=L, momentum_lr=3.0, tol=1e-6, **BEST)
    assert result.success
    assert result.fun == pytest.approx(reference.fun, rel=1e-10)
    assert result.x == pytest.approx(reference.x, rel=1e-4, abs=1e-4)
    assert np.abs(result.jac).max() < 1e-6


@pytest.mark.parametrize("preconditioner", ["diagonal", "scalar", "matrix"])
def test_nesterov_is_its_description(preconditioner):
    f, grad, L = classification(2)
    x = z = np.full(20, 0.05)
    shape = {"diagonal": 20, "scalar": 1, "matrix": (20, 20)}[preconditioner]
    P, G, A = np.zeros(shape), np.zeros(shape), 0.0
    values = []
    for _ in range(25):
        a = (1 + np.sqrt(4 * A + 1)) / 2
        y = x + (1 - A / (A + a)) * (z - x)
        g = grad(y)
        safe = y - g / L
        learned = y - (P @ g if preconditioner == "matrix" else P * g)
        gl = grad(learned)
        h = {"diagonal": gl * g, "scalar": gl @ g, "matrix": np.outer(gl, g)}[preconditioner] / -(g @ g)
        G = G + h**2
        P = P - (1 / L) * h / (np.sqrt(G) + 1e-12)
        if f(learned) <= f(safe):
            x, z = learned, z + 2 * a * (f(learned) - f(y)) / (g @ g) * g
        else:
            x, z = safe, z - a / L * g
        A += a
        values.append(f(x))
    ours = []
    options = {"momentum": "nesterov", "learner": "adagrad", "preconditioner": preconditioner}
    start = np.full(20, 0.05)
    result = minimize(
        f,
        grad,
        start,
        lr=1 / L,
        smoothness=L,
        tol=0,
        max_iter=25,
        callback=lambda _, v: ours.append(v),
        **options,
    )
    assert ours == pytest.approx(values, rel=1e-9)
    assert result.njev == 1 + 3 * 25


def test_strongly_convex_nesterov_converges_linearly():
    scales = np.logspace(0, 2, 8)
    f, grad = quadratic(scales)
    result = minimize(
        f,
        grad,
        np.ones(8),
        lr=0.01,
        learner="adagrad",
        momentum="nesterov",
        smoothness=100.0,
        strong_convexity=1.0,
        tol=1e-10,
        max_iter=300,
    )
    assert result.success


# -- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"preconditioner": "full"}, "preconditioner='full': expected one of matrix, diagonal, scalar"),
        ({"learner": "adam"}, "learner='adam'"),
        ({"momentum": "polyak"}, "momentum='polyak'"),
        ({"momentum_shape": "matrix"}, "momentum_shape='matrix'"),
        ({"momentum_lr": -1.0}, "momentum_lr=-1.0"),
        ({"momentum_init": 1.0}, "momentum_init=1.0"),
        ({"nu": -1.0}, "nu=-1.0"),
        ({"horizon": 0}, "horizon=0"),
        ({"smoothness": 0.0}, "smoothness=0.0"),
        ({"momentum": "nesterov"}, "needs the smoothness"),
        ({"momentum": "nesterov", "smoothness": 1.0, "adaptive": True}, "neither"),
    ],
)
def test_bad_hyperparameters_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        HDM([torch.zeros(2)], **kwargs)
    with pytest.raises(ValueError, match=message):
        minimize(lambda x: 0.0, lambda x: x, np.ones(2), **kwargs)


def test_bad_starts_are_named():
    with pytest.raises(ValueError, match=r"x0 has shape \(2, 2\)"):
        minimize(lambda x: 0.0, lambda x: x, np.ones((2, 2)))
    with pytest.raises(TypeError, match="step_size"):
        minimize(lambda x: 0.0, lambda x: x, np.ones(2), step_size=1.0)


def test_default_learning_rates():
    assert HDMOptions(smoothness=5.0).start_lr == 2.0
    assert HDMOptions(smoothness=5.0, convex=False).start_lr == pytest.approx(0.4)
    assert HDMOptions().start_lr == 0.1


def test_overflow_at_the_trial_point_is_a_null_step_with_one_warning():
    f, grad = quadratic([1.0, 100.0])
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.warns(RuntimeWarning, match="overflow") as caught,
    ):
        result = minimize(f, grad, np.ones(2), lr=0.2, preconditioner="scalar", max_iter=400)
    assert len(caught) == 1
    assert result.x.tolist() == [1.0, 1.0]
    assert not result.success


def test_a_stationary_start_is_solved_at_once():
    f, grad = quadratic([1.0, 2.0])
    result = minimize(f, grad, np.zeros(2), tol=0.0)
    assert (result.success, result.nit, result.njev) == (True, 0, 1)
