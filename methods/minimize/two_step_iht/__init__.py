"""Two-step projection for optimization over sparse, support-preserving sets.

de Vazelhes, Yuan, Gu: Optimization over Sparse Support-Preserving Sets: Two-Step Projection with Global Optimality
Guarantees (ICML 2025, arXiv 2506.08558).

`hard_threshold` and `two_step` are the operators, `TwoStepIHT` is a torch optimizer, `iht_2sp`, `hsg_ht_2sp` and
`hzo_ht_2sp` are the deterministic, the stochastic and the zeroth-order method as iterators of NumPy arrays,
`SparseConstrainedRegressor` is a scikit-learn estimator. Constraint sets stand in `methods.minimize.two_step_iht.sets`.
"""

from typing import Any

from methods.minimize.two_step_iht.operators import Projection, hard_threshold, two_step
from methods.minimize.two_step_iht.optimizer import TwoStepIHT
from methods.minimize.two_step_iht.solvers import hsg_ht_2sp, hzo_ht_2sp, iht_2sp

__all__ = [
    "Projection",
    "SparseConstrainedRegressor",
    "TwoStepIHT",
    "hard_threshold",
    "hsg_ht_2sp",
    "hzo_ht_2sp",
    "iht_2sp",
    "two_step",
]


def __getattr__(name: str) -> Any:
    if name == "SparseConstrainedRegressor":  # scikit-learn takes a second to import
        from methods.minimize.two_step_iht.regressor import SparseConstrainedRegressor

        return SparseConstrainedRegressor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
