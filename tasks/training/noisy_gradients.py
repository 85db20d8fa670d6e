"""Training with noise added to the gradients, and a look at the noise that is there anyway."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from tasks.run import Run
from tasks.training.examples import Batch
from tasks.training.loop import Loop, Problem
from tasks.training.random_state import seeded
from tasks.training.recipe import Optimizer, Recipe, call, trainable

# Shares of a normal sample beyond its upper fences, by which those of the noise are divided.
GAUSSIAN_MODERATE = 0.0035
GAUSSIAN_EXTREME = 1.2e-6


class Noise(Protocol):
    """A law of independent real noise."""

    def sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws."""


class NoisyGradients:
    """In the place of a `Loop`: trains as it does, but every gradient g is g + scale · X · u.

    u is a random direction, uniform over those of all parameters jointly, and X a draw of `noise`; both are new in
    every step and the same for all evaluations within a step.

    Args:
        loop: the training.
        noise: law of X.
        scale: at least 0.
    """

    def __init__(self, loop: Loop, noise: Noise, scale: float) -> None:
        if scale < 0:
            raise ValueError(f"scale must be at least 0, not {scale}")
        self.loop, self.noise, self.scale = loop, noise, scale

    def fit(self, run: Run, recipe: Recipe, model: nn.Module, problem: Problem) -> dict[str, float]:
        """As `Loop.fit`."""

        def factory(params: Any, generator: torch.Generator, model: nn.Module, total_steps: int) -> Optimizer:
            inner = call(recipe.optimizer, params, generator=generator, model=model, total_steps=total_steps)
            return _Noisy(
                inner, lambda shapes, step: self._draw(shapes, run.generator("gradient noise", step))
            )

        return self.loop.fit(run, replace(recipe, optimizer=factory), model, problem)

    def _draw(self, tensors: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        size = self.scale * self.noise.sample((1,), generator).item()
        directions = [
            torch.randn(tensor.shape, generator=generator, dtype=torch.float32) for tensor in tensors
        ]
        length = torch.stack([direction.norm() for direction in directions]).norm()
        return [direction.mul_(size / length) for direction in directions]


class _Noisy:
    """An optimizer whose closure adds noise to the gradients."""

    def __init__(self, inner: Optimizer, draw: Callable[[Sequence[Tensor], int], list[Tensor]]) -> None:
        self.inner, self.draw, self.steps = inner, draw, 0
        self.param_groups = inner.param_groups

    def step(self, closure: Any) -> Any:
        def noisy(create_graph: bool = False) -> Any:
            loss = closure(create_graph) if create_graph else closure()
            params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
            with torch.no_grad():
                for p, noise in zip(params, self.draw(params, self.steps), strict=True):
                    p.grad = p.grad + noise.to(p.grad)
            return loss

        result = self.inner.step(noisy)
        self.steps += 1
        return result

    def eval(self) -> None:
        getattr(self.inner, "eval", lambda: None)()

    def train(self) -> None:
        getattr(self.inner, "train", lambda: None)()

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict["inner"])
        self.param_groups = self.inner.param_groups  # a new list
        self.steps = state_dict["steps"]


class GradientNoise:
    """In the place of a `Loop`: trains nothing, and looks at the noise of minibatch gradients at the start.

    The noise of a batch is its gradient minus that of all training examples; what counts is its Euclidean norm over
    all parameters. With the quartiles q1, q3 of the norms, a norm is a moderate outlier above q3 + 1.5 (q3 - q1) and an
    extreme one above q3 + 3 (q3 - q1); the shares of such norms are given over those of a normal law, 0.0035 and
    1.2e-6.

    Rows (unit `batch`): norm.

    Summary: rho_moderate, rho_extreme; noise_mean, noise_std, of the norms; gradient_norm, of all examples.

    Args:
        batch_size: examples a batch, drawn without replacement.
        batches: number of batches, at least 4.

    Source: the tail statistics of Chezhegov et al. (2025), from their code.
    """

    def __init__(self, batch_size: int, batches: int) -> None:
        if batch_size < 1 or batches < 4:
            raise ValueError("batch_size must be at least 1 and batches at least 4")
        self.batch_size, self.batches = batch_size, batches

    def fit(self, run: Run, recipe: Recipe, model: nn.Module, problem: Problem) -> dict[str, float]:
        """Measure; the recipe's optimizer is not asked."""
        model.train()
        params, size = trainable(model), len(problem.train)
        whole = [torch.zeros_like(p) for p in params]
        parts = torch.arange(size).split(self.batch_size)
        batches = [self._batch(problem, part) for part in parts]
        total = sum(problem.weight(batch) for batch in batches)
        for step, batch in enumerate(run.track(batches, total=len(batches))):
            gradient = self._gradient(run, step, model, problem, batch, params)
            torch._foreach_add_(whole, gradient, alpha=problem.weight(batch) / total)
        norms = []
        for step in run.track(range(self.batches), total=self.batches):
            index = torch.randperm(size, generator=run.generator("noise batches", step))[: self.batch_size]
            batch = self._batch(problem, index)
            gradient = self._gradient(run, len(batches) + step, model, problem, batch, params)
            torch._foreach_sub_(gradient, whole)
            norms.append(_norm(gradient))
        run.rows("batch", {"norm": norms})
        moderate, extreme = outlier_ratios(norms)
        return {
            "rho_moderate": moderate,
            "rho_extreme": extreme,
            "noise_mean": float(np.mean(norms)),
            "noise_std": float(np.std(norms, ddof=1)),
            "gradient_norm": _norm(whole),
        }

    def _batch(self, problem: Problem, index: Tensor) -> Batch:
        return problem.train.batch(index, torch.empty(len(index), 0))

    def _gradient(
        self,
        run: Run,
        step: int,
        model: nn.Module,
        problem: Problem,
        batch: Batch,
        params: list[nn.Parameter],
    ) -> list[Tensor]:
        batch = torch.utils._pytree.tree_map_only(Tensor, lambda tensor: tensor.to(run.device), batch)
        with seeded(run.generator("forward", step).initial_seed(), run.device):
            loss = problem.loss(model, batch)
        found = torch.autograd.grad(loss, params, allow_unused=True)
        return [
            torch.zeros_like(p) if g is None else g.detach().clone()
            for g, p in zip(found, params, strict=True)
        ]


def outlier_ratios(norms: Sequence[float]) -> tuple[float, float]:
    """Shares of moderate and of extreme outliers among the norms, over those of a normal law.

    Example:
        >>> outlier_ratios([1.0, 2.0, 3.0, 4.0, 5.0, 100.0, 6.0, 7.0, 8.0, 9.0])[0] * GAUSSIAN_MODERATE
        0.1
    """
    values = np.asarray(norms)
    q1, q3 = np.quantile(values, [0.25, 0.75])
    moderate, extreme = ((values > q3 + whiskers * (q3 - q1)).mean() for whiskers in (1.5, 3.0))
    return float(moderate / GAUSSIAN_MODERATE), float(extreme / GAUSSIAN_EXTREME)


def _norm(tensors: Sequence[Tensor]) -> float:
    return torch.stack(torch._foreach_norm(list(tensors))).norm().item()
