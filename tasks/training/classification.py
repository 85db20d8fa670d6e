"""Training a classifier of images."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.examples import Augmentation, Batch, TensorExamples
from tasks.training.loop import Loop, Problem
from tasks.training.random_state import seeded
from tasks.training.recipe import Method, Recipe


class Images(Protocol):
    """Labelled images: `split` is "train" or "test", or "all" where the set is not split by its makers."""

    def images(self, split: Any) -> Tensor:
        """Grey or colour values [n, channels, height, width]."""

    def labels(self, split: Any) -> Tensor:
        """Classes 0..k-1, int64 [n]."""


class Classification:
    """Trains a network on labelled images and measures it on others.

    Curves: see `tasks.training.loop.Loop`; metrics `test_loss` and `test_accuracy`.

    Summary:
        test_loss, test_accuracy, train_loss, train_accuracy: after the last step, dropout off, images as they are.
        loss: mean over the last batches, as trained on.
        parameters: trainable numbers at the start.

    Args:
        data: the images.
        model: (inputs=shape of an image, classes=number) -> network with logits [n, classes].
        loop: how long and in what steps.
        test_fraction: share of `data`'s "all" that is held out, drawn from the run's seed, stratified by class;
            None: `data` has a "train" and a "test" split.
        augmentation: changes the images that are trained on.
        dtype: floating-point type, unless the run names one.
    """

    def __init__(
        self,
        data: Images,
        model: Callable[..., nn.Module],
        loop: Loop,
        test_fraction: float | None = None,
        augmentation: Augmentation | None = None,
        dtype: str = "float32",
    ) -> None:
        if test_fraction is not None and not 0 < test_fraction < 1:
            raise ValueError(f"test_fraction must be in (0, 1), not {test_fraction}")
        self.data, self.model, self.loop, self.dtype = data, model, loop, getattr(torch, dtype)
        self.test_fraction, self.augmentation = test_fraction, augmentation

    def evaluate(self, method: Method, run: Run) -> None:
        """Train once and record the curves and the end."""
        recipe = Recipe.of(method)
        loss_function = recipe.loss or nn.functional.cross_entropy
        (train_x, train_y), (test_x, test_y) = self.split(run)
        with seeded(run.generator("model").initial_seed(), run.device):
            model = self.model(inputs=train_x.shape[1:], classes=int(train_y.max()) + 1)
        model.to(run.device, run.dtype or self.dtype)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            inputs, labels = batch
            return loss_function(model(inputs), labels)

        problem = Problem(
            train=TensorExamples(train_x, train_y, self.augmentation),
            loss=loss,
            measure=_measure,
            sets={"test": TensorExamples(test_x, test_y)},
            final_sets={"train": TensorExamples(train_x, train_y)},
        )
        parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        run.summary(**self.loop.fit(run, recipe, model, problem), parameters=parameters)

    def split(self, run: Run) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Images and labels to train on, and those to measure on."""
        dtype = run.dtype or self.dtype
        if self.test_fraction is None:
            train, test = (
                (self.data.images(split).to(dtype), self.data.labels(split)) for split in ("train", "test")
            )
            return train, test
        images, labels = self.data.images("all").to(dtype), self.data.labels("all")
        held_out = torch.zeros(len(labels), dtype=torch.bool)
        generator = run.generator("split")
        for label in labels.unique():
            members = (labels == label).nonzero().flatten()
            members = members[torch.randperm(len(members), generator=generator)]
            held_out[members[: round(self.test_fraction * len(members))]] = True
        return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def _measure(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    inputs, labels = batch
    logits = model(inputs)
    return {
        "loss": nn.functional.cross_entropy(logits, labels),
        "accuracy": (logits.argmax(-1) == labels).double().mean(),
    }
