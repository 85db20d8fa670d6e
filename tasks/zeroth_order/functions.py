"""Test functions on R^d, batched: points [..., d] -> values [...], in the dtype of the points.

All are to be minimized and have the minimum 0, `two_log` excepted. Definitions, unless said otherwise, as in
Surjanovic and Bingham's Virtual Library of Simulation Experiments.
"""

import math

import torch
from torch import Tensor


def quadratic(x: Tensor) -> Tensor:
    """Half the squared norm; minimizer 0."""
    return 0.5 * x.square().sum(-1)


def rosenbrock(x: Tensor) -> Tensor:
    """The curved valley, d >= 2; minimizer (1, ..., 1)."""
    head, tail = x[..., :-1], x[..., 1:]
    valley = torch.addcmul(tail, head, head, value=-1).square_()
    return (valley.mul_(100).add_((1 - head).square_())).sum(-1)


def ackley(x: Tensor) -> Tensor:
    """An almost flat plain of ripples around one hole; minimizer 0; 20 + e - 20 exp(-r/5) - ... < 22.4."""
    radius = x.square().mean(-1).sqrt()
    ripples = (x * (2 * math.pi)).cos_().mean(-1)
    return 20 + math.e - 20 * torch.exp(-0.2 * radius) - torch.exp(ripples)


def levy(x: Tensor) -> Tensor:
    """A rippled bowl; minimizer (1, ..., 1)."""
    z = (x - 1) / 4  # w - 1
    head, last = z[..., :-1], z[..., -1]
    ripples = (head * math.pi + (math.pi + 1)).sin_().square_()
    bowl = (ripples.mul_(10).add_(1).mul_(head).mul_(head)).sum(-1)
    first = torch.sin(math.pi * (1 + z[..., 0])).square()
    return first + bowl + last.square() * (1 + torch.sin(2 * math.pi * (1 + last)).square())


def linear(x: Tensor, slope: Tensor) -> Tensor:
    """Inner product with `slope` [d]."""
    return x @ slope


def two_log(x: Tensor) -> Tensor:
    """Two pits, a deep narrow one at (-1/2, ..., -1/2) and a shallow wide one at (1/2, ..., 1/2).

    ln(|x - m1|^2 + 1e-5) + ln(|x - m2|^2 + 1e-2), the negative of arXiv 2412.05204's first test function. Its
    minimum lies within 1e-5 of m1, where it is ln 1e-5 + ln(d + 1e-2).
    """
    deep = (x + 0.5).square().sum(-1) + 1e-5
    wide = (x - 0.5).square().sum(-1) + 1e-2
    return deep.log() + wide.log()
