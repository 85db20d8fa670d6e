"""What a step costs: gradients, Hessian-vector products and time, of several optimizers in turn."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.classification import Images
from tasks.training.examples import Order
from tasks.training.random_state import seeded
from tasks.training.recipe import Method, Recipe


class StepCost:
    """Trains one network with each optimizer; they take turns, a block of steps each.

    Gradients and products are counted in the graph of the loss, not in calls of the closure: a mark on the logits
    tells when it is differentiated once and when twice.

    Rows (unit `block`, with a column `method`): seconds (processor time a step, the median of the block).

    Rows (unit `total`, with a column `method`), over all blocks: steps; gradients; products, the Hessian-vector
    products; expected_products, ⌈steps/k⌉ times `n_samples` where the optimizer's first group has `lazy_hessian` k,
    else 0.

    Args:
        data, model: as `tasks.training.classification.Classification`; all images are trained on.
        steps: steps of a block.
        blocks: blocks of each optimizer.
        batch_size: examples a step.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(
        self, data: Images, model: Callable[..., nn.Module], steps: int, blocks: int, batch_size: int
    ) -> None:
        if min(steps, blocks, batch_size) < 1:
            raise ValueError("steps, blocks and batch_size must be at least 1")
        self.data, self.model, self.steps, self.blocks = data, model, steps, blocks
        self.batch_size = batch_size

    def evaluate(self, methods: Mapping[str, Method], run: Run) -> None:
        """Train with all methods in turn."""
        trainings = {name: self._start(Recipe.of(method), run) for name, method in methods.items()}
        table = []
        for block in run.track(range(self.blocks)):
            for name, training in trainings.items():
                seconds = sorted(training.step() for _ in range(self.steps))
                table.append({"i": block, "method": name, "seconds": seconds[self.steps // 2]})
        run.rows("block", table)
        run.rows("total", [{"i": 0, "method": name, **t.counts()} for name, t in trainings.items()])

    def _start(self, recipe: Recipe, run: Run) -> "_Training":
        images, labels = self.data.images("all"), self.data.labels("all")
        with seeded(run.generator("model").initial_seed(), run.device):
            model = self.model(inputs=images.shape[1:], classes=int(labels.max()) + 1)
        optimizer = recipe.make_optimizer(
            model, generator=run.generator("optimizer"), total_steps=self.steps * self.blocks
        )
        order = Order(len(labels), self.batch_size, lambda epoch: run.generator("order", epoch))
        return _Training(model, optimizer, order, images, labels)


class _Training:
    def __init__(
        self, model: nn.Module, optimizer: Any, order: Order, images: Tensor, labels: Tensor
    ) -> None:
        self.model, self.optimizer, self.order = model, optimizer, order
        self.images, self.labels = images, labels
        self.done = 0
        self.tally = {"first": 0, "second": 0}

    def step(self) -> float:
        """One update; its seconds."""
        index = self.order(self.done)
        images, labels = self.images[index], self.labels[index]

        def closure(create_graph: bool = False) -> Tensor:
            self.optimizer.zero_grad()
            logits = _Mark.apply(self.model(images), self.tally)
            loss = nn.functional.cross_entropy(logits, labels)
            gradients = torch.autograd.grad(loss, list(self.model.parameters()), create_graph=create_graph)
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            return loss.detach()

        began = time.thread_time()
        self.optimizer.step(closure)
        ended = time.thread_time()
        self.done += 1
        return ended - began

    def counts(self) -> dict[str, int]:
        """Of all steps so far."""
        group = self.optimizer.param_groups[0]
        every = group.get("lazy_hessian")
        return {
            "steps": self.done,
            "gradients": self.tally["first"] - self.tally["second"],  # a product goes through the mark again
            "products": self.tally["second"],
            "expected_products": math.ceil(self.done / every) * group["n_samples"] if every else 0,
        }


class _Mark(torch.autograd.Function):
    """The identity, which counts how often it is differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tally: dict[str, int]) -> Tensor:
        ctx.tally = tally
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.tally["first"] += 1
        return _SecondMark.apply(gradients[0], ctx.tally), None


class _SecondMark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tally: dict[str, int]) -> Tensor:
        ctx.tally = tally
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.tally["second"] += 1
        return gradients[0], None
