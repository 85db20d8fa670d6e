"""Truly quantized weights: level numbers packed into bits, and the few levels they stand for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["PackedModel", "PackedTensor"]


@dataclass(frozen=True)
class PackedTensor:
    """A tensor of few different numbers.

    Attributes:
        codes: level numbers, `bits` each, one after the other, in bytes.
        levels: sorted, [k] or [rows, k].
        shape: of the tensor.

    >>> packed = PackedTensor.of(torch.tensor([[0.5, -0.5, 0.5]] * 8), torch.tensor([-0.5, 0.5]))
    >>> packed.bits, packed.bytes  # 24 bits and two levels
    (1, 11)
    >>> packed.tensor()[0]
    tensor([ 0.5000, -0.5000,  0.5000])
    """

    codes: Tensor
    levels: Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, w: Tensor, levels: Tensor) -> "PackedTensor":
        """Pack a tensor.

        Args:
            w: numbers that are levels.
            levels: sorted, [k] or, for the rows of w.flatten(1), [rows, k].

        Raises:
            ValueError: a number that is no level.
        """
        table = levels if levels.dim() == 2 else levels.unsqueeze(0)
        rows = w.detach().reshape(len(table), -1).contiguous()
        numbers = torch.searchsorted(table.contiguous(), rows).clamp_(max=table.shape[1] - 1)
        if not torch.equal(table.gather(1, numbers), rows):
            raise ValueError("a weight is none of its levels: make the weights hard before they are packed")
        codes = _pack(numbers.flatten().to(torch.uint8), _bits(table.shape[1]))
        return cls(codes, levels.detach().clone(), tuple(w.shape))

    @property
    def bits(self) -> int:
        """Bits a weight."""
        return _bits(self.levels.shape[-1])

    @property
    def bytes(self) -> int:
        """Bytes of codes and levels."""
        return self.codes.numel() + self.levels.numel() * self.levels.element_size()

    def tensor(self) -> Tensor:
        """The tensor, to the last bit."""
        count = torch.Size(self.shape).numel()
        table = self.levels if self.levels.dim() == 2 else self.levels.unsqueeze(0)
        numbers = _unpack(self.codes, self.bits, count).long().view(len(table), -1)
        return table.gather(1, numbers).view(self.shape)


@dataclass(frozen=True)
class PackedModel:
    """A model's state in which quantized weights are packed.

    Attributes:
        state: name -> packed tensor, or tensor as it is.
    """

    state: Mapping[str, PackedTensor | Tensor]

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(
            t.bytes if isinstance(t, PackedTensor) else t.numel() * t.element_size()
            for t in self.state.values()
        )

    @property
    def full_bytes(self) -> int:
        """Bytes of the same state unpacked."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.state_dict().values())

    def state_dict(self) -> dict[str, Tensor]:
        """For `model.load_state_dict`."""
        return {name: t.tensor() if isinstance(t, PackedTensor) else t for name, t in self.state.items()}

    def save(self, path: Path | str) -> None:
        """Write a safetensors file."""
        from safetensors.torch import save_file

        tensors: dict[str, Tensor] = {}
        shapes: dict[str, str] = {}
        for name, t in self.state.items():
            if isinstance(t, PackedTensor):
                tensors |= {f"{name}:codes": t.codes, f"{name}:levels": t.levels.contiguous()}
                shapes[name] = ",".join(map(str, t.shape))
            else:
                tensors[name] = t.contiguous()
        save_file(tensors, path, metadata=shapes)

    @classmethod
    def load(cls, path: Path | str) -> "PackedModel":
        """Read what `save` wrote."""
        from safetensors import safe_open

        state: dict[str, Any] = {}
        with safe_open(path, framework="pt") as file:
            shapes = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118 (no mapping)
                if name.rpartition(":")[2] not in ("codes", "levels"):
                    state[name] = file.get_tensor(name)
            for name, text in shapes.items():
                shape = tuple(int(n) for n in text.split(",")) if text else ()
                state[name] = PackedTensor(
                    file.get_tensor(f"{name}:codes"), file.get_tensor(f"{name}:levels"), shape
                )
        return cls(state)

    def __str__(self) -> str:
        packed = [t for t in self.state.values() if isinstance(t, PackedTensor)]
        bits = "/".join(str(b) for b in sorted({t.bits for t in packed}))
        full = self.full_bytes
        return (
            f"{len(packed)} of {len(self.state)} tensors packed at {bits or '-'} bits: "
            f"{self.bytes:,} bytes instead of {full:,} ({full / max(1, self.bytes):.1f} times smaller)"
        )


def _bits(levels: int) -> int:
    return max(1, (levels - 1).bit_length())


def _pack(numbers: Tensor, bits: int) -> Tensor:
    """Numbers below 2^bits as a string of bits, lowest first, in bytes."""
    places = torch.arange(bits, dtype=torch.uint8, device=numbers.device)
    string = ((numbers.unsqueeze(1) >> places) & 1).flatten()
    string = torch.nn.functional.pad(string, (0, -len(string) % 8)).view(-1, 8)
    weights = (2 ** torch.arange(8, device=numbers.device)).to(torch.uint8)
    return (string * weights).sum(1).to(torch.uint8)


def _unpack(codes: Tensor, bits: int, count: int) -> Tensor:
    places = torch.arange(8, dtype=torch.uint8, device=codes.device)
    string = ((codes.unsqueeze(1) >> places) & 1).flatten()[: count * bits].view(count, bits)
    weights = (2 ** torch.arange(bits, device=codes.device)).to(torch.uint8)
    return (string * weights).sum(1).to(torch.uint8)
