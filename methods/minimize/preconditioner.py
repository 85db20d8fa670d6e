"""What hypergradient descent learns, and how: preconditioners and their online learners.

Arrays are NumPy arrays or torch tensors: only operators that both understand are used.
"""

from typing import Any, Protocol

__all__ = ["OGD", "AdaGrad", "Diagonal", "Learner", "Matrix", "Preconditioner", "Scalar"]

Array = Any
ADAGRAD_EPS = 1e-12


class Preconditioner(Protocol):
    """A linear space of maps P on vectors of length n; P is an array that is changed in place."""

    def shape(self, n: int) -> tuple[int, ...]:
        """Shape of P."""

    def apply(self, P: Array, g: Array) -> Array:
        """P g, (n,)."""

    def hypergradient(self, g_trial: Array, g: Array, norm: float) -> Array:
        """Gradient of [f(x - P g) - f(x)] / norm in P, where `g_trial` is the gradient of f at x - P g."""


class Matrix:
    """Full matrices; gradient -g_trial gᵀ / norm."""

    def shape(self, n: int) -> tuple[int, ...]:
        return (n, n)

    def apply(self, P: Array, g: Array) -> Array:
        return P @ g

    def hypergradient(self, g_trial: Array, g: Array, norm: float) -> Array:
        return g_trial[:, None] * (g * (-1 / norm))[None, :]


class Diagonal:
    """Diagonal matrices, kept as a vector; gradient -g_trial∘g / norm."""

    def shape(self, n: int) -> tuple[int, ...]:
        return (n,)

    def apply(self, P: Array, g: Array) -> Array:
        return P * g

    def hypergradient(self, g_trial: Array, g: Array, norm: float) -> Array:
        return (g_trial * g) * (-1 / norm)


class Scalar:
    """Multiples of the identity, kept as an array of one number; gradient -⟨g_trial, g⟩ / norm."""

    def shape(self, n: int) -> tuple[int, ...]:
        return (1,)

    def apply(self, P: Array, g: Array) -> Array:
        return P * g

    def hypergradient(self, g_trial: Array, g: Array, norm: float) -> Array:
        return (g_trial @ g) * (-1 / norm)


PRECONDITIONERS: dict[str, type[Preconditioner]] = {"matrix": Matrix, "diagonal": Diagonal, "scalar": Scalar}


class Learner(Protocol):
    """Online learning of an array P from its gradients h, in place; `G`, of P's shape, is the memory."""

    remembers: bool

    def update(self, P: Array, h: Array, G: Array | None, lr: float) -> None:
        """One step against h."""


class OGD:
    """Online gradient descent: P -= lr h."""

    remembers = False

    def update(self, P: Array, h: Array, G: Array | None, lr: float) -> None:
        P -= lr * h


class AdaGrad:
    """Elementwise AdaGrad: G += h², P -= lr h / (√G + 1e-12)."""

    remembers = True

    def update(self, P: Array, h: Array, G: Array | None, lr: float) -> None:
        G += h * h
        P -= (lr * h) / (G**0.5 + ADAGRAD_EPS)


LEARNERS: dict[str, type[Learner]] = {"ogd": OGD, "adagrad": AdaGrad}
