"""signSGD, its noises and the equations of its risk: hand-checked numbers and independent computations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from methods.minimize.sign_risk import preconditioned_modes
from methods.minimize.signsgd import (
    Cauchy,
    Gaussian,
    Noiseless,
    Rademacher,
    SignSGD,
    StudentT,
    Uniform,
    matched_rate,
    risk_ode,
    scheduled_risk,
    sgd_risk_ode,
    sgd_scheduled_risk,
    sgd_stationary_risk,
    sign_covariance,
    simulate_sde,
    stationary_risk,
)

NOISES = {
    Gaussian(0.7): stats.norm(scale=0.7),
    Uniform(1.3): stats.uniform(-1.3, 2.6),
    StudentT(2.1, 0.9): stats.t(2.1, scale=0.9),
    StudentT(5.0): stats.t(5),
    StudentT(0.8): stats.t(0.8),
    Cauchy(0.6): stats.cauchy(scale=0.6),
}


def rotated(d, seed=0, low=0.2, high=2.0):
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return (Q * np.linspace(low, high, d)) @ Q.T


# -- the optimizer -----------------------------------------------------------------------------------------------------


def test_one_step_by_hand():
    theta = torch.tensor([0.2, -0.1], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([1.0, -2.0], dtype=torch.float64)
    optimizer = SignSGD([theta], lr=1.0 / 2)

    def closure():
        optimizer.zero_grad()
        loss = (x @ theta) ** 2 / 2
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(0.08)
    assert theta.tolist() == pytest.approx([-0.3, 0.4])


def test_zero_gradients_do_not_move_and_groups_have_their_own_lr():
    a, b = torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = SignSGD([{"params": [a]}, {"params": [b], "lr": 2.0}], lr=0.5, maximize=True)
    a.grad, b.grad = torch.tensor([0.0, -1e-30]), torch.tensor([3.0])
    optimizer.step()
    assert a.tolist() == [0.0, -0.5]
    assert b.tolist() == [2.0]


def test_adam_without_memory_is_signsgd():
    start = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ends = []
    for make in (
        lambda p: SignSGD(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.0, 0.0), eps=0.0),
    ):
        x = start.clone().requires_grad_()
        optimizer = make([x])
        for _ in range(20):
            optimizer.zero_grad()
            (x**4).sum().backward()
            optimizer.step()
        ends.append(x.detach())
    assert torch.allclose(*ends, rtol=0, atol=1e-12)


def test_a_negative_lr_is_refused():
    with pytest.raises(ValueError, match="lr must be at least 0, not -1"):
        SignSGD([torch.zeros(1)], lr=-1.0)


# -- noises ------------------------------------------------------------------------------------------------------------


def test_phi_by_hand():
    assert float(Noiseless().phi(0.3)) == 2 / math.pi
    assert float(Gaussian(1.0).phi(0.5)) == pytest.approx(0.4501582, abs=1e-7)
    assert float(Rademacher(1.0).phi(0.25)) == pytest.approx(2 / math.pi / math.e)


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("risk", [1e-3, 0.1, 2.0, 50.0])
def test_phi_is_the_integral_that_defines_it(noise, risk):
    law, width = NOISES[noise], 2 * math.sqrt(risk)

    def integrand(z):  # ε = width z
        return law.pdf(width * z) * width * math.exp(-z * z)

    half = quad(
        integrand,
        0,
        9,
        epsabs=1e-13,
        epsrel=1e-12,
        limit=500,
        points=[1.3 / width] if 1.3 / width < 9 else None,
    )
    assert float(noise.phi(risk)) == pytest.approx(2 / math.pi * 2 * half[0], rel=1e-8)


@pytest.mark.parametrize("noise", [*NOISES, Rademacher(1.5), Noiseless()], ids=str)
def test_phi_rises_from_0_to_its_bound_and_samples_have_the_law(noise):
    risks = np.geomspace(1e-14, 1e10, 200)
    phi = noise.phi(risks)
    assert phi.shape == (200,)
    assert (np.diff(phi) >= -1e-12).all()
    assert phi[-1] == pytest.approx(2 / math.pi, rel=1e-3)
    draws = noise.sample((400, 50), np.random.default_rng(0))
    assert draws.shape == (400, 50)
    mean = np.exp(-(draws**2) / 4).mean()
    assert float(noise.phi(1.0)) == pytest.approx(2 / math.pi * mean, abs=0.01)
    if math.isfinite(noise.variance) and noise != StudentT(
        2.1, 0.9
    ):  # whose sample variance converges too slowly
        assert draws.var() == pytest.approx(noise.variance, rel=0.1)


def test_a_scale_must_be_above_0():
    for make in (Gaussian, Rademacher, Uniform, Cauchy, lambda s: StudentT(3.0, s)):
        with pytest.raises(ValueError, match="scale must be a number above 0"):
            make(0.0)


# -- the equation ------------------------------------------------------------------------------------------------------


def test_matrices_by_hand():
    modes = preconditioned_modes(np.array([1.0, 4.0]), "sign")
    assert modes.rates.tolist() == [1.0, 2.0]
    assert modes.sources.sum() == pytest.approx(7.853982, abs=1e-6)  # tr K K_σ
    half = sign_covariance([[1.0, 0.5], [0.5, 1.0]])
    assert half[0, 1] == pytest.approx(0.5235988, abs=1e-7)
    assert 2 / math.pi * half[0, 1] == pytest.approx(1 / 3)
    assert half[0, 0] == math.pi / 2


def test_limits_by_hand():
    assert stationary_risk(np.ones(7), 1.0) == pytest.approx(0.308425, abs=1e-6)
    assert stationary_risk([1.0, 4.0], 0.5, Gaussian(1.0)) == pytest.approx(0.3937775, abs=1e-7)
    assert stationary_risk([1.0, 4.0], 0.0, Gaussian(1.0)) == 0.0


@given(st.floats(0.01, 20), st.floats(0.01, 20), st.integers(1, 5))
def test_limit_is_the_closed_form(lr, scale, d):
    K = np.linspace(0.3, 2, d)
    a = math.pi * lr * np.sqrt(K).sum() / (8 * d)
    expected = a * (a + math.sqrt(a**2 + scale**2))
    assert stationary_risk(K, lr, Gaussian(scale)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("K", "noise"),
    [
        (np.ones(20), None),
        (np.arange(1.0, 31) ** -0.5, Gaussian(0.5)),
        (rotated(30), Rademacher(1.0)),
        (rotated(30), StudentT(2.1)),
        (rotated(30), Cauchy(0.5)),
    ],
)
def test_the_equation_ends_at_the_limit(K, noise):
    v0 = np.random.default_rng(1).standard_normal(len(K)) / math.sqrt(len(K))
    end = float(risk_ode(K, v0, 0.7, noise)(400.0))
    assert end == pytest.approx(stationary_risk(K, 0.7, noise), rel=1e-6)


def test_the_identity_has_one_scalar_equation():
    """dR/dt = -(4η/π) √(R/2) + η²/2 without noise; solved by small steps of its own."""
    v0, eta, R, h = np.full(10, 0.3), 0.4, 0.45, 1e-4
    for _ in range(20_000):
        middle = R + h / 2 * (-4 * eta / math.pi * math.sqrt(R / 2) + eta**2 / 2)
        R += h * (-4 * eta / math.pi * math.sqrt(middle / 2) + eta**2 / 2)
    assert float(risk_ode(np.ones(10), v0, eta)(2.0)) == pytest.approx(R, rel=1e-6)


def test_the_equation_is_that_of_the_whole_second_moment():
    """E vvᵀ obeys a Lyapunov equation; its trace against K is the risk, for any K, without eigenvectors."""
    K, noise, eta, h = rotated(12, seed=3), Gaussian(0.5), 0.9, 1e-3
    K[:, 0] *= 3.0
    K[0] *= 3.0  # a diagonal far from constant
    v0 = np.random.default_rng(2).standard_normal(12) / math.sqrt(12)
    M, d = np.outer(v0, v0), 12
    Kbar, S = K / np.sqrt(np.diag(K))[:, None], sign_covariance(K)

    def slope(M):
        R = np.trace(K @ M) / 2
        drift = eta * float(noise.phi(R)) / math.sqrt(2 * R) * Kbar @ M
        return -drift - drift.T + 2 * eta**2 / (math.pi * d) * S

    for _ in range(2000):
        M = M + h * slope(M + h / 2 * slope(M))
    assert float(risk_ode(K, v0, eta, noise)(2.0)) == pytest.approx(np.trace(K @ M) / 2, rel=1e-5)


def test_diagonal_matrix_vector_and_batch_agree():
    rng = np.random.default_rng(0)
    K, v0, t = np.linspace(0.2, 2, 15), rng.standard_normal((3, 15)), [0.0, 3.0, 1.0]
    whole = risk_ode(K, v0, 0.7, Gaussian(0.5))(t)
    assert whole.shape == (3, 3)
    assert whole[:, 0] == pytest.approx(0.5 * (v0**2 * K).sum(1))
    for i in range(3):
        assert risk_ode(np.diag(K), v0[i], 0.7, Gaussian(0.5))(t) == pytest.approx(whole[i], rel=1e-6)
    nearly = np.diag(K) + 1e-9 * np.ones((15, 15))  # goes through the eigenvectors
    assert risk_ode(nearly, v0[0], 0.7, Gaussian(0.5))(t) == pytest.approx(whole[0], rel=1e-6)
    assert risk_ode(K, v0[0], 0.7)(2.0).shape == ()


def test_rates_may_depend_on_time_and_risk():
    K, v0 = rotated(20), np.full(20, 0.3)
    still = risk_ode(K, v0, lambda t: 0.0)([0.0, 5.0])
    assert still[0] == still[1]
    assert risk_ode(K, v0, lambda t: 0.7)(3.0) == risk_ode(K, v0, 0.7)(3.0)
    for scheduled, ode in ((scheduled_risk, risk_ode), (sgd_scheduled_risk, sgd_risk_ode)):
        exact = scheduled(K, v0, 0.5)([0.0, 1.0, 4.0])
        schedule = (lambda t, R: 0.5 * np.sqrt(2 * R)) if ode is risk_ode else 0.5
        assert ode(K, v0, schedule)([0.0, 1.0, 4.0]) == pytest.approx(exact, rel=1e-6)


def test_gaussian_noise_makes_it_sgd_with_another_rate():
    v0 = np.full(30, 0.2)
    noise = Gaussian(0.5)
    sgd = sgd_risk_ode(np.ones(30), v0, matched_rate(0.7, noise), noise, noise_scale=math.pi**2 / 4)
    t = np.linspace(0, 10, 11)
    assert np.abs(sgd(t) - risk_ode(np.ones(30), v0, 0.7, noise)(t)).max() < 1e-9


def test_sgd_ends_at_its_limit_or_diverges():
    K = np.linspace(0.2, 2, 10)
    assert float(sgd_risk_ode(K, np.ones(10), 0.7, StudentT(3.0))(200.0)) == pytest.approx(
        sgd_stationary_risk(K, 0.7, StudentT(3.0)), rel=1e-6
    )
    assert sgd_stationary_risk(K, 2 / 1.1, Gaussian(1.0)) == math.inf
    assert float(sgd_risk_ode(K, np.ones(10), 2.2, Gaussian(1.0))(40.0)) > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 3)), np.ones(2), 1.0), r"K has shape \(2, 3\)"),
        ((np.array([1.0, 0.0]), np.ones(2), 1.0), "diagonal above 0"),
        ((np.array([[1.0, 0.2], [0.1, 1.0]]), np.ones(2), 1.0), "not symmetric"),
        ((np.ones(2), np.ones(3), 1.0), r"v0 has shape \(3,\)"),
        ((np.ones(2), np.ones(2), -1.0), "lr must be at least 0"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    for function in (
        risk_ode,
        sgd_risk_ode,
        lambda *a: simulate_sde(*a, times=[1.0], rng=np.random.default_rng(0)),
    ):
        with pytest.raises(ValueError, match=message):
            function(*arguments)


def test_what_has_no_answer_is_refused():
    with pytest.raises(ValueError, match="no finite variance"):
        sgd_risk_ode(np.ones(2), np.ones(2), 1.0, Cauchy())
    with pytest.raises(ValueError, match="covariance must be"):
        risk_ode(np.ones(2), np.ones(2), 1.0, covariance="signs")
    with pytest.raises(ValueError, match="times must be at least 0"):
        risk_ode(np.ones(2), np.ones(2), 1.0)([-1.0])


# -- the stochastic equation -------------------------------------------------------------------------------------------


def test_one_step_of_the_sde_by_hand():
    K = np.array([[1.0, 0.5], [0.5, 1.0]])

    class Fixed:
        def standard_normal(self, shape):
            return np.array([1.0, -2.0])

    v, eta, dt = np.array([0.3, 0.1]), 0.7, 0.01
    R = v @ K @ v / 2
    normal = np.linalg.cholesky(sign_covariance(K)) @ [1.0, -2.0]
    v = (
        v
        - eta * 2 / math.pi / math.sqrt(2 * R) * K @ v * dt
        + eta * math.sqrt(2 * dt / (math.pi * 2)) * normal
    )
    (risk,) = simulate_sde(K, [0.3, 0.1], eta, times=[dt], rng=Fixed(), dt=dt)
    assert risk == pytest.approx(v @ K @ v / 2, rel=1e-12)


@pytest.mark.parametrize("covariance", ["sign", "data"])
@pytest.mark.parametrize("K", [np.linspace(0.2, 2, 60), rotated(60)], ids=["diagonal", "rotated"])
def test_paths_do_not_depend_on_each_other_and_their_mean_is_the_ode(K, covariance):
    v0, times = np.full(60, 0.13), [0.5, 1.0]
    options = {"times": times, "dt": 0.02, "covariance": covariance}
    paths = simulate_sde(
        K, v0, 0.7, Gaussian(0.5), rng=[np.random.default_rng(i) for i in range(100)], **options
    )
    alone = simulate_sde(K, v0, 0.7, Gaussian(0.5), rng=np.random.default_rng(7), **options)
    assert alone == pytest.approx(paths[7], rel=1e-12)
    ode = risk_ode(K, v0, 0.7, Gaussian(0.5), covariance=covariance)(times)
    error = paths.std(0) / 10
    assert (np.abs(paths.mean(0) - ode) < 4 * error + 0.02 * ode).all()
