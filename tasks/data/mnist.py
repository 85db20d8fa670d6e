"""MNIST: handwritten digits, 60,000 to train on and 10,000 to test on (LeCun, Cortes and Burges)."""

import gzip
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tasks.data.resolve import Door

Split = Literal["train", "test"]
MEAN, STD = 0.1307, 0.3081
_PREFIX = {"train": "train", "test": "t10k"}


class MNIST(Door):
    """The four idx files."""

    def images(self, split: Split) -> Tensor:
        """Grey values in [0, 1], float32 [n, 1, 28, 28]; raises `MissingData`."""
        pixels = self._read(f"{_PREFIX[split]}-images-idx3-ubyte.gz", header=16)
        return torch.from_numpy(pixels.reshape(-1, 1, 28, 28).astype(np.float32) / 255)

    def labels(self, split: Split) -> Tensor:
        """Digits 0..9, int64 [n]; raises `MissingData`."""
        return torch.from_numpy(
            self._read(f"{_PREFIX[split]}-labels-idx1-ubyte.gz", header=8).astype(np.int64)
        )

    def _read(self, name: str, header: int) -> np.ndarray:
        file = next(file for file in self.files if file.endswith(name))
        with gzip.open(self.path(file)) as stream:
            return np.frombuffer(stream.read(), np.uint8, offset=header)
