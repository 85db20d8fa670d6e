"""The convolutional network of PyTorch's MNIST example, trained once and kept."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tasks.data.mnist import MEAN, MNIST, STD


class MnistCNN(nn.Module):
    """Two 3x3 convolutions, pooling, two dense layers, dropout: images [n, 1, 28, 28] -> log p [n, 10].

    Args:
        width: channels of the first convolution; the second has twice as many and the hidden layer four times.
            The example's network is width 32.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3)
        self.conv2 = nn.Conv2d(width, 2 * width, 3)
        self.fc1 = nn.Linear(2 * width * 144, 4 * width)
        self.fc2 = nn.Linear(4 * width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Log-probabilities of images with grey values in [0, 1]."""
        x = (images - MEAN) / STD
        x = self.conv2(self.conv1(x).relu()).relu()
        x = nn.functional.max_pool2d(x, 2)
        x = nn.functional.dropout(x, 0.25, self.training).flatten(1)
        x = nn.functional.dropout(self.fc1(x).relu(), 0.5, self.training)
        return nn.functional.log_softmax(self.fc2(x), dim=-1)


def build(
    out: Path,
    data: MNIST,
    width: int,
    epochs: int,
    train_size: int,
    batch_size: int,
    lr: float,
    decay: float,
    seed: int,
) -> None:
    """Train a classifier (Adadelta, `lr` times `decay` after each epoch) on the first `train_size` images.

    Writes `model.safetensors` and `report.json` (constructor arguments, accuracy on the test images) into `out`.
    """
    torch.manual_seed(seed)
    images, labels = data.images("train")[:train_size], data.labels("train")[:train_size]
    model = MnistCNN(width)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=decay)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(batch_size):
            optimizer.zero_grad()
            nn.functional.nll_loss(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(-1) for part in data.images("test").split(1000)])
    accuracy = (guesses == data.labels("test")).float().mean().item()
    save_file(model.state_dict(), out / "model.safetensors")
    (out / "report.json").write_text(json.dumps({"width": width, "test_accuracy": accuracy}))


def load(folder: Path) -> MnistCNN:
    """The classifier that `build` left in a folder, for inference."""
    report = json.loads((folder / "report.json").read_text())
    model = MnistCNN(report["width"])
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval().requires_grad_(False)


def accuracy(folder: Path) -> float:
    """Share of the test images that the classifier in a folder gets right."""
    return float(json.loads((folder / "report.json").read_text())["test_accuracy"])
