"""Training a language model of characters."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.examples import Batch
from tasks.training.loop import Loop, Problem
from tasks.training.random_state import seeded
from tasks.training.recipe import Method, Recipe


class Corpus(Protocol):
    """A text in two parts."""

    def text(self, split: Any) -> str:
        """`split` is "train" or "validation"."""


class Windows:
    """Sequences of `length` tokens, one after the other, each with the tokens that follow.

    Args:
        tokens: the whole text [n].
        length: of a sequence.

    Example:
        >>> Windows(torch.arange(8), length=3).batch(torch.tensor([1]), torch.empty(1, 0))
        (tensor([[3, 4, 5]]), tensor([[4, 5, 6]]))
    """

    draws = 0

    def __init__(self, tokens: Tensor, length: int) -> None:
        if len(tokens) <= length:
            raise ValueError(f"a text of {len(tokens)} tokens is too short for sequences of {length}")
        self.tokens, self.length = tokens, length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def batch(self, index: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets [n, length]."""
        place = index[:, None] * self.length + torch.arange(self.length)
        return self.tokens[place], self.tokens[place + 1]


class LanguageModel:
    """Trains a network to guess the next character.

    Curves: see `tasks.training.loop.Loop`; metrics `validation_loss` (mean over characters, nats) and
    `validation_perplexity` (its exponential).

    Summary:
        validation_loss, validation_perplexity: after the last step.
        loss: mean over the last batches, as trained on.
        parameters: trainable numbers at the start.

    Args:
        data: the text; its characters are the vocabulary.
        model: (tokens=size of the vocabulary, length=of a sequence) -> network with logits [n, length, tokens].
        loop: how long and in what steps; an example is a sequence.
        length: characters of a sequence.
        validation_size: sequences to measure on, the first of them; None: all.
        dtype: floating-point type, unless the run names one.
    """

    def __init__(
        self,
        data: Corpus,
        model: Callable[..., nn.Module],
        loop: Loop,
        length: int,
        validation_size: int | None = None,
        dtype: str = "float32",
    ) -> None:
        self.data, self.model, self.loop, self.length = data, model, loop, length
        self.validation_size, self.dtype = validation_size, getattr(torch, dtype)

    def evaluate(self, method: Method, run: Run) -> None:
        """Train once and record the curves and the end."""
        recipe = Recipe.of(method)
        loss_function = recipe.loss or nn.functional.cross_entropy
        texts = [self.data.text(split) for split in ("train", "validation")]
        alphabet = {character: token for token, character in enumerate(sorted(set("".join(texts))))}
        train, validation = (torch.tensor([alphabet[character] for character in text]) for text in texts)
        if self.validation_size is not None:
            validation = validation[: self.validation_size * self.length + 1]
        with seeded(run.generator("model").initial_seed(), run.device):
            model = self.model(tokens=len(alphabet), length=self.length)
        model.to(run.device, run.dtype or self.dtype)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            inputs, targets = batch
            return loss_function(model(inputs).flatten(0, 1), targets.flatten())

        problem = Problem(
            train=Windows(train, self.length),
            loss=loss,
            measure=_measure,
            sets={"validation": Windows(validation, self.length)},
            finish=lambda means: means | {"perplexity": math.exp(min(means["loss"], 700.0))},
        )
        parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        run.summary(**self.loop.fit(run, recipe, model, problem), parameters=parameters)


def _measure(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    inputs, targets = batch
    return {"loss": nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())}
