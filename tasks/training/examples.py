"""Examples in batches: which ones a step takes, and how they are made."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Batch = Any
"""Whatever a task's objective takes: a pair of tensors, a dictionary, ..."""


def count(batch: Batch) -> float:
    """Examples of a batch whose first part is their inputs."""
    return len(batch[0])


def to_device(batch: Batch, device: torch.device) -> Batch:
    """A batch with all its tensors on a device."""
    return torch.utils._pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


class Examples(Protocol):
    """A set of examples.

    Attributes:
        draws: uniform numbers in [0, 1) that one example needs (0: no augmentation).
    """

    draws: int

    def __len__(self) -> int: ...

    def batch(self, index: Tensor, uniforms: Tensor) -> Batch:
        """The examples `index` [n], changed by their `uniforms` [n, draws] and by nothing else that is random."""


class Augmentation(Protocol):
    """Changes inputs [n, ...] as `uniforms` [n, draws] say."""

    draws: int

    def __call__(self, inputs: Tensor, uniforms: Tensor) -> Tensor: ...


class TensorExamples:
    """Pairs of inputs [n, ...] and targets [n, ...].

    Args:
        inputs, targets: the pairs.
        augmentation: changes a batch's inputs.
        prepare: what becomes of a batch's inputs after that.

    Example:
        >>> TensorExamples(torch.eye(3), torch.arange(3)).batch(torch.tensor([2]), torch.empty(1, 0))
        (tensor([[0., 0., 1.]]), tensor([2]))
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        augmentation: Augmentation | None = None,
        prepare: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if len(inputs) != len(targets):
            raise ValueError(f"{len(inputs)} inputs, but {len(targets)} targets")
        self.inputs, self.targets, self.augmentation, self.prepare = inputs, targets, augmentation, prepare
        self.draws = augmentation.draws if augmentation else 0

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, index: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        index = index.to(self.inputs.device)
        inputs = self.inputs[index]
        if self.augmentation:
            inputs = self.augmentation(inputs, uniforms.to(inputs.device))
        return self.prepare(inputs) if self.prepare else inputs, self.targets[index]


class Normalize:
    """(images - mean) / std, channel by channel, of floating-point images [n, c, h, w].

    Args:
        mean, std: one number a channel.

    Example:
        >>> Normalize(mean=[0.5], std=[0.25])(torch.tensor([[[[0.5, 1.0]]]])).tolist()
        [[[[0.0, 2.0]]]]
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = list(mean), list(std)

    def __call__(self, images: Tensor) -> Tensor:
        """Images of the same shape."""
        mean, std = (images.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (images - mean) / std


class CropFlip:
    """Zero padding and a random crop back to the old size, then a mirror image every other time; images [n, c, h, w].

    Args:
        pad: pixels added at each side, at least 0.
        flip: whether to mirror.

    Example:
        >>> image = torch.arange(4.0).view(1, 1, 2, 2)
        >>> CropFlip(pad=1)(image, torch.tensor([[0.5, 0.5, 0.1]])).flatten().tolist()  # no shift, mirrored
        [1.0, 0.0, 3.0, 2.0]
    """

    draws = 3

    def __init__(self, pad: int = 4, flip: bool = True) -> None:
        self.pad, self.flip = pad, flip

    def __call__(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        """Images of the same shape."""
        n, _, height, width = inputs.shape
        padded = torch.nn.functional.pad(inputs, [self.pad] * 4)
        shift = (uniforms[:, :2] * (2 * self.pad + 1)).long()
        rows = shift[:, :1] + torch.arange(height, device=inputs.device)
        columns = shift[:, 1:2] + torch.arange(width, device=inputs.device)
        if self.flip:
            columns = torch.where(uniforms[:, 2:] < 0.5, columns.flip(1), columns)
        first = torch.arange(n, device=inputs.device)[:, None, None]
        return padded[first, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Order:
    """The examples of each step: every epoch takes all of them once, in an order of its own.

    A pure function of the step and of `generator(epoch)`, so that a run that goes on at some step needs to remember
    nothing else of its order.

    Args:
        size: number of examples.
        batch_size: examples a step; the last batch of an epoch may be smaller.
        generator: generator of an epoch's order, the same at every call.
        drop_last: leave out an epoch's last batch if it is smaller.

    Example:
        >>> order = Order(5, 2, lambda epoch: torch.Generator().manual_seed(epoch))
        >>> order.epoch_steps, sorted(torch.cat([order(step) for step in range(3)]).tolist())
        (3, [0, 1, 2, 3, 4])
    """

    def __init__(
        self, size: int, batch_size: int, generator: Callable[[int], torch.Generator], drop_last: bool = False
    ) -> None:
        if size < 1 or batch_size < 1:
            raise ValueError("size and batch_size must be at least 1")
        self.size, self.batch_size, self.generator = size, min(batch_size, size), generator
        self.epoch_steps = size // self.batch_size if drop_last else -(-size // self.batch_size)
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    def __call__(self, step: int) -> Tensor:
        """Indices [at most batch_size]."""
        epoch, place = divmod(step, self.epoch_steps)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, torch.randperm(self.size, generator=self.generator(epoch))
        return self._order[place * self.batch_size : (place + 1) * self.batch_size]
