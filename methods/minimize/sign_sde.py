"""The stochastic differential equation of signSGD in high dimension ("signHSGD"), by Euler and Maruyama."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from methods.minimize.sign_noise import FLOOR, Noise, Noiseless
from methods.minimize.sign_risk import (
    Covariance,
    Rate,
    check_covariance,
    check_rate,
    check_start,
    sign_covariance,
)

__all__ = ["simulate_sde"]


def simulate_sde(
    K: ArrayLike,
    v0: ArrayLike,
    lr: Rate,
    noise: Noise | None = None,
    *,
    times: ArrayLike,
    rng: np.random.Generator | Sequence[np.random.Generator],
    dt: float = 5e-3,
    covariance: Covariance = "sign",
) -> np.ndarray:
    """Risks along paths of dv = -η φ(R)/√(2R) K̄ v dt + η √(2K_σ/(πd)) dB, R = ½ vᵀKv.

    Args:
        K, lr, noise, covariance: as for `methods.minimize.sign_risk.risk_ode`.
        v0: θ_0 - θ*, [d] for every path, or [paths, d].
        times: at which the risk is wanted, >= 0, increasing; rounded to multiples of `dt`.
        rng: source of the Brownian motion: one generator for one path, or one for each path, which then does not
            depend on the others. Anything with `standard_normal(shape)` plays fixed draws.
        dt: step in time, above 0.

    Returns:
        R, [paths, times]; [times] for one generator.

    Raises:
        ValueError: as `risk_ode`; also for bad times, or a v0 that does not fit the paths.

    >>> rngs = [np.random.default_rng(seed) for seed in range(20)]
    >>> R = simulate_sde(np.ones(50), np.full(50, 0.1), 0.5, times=[0.0, 1.0], rng=rngs)
    >>> R.shape, float(R[0, 0])
    ((20, 2), 0.25)
    """
    K, law = check_covariance(K), noise or Noiseless()
    eta, d = check_rate(lr), len(K)
    single = not isinstance(rng, Sequence)
    rngs = list(rng) if isinstance(rng, Sequence) else [rng]
    start = check_start(v0, K)
    if start.ndim == 2 and len(start) != len(rngs):
        raise ValueError(f"{len(start)} starts do not fit {len(rngs)} generators")
    if not dt > 0:
        raise ValueError(f"dt must be above 0, not {dt!r}")
    steps = np.rint(np.asarray(times, dtype=float) / dt).astype(int)
    if steps.ndim != 1 or (steps < 0).any() or (np.diff(steps) < 0).any():
        raise ValueError("times must be at least 0 and increasing")

    v = np.array(np.broadcast_to(start, (len(rngs), d)))
    scale = np.sqrt(K if K.ndim == 1 else np.diag(K))
    factor = _noise_factor(K, covariance)
    risks, done = np.empty((len(rngs), len(steps))), 0
    for column, wanted in enumerate(steps):
        for step in range(done, wanted):
            Kv = v * K if K.ndim == 1 else v @ K
            R = np.maximum(0.5 * np.einsum("pi,pi->p", v, Kv), FLOOR)
            rate = eta(step * dt, R) * np.ones_like(R)
            normal = np.stack([generator.standard_normal(d) for generator in rngs])
            brownian = math.sqrt(2 * dt / (math.pi * d)) * (
                normal * factor if factor.ndim == 1 else normal @ factor.T
            )
            v += rate[:, None] * (brownian - dt * (law.phi(R) / np.sqrt(2 * R))[:, None] * Kv / scale)
        done = int(wanted)
        risks[:, column] = 0.5 * np.einsum("pi,pi->p", v, v * K if K.ndim == 1 else v @ K)
    return risks[0] if single else risks


def _noise_factor(K: np.ndarray, covariance: Covariance) -> np.ndarray:
    """L with LLᵀ = K_σ ("sign") or (2/π) K ("data"): [d], the diagonal of L, where K is diagonal."""
    if covariance not in ("sign", "data"):
        raise ValueError(f"covariance must be 'sign' or 'data', not {covariance!r}")
    if K.ndim == 1:
        return np.sqrt(np.full(len(K), math.pi / 2) if covariance == "sign" else 2 / math.pi * K)
    return np.linalg.cholesky(sign_covariance(K) if covariance == "sign" else 2 / math.pi * K)
