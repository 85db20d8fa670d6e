"""Deterministic objectives with gradients, in NumPy."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import torch

LOSSES = ("logistic", "squared_hinge")
DENSE = 0.25  # from this share of non-zero entries on, dense products are the faster ones


class Problem(Protocol):
    """A smooth objective f on vectors."""

    @property
    def dim(self) -> int:
        """Length of the vectors."""

    @property
    def constants(self) -> dict[str, float]:
        """What is known about f, by name: L (smoothness), mu (strong convexity)."""

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """f(x) and a new array ∇f(x), (dim,)."""


@dataclass(frozen=True)
class DiagonalQuadratic:
    """f(x) = ½ Σ λ_i x_i², minimal at 0 with value 0; λ (dim,) positive."""

    scales: np.ndarray

    @property
    def dim(self) -> int:
        return self.scales.size

    @property
    def constants(self) -> dict[str, float]:
        return {"L": float(self.scales.max()), "mu": float(self.scales.min())}

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        gradient = self.scales * x
        return 0.5 * float(gradient @ x), gradient

    @staticmethod
    def logspaced(dim: int, condition: float) -> "DiagonalQuadratic":
        """λ equally spaced on a log scale from 1 to `condition`."""
        return DiagonalQuadratic(np.logspace(0, math.log10(condition), dim))


class LinearClassification:
    """f(w) = Σ_i loss(m_i) + reg/2 ‖w‖² over margins m_i = y_i ⟨w, [x_i, c]⟩ (a sum, not a mean).

    loss(m) = log(1 + exp(-m)) with c = 1 ("logistic"), or ½ max(0, 1 - m)² with c = -1 ("squared_hinge", the
    smoothed SVM); any margin is safe from overflow.

    Args:
        X: features, (rows, features), sparse or dense.
        y: labels -1 and 1, (rows,).
        loss: "logistic" or "squared_hinge".
        reg: weight of the ridge term, >= 0; it includes the intercept.

    Raises:
        ValueError: an unknown loss, other labels, a negative `reg`.
    """

    def __init__(self, X: Any, y: np.ndarray, loss: str, reg: float = 0.0) -> None:
        if loss not in LOSSES:
            raise ValueError(f"loss={loss!r}: expected one of {', '.join(LOSSES)}")
        if set(np.unique(y)) - {-1.0, 1.0}:
            raise ValueError(f"labels must be -1 and 1, not {np.unique(y)[:5]}")
        if reg < 0:
            raise ValueError(f"reg={reg}: expected a number >= 0")
        self.loss, self.reg = loss, reg
        intercept = np.full((X.shape[0], 1), 1.0 if loss == "logistic" else -1.0)
        signed = sp.csr_matrix(sp.hstack([sp.csr_matrix(X), intercept]).multiply(y[:, None]))
        self.dim: int = signed.shape[1]
        if signed.nnz < DENSE * math.prod(signed.shape):
            self._A, self._transposed = signed, sp.csr_matrix(signed.T)
        else:
            self._A = signed.toarray()
            self._transposed = np.ascontiguousarray(self._A.T)

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        margins = self._A @ x
        if self.loss == "logistic":
            # torch's elementwise functions are vectorised and do not overflow
            m = torch.from_numpy(margins)
            value = -torch.nn.functional.logsigmoid(m).sum().item()
            slopes = torch.sigmoid(m.neg_()).neg_().numpy()
        else:
            slopes = np.minimum(margins - 1.0, 0.0)
            value = 0.5 * float(slopes @ slopes)
        gradient = self._transposed @ slopes
        if self.reg:
            value += 0.5 * self.reg * float(x @ x)
            gradient += self.reg * x
        return value, gradient

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """∇²f(x), (dim, dim); for the squared hinge an element of its generalised Hessian."""
        margins = self._A @ x
        if self.loss == "logistic":
            p = torch.sigmoid(torch.from_numpy(margins)).numpy()
            weights = p * (1 - p)
        else:
            weights = (margins < 1).astype(float)
        weighted = self._transposed @ (self._A * weights[:, None] if isinstance(self._A, np.ndarray)
                                       else sp.diags_array(weights) @ self._A)  # fmt: skip
        dense = weighted if isinstance(weighted, np.ndarray) else weighted.toarray()
        return dense + self.reg * np.eye(self.dim)

    @cached_property
    def constants(self) -> dict[str, float]:
        """L = σ_max([X, c])² + reg, four times too much for the logistic loss; mu = reg if that is > 0."""
        if self.dim <= 2000:
            gram = self._transposed @ self._A
            gram = gram if isinstance(gram, np.ndarray) else gram.toarray()
            squared = float(np.linalg.eigvalsh(gram)[-1])
        else:
            top = sp.linalg.svds(self._A, k=1, return_singular_vectors=False, v0=np.ones(min(self._A.shape)))
            squared = float(top[0]) ** 2
        return {"L": squared + self.reg} | ({"mu": self.reg} if self.reg else {})
