"""Quantized networks: how they are trained, what is left of their weights, whom they follow on the way."""

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from tasks.run import Run
from tasks.training.classification import Classification
from tasks.training.loop import Loop, Problem
from tasks.training.recipe import Optimizer, Recipe, call

FULL_PRECISION = 16


class QuantizedLoop:
    """In the place of a `Loop`: trains as it does, and then looks at the parameters of the groups with `quant_bits`.

    Metrics besides the loop's:
        excess_levels: the largest number of different values in a quantized tensor (or row) beyond the levels that its
            bits allow (3 for `quant_bits` 0); at most 0 if all are quantized. None without quantized groups.
        quantized_weights: how many there are.
        packed_bytes, full_bytes: size of the model's state packed into bits, by the optimizer's `export`, and as it is;
            None where it has none.

    Args:
        loop: the training.
        per_channel: whether every row of a weight, flattened to (out, -1), has levels of its own.
    """

    def __init__(self, loop: Loop, per_channel: bool = False) -> None:
        self.loop, self.per_channel = loop, per_channel

    def fit(self, run: Run, recipe: Recipe, model: nn.Module, problem: Problem) -> dict[str, Any]:
        """As `Loop.fit`."""
        made: list[Any] = []

        def factory(params: Any, generator: torch.Generator, model: nn.Module, total_steps: int) -> Optimizer:
            optimizer: Optimizer = call(
                recipe.optimizer, params, generator=generator, model=model, total_steps=total_steps
            )
            made.append(optimizer)
            return optimizer

        metrics: dict[str, Any] = dict(self.loop.fit(run, replace(recipe, optimizer=factory), model, problem))
        seen = self._look_at(made[0])
        packed = made[0].export(model) if seen["quantized_weights"] and hasattr(made[0], "export") else None
        sizes = {"packed_bytes": packed and packed.bytes, "full_bytes": packed and packed.full_bytes}
        return metrics | seen | sizes

    def _look_at(self, optimizer: Optimizer) -> dict[str, Any]:
        excess: list[int] = []
        count = 0
        for group in optimizer.param_groups:
            bits = group.get("quant_bits", FULL_PRECISION)
            if bits >= FULL_PRECISION:
                continue
            for p in group["params"]:
                rows = (
                    p.detach().flatten(1) if self.per_channel and p.dim() > 1 else p.detach().reshape(1, -1)
                )
                excess += [row.unique().numel() - (2**bits if bits else 3) for row in rows]
                count += p.numel()
        return {"excess_levels": max(excess, default=None), "quantized_weights": count}


class Map(Protocol):
    """Factory of maps from latent weights to weights, which harden between two steps."""

    def __call__(self, anneal_start: int, anneal_end: int) -> Any: ...


class MapLimits:
    """A map at both ends of its annealing: clipping to the extreme levels at first, the nearest level at last.

    Rows (unit `vector`): clip_error and hard_error, the largest distance of a number from where it belongs; midpoint
    free, as the numbers are random.

    Args:
        vectors: number of random vectors, each with random levels.
        length: of a vector.
        levels: largest number of levels, at least 2.
    """

    def __init__(self, vectors: int, length: int, levels: int) -> None:
        if vectors < 1 or length < 1 or levels < 2:
            raise ValueError("vectors and length must be at least 1, levels at least 2")
        self.vectors, self.length, self.levels = vectors, length, levels

    def evaluate(self, method: Map, run: Run) -> None:
        """Apply the map at the first and the last step."""
        prox, rows = method(anneal_start=0, anneal_end=100), []
        for i in run.track(range(self.vectors), total=self.vectors):
            generator = run.generator("vector", i)
            u = torch.randn(self.length, generator=generator, dtype=torch.float64)
            levels = (
                torch.randn(2 + i % (self.levels - 1), generator=generator, dtype=torch.float64).sort().values
            )
            nearest = levels[(u.unsqueeze(1) - levels).abs().argmin(1)]
            clipped = u.clamp(levels[0], levels[-1])
            rows.append(
                {
                    "clip_error": (prox.apply(u, levels, 0) - clipped).abs().max().item(),
                    "hard_error": (prox.apply(u, levels, 100) - nearest).abs().max().item(),
                }
            )
        run.rows("vector", rows)
        run.summary(**{name: max(row[name] for row in rows) for name in rows[0]})


class Quantizer(Protocol):
    """Factory of quantizers; its product's `quantize(u, bits)` gives quantized weights and levels."""

    def __call__(self) -> Any: ...


class QuantizationError:
    """Squared error of the nearest levels that a quantizer finds for random vectors.

    Rows (unit `vector`): error, squared distance over squared length.

    Args:
        bits: 0 for ternary.
        vectors: number of vectors, of normal numbers, every other one of their cubes, which have heavy tails.
        length: of a vector.
    """

    def __init__(self, bits: int, vectors: int, length: int) -> None:
        if vectors < 1 or length < 1:
            raise ValueError("vectors and length must be at least 1")
        self.bits, self.vectors, self.length = bits, vectors, length

    def evaluate(self, method: Quantizer, run: Run) -> None:
        """Quantize every vector."""
        quantizer, errors = method(), []
        for i in run.track(range(self.vectors), total=self.vectors):
            u = torch.randn(self.length, generator=run.generator("vector", i), dtype=torch.float64) ** (
                1 + 2 * (i % 2)
            )
            _, levels = quantizer.quantize(u, self.bits)
            distances = (u.unsqueeze(1) - levels).abs().amin(1)
            errors.append((distances.square().sum() / u.square().sum()).item())
        run.rows("vector", {"error": errors})
        run.summary(error=float(np.mean(errors)))


class Following(Classification):
    """Trains a network in several ways from one start, on the same batches: whose loss curve does one of them follow?

    The distance of two curves is the mean |difference| of the loss over the points in a window: the first quarter of
    the annealing, or its last tenth.

    Curves: loss_<part of the method's name after the slash>.

    Summary:
        early_full, early_hard, late_full, late_hard: distance of `method` from `full` and from `hard`, early and late.
        early: early_hard - early_full; above 0: nearer to full precision at first.
        late: late_full - late_hard; above 0: nearer to hard quantization at last.

    Args:
        method, full, hard: names of the methods.
        annealing: its start and end as shares of all steps.
        settings: of `Classification`; the loop's `points` are those of the curves.
    """

    def __init__(
        self, method: str, full: str, hard: str, annealing: tuple[float, float], **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.names, self.annealing = (method, full, hard), annealing

    def evaluate(self, method: Any, run: Run) -> None:
        """Train with every method in turn; `method` is a mapping from names to factories."""
        if missing := set(self.names) - set(method):
            raise ValueError(f"no method {', '.join(sorted(missing))} among {', '.join(method)}")
        curves: dict[str, dict[int, float]] = {}
        for name in self.names:
            part = _Part(run)
            super().evaluate(method[name], part)
            curves[name] = part.losses
        steps = np.array(sorted(curves[self.names[0]]))
        for step in steps:
            run.log(
                step=int(step),
                **{f"loss_{name.rpartition('/')[2]}": curves[name][step] for name in self.names},
            )
        own, full, hard = (np.array([curves[name][step] for step in steps]) for name in self.names)
        start, end = (share * steps[-1] for share in self.annealing)
        width, found = end - start, {}
        for window, low, high in (("early", start, start + width / 4), ("late", end - width / 10, end)):
            inside = (steps > low) & (steps <= high)
            found[f"{window}_full"] = float(np.abs(own - full)[inside].mean())
            found[f"{window}_hard"] = float(np.abs(own - hard)[inside].mean())
        run.summary(
            **found,
            early=found["early_hard"] - found["early_full"],
            late=found["late_full"] - found["late_hard"],
        )


class _Part:
    """A run within a run: keeps the losses and passes on generators; it is too short for checkpoints."""

    def __init__(self, run: Run) -> None:
        self._run, self.losses = run, dict[int, float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def log(self, *, step: int, **metrics: float) -> None:
        if not np.isfinite(list(metrics.values())).all():
            self._run.log(step=step, **metrics)  # raises: the run has diverged
        if "loss" in metrics:
            self.losses[step] = metrics["loss"]

    def summary(self, **values: Any) -> None:
        pass

    def due(self) -> bool:
        return False

    def restore(self) -> None:
        return None
