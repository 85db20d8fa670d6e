"""Levels that fit the weights as they are: least-squares binary quantization and its ternary relative.

Pouransari, Tu, Tuzel: Least squares binary quantization of neural networks (2020), as PARQ uses it.
"""

import itertools
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["LSBQuantizer", "Quantizer", "TernaryQuantizer"]

MAX_BITS = 8


class Quantizer(Protocol):
    """Finds the levels of a tensor of weights."""

    def size(self, bits: int) -> int:
        """Number of levels."""

    def levels(self, u: Tensor, bits: int, per_channel: bool = False) -> Tensor:
        """The levels alone, which may be found faster."""

    def quantize(self, u: Tensor, bits: int, per_channel: bool = False) -> tuple[Tensor, Tensor]:
        """Quantized weights and levels.

        Args:
            u: weights, not changed.
            bits: 1 to 8; 0 stands for ternary.
            per_channel: levels of its own for every row of u.flatten(1).

        Returns:
            The quantizer's own code of u, of u's shape, and the levels, sorted: [k], or [rows, k] per channel.
        """


class LSBQuantizer:
    """Levels ±v_1 ± v_2 ... ± v_n that approximate u = Σ_j v_j s_j, s_j ∈ {-1, 1}, in least squares.

    Greedy: v_j is the mean of |r|, s_j the sign of r (1 for 0), and v_j s_j is taken off r, which starts at u. For
    n = 1 this is optimal. From n = 3 on the code s may miss the nearest level.

    Args:
        optimal: for 2 bits, the best of all splits of the sorted |u| into a low and a high part, with their means as
            the positive levels; for ternary, see `TernaryQuantizer`. More bits stay greedy.
        multiplier: of ternary levels that are not optimal.

    Raises:
        ValueError: bits out of range.

    Source: section 4 of PARQ, official LSBQuantizer; the optimal versions search all splits.

    >>> code, levels = LSBQuantizer().quantize(torch.tensor([0.5, -1.5, 4.0]), bits=2)
    >>> code
    tensor([ 0.6667, -0.6667,  3.3333])
    >>> levels
    tensor([-3.3333, -0.6667,  0.6667,  3.3333])
    """

    def __init__(self, optimal: bool = False, multiplier: float = 1.1) -> None:
        self.optimal = optimal
        self.ternary = TernaryQuantizer(optimal, multiplier)

    def size(self, bits: int) -> int:
        """2^bits, 3 for ternary."""
        return 2 ** _check_bits(bits) if bits else 3

    @torch.no_grad()
    def levels(self, u: Tensor, bits: int, per_channel: bool = False) -> Tensor:
        """See `Quantizer`."""
        if _check_bits(bits) == 0 or (self.optimal and bits == 2):
            return self.quantize(u, bits, per_channel)[1]
        levels = _levels(_greedy(_rows(u, per_channel), bits))
        return levels if per_channel else levels[0]

    @torch.no_grad()
    def quantize(self, u: Tensor, bits: int, per_channel: bool = False) -> tuple[Tensor, Tensor]:
        """See `Quantizer`."""
        if _check_bits(bits) == 0:
            return self.ternary.quantize(u, 0, per_channel)
        rows = _rows(u, per_channel)
        if self.optimal and bits == 2:
            code, levels = _best_two_bits(rows)
        else:
            v = _greedy(rows, bits)
            rest = rows + 0.0
            for column in v.split(1, dim=1):
                rest -= column.copysign(rest)
            code, levels = rows - rest, _levels(v)
        return code.view(u.shape), levels if per_channel else levels[0]


class TernaryQuantizer:
    """Levels -v, 0, v.

    Args:
        optimal: v is the mean of the largest |u|, of as many as make the least squared error; else v = multiplier ·
            mean |u|.
        multiplier: > 0.

    Raises:
        ValueError: bits that are not 0, a multiplier that is not above 0.

    Source: official LSBQuantizer with 0 bits (the multiplier); the optimum is the standard one, found by trying all
    numbers of largest entries.

    >>> code, levels = TernaryQuantizer(optimal=True).quantize(torch.tensor([0.1, -2.0, 3.0]), bits=0)
    >>> code
    tensor([ 0.0000, -2.5000,  2.5000])
    """

    def __init__(self, optimal: bool = False, multiplier: float = 1.1) -> None:
        if not multiplier > 0:
            raise ValueError(f"multiplier must be above 0, not {multiplier}")
        self.optimal, self.multiplier = optimal, multiplier

    def size(self, bits: int = 0) -> int:
        """3."""
        return 3

    def levels(self, u: Tensor, bits: int = 0, per_channel: bool = False) -> Tensor:
        """See `Quantizer`."""
        return self.quantize(u, bits, per_channel)[1]

    @torch.no_grad()
    def quantize(self, u: Tensor, bits: int = 0, per_channel: bool = False) -> tuple[Tensor, Tensor]:
        """See `Quantizer`; 0 lies in the middle, and a tie goes up."""
        if bits != 0:
            raise ValueError(f"ternary levels go with 0 bits, not {bits}")
        rows = _rows(u, per_channel)
        if self.optimal:
            largest = rows.abs().sort(dim=1, descending=True).values.double()
            sums = largest.cumsum(1)
            counts = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=torch.float64)
            best = (sums.square() / counts).argmax(1, keepdim=True)
            v = (sums.gather(1, best) / counts[best]).to(rows.dtype)
        else:
            v = self.multiplier * rows.abs().mean(1, keepdim=True)
        code = (rows >= v / 2).to(rows.dtype).sub_((rows < -v / 2).to(rows.dtype)).mul_(v)
        levels = torch.cat([-v, torch.zeros_like(v), v], dim=1)
        return code.view(u.shape), levels if per_channel else levels[0]


def _check_bits(bits: int) -> int:
    if not (isinstance(bits, int) and 0 <= bits <= MAX_BITS):
        raise ValueError(f"bits must be 0 (ternary) to {MAX_BITS}, not {bits!r}")
    return bits


def _rows(u: Tensor, per_channel: bool) -> Tensor:
    if not u.is_floating_point():
        raise ValueError(f"weights must be real floating-point numbers, not {u.dtype}")
    return u.reshape(u.shape[0], -1) if per_channel and u.dim() > 1 else u.reshape(1, -1)


def _greedy(rows: Tensor, bits: int) -> Tensor:
    """v of each row, [rows, bits]."""
    rest, steps = rows, list[Tensor]()
    for number in range(bits):
        if number == 1:
            rest = rows + 0.0  # a copy without -0, so that copysign takes zeros up
        if number:
            rest -= steps[-1].copysign(rest)
        steps.append(torch.linalg.vector_norm(rest, 1, dim=1, keepdim=True) / rows.shape[1])
    return torch.cat(steps, dim=1)


def _levels(v: Tensor) -> Tensor:
    """All sums ±v_1 ... ±v_n of each row, sorted: [rows, 2^n]."""
    signs = torch.tensor(
        list(itertools.product((-1.0, 1.0), repeat=v.shape[1])), dtype=v.dtype, device=v.device
    )
    return (v @ signs.T).sort(dim=1).values


def _best_two_bits(rows: Tensor) -> tuple[Tensor, Tensor]:
    size = rows.abs()
    ordered = size.sort(dim=1).values.double()
    d = rows.shape[1]
    low_sums = ordered.cumsum(1)
    total = low_sums[:, -1:]
    counts = torch.arange(1, d + 1, device=rows.device, dtype=torch.float64)
    # All in the low part is the last split; its high part has no mean.
    high_means = (total - low_sums) / (d - counts).clamp(min=1)
    explained = low_sums.square() / counts + (total - low_sums) * high_means
    best = explained.argmax(1, keepdim=True)
    low = low_sums.gather(1, best) / counts[best]
    high = torch.where(best == d - 1, low, high_means.gather(1, best))
    low, high = low.to(rows.dtype), high.to(rows.dtype)
    code = torch.where(size >= (low + high) / 2, high, low).copysign(rows + 0.0)
    return code, torch.cat([-high, -low, low, high], dim=1)
