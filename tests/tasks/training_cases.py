"""Trainings that the tests of `tasks.training` share; importable by processes that a test starts."""

import functools
import io
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tasks.training.classification import Classification
from tasks.training.examples import CropFlip, Normalize, TensorExamples
from tasks.training.language_model import LanguageModel
from tasks.training.loop import Loop, Problem
from tasks.training.models import MLP, ResNet
from tasks.training.parallel import Objective, Piece, Replicas
from tasks.training.recipe import Recipe
from tasks.training.schedule import Cosine
from tasks.training.sentences import SentenceClassification
from tasks.training.transformer import Transformer
from tests.fake_run import FakeRun


class DiskRun(FakeRun):
    """Checkpoints go through a file's bytes, written by rank 0 and read by all, as those of a real run do."""

    def __init__(self, seed: int = 0, folder: Path | None = None, rank: int = 0, ranks: int = 1) -> None:
        super().__init__(seed, folder)
        self.rank, self.ranks = rank, ranks
        self.saves = 0

    def artifact(self, node: Any) -> Path:
        """Of several ranks: what was made before they started, as the harness does."""
        return self.dir.parent / "artifact" if self.ranks > 1 else super().artifact(node)

    def save(self, state: dict[str, Any]) -> None:
        self.saves += 1
        if self.rank == 0:
            buffer = io.BytesIO()
            torch.save({"state": state, "logged": len(self.metrics)}, buffer)
            (self.dir / "checkpoint.pt").write_bytes(buffer.getvalue())

    def restore(self) -> dict[str, Any] | None:
        if self.ranks > 1:
            dist.barrier()
        if not (self.dir / "checkpoint.pt").exists():
            self.metrics.clear()
            return None
        record = torch.load(self.dir / "checkpoint.pt", weights_only=False)
        del self.metrics[record["logged"] :]
        return dict(record["state"])


class Blobs:
    """Noisy images of 4 classes, 8x8, some with two channels of meaning; made from a fixed seed."""

    def __init__(self, n: int = 90) -> None:
        generator = torch.Generator().manual_seed(5)
        self.y = torch.arange(n) % 4
        centres = torch.randn(4, 2, 8, 8, generator=generator)
        self.x = centres[self.y] + 0.7 * torch.randn(n, 2, 8, 8, generator=generator)

    def images(self, split: str) -> Tensor:
        return self.x

    def labels(self, split: str) -> Tensor:
        return self.y


class Curvature(torch.optim.Optimizer):
    """Divides by a running mean of |diagonal of the Hessian|, estimated with random signs on every second step."""

    def __init__(self, params: Any, lr: float = 0.05, generator: torch.Generator | None = None) -> None:
        super().__init__(params, {"lr": lr})
        self.generator = generator

    def step(self, closure: Any) -> Tensor:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        count = self.state[parameters[0]].get("count", 0)
        loss: Tensor = closure(create_graph=count % 2 == 0)
        if count % 2 == 0:
            signs = [torch.randint(0, 2, p.shape, generator=self.generator).to(p) * 2 - 1 for p in parameters]
            products = torch.autograd.grad([p.grad for p in parameters], parameters, signs)
        for place, p in enumerate(parameters):
            state = self.state[p]
            state["count"] = count + 1
            if count % 2 == 0:
                estimate = (signs[place] * products[place]).abs()
                state["scale"] = 0.9 * state.get("scale", torch.ones_like(p)) + 0.1 * estimate
            with torch.no_grad():
                p -= self.param_groups[0]["lr"] * p.grad / (state["scale"] + 0.1)
        return loss


class Sharp(torch.optim.SGD):
    """SAM: the gradient at the parameters plus a step of length rho uphill, of the same batch."""

    def step(self, closure: Any) -> Tensor:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        loss: Tensor = closure()
        norm = torch.stack([p.grad.norm() for p in parameters]).norm() + 1e-12
        with torch.no_grad():
            ways = [p.grad * (0.05 / norm) for p in parameters]
            torch._foreach_add_(parameters, ways)
        closure()
        with torch.no_grad():
            torch._foreach_sub_(parameters, ways)
        super().step()
        return loss


class Noisy(torch.optim.SGD):
    """Draws from all global generators, as a library's optimizer may."""

    def step(self, closure: Any) -> Tensor:  # type: ignore[override]
        loss: Tensor = closure()
        for group in self.param_groups:
            for p in group["params"]:
                noise = torch.randn_like(p) * np.random.rand() * random.random()  # noqa: NPY002
                p.grad += 0.1 * noise
        super().step()
        return loss


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "explosive": functools.partial(torch.optim.SGD, lr=3e38),
    "sgd": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adam": functools.partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01),
    "nadam": functools.partial(torch.optim.NAdam, lr=0.01),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.003, momentum=0.5, centered=True),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.05),
    "lbfgs": functools.partial(torch.optim.LBFGS, lr=0.3, max_iter=3, history_size=4),
    "curvature": Curvature,
    "sharp": functools.partial(Sharp, lr=0.05, momentum=0.9),
    "noisy": functools.partial(Noisy, lr=0.05, momentum=0.9),
}

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": functools.partial(MLP, hidden=[16]),
    "dropout": functools.partial(MLP, hidden=[16], dropout=0.3),
    "batch_norm": functools.partial(ResNet, depth=8, width=4, norm="batch"),
    "group_norm": functools.partial(ResNet, depth=8, width=4, norm="group", groups=2),
}


def train(
    run: FakeRun,
    optimizer: str = "sgd",
    model: str = "mlp",
    kill_at: int | None = None,
    dtype: str = "float32",
    crop: bool = True,
    **settings: Any,
) -> FakeRun:
    """One training; with `kill_at`, dies in the middle of that update of this attempt."""
    settings = {
        "batch_size": 16,
        "steps": 12,
        "points": 12,
        "evaluations": 3,
        "schedule": Cosine(warmup=2),
    } | settings
    seed_all(run.seed)  # as the harness does before every attempt
    factory = OPTIMIZERS[optimizer]
    if kill_at is not None:
        factory = functools.partial(_mortal, factory, kill_at)
    augmentation = CropFlip(pad=1) if crop else None
    Classification(
        Blobs(), MODELS[model], Loop(**settings), test_fraction=0.3, augmentation=augmentation, dtype=dtype
    ).evaluate(factory, run)
    return run


class Verses:
    """A text in which a few words recur."""

    def text(self, split: str) -> str:
        words, order = ["to", "be", "or", "not", "that", "is"], random.Random(len(split))
        return " ".join(order.choice(words) for _ in range(400 if split == "train" else 60))


class Statements:
    """Pairs of sentences, of different lengths; the label says whether they share their last word."""

    def examples(self, split: str) -> tuple[list[tuple[str, str]], list[int]]:
        order, words = random.Random(len(split)), ["to", "be", "or", "not"]
        pairs = [[order.choices(words, k=order.randint(1, 6)) for _ in "ab"] for _ in range(37)]
        return [(" ".join(a), " ".join(b)) for a, b in pairs], [int(a[-1] == b[-1]) for a, b in pairs]


class Bytes(Blobs):
    """Blobs as bytes, with noise in their labels."""

    def images(self, split: str) -> Tensor:
        return (40 * self.x + 128).clamp(0, 255).to(torch.uint8)


ENCODER = {
    "_target_": "tasks.language.encoder.build",
    "_artifact_": True,
    "data": {"_target_": "tests.tasks.training_cases.Verses"},
    "vocabulary": 40,
    "width": 8,
    "layers": 2,
    "heads": 2,
    "length": 12,
    "steps": 2,
    "batch_size": 4,
    "lr": 0.01,
    "seed": 0,
}


def on_task(
    run: FakeRun, task: str, optimizer: str = "adamw", kill_at: int | None = None, **settings: Any
) -> FakeRun:
    """One training on one of the tasks, made small."""
    seed_all(run.seed)
    settings = {"batch_size": 12, "steps": 8, "points": 8, "evaluations": 2} | settings
    loop = Loop(schedule=Cosine(warmup=2), evaluation_batch_size=9, **settings)
    tasks: dict[str, Callable[[], Any]] = {
        "images": lambda: Classification(
            Bytes(),
            MODELS["batch_norm"],
            loop,
            test_fraction=0.3,
            train_size=50,
            label_noise=0.4,
            augmentation=CropFlip(pad=1),
            normalize=Normalize([0.5, 0.5], [0.2, 0.3]),
        ),
        "language": lambda: LanguageModel(
            Verses(), functools.partial(Transformer, width=8, heads=2, dropout=0.2), loop, length=10
        ),
        "sentences": lambda: SentenceClassification(
            Statements(), ENCODER, loop, max_length=12, train_size=31, classifier_dropout=0.2
        ),
    }
    factory = OPTIMIZERS[optimizer]
    if kill_at is not None:
        factory = functools.partial(_mortal, factory, kill_at)
    tasks[task]().evaluate(factory, run)
    return run


def seed_all(seed: int) -> None:
    """Seed the global generators."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


class Killed(BaseException):
    """What a test dies of."""


def _mortal(factory: Callable[..., Any], kill_at: int, params: Any, generator: torch.Generator) -> Any:
    optimizer = Recipe.of(factory).make_optimizer(_Holder(params), generator=generator, total_steps=0)
    step, counter = optimizer.step, itertools.count()

    def dying(closure: Any) -> Any:
        if next(counter) == kill_at:
            closure()
            raise Killed
        return step(closure)

    optimizer.step = dying  # type: ignore[method-assign]
    return optimizer


class _Holder(nn.Module):
    def __init__(self, params: list[nn.Parameter]) -> None:
        super().__init__()
        self.held = nn.ParameterList(params)


class TinyTransformer(nn.Module):
    """Token classification: logits [n, length, 5]."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def transform(
    run: FakeRun, optimizer: str = "adamw", dropout: float = 0.0, kill_at: int | None = None, **settings: Any
) -> FakeRun:
    """Tokens to classes, where the loss is a mean over tokens of which the sequences have different numbers."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 7, (37, 6), generator=generator)
    tokens[torch.arange(6) >= torch.randint(2, 7, (37, 1), generator=generator)] = 0
    labels = torch.where(tokens == 0, -100, (tokens.cumsum(1) % 5))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    problem = Problem(
        train=TensorExamples(tokens, labels),
        loss=loss,
        measure=lambda model, batch: {"loss": loss(model, batch)},
        weight=lambda batch: float((batch[1] >= 0).sum()),
        sets={"train": TensorExamples(tokens, labels)},
    )
    seed_all(run.seed)
    settings = {"batch_size": 12, "steps": 10, "points": 10, "evaluation_batch_size": 9} | settings
    factory = OPTIMIZERS[optimizer]
    if kill_at is not None:
        factory = functools.partial(_mortal, factory, kill_at)
    run.summary(**Loop(**settings).fit(run, Recipe.of(factory), TinyTransformer(dropout), problem))
    return run


def products(rank: int, ranks: int) -> dict[str, list[float]]:
    """Loss, gradient and a Hessian-vector product of a whole batch of 10 in 3 pieces, dealt out over the ranks."""
    torch.manual_seed(2)
    x, y, signs = torch.randn(10, 3), torch.randint(0, 4, (10,)), torch.randn(1000)
    model = nn.ModuleDict(
        {
            "net": nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)),
            "unused": nn.Linear(2, 2),  # parameters that the loss does not depend on
        }
    ).double()

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model["net"](batch[0]), batch[1])

    replicas = Replicas(Objective(model, loss), ranks, torch.device("cpu"))
    pieces = [
        Piece((x[rows].double(), y[rows]), len(rows) / 10, seed=0)
        for rows in list(torch.arange(10).tensor_split(3))[rank::ranks]
    ]
    parameters = list(model["net"].parameters())
    found: dict[str, list[float]] = {}
    found["loss"] = [replicas.gradients(pieces, create_graph=False, update_statistics=True)]
    found["gradient"] = torch.cat([p.grad.flatten() for p in parameters]).tolist()
    replicas.gradients(pieces, create_graph=True, update_statistics=True)
    found["graph_gradient"] = torch.cat([p.grad.detach().flatten() for p in parameters]).tolist()
    parts = signs[: sum(p.numel() for p in parameters)].double().split([p.numel() for p in parameters])
    vectors = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
    product = torch.autograd.grad([p.grad for p in parameters], parameters, vectors, retain_graph=True)
    found["product"] = torch.cat([part.flatten() for part in product]).tolist()
    third = torch.autograd.grad([p.grad for p in parameters], parameters, vectors, create_graph=True)
    third = torch.autograd.grad(third, parameters, vectors)
    found["third"] = torch.cat([part.flatten() for part in third]).tolist()
    found["unused"] = [float(p.grad is None) for p in model["unused"].parameters()]
    return found
