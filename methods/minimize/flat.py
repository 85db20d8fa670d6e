"""The parameters of an optimizer as one flat vector."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Array", "FlatParams", "clip"]

Array = Any


class FlatParams:
    """Reads and writes a list of parameters as one vector of n floats, in the order given.

    The vectors are NumPy arrays for float32 and float64 on the CPU, where NumPy's calls cost a third of
    torch's on short vectors, and torch tensors otherwise.

    Raises:
        ValueError: no parameters, or of mixed types or devices.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        if not params:
            raise ValueError("the optimizer needs at least one parameter")
        if len({(p.dtype, p.device) for p in params}) > 1:
            raise ValueError("all parameters must have one dtype and one device")
        self.params = list(params)
        self.sizes = [p.numel() for p in params]
        self.numel = sum(self.sizes)
        self.dtype, self.device = params[0].dtype, params[0].device
        self.numpy = self.device.type == "cpu" and self.dtype in (torch.float32, torch.float64)
        self._view: tuple[int, Array] | None = None

    def array(self, tensor: Tensor) -> Array:
        """A tensor as the kind of array this object speaks; shares memory."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        return tensor.numpy() if self.numpy else tensor

    def read(self) -> Array:
        """The parameters; a view of their memory if there is one contiguous parameter, else a copy."""
        if len(self.params) == 1 and self.params[0].is_contiguous():
            p = self.params[0]
            if self._view is None or self._view[0] != p.data_ptr():
                self._view = p.data_ptr(), self.array(p).reshape(-1)
            return self._view[1]
        return self.array(torch.cat([p.detach().reshape(-1) for p in self.params]))

    def write(self, flat: Array) -> None:
        """Set the parameters from a flat vector."""
        if len(self.params) == 1 and self.params[0].is_contiguous():
            self.read()[...] = flat
            return
        vector = torch.from_numpy(flat) if self.numpy else flat
        for p, part in zip(self.params, vector.split(self.sizes), strict=True):
            p.detach().copy_(part.view_as(p))

    def read_grad(self) -> Array:
        """The gradients as one vector (zeros where a parameter has none); may share memory with `.grad`.

        Raises:
            RuntimeError: a gradient is sparse.
        """
        parts = []
        for p in self.params:  # one parameter is the common case, and its cost is felt
            if p.grad is None:
                parts.append(p.detach().new_zeros(p.numel()))
            elif p.grad.is_sparse:
                raise RuntimeError("sparse gradients are not supported")
            else:
                parts.append(p.grad.reshape(-1))
        return self.array(parts[0] if len(parts) == 1 else torch.cat(parts))

    def write_grad(self, flat: Array) -> None:
        """Set the `.grad` of every parameter that has one from a flat vector."""
        if len(self.params) == 1:
            grad = self.params[0].grad
            if grad is not None and grad.is_contiguous():
                self.array(grad).reshape(-1)[...] = flat
                return
        vector = torch.from_numpy(flat) if self.numpy else flat
        for p, part in zip(self.params, vector.split(self.sizes), strict=True):
            if p.grad is not None:
                p.grad.detach().copy_(part.view_as(p))


def clip(array: Array, low: float, high: float) -> None:
    """Clip in place."""
    if isinstance(array, np.ndarray):
        np.maximum(array, low, out=array)
        np.minimum(array, high, out=array)
    else:
        array.clamp_(low, high)
