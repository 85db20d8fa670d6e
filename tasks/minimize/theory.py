"""What the analysis of hypergradient descent bounds, from the evaluations of a run.

All of it is seen from outside: a run of a method without momentum evaluates x_1, then one trial point x⁺ = x
- P g a step, and moves there or stays.
"""

from dataclasses import dataclass

import numpy as np

from tasks.minimize.exam import Trace


@dataclass(frozen=True)
class Feedback:
    """One entry per step k = 1..K.

    Attributes:
        h: [f(x⁺) - f(x)] / ‖g‖².
        g: ∇f(x), (K, n).
        g_trial: ∇f(x⁺), (K, n).
        after: f at the point kept after the step.
    """

    h: np.ndarray
    g: np.ndarray
    g_trial: np.ndarray
    after: np.ndarray

    @property
    def squared(self) -> np.ndarray:
        """‖g‖², (K,)."""
        return np.einsum("ki,ki->k", self.g, self.g)


def feedback(trace: Trace, null_steps: bool = True) -> Feedback:
    """Read the feedback off a trace with kept gradients; without null steps every trial point is accepted."""
    value, kept = trace.values[0], 0
    h, here, after = [], [], []
    for k in range(1, trace.evaluations):
        g = trace.gradients[kept]
        h.append((trace.values[k] - value) / (g @ g))
        here.append(kept)
        if not null_steps or trace.values[k] < value:
            value, kept = trace.values[k], k
        after.append(value)
    gradients = np.array(trace.gradients)
    return Feedback(np.array(h), gradients[here], gradients[1:], np.array(after))


def sublinear_ratio(found: Feedback, radius: float) -> float:
    """Largest f(x_{K+1}) - f* over its bound Δ² / Σ_{k<=K} max(-h_k, 0), over all K; f* = 0.

    `radius` is Δ, the largest distance to the minimiser within the initial level set.
    """
    progress = np.cumsum(np.maximum(-found.h, 0.0))
    return float(np.max(found.after * progress)) / radius**2


def linear_ratio(found: Feedback, first: float, mu: float) -> float:
    """Largest f(x_{K+1}) - f* over its bound (f(x_1) - f*) Π_{k<=K} (1 - 2μ max(-h_k, 0)); f* = 0.

    Over all K from the first step that makes progress on (before it both sides are f(x_1) - f*).
    """
    factors = np.log1p(-2 * mu * np.minimum(np.maximum(-found.h, 0.0), (1 - 1e-15) / (2 * mu)))
    moved = np.cumsum(found.h < 0) > 0
    if not moved.any():
        return 0.0
    with np.errstate(divide="ignore"):
        return float(np.exp(np.max((np.log(found.after / first) - np.cumsum(factors))[moved])))


def regret(found: Feedback, scales: np.ndarray) -> np.ndarray:
    """Σ_{k<=K} [h_k(P_k) - h_k(P̂)] for every K, (K,), on f = ½ Σ λ_i x_i².

    P̂ = diag(1/λ) is the best diagonal P in hindsight at every K: h_k(P̂) = -½ Σ_i g_i² / λ_i / ‖g‖².
    """
    best = -0.5 * (found.g**2 / scales).sum(axis=1) / found.squared
    return np.cumsum(found.h - best)


def regret_bound(found: Feedback, scales: np.ndarray, lr: float) -> np.ndarray:
    """‖P̂‖²/(2η) + (η/2) Σ_{k<=K} ‖∇h_k‖² for every K: online gradient descent from P = 0, diagonal P."""
    slopes = found.g_trial * found.g / found.squared[:, None]
    return 0.5 * np.sum(scales**-2.0) / lr + 0.5 * lr * np.cumsum((slopes**2).sum(axis=1))
