"""The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships (UCI, Alpaydin and Kaynak, 1998)."""

import hashlib
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tasks.data.resolve import Door, MissingData


class Digits(Door):
    """All digits in one set: the package keeps only one part of the original, without a split.

    Args:
        content: SHA-256 of the bytes of pixels and labels (float64, C order): they must be the ones the results were
            made with.
        files: none; the package holds the data.
        name, size_mb, licence, source: as `Door`.
    """

    def __init__(
        self,
        content: str,
        *,
        files: dict[str, str] | None = None,
        name: str = "digits of scikit-learn",
        size_mb: float = 0.1,
        licence: str = "CC BY 4.0 (UCI)",
        source: str = "bundled with scikit-learn",
    ) -> None:
        super().__init__(files or {}, name=name, size_mb=size_mb, licence=licence, source=source)
        self.content = content

    def fetch(self) -> None:
        """Check that the installed package has the data; raises `MissingData`."""
        _read(self.content)

    def images(self, split: Literal["all"] = "all") -> Tensor:
        """Grey values in [0, 1] (pixels / 16), float32 [1797, 1, 8, 8]; raises `MissingData`, or `ValueError` for a
        split other than "all"."""
        _only_all(split)
        return _read(self.content)[0]

    def labels(self, split: Literal["all"] = "all") -> Tensor:
        """Digits 0..9, int64 [1797]; raises as `images`."""
        _only_all(split)
        return _read(self.content)[1]


def _only_all(split: str) -> None:
    if split != "all":
        raise ValueError(f"digits have no {split!r} split: set the task's test_fraction")


@lru_cache(maxsize=1)
def _read(content: str) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = np.ascontiguousarray(pixels, np.float64), np.ascontiguousarray(labels, np.float64)
    digest = hashlib.sha256(pixels.tobytes() + labels.tobytes()).hexdigest()
    if digest != content:
        raise MissingData(
            f"digits: the installed scikit-learn bundles other numbers (SHA-256 {digest[:16]}...)"
        )
    images = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 16
    return images, torch.from_numpy(labels).long()
