"""Training a classifier on images that are read from their files when they are needed."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.examples import Batch, Normalize
from tasks.training.loop import Problem
from tasks.training.random_state import seeded
from tasks.training.recipe import Method, Recipe


class Folders(Protocol):
    """Labelled image files in a training and a validation split."""

    classes: int

    def listing(self, split: str) -> tuple[list[Path], list[int]]:
        """Paths and labels."""


class ImageFiles:
    """Examples read with Pillow: crops of random size and place, mirrored every other time, or the centre.

    Args:
        paths, labels: the images.
        size: pixels of a side of what the network sees.
        augment: random crops of 8% to 100% of the area, of ratio 3/4 to 4/3; else the middle 7/8 of the shorter side.
        normalize: what follows.
    """

    def __init__(
        self, paths: Sequence[Path], labels: Sequence[int], size: int, augment: bool, normalize: Normalize
    ) -> None:
        self.paths, self.labels, self.size, self.normalize = paths, torch.tensor(labels), size, normalize
        self.draws = 5 if augment else 0

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, index: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Images [n, 3, size, size] and labels [n]."""
        images = [
            self._image(self.paths[i], row.tolist()) for i, row in zip(index.tolist(), uniforms, strict=True)
        ]
        return self.normalize(torch.stack(images)), self.labels[index]

    def _image(self, path: Path, draws: list[float]) -> Tensor:
        import numpy as np
        from PIL import Image

        with Image.open(path) as file:
            image = file.convert("RGB")
        width, height = image.size
        if draws:
            area = width * height * (0.08 + 0.92 * draws[0])
            ratio = math.exp(math.log(3 / 4) + math.log(16 / 9) * draws[1])
            w, h = min(width, math.sqrt(area * ratio)), min(height, math.sqrt(area / ratio))
            left, top = (width - w) * draws[2], (height - h) * draws[3]
        else:
            w = h = min(width, height) * 7 / 8
            left, top = (width - w) / 2, (height - h) / 2
        box = (left, top, left + w, top + h)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return values.flip(-1) if draws and draws[4] < 0.5 else values


class FileClassification:
    """As `Classification`, for a set whose images do not fit into memory.

    Summary: test_loss, test_accuracy of the validation split after the last step; loss; parameters.

    Args:
        data: the files.
        model: (inputs=shape of an image, classes=number) -> network with logits [n, classes].
        loop: how long and in what steps.
        size: pixels of a side.
        normalize: of the channels.
        label_smoothing: in [0, 1).
    """

    def __init__(
        self,
        data: Folders,
        model: Callable[..., nn.Module],
        loop: Any,
        size: int,
        normalize: Normalize,
        label_smoothing: float = 0.0,
    ) -> None:
        if size < 1 or not 0 <= label_smoothing < 1:
            raise ValueError("size must be at least 1, label_smoothing in [0, 1)")
        self.data, self.model, self.loop, self.size = data, model, loop, size
        self.normalize, self.label_smoothing = normalize, label_smoothing

    def evaluate(self, method: Method, run: Run) -> None:
        """Train once and record the curves and the end."""
        train, test = (
            ImageFiles(*self.data.listing(split), self.size, split == "train", self.normalize)
            for split in ("train", "val")
        )
        with seeded(run.generator("model").initial_seed(), run.device):
            model = self.model(inputs=(3, self.size, self.size), classes=self.data.classes)
        model.to(run.device)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return nn.functional.cross_entropy(
                model(batch[0]), batch[1], label_smoothing=self.label_smoothing
            )

        problem = Problem(train=train, loss=loss, measure=_measure, sets={"test": test})
        parameters = sum(p.numel() for p in model.parameters())
        run.summary(**self.loop.fit(run, Recipe.of(method), model, problem), parameters=parameters)


def _measure(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch[0])
    return {
        "loss": nn.functional.cross_entropy(logits, batch[1]),
        "accuracy": (logits.argmax(-1) == batch[1]).double().mean(),
    }


class HubNetwork(nn.Module):
    """A network of the package transformers with random weights, as a function from images to logits [n, classes].

    Args:
        inputs: shape of an image, (channels, height, width).
        classes: number of classes.
        kind: "resnet" or "vit".
        settings: of its configuration.
    """

    def __init__(self, inputs: Sequence[int], classes: int, kind: str, **settings: Any) -> None:
        super().__init__()
        import transformers

        shape = {"num_channels": inputs[0], "num_labels": classes}
        if kind == "resnet":
            config: Any = transformers.ResNetConfig(**shape, **settings)
            self.net = transformers.ResNetForImageClassification(config)
        elif kind == "vit":
            config = transformers.ViTConfig(image_size=inputs[1], **shape, **settings)
            self.net = transformers.ViTForImageClassification(config)
        else:
            raise ValueError(f"kind must be resnet or vit, not {kind!r}")

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.net(images).logits
        return logits
