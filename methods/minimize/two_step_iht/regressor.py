"""Sparse constrained linear regression as a scikit-learn estimator."""

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from methods.minimize.two_step_iht.operators import Projection
from methods.minimize.two_step_iht.solvers import LeastSquares, iht_2sp

__all__ = ["SparseConstrainedRegressor"]


class SparseConstrainedRegressor(RegressorMixin, BaseEstimator):
    """Least squares over coefficients with at most k nonzero entries in a convex set Γ, by IHT-2SP.

    Args:
        k: most nonzero coefficients, >= 1 (all of them where there are fewer features).
        constraint: projection onto Γ, support-preserving, on coefficients (n_features,); None: no constraint but
            sparsity. The sets of `methods.minimize.two_step_iht.sets` serve.
        fit_intercept: fit an intercept, which neither k nor Γ counts.
        step: η in units of 1/L.
        max_iter: most iterations, >= 1.
        tol: ends once no coefficient moves by more than this, >= 0.

    Attributes:
        coef_: (n_features,).
        intercept_: float.
        n_iter_: iterations done.
        n_features_in_: number of features.

    Raises:
        ValueError: (in `fit`) a parameter out of its range; a constraint that is not support-preserving.

    Warns:
        ConvergenceWarning: max_iter is reached.

    >>> from methods.minimize.two_step_iht.sets import L1Ball
    >>> X = np.random.default_rng(0).standard_normal((300, 6))
    >>> y = X @ np.array([2.0, 0, 0, -1, 0, 0]) + 5
    >>> model = SparseConstrainedRegressor(k=2, constraint=L1Ball(10.0)).fit(X, y)
    >>> model.coef_.round(6).tolist(), round(model.intercept_, 6)
    ([2.0, 0.0, 0.0, -1.0, 0.0, 0.0], 5.0)
    """

    def __init__(
        self,
        k: int = 10,
        constraint: Projection | None = None,
        *,
        fit_intercept: bool = True,
        step: float = 1.0,
        max_iter: int = 10_000,
        tol: float = 1e-8,
    ) -> None:
        self.k = k
        self.constraint = constraint
        self.fit_intercept = fit_intercept
        self.step = step
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X (n, n_features) and y (n,)."""
        if self.max_iter < 1 or self.tol < 0:
            raise ValueError(f"max_iter={self.max_iter}, tol={self.tol}: expected at least 1 and at least 0")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = y.astype(np.float64)
        center, level = (X.mean(axis=0), y.mean()) if self.fit_intercept else (np.zeros(X.shape[1]), 0.0)
        objective = LeastSquares(X - center, y - level)
        if objective.smoothness == 0:  # constant features: every coefficient serves
            objective.smoothness = 1.0
        w = np.zeros(X.shape[1])
        moved = np.inf
        iterates = iht_2sp(objective, self.k, self.constraint, step=self.step)
        self.n_iter_ = 0
        for _ in range(self.max_iter):
            self.n_iter_ += 1
            before, w = w, next(iterates)
            moved = float(np.abs(w - before).max())
            if moved <= self.tol:
                break
        else:
            warnings.warn(
                f"max_iter={self.max_iter} reached, and coefficients still move by {moved:.1e}",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.coef_ = w
        self.intercept_ = float(level - center @ w)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """X @ coef_ + intercept_: (n, n_features) -> (n,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ self.coef_ + self.intercept_
