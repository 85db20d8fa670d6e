"""Proximal maps that draw weights towards a set of levels: PARQ's, hard quantization (STE) and BinaryRelax.

Jin, Ma, Liu, Gromov, Defazio, Xiao: PARQ: Piecewise-Affine Regularized Quantization (ICML 2025), sections 3 and 4.

A map takes latent weights u to the model's weights w. Levels are sorted; of shape [k] they are those of all of u, of
shape [rows, k] row r of u has levels of its own. Everything is a chain of minima, maxima and affine maps, in parts that
fit a processor's cache: many times as fast as a search for each weight's interval, and exact at the levels.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

__all__ = [
    "ProxBinaryRelax",
    "ProxHard",
    "ProxMap",
    "ProxPARQ",
    "Ties",
    "check_ties",
    "inverse_slope",
    "nearest_level",
    "par_prox",
    "par_value",
    "piecewise_affine",
]

Ties = Literal["up", "down"]

PART = 2**18  # numbers worked on at once


class ProxMap(Protocol):
    """What `QuantOptimizer` applies after every step of its base optimizer."""

    def apply(
        self, u: Tensor, levels: Tensor, step: int, *, out: Tensor | None = None, code: Tensor | None = None
    ) -> Tensor:
        """w of latent weights u.

        Args:
            u: floating-point numbers; with `levels` [rows, k], of shape [rows, ...].
            levels: sorted, [k] or [rows, k].
            step: steps done before the current one, warm-up included.
            out: where w is written, contiguous, of u's shape; not u itself. None: a new tensor.
            code: a quantized u to be used instead of the nearest levels; None: the nearest levels.
        """


class ProxPARQ:
    """The proximal map of a piecewise-affine regularizer that turns from clipping into rounding.

    Between adjacent levels with midpoint c, w = c + (u - c) / r, clipped to the two levels; beyond the extreme levels
    w is the extreme level. The inverse slope r falls from 1 (w is u, clipped) to 0 (w is the nearest level).

    Args:
        anneal_start, anneal_end: steps between which r falls, see `inverse_slope`; up to the start w = u.
        steepness: s > 0 of the fall.
        center: where r falls fastest, as a share of the way; the official code's normalization is exact for 0.5 only
            (with another value r starts elsewhere than at 1).
        clip_early: clip u to the extreme levels before `anneal_start` too, as the formula with r = 1 does; the official
            code leaves u alone there, and w jumps when the annealing starts.
        ties: which of two levels a midpoint goes to, when r = 0.

    Raises:
        ValueError: a value out of its range.

    Source: section 4 and the official ProxPARQ.

    >>> prox = ProxPARQ(anneal_start=0, anneal_end=100)
    >>> levels = torch.tensor([-3.0, -1.0, 1.0, 3.0])
    >>> prox.apply(torch.tensor([0.2, 0.6, 1.5, 1.9, 2.4, 5.0]), levels, step=50)  # r = 1/2
    tensor([0.4000, 1.0000, 1.0000, 1.8000, 2.8000, 3.0000])
    """

    def __init__(
        self,
        anneal_start: int,
        anneal_end: int,
        steepness: float = 10.0,
        center: float = 0.5,
        clip_early: bool = False,
        ties: Ties = "up",
    ) -> None:
        _check_window(anneal_start, anneal_end)
        if not steepness > 0:
            raise ValueError(f"steepness must be above 0, not {steepness}")
        self.anneal_start, self.anneal_end = anneal_start, anneal_end
        self.steepness, self.center, self.clip_early, self.ties = (
            steepness,
            center,
            clip_early,
            check_ties(ties),
        )

    def inverse_slope(self, step: int) -> float:
        """r at a step."""
        return inverse_slope(step, self.anneal_start, self.anneal_end, self.steepness, self.center)

    def apply(
        self, u: Tensor, levels: Tensor, step: int, *, out: Tensor | None = None, code: Tensor | None = None
    ) -> Tensor:
        """See `ProxMap`."""
        if step < self.anneal_start and not self.clip_early:
            return _into(out, u)
        if step >= self.anneal_end:
            return nearest_level(u, levels, ties=self.ties, out=out) if code is None else _into(out, code)
        return piecewise_affine(u, levels, self.inverse_slope(step), out=out)


class ProxHard:
    """Hard quantization at every step: the straight-through estimator (STE), or BinaryConnect.

    Args:
        anneal_start, anneal_end: not used; the other maps have them.
        ties: which of two levels a midpoint goes to.

    >>> ProxHard().apply(torch.tensor([-0.2, 0.0, 0.7]), torch.tensor([-1.0, 1.0]), step=0)
    tensor([-1.,  1.,  1.])
    """

    def __init__(
        self, anneal_start: int | None = None, anneal_end: int | None = None, ties: Ties = "up"
    ) -> None:
        self.ties = check_ties(ties)

    def apply(
        self, u: Tensor, levels: Tensor, step: int, *, out: Tensor | None = None, code: Tensor | None = None
    ) -> Tensor:
        """See `ProxMap`."""
        return nearest_level(u, levels, ties=self.ties, out=out) if code is None else _into(out, code)


class ProxBinaryRelax:
    """w = (1 - θ) u + θ · nearest level, with θ rising linearly from 0 to 1 (Yin et al., 2018).

    The original lets θ / (1 - θ) grow geometrically; this is the form that PARQ is compared with.

    Args:
        anneal_start, anneal_end: steps between which θ rises; up to the start w = u.
        ties: which of two levels a midpoint goes to.

    >>> prox = ProxBinaryRelax(anneal_start=0, anneal_end=4)
    >>> prox.apply(torch.tensor([0.2, 3.0]), torch.tensor([-1.0, 1.0]), step=2)
    tensor([0.6000, 2.0000])
    """

    def __init__(self, anneal_start: int, anneal_end: int, ties: Ties = "up") -> None:
        _check_window(anneal_start, anneal_end)
        self.anneal_start, self.anneal_end, self.ties = anneal_start, anneal_end, check_ties(ties)

    def apply(
        self, u: Tensor, levels: Tensor, step: int, *, out: Tensor | None = None, code: Tensor | None = None
    ) -> Tensor:
        """See `ProxMap`."""
        if step < self.anneal_start:
            return _into(out, u)
        w = nearest_level(u, levels, ties=self.ties, out=out) if code is None else _into(out, code)
        theta = (step - self.anneal_start) / (self.anneal_end - self.anneal_start)
        return w if theta >= 1 else w.lerp_(u, 1 - theta)


def inverse_slope(
    step: float, start: float, end: float, steepness: float = 10.0, center: float = 0.5
) -> float:
    """PARQ's schedule: 1 before `start`, 0 from `end` on, and between them a sigmoid scaled to fall from 1 to 0.

    >>> [round(inverse_slope(t, 0, 100), 9) for t in (0, 25, 50, 75, 100)]
    [1.0, 0.929896283, 0.5, 0.070103717, 0.0]
    """
    if step < start:
        return 1.0
    if step >= end:
        return 0.0

    def fall(x: float) -> float:
        return 1 / (1 + math.exp(x)) if x < 700 else 0.0

    share = (step - start) / (end - start)
    low = fall(steepness / 2)
    return (fall(steepness * (share - center)) - low) / (fall(-steepness / 2) - low)


def piecewise_affine(u: Tensor, levels: Tensor, inverse_slope: float, *, out: Tensor | None = None) -> Tensor:
    """PARQ's map with a given inverse slope r > 0: min over adjacent levels (l, h) of max(c + (u - c) / r, l), with
    c = (l + h) / 2, and at most the largest level.

    >>> piecewise_affine(torch.tensor([0.9, -7.0]), torch.tensor([-2.0, 0.0, 2.0]), inverse_slope=0.5)
    tensor([ 0.8000, -2.0000])
    """
    # The cap keeps 0 / r from leaving the range of numbers; rounding makes the map hard long before.
    rate = 1 / max(inverse_slope, torch.finfo(torch.float32).tiny)
    with torch.no_grad():
        w = torch.empty_like(u, memory_format=torch.contiguous_format) if out is None else out
        for x, y, q in _parts(u, w, levels):
            if inverse_slope == 1:
                torch.maximum(x, q[:, :1], out=y)
                torch.minimum(y, q[:, -1:], out=y)
                continue
            spare = torch.empty_like(x) if q.shape[1] > 2 else y
            middles = (q[:, :-1] + q[:, 1:]) / 2
            for k in range(q.shape[1] - 1):
                c, target = middles[:, k : k + 1], spare if k else y
                torch.sub(x, c, out=target)
                torch.add(c, target, alpha=rate, out=target)
                torch.maximum(target, q[:, k : k + 1], out=target)
                torch.minimum(target, y if k else q[:, -1:], out=y)
    return w


def nearest_level(u: Tensor, levels: Tensor, *, ties: Ties = "up", out: Tensor | None = None) -> Tensor:
    """The nearest level of every number; a midpoint goes to the upper or to the lower one.

    >>> nearest_level(torch.tensor([-0.4, 0.5, 9.0]), torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0., 1., 1.])
    """
    passes = torch.ge if check_ties(ties) == "up" else torch.gt
    with torch.no_grad():
        w = torch.empty_like(u, memory_format=torch.contiguous_format) if out is None else out
        for x, y, q in _parts(u, w, levels):
            middles, far = (q[:, :-1] + q[:, 1:]) / 2, torch.finfo(q.dtype).max / 4
            y.copy_(q[:, :1].expand_as(y))
            spare = torch.empty_like(x)
            for k in range(
                q.shape[1] - 1
            ):  # the level above, where u passes the midpoint; else far below all levels
                passes(x, middles[:, k : k + 1], out=spare)
                spare.sub_(1)
                torch.add(q[:, k + 1 : k + 2], spare, alpha=far, out=spare)
                torch.maximum(y, spare, out=y)
    return w


def par_prox(u: Tensor, levels: Sequence[float], slopes: Sequence[float], strength: float = 1.0) -> Tensor:
    r"""The proximal map of strength · Ψ, Ψ(w) = Σ_i max_k { a_k (|w_i| - q_k) + b_k }, in closed form.

    Args:
        u: any shape.
        levels: 0 = q_0 < q_1 < ... < q_m.
        slopes: 0 <= a_0 < a_1 < ... < a_{m-1}; the last one, a_m = ∞, which bounds |w| by q_m, may be left out.
        strength: γλ >= 0.

    Source: section 3: |w| is q_k for |u| in [a_{k-1} + q_k, a_k + q_k] and |u| - a_k between these pieces.

    >>> par_prox(torch.tensor([0.3, 0.9, 1.5, 2.0, 2.9, 3.5, 7.0, -1.2]), [0, 1, 2], [0.5, 1.5])
    tensor([ 0.0000,  0.4000,  1.0000,  1.0000,  1.4000,  2.0000,  2.0000, -0.7000])
    """
    q, a = _check_regularizer(levels, slopes)
    size = u.abs()
    w = torch.full_like(u, q[-1])
    for level, slope in zip(q[:-1], a, strict=True):
        w = torch.minimum(w, (size - strength * slope).clamp_(min=level))
    return w.copysign_(u)


def par_value(w: Tensor, levels: Sequence[float], slopes: Sequence[float]) -> Tensor:
    """ψ of every number; ∞ where |w| > q_m.

    >>> par_value(torch.tensor([0.0, 1.0, -2.0, 2.1]), [0, 1, 2], [0.5, 1.5])
    tensor([0.0000, 0.5000, 2.0000,    inf])
    """
    q, a = _check_regularizer(levels, slopes)
    size, value, offset = w.abs(), torch.zeros_like(w), 0.0
    for k, slope in enumerate(a):
        if k:
            offset += a[k - 1] * (q[k] - q[k - 1])
        value = torch.maximum(value, slope * (size - q[k]) + offset)
    return torch.where(size > q[-1], torch.inf, value)


def check_ties(ties: Any) -> Ties:
    """Raise ValueError for an unknown rule."""
    if ties not in ("up", "down"):
        raise ValueError(f"ties must be up or down, not {ties!r}")
    return "up" if ties == "up" else "down"


def _check_window(start: int, end: int) -> None:
    if not start < end:
        raise ValueError(f"anneal_start must be below anneal_end, not {start} and {end}")


def _check_regularizer(levels: Sequence[float], slopes: Sequence[float]) -> tuple[list[float], list[float]]:
    q, a = [float(level) for level in levels], [float(slope) for slope in slopes]
    if len(a) == len(q) and math.isinf(a[-1]):
        a = a[:-1]
    if len(q) < 2 or q[0] != 0 or any(high <= low for low, high in itertools.pairwise(q)):
        raise ValueError(f"levels must be 0 < q_1 < ... < q_m with m >= 1, not {q}")
    if len(a) != len(q) - 1 or a[0] < 0 or any(high <= low for low, high in itertools.pairwise(a)):
        raise ValueError(f"slopes must be {len(q) - 1} growing numbers from 0 on, not {a}")
    return q, a


def _parts(u: Tensor, w: Tensor, levels: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Views [rows, n] of u and w and their levels [1 or rows, k], part by part."""
    if levels.dim() == 1:
        levels = levels.unsqueeze(0)
        x, y = u.reshape(1, -1), w.view(1, -1)
        pieces, dim = max(1, -(-x.shape[1] // PART)), 1
    else:
        x, y = u.reshape(levels.shape[0], -1), w.view(levels.shape[0], -1)
        pieces, dim = max(1, min(-(-x.numel() // PART), x.shape[0])), 0
    if pieces == 1 or u.device.type != "cpu":
        yield x, y, levels
        return
    spread = levels.tensor_split(pieces) if dim == 0 else [levels] * pieces
    yield from zip(x.tensor_split(pieces, dim), y.tensor_split(pieces, dim), spread, strict=True)


def _into(out: Tensor | None, value: Tensor) -> Tensor:
    return value.clone() if out is None else out.copy_(value)
