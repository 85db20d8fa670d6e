"""The ordinary differential equations that the risk of signSGD and of SGD follows in high dimension.

The model is linear: inputs x ~ N(0, K) in d dimensions, labels y = ⟨x, θ*⟩ + ε, one fresh sample a step. The risk is
R = ½ vᵀKv with v = θ - θ*, without the label noise. A unit of time is d steps, and a step of signSGD is η/d times a
vector of signs (Xiao, Marshall, Agarwala and Paquette, 2025, *Exact Risk Curves of signSGD in High-Dimensions*).

With D = diag(√K_ii), K̄ = D⁻¹K has right and left eigenvectors u_i, w_i (w_iᵀu_j = δ_ij) and eigenvalues λ_i, and
K_σ = arcsin(D⁻¹KD⁻¹). The parts r_i = ½ vᵀK u_i w_iᵀ v of the risk R = Σ r_i follow

    dr_i/dt = -2 η λ_i φ(R)/√(2R) r_i + η²/(πd) w_iᵀ K_σ K u_i,      φ(R) = (2/π) E exp(-ε²/(4R)).
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp
from scipy.linalg import eigh
from scipy.optimize import brentq

from methods.minimize.sign_noise import FLOOR, Noise, Noiseless

__all__ = [
    "Modes",
    "check_covariance",
    "check_rate",
    "check_start",
    "finite_variance",
    "matched_rate",
    "matched_sgd_ode",
    "plain_modes",
    "preconditioned_modes",
    "risk_ode",
    "scheduled_risk",
    "sgd_risk_ode",
    "sgd_scheduled_risk",
    "sgd_stationary_risk",
    "sign_covariance",
    "stationary_risk",
]

Rate = float | Callable[..., Any]
Risk = Callable[[ArrayLike], np.ndarray]
Covariance = Literal["sign", "data"]


def risk_ode(
    K: ArrayLike, v0: ArrayLike, lr: Rate, noise: Noise | None = None, *, covariance: Covariance = "sign"
) -> Risk:
    """Risk of signSGD as a function of time, R(t).

    Args:
        K: covariance of the inputs, [d, d], or its diagonal, [d].
        v0: θ_0 - θ*, [d]; or [B, d], for B starts at once.
        lr: η >= 0, a number, a function η(t) or a function η(t, R). A step of the method is η/d.
        noise: law of the label noise; None: no noise.
        covariance: of the gradient noise: "sign" is that of signSGD, (2/π) K_σ; "data" has (2/π)² K in its place, as
            if signs only rescaled the step of SGD, which is wrong.

    Returns:
        R: a function of times t >= 0 of any shape; the result has the shape of t, after [B] for B starts. One
        eigendecomposition is paid here, O(d³) unless K is diagonal; each call solves the equation anew in O(d) a step.

    Raises:
        ValueError: K is not a covariance with a positive diagonal, v0 does not fit it, η is negative; from the
            function returned: a negative time.

    >>> R = risk_ode(np.ones(100), np.full(100, 0.1), lr=1.0)
    >>> R([0.0, 1.0, 100.0]).round(6).tolist()
    [0.5, 0.400087, 0.308425]
    >>> from methods.minimize.sign_noise import Gaussian
    >>> R = risk_ode(np.diag([1.0, 4.0]), [1.0, 1.0], lr=0.5, noise=Gaussian(1.0))
    >>> float(R(200.0)), stationary_risk([1.0, 4.0], 0.5, Gaussian(1.0))
    (0.3937775, 0.3937775)
    """
    if covariance not in ("sign", "data"):
        raise ValueError(f"covariance must be 'sign' or 'data', not {covariance!r}")
    law, K = noise or Noiseless(), check_covariance(K)
    modes = preconditioned_modes(K, covariance)
    start, d = modes.parts(check_start(v0, K)), len(K)

    def drift(eta: Any, R: np.ndarray) -> Any:
        return 2 * eta * law.phi(R) / np.sqrt(2 * R)

    def spread(eta: Any, R: np.ndarray) -> Any:
        return eta**2 / (math.pi * d) * np.ones_like(R)

    return _Solution(modes, start, check_rate(lr), drift, spread)


def sgd_risk_ode(
    K: ArrayLike, v0: ArrayLike, lr: Rate, noise: Noise | None = None, *, noise_scale: float = 1.0
) -> Risk:
    """Risk of SGD with steps γ/d in the same time: ds_i/dt = -2γλ_i s_i + γ²λ_i (2R + v²)/(2d), R = Σ λ_i s_i.

    Args:
        K, v0, lr, noise: as for `risk_ode`, with γ for η; λ_i are the eigenvalues of K.
        noise_scale: factor of the last term; with `matched_rate` and π²/4 = 2.467 it is that of signSGD for K = I.

    Raises:
        ValueError: as `risk_ode`; also if the noise has no finite variance.

    >>> from methods.minimize.sign_noise import Gaussian
    >>> R = sgd_risk_ode(np.ones(100), np.full(100, 0.1), lr=0.5, noise=Gaussian(1.0))
    >>> float(R(100.0)), sgd_stationary_risk(np.ones(100), 0.5, Gaussian(1.0))
    (0.1666667, 0.1666667)
    """
    variance, K = finite_variance(noise), check_covariance(K)
    modes = plain_modes(K)
    start, d = modes.parts(check_start(v0, K)), len(K)

    def drift(gamma: Any, R: np.ndarray) -> Any:
        return 2 * gamma * np.ones_like(R)

    def spread(gamma: Any, R: np.ndarray) -> Any:
        return noise_scale * gamma**2 * (2 * R + variance) / (2 * d)

    return _Solution(modes, start, check_rate(lr), drift, spread)


def matched_sgd_ode(K: ArrayLike, v0: ArrayLike, lr: Rate, noise: Noise | None = None) -> Risk:
    """Risk of SGD with the rate `matched_rate` and π²/4 times its gradient noise.

    For K = I and Gaussian label noise this is the equation of signSGD, written as one of SGD.

    Args, raises: as `sgd_risk_ode`, with η for lr.

    >>> v0 = np.full(100, 0.1)
    >>> float(matched_sgd_ode(np.ones(100), v0, 1.0)(2.0) - risk_ode(np.ones(100), v0, 1.0)(2.0))
    0.0
    """
    return sgd_risk_ode(K, v0, matched_rate(lr, noise), noise, noise_scale=math.pi**2 / 4)


def matched_rate(lr: Rate, noise: Noise | None = None) -> Callable[[float, np.ndarray], np.ndarray]:
    """The learning rate of SGD to which signSGD's η amounts under Gaussian noise: γ(t, R) = 2η / (π √(2R + v²)).

    >>> float(matched_rate(1.0)(0.0, np.array(0.5)))   # 2/π
    0.6366198
    """
    eta, variance = check_rate(lr), finite_variance(noise)
    return lambda t, R: 2 * eta(t, R) / (math.pi * np.sqrt(2 * R + variance))


def stationary_risk(K: ArrayLike, lr: float, noise: Noise | None = None) -> float:
    """The risk at which signSGD with constant η ends: the R that solves φ(R) √(2R) = η tr(D)/(2d).

    For Gaussian noise of variance v² it is a (a + √(a² + v²)) with a = πη tr(D)/(8d), D = diag(√K_ii): K matters by
    Σ √K_ii only.

    Args:
        K, noise: as for `risk_ode`.
        lr: η >= 0.

    Raises:
        ValueError: as `risk_ode`.

    >>> stationary_risk(np.ones(10), 1.0)   # π²/32
    0.3084251
    """
    law, K = noise or Noiseless(), check_covariance(K)
    if not lr >= 0:
        raise ValueError(f"lr must be at least 0, not {lr!r}")
    if lr == 0:
        return 0.0
    level = lr * np.sqrt(_diagonal(K)).mean() / 2

    def excess(log_risk: float) -> float:
        R = math.exp(log_risk)
        return float(law.phi(R)) * math.sqrt(2 * R) - level

    high = 0.0
    while excess(high) < 0:
        high += 2.0
    low = high - 2.0
    while excess(low) > 0:
        low -= 2.0
    return math.exp(brentq(excess, low, high, xtol=1e-13))


def sgd_stationary_risk(K: ArrayLike, lr: float, noise: Noise | None = None) -> float:
    """The risk at which SGD with constant γ ends, ½ γτv²/(2 - γτ), τ = tr(K)/d; infinite from γτ = 2 on.

    Raises:
        ValueError: as `sgd_risk_ode`.
    """
    variance, K = finite_variance(noise), check_covariance(K)
    stretch = lr * float(_diagonal(K).mean())
    if stretch >= 2:
        return math.inf
    return 0.5 * stretch * variance / (2 - stretch)


def scheduled_risk(K: ArrayLike, v0: ArrayLike, lr: float) -> Risk:
    """Risk R(t) of signSGD without label noise under the schedule η_t = lr · √(2R_t), exactly.

    The equation is then linear, r' = [-(4 lr/π) Λ + (2 lr²/(πd)) a 1ᵀ] r with a_i = w_iᵀ K_σ K u_i: convergence to 0
    is exponential, as that of SGD.

    Args:
        K, v0: as for `risk_ode`, one start.
        lr: a number above 0.

    >>> float(scheduled_risk(np.ones(50), np.ones(50), lr=2 / math.pi)(1.0) / 25)   # exp(-4/π²)
    0.6667869
    """
    K = check_covariance(K)
    modes = preconditioned_modes(K, "sign")
    source = 2 * lr**2 / (math.pi * len(K)) * modes.sources
    return _linear(4 * lr / math.pi * modes.rates, source, modes.parts(check_start(v0, K)))


def sgd_scheduled_risk(K: ArrayLike, v0: ArrayLike, lr: float) -> Risk:
    """Risk R(t) of SGD with constant γ = lr and no label noise, exactly: r' = [-2γΛ + (γ²/d) λ² 1ᵀ] r.

    >>> float(sgd_scheduled_risk(np.ones(50), np.ones(50), lr=1.0)(1.0) / 25)   # exp(-1)
    0.3678794
    """
    K = check_covariance(K)
    modes = plain_modes(K)
    return _linear(2 * lr * modes.rates, lr**2 / len(K) * modes.sources, modes.parts(check_start(v0, K)))


@dataclass(frozen=True)
class Modes:
    """Where the risk decouples: r_i = ½ weight_i ⟨basis_i, v⟩², decaying at `rates`, fed by `sources`."""

    rates: np.ndarray  # λ, [d]
    sources: np.ndarray  # [d]
    weights: np.ndarray  # [d]
    basis: np.ndarray | None  # columns, [d, d]; None: the coordinates

    def parts(self, v: np.ndarray) -> np.ndarray:
        """r of v [..., d]: [..., d]."""
        projected = v if self.basis is None else v @ self.basis
        return 0.5 * self.weights * projected**2


def preconditioned_modes(K: np.ndarray, covariance: Covariance) -> Modes:
    """Modes of K̄ = D⁻¹K, with sources w_iᵀ S K u_i: S = K_σ ("sign") or (2/π) K ("data").

    K̄ is not symmetric; D^{1/2} K̄ D^{-1/2} = D^{-1/2} K D^{-1/2} = Y Λ Yᵀ is, so that w = D^{1/2} y, u = D^{-1/2} y
    and K u = λ w.
    """
    if K.ndim == 1:
        rates = np.sqrt(K)
        sources = math.pi / 2 * K if covariance == "sign" else 2 / math.pi * K * K
        return Modes(rates, sources, K, None)
    root = np.sqrt(np.sqrt(np.diag(K)))
    rates, Y = eigh(K / np.outer(root, root), driver="evr", check_finite=False)
    rates = np.maximum(rates, 0.0)
    W = root[:, None] * Y
    S = sign_covariance(K) if covariance == "sign" else 2 / math.pi * K
    sources = rates * np.einsum("ij,ij->j", W, S @ W)
    return Modes(rates, sources, rates, W)


def plain_modes(K: np.ndarray) -> Modes:
    """Modes of K itself, with sources λ²."""
    if K.ndim == 1:
        return Modes(K, K**2, K, None)
    rates, Q = eigh(K, driver="evr", check_finite=False)
    rates = np.maximum(rates, 0.0)
    return Modes(rates, rates**2, rates, Q)


def sign_covariance(K: ArrayLike) -> np.ndarray:
    """K_σ = arcsin(D⁻¹KD⁻¹), [d, d]; the signs of x ~ N(0, K) have the second moment (2/π) K_σ.

    >>> np.round(2 / math.pi * sign_covariance([[4.0, 1.0], [1.0, 1.0]]), 6)
    array([[1.      , 0.333333],
           [0.333333, 1.      ]])
    """
    matrix = np.asarray(K, dtype=float)
    if matrix.ndim == 1:
        return math.pi / 2 * np.eye(len(matrix))
    scale = np.sqrt(np.diag(matrix))
    angles = np.arcsin(np.clip(matrix / np.outer(scale, scale), -1, 1))
    np.fill_diagonal(angles, math.pi / 2)  # rounding would leave 1.5707963
    return angles


class _Solution:
    """R(t) of dr/dt = -drift(η, R) λ r + spread(η, R) sources; drift and spread get and return [B]."""

    def __init__(
        self,
        modes: Modes,
        start: np.ndarray,
        rate: Callable[[float, np.ndarray], Any],
        drift: Callable[[Any, np.ndarray], Any],
        spread: Callable[[Any, np.ndarray], Any],
    ) -> None:
        self._modes, self._single = modes, start.ndim == 1
        self._start = np.atleast_2d(start)
        self._rate, self._drift, self._spread = rate, drift, spread

    def __call__(self, t: ArrayLike) -> np.ndarray:
        times = np.asarray(t, dtype=float)
        if times.size and not times.min() >= 0:
            raise ValueError(f"times must be at least 0, not {times.min()}")
        grid, where = np.unique(times, return_inverse=True)
        risks = self._solve(grid)[:, where.reshape(-1)].reshape(len(self._start), *times.shape)
        return risks[0] if self._single else risks

    def _solve(self, grid: np.ndarray) -> np.ndarray:
        """Risks [B, times] at increasing times."""
        shape = self._start.shape
        if not grid.size or grid[-1] == 0:
            return np.repeat(self._start.sum(1, keepdims=True), grid.size, axis=1)
        rates, sources = self._modes.rates, self._modes.sources

        def slope(t: float, flat: np.ndarray) -> np.ndarray:
            r = flat.reshape(shape)
            R = np.maximum(r.sum(1), FLOOR)
            eta = self._rate(t, R)
            drift, spread = self._drift(eta, R), self._spread(eta, R)
            return (spread[:, None] * sources - drift[:, None] * (rates * r)).ravel()

        # The scale of a mode is an even share of the risk: smaller modes need no digits of their own.
        atol = 1e-9 * max(float(self._start.mean()), FLOOR)
        done = solve_ivp(slope, (0.0, grid[-1]), self._start.ravel(), "RK45", grid, rtol=1e-8, atol=atol)
        if not done.success:
            raise ArithmeticError(f"the risk's equation has no solution up to t = {grid[-1]}: {done.message}")
        return done.y.reshape(*shape, -1).sum(1)


def _linear(rates: np.ndarray, source: np.ndarray, start: np.ndarray) -> Risk:
    """R(t) = 1ᵀ exp(t (-diag(rates) + source 1ᵀ)) start, source > 0: symmetric after scaling by its root."""
    root = np.sqrt(source)
    growth, V = np.linalg.eigh(np.outer(root, root) - np.diag(rates))
    amplitudes = (root @ V) * ((start / root) @ V)

    def risk(t: ArrayLike) -> np.ndarray:
        with np.errstate(over="ignore"):  # a rate at which the method diverges
            return np.exp(np.multiply.outer(np.asarray(t, dtype=float), growth)) @ amplitudes

    return risk


def check_covariance(K: ArrayLike) -> np.ndarray:
    """K as an array, [d] where it is diagonal, else [d, d]; raises `ValueError`."""
    matrix = np.asarray(K, dtype=float)
    if (
        matrix.ndim not in (1, 2)
        or not matrix.size
        or (matrix.ndim == 2 and matrix.shape[0] != matrix.shape[1])
    ):
        raise ValueError(f"K has shape {matrix.shape}: [d, d], or its diagonal [d], is expected")
    diagonal = _diagonal(matrix)
    if not (np.isfinite(matrix).all() and (diagonal > 0).all()):
        raise ValueError("K must be finite, with a diagonal above 0 (an input that is always 0 has no sign)")
    if matrix.ndim == 1:
        return matrix
    if not np.allclose(matrix, matrix.T, rtol=1e-8, atol=1e-12 * diagonal.max()):
        raise ValueError("K is not symmetric")
    return diagonal if np.count_nonzero(matrix) == len(diagonal) else matrix


def check_start(v0: ArrayLike, K: np.ndarray) -> np.ndarray:
    """v0 as an array, [d] or [B, d]; raises `ValueError`."""
    v = np.asarray(v0, dtype=float)
    if v.ndim not in (1, 2) or v.shape[-1] != len(K):
        raise ValueError(f"v0 has shape {v.shape}: [{len(K)}] or [B, {len(K)}] is expected")
    return v


def check_rate(lr: Rate) -> Callable[[float, np.ndarray], Any]:
    """The learning rate as a function of (t, R); raises `ValueError` for a negative number."""
    if callable(lr):
        function, named = lr, inspect.signature(lr).parameters.values()
        places = [p for p in named if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return function if len(places) > 1 else lambda t, R: function(t)
    if not lr >= 0:
        raise ValueError(f"lr must be at least 0, not {lr!r}")
    return lambda t, R: lr


def finite_variance(noise: Noise | None) -> float:
    """v²; raises `ValueError` where it is infinite."""
    variance = 0.0 if noise is None else noise.variance
    if not math.isfinite(variance):
        raise ValueError(f"{noise} has no finite variance: the risk of SGD follows no such equation")
    return variance


def _diagonal(K: np.ndarray) -> np.ndarray:
    return K if K.ndim == 1 else np.diag(K)
