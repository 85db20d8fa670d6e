"""Wide residual networks for small images (Zagoruyko and Komodakis, BMVC 2016)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class _Block(nn.Module):
    """Norm, ReLU, 3x3 convolution, twice; where the shape changes, a 1x1 convolution beside them."""

    def __init__(self, channels: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)
        changes = stride != 1 or channels != width
        self.shortcut = nn.Conv2d(channels, width, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        before = torch.relu(self.norm1(x))
        found = self.conv2(self.dropout(torch.relu(self.norm2(self.conv1(before)))))
        return found + (x if self.shortcut is None else self.shortcut(before))


class WideResNet(nn.Module):
    """Logits [n, classes] of images [n, channels, height, width].

    Three stages of (depth - 4) / 6 blocks with 16, 32 and 64 times `widen` channels, the second and third starting
    with stride 2. Weights of convolutions start from He's normal distribution (fan out).

    Args:
        inputs: shape (channels, height, width) of one image.
        classes: number of classes.
        depth: 6 n + 4, at least 10.
        widen: at least 1.
        dropout: probability between the two convolutions of a block, in [0, 1).

    Raises:
        ValueError: a depth that is not 6 n + 4.

    Example:
        >>> WideResNet(inputs=(3, 8, 8), classes=5, depth=10, widen=1)(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self, inputs: Sequence[int], classes: int, depth: int = 28, widen: int = 10, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"depth must be 6 n + 4, at least 10, not {depth}")
        layers: list[nn.Module] = [nn.Conv2d(inputs[0], 16, 3, padding=1, bias=False)]
        channels = 16
        for stage in range(3):
            for block in range((depth - 4) // 6):
                width = 16 * widen * 2**stage
                layers.append(_Block(channels, width, 2 if stage and not block else 1, dropout))
                channels = width
        layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.layers = nn.Sequential(*layers, nn.Linear(channels, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.layers(images)
        return logits
