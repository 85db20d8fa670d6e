"""Finite sums of nonsmooth convex functions whose constants and least values are known."""

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor

from tasks.data.tabular import Table
from tasks.minimize.finite_sum import Problem, Shuffled
from tasks.run import Run


class Tug:
    """f_i(x) = γ|x| + s_i x in one dimension, s_i = 1 for the first half of the components and -1 for the other.

    F = γ|x| + (μ/2) x², the minimizer is 0 and the start 1. Every component drags the iterate by about η, away from 0
    or back: the given order adds up half an epoch of one sign, a random order a bridge of size η √n. The subgradient
    of |x| at 0 is taken as 0.
    """

    def __init__(self, n: int, gamma: float, mu: float) -> None:
        if n < 2 or n % 2 or not 0 < gamma < 1 or mu < 0:
            raise ValueError(f"n={n}, gamma={gamma}, mu={mu}: expected an even n, 0 < gamma < 1 and mu >= 0")
        self.n, self.dim, self.gamma, self.mu = n, 1, gamma, mu
        self.G, self.D, self.best = 1 + gamma, 1.0, torch.zeros(1, dtype=torch.float64)
        self.regularizer: dict[str, Any] = {"l2_squared": mu} if mu else {}
        self.start = torch.ones(1, dtype=torch.float64)
        self.signs = torch.ones(n, dtype=torch.float64)
        self.signs[n // 2 :] = -1

    def gradient(self, x: Tensor, index: Tensor) -> Tensor:
        """As `Problem`."""
        drag = self.signs[index]
        return drag.mean(-1, keepdim=True).add_(x.sign(), alpha=self.gamma)

    def value(self, x: Tensor) -> Tensor:
        """As `Problem`."""
        return (self.gamma * x.abs() + self.mu / 2 * x.square()).squeeze(-1)


class LinearModel:
    """f_i(x) = φ(a_iᵀx; b_i), with a start at 0: one model, or one for each of R replicates.

    Args:
        A: rows a_i, (S, n, dim), S = 1 or R.
        b: targets or labels, (S, n).
        loss: "absolute" |z - b|, "hinge" max(0, 1 - bz) or "logistic" log(1 + exp(-bz)); at a kink the subgradient 0
            of φ is taken.
        regularizer: ψ: any of `l1`, `l2_squared` and `ball` with their weight or radius.
        minimizers: x*, (S, dim), all at the same distance from 0.
        G: mean Lipschitz constant; None: the mean of ‖a_i‖ over all rows.
    """

    def __init__(
        self,
        A: np.ndarray,
        b: np.ndarray,
        loss: str,
        regularizer: dict[str, float],
        minimizers: np.ndarray,
        G: float | None = None,
    ) -> None:
        models, self.n, self.dim = A.shape
        self.A, self.b = torch.from_numpy(A), torch.from_numpy(b)
        self.loss, self.regularizer = loss, regularizer
        self.mu = regularizer.get("l2_squared", 0.0)
        self.G = float(np.linalg.norm(A, axis=-1).mean()) if G is None else G
        self.D = float(np.linalg.norm(minimizers, axis=-1).mean())
        self.start = torch.zeros(self.dim, dtype=torch.float64)
        # Rows of all models one after another: the i-th of model s is row s n + i.
        self._rows, self._targets = self.A.view(-1, self.dim), self.b.view(-1)
        self._first = self.n * torch.arange(models).unsqueeze(-1)
        self.best = self.value(torch.from_numpy(minimizers))

    def gradient(self, x: Tensor, index: Tensor) -> Tensor:
        """As `Problem`."""
        rows = self._first + index
        a, b = self._rows[rows], self._targets[rows]  # [R, b, dim], [R, b]
        slope = self._slope((a @ x.unsqueeze(-1)).squeeze(-1), b)
        return (slope.unsqueeze(-2) @ a).squeeze(-2) / index.shape[-1]

    def value(self, x: Tensor) -> Tensor:
        """As `Problem`."""
        z = x @ self.A[0].T if len(self.A) == 1 else (self.A @ x.unsqueeze(-1)).squeeze(-1)
        if self.loss == "absolute":
            losses = (z - self.b).abs()
        elif self.loss == "hinge":
            losses = (1 - self.b * z).clamp(min=0)
        else:
            losses = torch.nn.functional.softplus(-self.b * z)
        penalty = self.regularizer.get("l1", 0.0) * x.abs().sum(-1) + self.mu / 2 * x.square().sum(-1)
        return losses.mean(-1) + penalty

    def _slope(self, z: Tensor, b: Tensor) -> Tensor:
        """A subgradient of φ in z."""
        if self.loss == "absolute":
            return (z - b).sign()
        if self.loss == "hinge":
            return torch.where(b * z < 1, -b, 0.0)
        return -b * torch.sigmoid(-b * z)


class TugOfWar(Shuffled):
    """The task `Tug`. Args: n, even; gamma in (0, 1); mu >= 0; others as `Shuffled`."""

    def __init__(self, n: int, gamma: float, mu: float, epochs: list[int], repeats: int) -> None:
        super().__init__(epochs, repeats)
        self._problem = Tug(n, gamma, mu)

    def problem(self, run: Run) -> Problem:
        """As `Shuffled`."""
        return self._problem


class LeastAbsoluteDeviations(Shuffled):
    """Regression with the absolute loss; replicate i has data of its own.

    The a_i and x° are standard normal, b_i = a_iᵀx° plus Laplace noise; rows with noise >= 0 come first, so that the
    given order is a bad one. The b_i and with them x are then scaled so that the minimizer is at distance 1, which
    changes no error over G D. G is the expected ‖a_i‖.

    Args:
        n, dim: rows and coordinates.
        regularizer: ψ: "none"; "l1", 0.1 ‖x‖₁; or "ball", the indicator of the ball around the start that has the
            minimizer without ψ on its surface.
        noise: scale of the Laplace noise.
        epochs, repeats: as `Shuffled`.
    """

    def __init__(
        self,
        n: int,
        dim: int,
        regularizer: Literal["none", "l1", "ball"],
        noise: float,
        epochs: list[int],
        repeats: int,
    ) -> None:
        super().__init__(epochs, repeats)
        if regularizer not in ("none", "l1", "ball"):
            raise ValueError(f"regularizer={regularizer!r}: expected none, l1 or ball")
        self.n, self.dim, self.regularizer, self.noise = n, dim, regularizer, noise

    def problem(self, run: Run) -> Problem:
        """As `Shuffled`."""
        weight = 0.1 if self.regularizer == "l1" else 0.0
        A = np.empty((self.repeats, self.n, self.dim))
        b, minimizers = np.empty((self.repeats, self.n)), np.empty((self.repeats, self.dim))
        for i in range(self.repeats):
            rng = run.rng("instance", i)
            rows, truth = rng.standard_normal((self.n, self.dim)), rng.standard_normal(self.dim)
            noise = rng.laplace(scale=self.noise, size=self.n)
            order = np.argsort(noise < 0, kind="stable")
            A[i], b[i] = rows[order], (rows @ truth + noise)[order]
            minimizers[i] = least_deviations(A[i], b[i], weight)
            distance = np.linalg.norm(minimizers[i])
            if distance == 0:
                raise RuntimeError(f"the minimizer of replicate {i} is the start")
            b[i] /= distance
            minimizers[i] /= distance
        terms = {"none": {}, "l1": {"l1": weight}, "ball": {"ball": 1.0}}[self.regularizer]
        # The expected ‖a_i‖, so that a replicate does not depend on the others by a mean over all rows.
        G = math.sqrt(2) * math.exp(math.lgamma((self.dim + 1) / 2) - math.lgamma(self.dim / 2))
        return LinearModel(A, b, "absolute", terms, minimizers, G)


class LinearClassifier(Shuffled):
    """A linear support vector machine or logistic regression with ψ = (μ/2) ‖x‖², on real data.

    Features are scaled as the door does, a constant 1 is added; rows are sorted by label, so that the given order is a
    bad one.

    Args:
        data: door with `load() -> Table`.
        loss: "hinge" or "logistic".
        mu: μ > 0.
        epochs, repeats: as `Shuffled`.
    """

    def __init__(
        self, data: Any, loss: Literal["hinge", "logistic"], mu: float, epochs: list[int], repeats: int
    ) -> None:
        super().__init__(epochs, repeats)
        if loss not in ("hinge", "logistic") or not mu > 0:
            raise ValueError(f"loss={loss!r}, mu={mu}: expected hinge or logistic, and mu > 0")
        self.data, self.loss, self.mu = data, loss, mu

    def problem(self, run: Run) -> Problem:
        """As `Shuffled`."""
        return _classifier(self.data.load(), self.loss, self.mu)


@lru_cache(maxsize=4)
def _classifier(table: Table, loss: str, mu: float) -> LinearModel:
    X = table.X if isinstance(table.X, np.ndarray) else table.X.toarray()
    order = np.argsort(table.y, kind="stable")
    A = np.hstack([X, np.ones((len(table.y), 1))])[order]
    y = table.y[order]
    fit = least_hinge if loss == "hinge" else least_logistic
    return LinearModel(A[None], y[None], loss, {"l2_squared": mu}, fit(A, y, mu)[None])


def least_deviations(A: np.ndarray, b: np.ndarray, weight: float = 0.0) -> np.ndarray:
    """argmin of mean |Ax - b| + weight ‖x‖₁: the multipliers of the dual linear program.

    The dual, min bᵀλ over |λ_i| <= 1/n with ‖Aᵀλ‖_∞ <= weight, has few rows; its least value is minus the primal's.
    """
    n, dim = A.shape
    bounds = (-1 / n, 1 / n)
    if weight:
        both = np.vstack([A.T, -A.T])
        found = linprog(b, A_ub=both, b_ub=np.full(2 * dim, weight), bounds=bounds, method="highs")
    else:
        found = linprog(b, A_eq=A.T, b_eq=np.zeros(dim), bounds=bounds, method="highs")
    if not found.success:
        raise RuntimeError(f"the linear program was not solved: {found.message}")
    pulls = found.ineqlin.marginals if weight else np.append(found.eqlin.marginals, np.zeros(dim))
    x = pulls[:dim] - pulls[dim:]
    primal = np.abs(A @ x - b).mean() + weight * np.abs(x).sum()
    if abs(primal + found.fun) > 1e-8 * primal:
        raise RuntimeError(f"the linear program was solved up to a gap of {primal + found.fun:g} only")
    return np.asarray(x)


def least_logistic(A: np.ndarray, y: np.ndarray, mu: float) -> np.ndarray:
    """argmin of mean log(1 + exp(-y Ax)) + (μ/2) ‖x‖², by Newton's method; ‖∇F‖_∞ < 1e-10."""
    Z, n = A * y[:, None], len(y)
    x = np.zeros(A.shape[1])
    for _ in range(100):
        p = 1 / (1 + np.exp(Z @ x))
        gradient = mu * x - Z.T @ p / n
        if np.abs(gradient).max() < 1e-10:
            return x
        hessian = (Z * (p * (1 - p))[:, None]).T @ Z / n + mu * np.eye(x.size)
        x = x - np.linalg.solve(hessian, gradient)
    raise RuntimeError("Newton's method has not converged in 100 steps")


def least_hinge(A: np.ndarray, y: np.ndarray, mu: float, gap: float = 1e-7) -> np.ndarray:
    """argmin of mean max(0, 1 - y Ax) + (μ/2) ‖x‖², from the dual over a box; F is least up to `gap`."""
    Z, n = A * y[:, None], len(y)

    def dual(alpha: np.ndarray) -> tuple[float, np.ndarray]:
        x = Z.T @ alpha / (mu * n)
        return float(mu / 2 * x @ x - alpha.mean()), (Z @ x - 1) / n

    found = minimize(
        dual,
        np.full(n, 0.5),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * n,
        options={"maxiter": 50_000, "maxfun": 100_000, "ftol": 0.0, "gtol": 1e-9, "maxcor": 50},
    )
    x = Z.T @ found.x / (mu * n)
    primal = np.maximum(0.0, 1 - Z @ x).mean() + mu / 2 * x @ x
    if primal + found.fun > gap:
        raise RuntimeError(f"the dual was solved up to a gap of {primal + found.fun:g} only")
    return np.asarray(x)
