"""The convergence rates of shuffling gradient methods for nonsmooth convex problems, and what is measured with them.

n components with Lipschitz constants of mean G, K epochs, D the distance from the start to a minimizer, ψ strongly
convex with μ. Constants and logarithms of the theorems are left out; see Liu, Zhou (ICML 2025), Table 1.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def forms(n: int, K: float, G: float, D: float, mu: float) -> dict[str, float]:
    """The forms of the bounds on E[F - F*]; those named `strong` only if mu > 0.

    ==========  ============================================  =======================================
    name        form                                          bounds
    ==========  ============================================  =======================================
    rr_convex   G D / (n^{1/4} √K)                            random reshuffling (Theorem 4.2)
    any_convex  G D / √K                                      any order; proximal gradient descent
    ss_convex   max(G D / (n K)^{1/4}, G D / √n)              single shuffle (Theorem 4.5)
    rr_strong   G² / (μ √n K)                                 random reshuffling (Theorem 4.4)
    any_strong  G² / (μ K)                                    any order; proximal gradient descent
    ss_strong   (G² / μ) (1 / √(n K) + 1 / n)                 single shuffle (Theorem 4.7)
    ==========  ============================================  =======================================

    The terms of the strongly convex bounds that fall as 1/K² are left out, which makes the forms smaller.

    >>> forms(16, 4, G=1.0, D=2.0, mu=0.0)
    {'rr_convex': 0.5, 'any_convex': 1.0, 'ss_convex': 0.707...}
    """
    found = {
        "rr_convex": G * D / (n**0.25 * math.sqrt(K)),
        "any_convex": G * D / math.sqrt(K),
        "ss_convex": max(G * D / (n * K) ** 0.25, G * D / math.sqrt(n)),
    }
    if mu > 0:
        found |= {
            "rr_strong": G**2 / (mu * math.sqrt(n) * K),
            "any_strong": G**2 / (mu * K),
            "ss_strong": G**2 / mu * (1 / math.sqrt(n * K) + 1 / n),
        }
    return found


def over_bounds(
    errors: Mapping[str, np.ndarray], *, epochs: int, n: int, G: float, D: float, mu: float
) -> dict[str, np.ndarray]:
    """Errors over the forms of the bounds; NaN where there is none.

    `errors` has the columns `error`, `suffix` and `half` of `tasks.minimize.finite_sum.Shuffled`.
    """
    whole, half = forms(n, epochs, G, D, mu), forms(n, epochs + n // 2 / n, G, D, mu)
    none = math.nan
    found = {}
    for name in ("rr_convex", "any_convex", "ss_convex", "rr_strong", "any_strong", "ss_strong"):
        found[name] = errors["error"] / whole.get(name, none)
        found[f"suffix_{name}"] = errors["suffix"] / whole.get(name, none)
        found[f"half_{name}"] = errors["half"] / half.get(name, none)
    return found


def incremental_excess(frame: Any) -> float:
    """How far the incremental method ends from the closed form of its stationary error on the tug of war.

    With a constant η the end of an epoch stands at |x| = (1 - γ²) η n / 4, up to one step: F = γ (1 - γ²) η n / 4, up
    to (1 + γ) γ η. Returned is |F - closed form| in units of that, so that at most 1 is as derived.

    Args:
        frame: curve of a run on the tug of war, with the schedule "constant".
    """
    config = frame.attrs["config"]
    n, gamma, lr = config["task"]["n"], config["task"]["gamma"], config["method"]["step"]["scale"]
    stationary = gamma * (1 - gamma**2) * lr * n / 4
    return abs(float(frame["error"].iloc[-1]) - stationary) / ((1 + gamma) * gamma * lr)
