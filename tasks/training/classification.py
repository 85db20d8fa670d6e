"""Training a classifier of images."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.examples import Augmentation, Batch, Normalize, TensorExamples
from tasks.training.loop import Loop, Problem
from tasks.training.random_state import seeded
from tasks.training.recipe import Method, Recipe
from tasks.training.sharpness import Sharpness

Part = tuple[Tensor, Tensor]
"""Images [n, channels, height, width] and labels [n]."""


class Images(Protocol):
    """Labelled images: `split` is "train" or "test", or "all" where the set is not split by its makers."""

    def images(self, split: Any) -> Tensor:
        """Grey or colour values [n, channels, height, width]: bytes, or floating-point numbers (1 is white)."""

    def labels(self, split: Any) -> Tensor:
        """Classes 0..k-1, int64 [n]."""


class Classification:
    """Trains a network on labelled images and measures it on others.

    Curves: see `tasks.training.loop.Loop`; metrics `test_loss` and `test_accuracy`.

    Summary:
        test_loss, test_accuracy, train_loss, train_accuracy: after the last step, dropout off, images as they are,
            training labels as trained on.
        loss: mean over the last batches, as trained on.
        top_eigenvalue, trace: of the training loss's Hessian, with `sharpness`.
        parameters: trainable numbers at the start.

    Args:
        data: the images.
        model: (inputs=shape of an image, classes=number) -> network with logits [n, classes].
        loop: how long and in what steps.
        test_fraction: share of `data`'s "all" that is held out, drawn from the run's seed, stratified by class;
            None: `data` has a "train" and a "test" split.
        train_size, test_size: images to train and to measure on, drawn from the run's seed; None: all.
        label_noise: share of the training labels, drawn from the run's seed, that are replaced by classes drawn
            uniformly (the true one among them), in [0, 1].
        augmentation: changes the images that are trained on.
        normalize: what follows on it, for all images, after their values have come to lie in [0, 1].
        sharpness: measures the Hessian at the end; None does not.
        dtype: floating-point type, unless the run names one.

    Raises:
        ValueError: a value out of range.
    """

    def __init__(
        self,
        data: Images,
        model: Callable[..., nn.Module],
        loop: Loop,
        test_fraction: float | None = None,
        train_size: int | None = None,
        test_size: int | None = None,
        label_noise: float = 0.0,
        augmentation: Augmentation | None = None,
        normalize: Normalize | None = None,
        sharpness: Sharpness | None = None,
        dtype: str = "float32",
    ) -> None:
        if test_fraction is not None and not 0 < test_fraction < 1:
            raise ValueError(f"test_fraction must be in (0, 1), not {test_fraction}")
        if not 0 <= label_noise <= 1:
            raise ValueError(f"label_noise must be in [0, 1], not {label_noise}")
        self.data, self.model, self.loop, self.dtype = data, model, loop, getattr(torch, dtype)
        self.test_fraction, self.train_size, self.test_size = test_fraction, train_size, test_size
        self.label_noise, self.augmentation, self.normalize = label_noise, augmentation, normalize
        self.sharpness = sharpness

    def evaluate(self, method: Method, run: Run) -> None:
        """Train once and record the curves and the end."""
        recipe = Recipe.of(method)
        loss_function = recipe.loss or nn.functional.cross_entropy
        train, test = self.split(run)
        with seeded(run.generator("model").initial_seed(), run.device):
            model = self.model(inputs=train[0].shape[1:], classes=self.classes())
        dtype = run.dtype or self.dtype
        model.to(run.device, dtype)

        def prepare(images: Tensor) -> Tensor:
            values = images.to(dtype) if images.is_floating_point() else images.to(dtype) / 255
            return self.normalize(values) if self.normalize else values

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            inputs, labels = batch
            return loss_function(model(inputs), labels)

        train_as_is = TensorExamples(*train, prepare=prepare)
        problem = Problem(
            train=TensorExamples(*train, self.augmentation, prepare),
            loss=loss,
            measure=_measure,
            sets={"test": TensorExamples(*test, prepare=prepare)},
            final_sets={"train": train_as_is},
            final_probes=self.sharpness.functions(loss, train_as_is, run) if self.sharpness else {},
        )
        parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        run.summary(**self.loop.fit(run, recipe, model, problem), parameters=parameters)

    def classes(self) -> int:
        """Number of classes of the data."""
        return int(self.data.labels("train" if self.test_fraction is None else "all").max()) + 1

    def split(self, run: Run) -> tuple[Part, Part]:
        """Images and labels to train on, and those to measure on."""
        if self.test_fraction is None:
            train, test = ((self.data.images(split), self.data.labels(split)) for split in ("train", "test"))
        else:
            train, test = self._hold_out(self.test_fraction, run.generator("split"))
        images, labels = _some(train, self.train_size, run.generator("train images"), "train_size")
        test = _some(test, self.test_size, run.generator("test images"), "test_size")
        if self.label_noise:
            generator = run.generator("label noise")
            noisy = torch.randperm(len(labels), generator=generator)[: round(self.label_noise * len(labels))]
            labels = labels.clone()
            labels[noisy] = torch.randint(self.classes(), noisy.shape, generator=generator)
        return (images, labels), test

    def _hold_out(self, fraction: float, generator: torch.Generator) -> tuple[Part, Part]:
        images, labels = self.data.images("all"), self.data.labels("all")
        held_out = torch.zeros(len(labels), dtype=torch.bool)
        for label in labels.unique():
            members = (labels == label).nonzero().flatten()
            members = members[torch.randperm(len(members), generator=generator)]
            held_out[members[: round(fraction * len(members))]] = True
        return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def _some(part: Part, size: int | None, generator: torch.Generator, name: str) -> Part:
    """So many of the images, drawn without replacement."""
    images, labels = part
    if size is None:
        return part
    if not 1 <= size <= len(labels):
        raise ValueError(f"{name} must be from 1 to {len(labels)}, not {size}")
    chosen = torch.randperm(len(labels), generator=generator)[:size]
    return images[chosen], labels[chosen]


def _measure(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    inputs, labels = batch
    logits = model(inputs)
    return {
        "loss": nn.functional.cross_entropy(logits, labels),
        "accuracy": (logits.argmax(-1) == labels).double().mean(),
    }
