"""Small networks for classification, built for the shape of the inputs and the number of classes."""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class MLP(nn.Module):
    """Fully connected layers; logits [n, classes] of inputs [n, ...].

    Args:
        inputs: shape of one input.
        classes: number of classes.
        hidden: widths of the hidden layers.
        activation: `relu`, `tanh` or `gelu`.
        dropout: probability after each hidden layer, in [0, 1).

    Example:
        >>> MLP(inputs=(1, 8, 8), classes=10, hidden=[32])(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        inputs: Sequence[int],
        classes: int,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        widths = [torch.Size(inputs).numel(), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for width, following in itertools.pairwise(widths):
            layers += [nn.Linear(width, following), ACTIVATIONS[activation]()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.layers(inputs)
        return logits


class ResNet(nn.Module):
    """The residual networks for small images of He et al. (2016), section 4.2; logits [n, classes].

    A 3x3 convolution, three stages of `(depth - 2) / 6` blocks with `width`, 2 `width` and 4 `width` channels, of
    which the second and third start with stride 2, global average pooling, one dense layer. Shortcuts without
    parameters (their option A). Weights of convolutions start from He's normal distribution (fan out).

    Args:
        inputs: shape (channels, height, width) of one image.
        classes: number of classes.
        depth: 6 k + 2: 8, 20, 32, 56, ...
        width: channels of the first stage.
        norm: `batch` as in the paper; `group`: group normalization (Wu and He, 2018) with `groups` groups, which
            does not mix the images of a batch.
        groups: number of groups, a divisor of `width`.

    Raises:
        ValueError: a depth that is not 6 k + 2.

    Example:
        >>> sum(p.numel() for p in ResNet((3, 32, 32), classes=10, depth=20).parameters())  # the paper: 0.27M
        269722
    """

    def __init__(
        self,
        inputs: Sequence[int],
        classes: int,
        depth: int = 20,
        width: int = 16,
        norm: Literal["batch", "group"] = "batch",
        groups: int = 4,
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6 k + 2, not {depth}")
        make: dict[str, Callable[[int], nn.Module]] = {
            "batch": nn.BatchNorm2d,
            "group": lambda channels: nn.GroupNorm(groups, channels),
        }
        normalize = make[norm]
        self.stem = nn.Sequential(
            nn.Conv2d(inputs[0], width, 3, padding=1, bias=False), normalize(width), nn.ReLU()
        )
        channels = [width] + [width * factor for factor in (1, 2, 4) for _ in range((depth - 2) // 6)]
        self.blocks = nn.Sequential(*(_Block(*pair, normalize) for pair in itertools.pairwise(channels)))
        self.head = nn.Linear(channels[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images [n, channels, height, width]."""
        logits: Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return logits


class _Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut; where the channels grow, the image shrinks to half."""

    def __init__(self, channels: int, out: int, normalize: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stride, self.added = (1 if out == channels else 2), out - channels
        self.conv1 = nn.Conv2d(channels, out, 3, stride=self.stride, padding=1, bias=False)
        self.norm1 = normalize(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norm2 = normalize(out)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.added:  # zeros for the new channels, half of them on either side
            before = self.added // 2
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, before, self.added - before))
        x = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(x)) + shortcut).relu()
