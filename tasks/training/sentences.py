"""Training a pretrained encoder to classify sentences or pairs of them in two classes, as most tasks of GLUE ask."""

import math
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.examples import Batch
from tasks.training.loop import Loop, Problem
from tasks.training.random_state import seeded
from tasks.training.recipe import Method, Recipe


class Sentences(Protocol):
    """Labelled sentences."""

    def examples(self, split: Any) -> tuple[list[Any], list[int]]:
        """Texts, or tuples of one or two, and labels 0 or 1; `split` is "train" or "dev"."""


class Encoded:
    """Examples made of tokens, each batch padded to its longest.

    Args:
        tokenizer: of the `transformers` library.
        texts: sentences, or tuples of one or two.
        labels: classes.
        max_length: tokens of an example; longer ones are cut.
    """

    draws = 0

    def __init__(self, tokenizer: Any, texts: list[Any], labels: list[int], max_length: int) -> None:
        parts = [(text,) if isinstance(text, str) else text for text in texts]
        columns = [list(column) for column in zip(*parts, strict=True)]
        self.tokenizer, self.labels = tokenizer, torch.tensor(labels)
        self.encoded = tokenizer(*columns, truncation=True, max_length=max_length)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, index: Tensor, uniforms: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The model's keyword arguments, and labels."""
        rows = {key: [values[i] for i in index.tolist()] for key, values in self.encoded.items()}
        return dict(self.tokenizer.pad(rows, return_tensors="pt")), self.labels[index]


class SentenceClassification:
    """Trains all weights of an encoder with a new head.

    Curves: see `tasks.training.loop.Loop`; metrics `dev_loss`, `dev_accuracy`, `dev_matthews` (Matthews' correlation
    of labels and guesses; 0 where one of them does not vary).

    Summary:
        dev_loss, dev_accuracy, dev_matthews: after the last step.
        loss: mean over the last batches, as trained on.
        parameters: trainable numbers at the start.

    Args:
        data: labelled sentences.
        encoder: artifact made by `tasks.language.encoder.build`, or a pretrained model with a `path()`.
        loop: how long and in what steps.
        max_length: tokens of an example; longer ones are cut.
        train_size, dev_size: examples to train and to measure on, drawn from the run's seed; None: all.
        classifier_dropout: before the head, in [0, 1).
        dtype: floating-point type, unless the run names one.
    """

    def __init__(
        self,
        data: Sentences,
        encoder: Any,
        loop: Loop,
        max_length: int,
        train_size: int | None = None,
        dev_size: int | None = None,
        classifier_dropout: float = 0.0,
        dtype: str = "float32",
    ) -> None:
        self.data, self.encoder, self.loop, self.max_length = data, encoder, loop, max_length
        self.sizes = {"train": train_size, "dev": dev_size}
        self.classifier_dropout, self.dtype = classifier_dropout, getattr(torch, dtype)

    def evaluate(self, method: Method, run: Run) -> None:
        """Train once and record the curves and the end."""
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        recipe = Recipe.of(method)
        loss_function = recipe.loss or nn.functional.cross_entropy
        folder = self.encoder.path() if hasattr(self.encoder, "path") else run.artifact(self.encoder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        train, dev = (self.examples(split, tokenizer, run) for split in ("train", "dev"))
        config = AutoConfig.from_pretrained(folder, num_labels=2)
        for name in ("classifier_dropout", "classifier_dropout_prob"):  # BERT's and ALBERT's
            setattr(config, name, self.classifier_dropout)
        with seeded(run.generator("model").initial_seed(), torch.device("cpu")):
            model = AutoModelForSequenceClassification.from_pretrained(
                folder,
                config=config,
                dtype=run.dtype or self.dtype,
                attn_implementation="eager",  # fused attention cannot be differentiated twice
            ).to(run.device)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            inputs, labels = batch
            return loss_function(model(**inputs).logits, labels)

        problem = Problem(
            train=train,
            loss=loss,
            measure=_measure,
            weight=lambda batch: float(len(batch[1])),
            sets={"dev": dev},
            finish=_finish,
        )
        parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        run.summary(**self.loop.fit(run, recipe, model, problem), parameters=parameters)

    def examples(self, split: str, tokenizer: Any, run: Run) -> Encoded:
        """The tokens of a split, or of the part of it that the run's seed draws."""
        texts, labels = self.data.examples(split)
        size = self.sizes[split]
        if size is not None:
            if not 1 <= size <= len(labels):
                raise ValueError(f"{split}_size must be from 1 to {len(labels)}, not {size}")
            chosen = torch.randperm(len(labels), generator=run.generator(f"{split} sentences"))[
                :size
            ].tolist()
            texts, labels = [texts[i] for i in chosen], [labels[i] for i in chosen]
        return Encoded(tokenizer, texts, labels, self.max_length)


def _measure(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    inputs, labels = batch
    logits = model(**inputs).logits
    guesses = logits.argmax(-1)
    return {
        "loss": nn.functional.cross_entropy(logits, labels),
        "accuracy": (guesses == labels).double().mean(),
        "label": labels.double().mean(),
        "guess": guesses.double().mean(),
        "both": (labels * guesses).double().mean(),
    }


def _finish(means: dict[str, float]) -> dict[str, float]:
    """Matthews' correlation from the shares of ones among labels, among guesses, and in both."""
    label, guess, both = means.pop("label"), means.pop("guess"), means.pop("both")
    variances = label * (1 - label) * guess * (1 - guess)
    matthews = (both - label * guess) / math.sqrt(variances) if variances > 1e-12 else 0.0
    return means | {"matthews": matthews}
