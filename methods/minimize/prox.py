"""Proximal operators in closed form, chosen by name.

prox_{ηψ}(v) = argmin_x ψ(x) + ‖x - v‖² / (2η) for sums ψ of the terms below.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["Prox", "closed_form"]

Prox = Callable[[Tensor, float], Tensor]

# In the order in which their operators are applied; see `closed_form` for why the compositions are exact.
TERMS = ("l1", "l2_squared", "ball", "box")


def closed_form(terms: Mapping[str, Any]) -> Prox:
    """The operator (v, η) -> prox_{ηψ}(v) of the sum ψ of these terms.

    =================  ====================================================  ==================
    term               ψ(x)                                                  value
    =================  ====================================================  ==================
    ``l1``             λ ‖x‖₁                                                λ >= 0
    ``l2_squared``     (μ/2) ‖x‖²                                            μ >= 0
    ``ball``           0 if ‖x‖ <= r, else ∞; along the last axis            r > 0
    ``box``            0 if l <= x_i <= u for all i, else ∞                  (l, u), l <= u
    =================  ====================================================  ==================

    ``l1``, ``l2_squared`` and ``box`` act on each coordinate: a convex function of one variable restricted to an
    interval has the clipped operator. A ball and ``l1`` compose because ``l1`` is positively homogeneous (Yu, On
    Decomposing the Proximal Map, NeurIPS 2013). A ball and a box do not compose. No terms: ψ = 0.

    Raises:
        ValueError: the sum has no closed form here, or a value is out of range.

    >>> elastic_net = closed_form({"l1": 0.1, "l2_squared": 1.0})
    >>> elastic_net(torch.tensor([0.1, -0.8]), 0.5)
    tensor([ 0.0333, -0.5000])
    >>> closed_form({"ball": 1.0, "box": (0, 1)})
    Traceback (most recent call last):
    ...
    ValueError: the prox of ball + box has no closed form: pass a function prox(x, step) that computes it
    """
    unknown = [name for name in terms if name not in TERMS]
    if unknown or {"ball", "box"} <= set(terms):
        known = f" (known terms: {', '.join(TERMS)})" if unknown else ""
        raise ValueError(
            f"the prox of {' + '.join(terms)} has no closed form: "
            f"pass a function prox(x, step) that computes it{known}"
        )
    values = {name: _checked(name, value) for name, value in terms.items()}
    weight, ridge, radius, box = (values.get(name) for name in TERMS)

    def prox(v: Tensor, step: float) -> Tensor:
        if weight:
            v = torch.nn.functional.softshrink(v, step * weight)
        if ridge:
            v = v / (1 + step * ridge)
        if radius is not None:
            v = v * (radius / torch.linalg.vector_norm(v, dim=-1, keepdim=True)).clamp(max=1.0)
        if box is not None:
            v = v.clamp(*box)
        return v

    return prox


def _checked(name: str, value: Any) -> Any:
    if name == "box":
        low, high = value
        if not low <= high:
            raise ValueError(f"box={value}: expected (low, high) with low <= high")
        return float(low), float(high)
    if not (value > 0 if name == "ball" else value >= 0):
        raise ValueError(f"{name}={value}: expected a number {'> 0' if name == 'ball' else '>= 0'}")
    return float(value)
