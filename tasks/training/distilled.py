"""A small convolutional network of digits, trained by defensive distillation (Papernot et al., 2016), and kept."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class Images(Protocol):
    """Labelled images in one or two parts: "train" and "test", or "all"."""

    def images(self, split: Any) -> Tensor:
        """Grey values in [0, 1], [n, channels, height, width]."""

    def labels(self, split: Any) -> Tensor:
        """Classes, int64 [n]."""


class Parts(NamedTuple):
    """Images and labels to train on and to test on."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def parts(data: Images, held_out: int | None) -> Parts:
    """`data`'s own parts, or, with `held_out`, its last images as the test part and all before them to train on."""
    if held_out is None:
        return Parts(data.images("train"), data.labels("train"), data.images("test"), data.labels("test"))
    images, labels = data.images("all"), data.labels("all")
    if not 0 < held_out < len(images):
        raise ValueError(f"held_out must be from 1 to {len(images) - 1}, not {held_out}")
    return Parts(images[:-held_out], labels[:-held_out], images[-held_out:], labels[-held_out:])


class DigitCNN(nn.Module):
    """One 3x3 convolution, pooling, one hidden layer: images [n, 1, h, w] -> logits [n, 10].

    Args:
        shape: [1, h, w].
        channels: of the convolution.
        hidden: units of the hidden layer.
    """

    def __init__(self, shape: Sequence[int], channels: int = 64, hidden: int = 32) -> None:
        super().__init__()
        _, height, width = shape
        self.conv = nn.Conv2d(1, channels, 3)
        self.hidden = nn.Linear(channels * ((height - 2) // 2) * ((width - 2) // 2), hidden)
        self.out = nn.Linear(hidden, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        x = _pool(self.conv(images)).relu().flatten(1)
        return self.out(self.hidden(x).relu())


def _pool(x: Tensor) -> Tensor:
    """Largest of each 2x2 pixels; an odd last row or column is left out. Several times as fast as max_pool2d."""
    x = x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2]
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def build(
    out: Path,
    data: Images,
    channels: int,
    hidden: int,
    epochs: int,
    temperature: float,
    lr: float,
    batch_size: int,
    validation: int,
    held_out: int | None,
    train_span: float,
    test_span: float,
    seed: int,
) -> None:
    """Train a teacher on the labels, and the network on what the teacher says, both at a temperature.

    Both start from the same network, trained for one epoch at temperature 1. The first `validation` training images
    are left out. Grey values g enter as span (g - 1/2), with a span for training and one for testing.

    Writes `model.safetensors` and `report.json` (constructor arguments, accuracy on the test images) into `out`.
    """
    torch.manual_seed(seed)
    found = parts(data, held_out)
    images = train_span * (found.train_images[validation:] - 0.5)
    labels = nn.functional.one_hot(found.train_labels[validation:], 10).float()
    shape = list(images.shape[1:])

    def train(start: DigitCNN | None, targets: Tensor, epochs: int, temperature: float) -> DigitCNN:
        model = DigitCNN(shape, channels, hidden)
        if start is not None:
            model.load_state_dict(start.state_dict())
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for _ in range(epochs):
            for batch in torch.randperm(len(images)).split(batch_size):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images[batch]) / temperature, targets[batch]).backward()
                optimizer.step()
        return model

    first = train(None, labels, 1, 1.0)
    teacher = train(first, labels, epochs, temperature)
    with torch.no_grad():
        soft = torch.cat([(teacher(part) / temperature).softmax(-1) for part in images.split(1000)])
    model = train(first, soft, epochs, temperature)
    with torch.no_grad():
        tested = test_span * (found.test_images - 0.5)
        guesses = torch.cat([model(part).argmax(-1) for part in tested.split(1000)])
    report = {
        "shape": shape,
        "channels": channels,
        "hidden": hidden,
        "test_accuracy": (guesses == found.test_labels).float().mean().item(),
    }
    save_file(model.state_dict(), out / "model.safetensors")
    (out / "report.json").write_text(json.dumps(report))


def load(folder: Path) -> tuple[DigitCNN, float]:
    """The network that `build` left in a folder, for inference, and its accuracy on the test images."""
    report = json.loads((folder / "report.json").read_text())
    accuracy = float(report.pop("test_accuracy"))
    model = DigitCNN(**report)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval().requires_grad_(False), accuracy
