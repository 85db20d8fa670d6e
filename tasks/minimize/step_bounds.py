"""Bounds on single steps of AdaGrad-Norm and Adam-Norm, checked at every step of many noisy runs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tasks.minimize.heavy_tails import Noise, noise_steps
from tasks.minimize.independent import Method
from tasks.run import Run
from tasks.training.recipe import call


class StepBounds:
    """Runs on f(x) = x²/2 under heavy-tailed noise without momentum, and what their steps amount to.

    The steps are looked at from outside: Δ_t = x_{t+1} - x_t and the gradient g_t; γ, b_init, λ and β₂ are read from
    the optimizer's first group. h_t is g_t clipped to λ, or g_t if the method does not clip. β₂ is absent for AdaGrad.

    Rows (unit `block`); every ratio is of a worst case to its bound:
        move_ratio: max |Δ_t| / γ (AdaGrad) or max |Δ_t| √(1-β₂) / γ (Adam).
        memory_ratio: max over t and s <= t of (|Δ_t|/|h_t|) · |h_s| / γ: at most 1 if b_t >= |h_s| for all s <= t.
        floor_ratio: min |Δ_t|/|h_t| over γ / √(b_init² + T λ²) (AdaGrad) or γ / max(b_init, λ) (Adam); None without
            clipping.
        first_ratio: |Δ_0| over γ |h_0| / b_init: 1 for delayed methods; the worst deviation from 1 over runs.
        largest_gradient: max |g_t|.

    Args:
        noise: law of ξ.
        start: x_0.
        steps: T.
        runs: runs a block.
        blocks: number of blocks.

    Raises:
        ValueError: the method has momentum.
    """

    def __init__(self, noise: Noise, start: float, steps: int, runs: int, blocks: int) -> None:
        if min(steps, runs, blocks) < 1:
            raise ValueError("steps, runs and blocks must be at least 1")
        self.noise, self.start, self.steps, self.runs, self.blocks = noise, start, steps, runs, blocks

    def evaluate(self, method: Method, run: Run) -> None:
        """Run all blocks together and compare every step with its bounds."""
        x = torch.full((self.blocks * self.runs, 1), self.start, dtype=torch.float64)
        optimizer = call(method, [x], total_steps=self.steps)
        constants = optimizer.param_groups[0]
        if constants["beta1"] != 0:
            raise ValueError("the bounds are those of methods without momentum: beta1 must be 0")
        lr, clip = constants["lr"], constants["clip"] if constants["clip_mode"] != "none" else torch.inf
        largest, spike, move = (torch.zeros_like(x) for _ in range(3))
        memory, smallest = torch.zeros_like(x), torch.full_like(x, torch.inf)
        first = None
        for noise in run.track(
            noise_steps(self.noise, run, self.blocks, (self.runs, 1), self.steps), total=self.steps
        ):
            before = x.clone()
            x.grad = noise.add_(x)
            optimizer.step()
            moved, h = (x - before).abs_(), x.grad.abs().clamp_(max=clip)
            rate = moved / h
            spike = torch.maximum(spike, h)
            largest = torch.maximum(largest, x.grad.abs())
            move = torch.maximum(move, moved)
            memory = torch.maximum(memory, rate * spike / lr)
            smallest = torch.minimum(smallest, rate)
            if first is None:
                first = rate * constants["b_init"] / lr
        assert first is not None
        floor = self._floor(constants, clip)
        beta2 = constants.get("beta2", 0.0)
        table = {
            "move_ratio": self._worst(move * (1 - beta2) ** 0.5 / lr),
            "memory_ratio": self._worst(memory),
            "floor_ratio": None if floor is None else [-v for v in self._worst(-smallest / floor)],
            "first_ratio": [1 + v for v in self._worst((first - 1).abs())],
            "largest_gradient": self._worst(largest),
        }
        rows = [
            {name: None if values is None else values[i] for name, values in table.items()}
            for i in range(self.blocks)
        ]
        run.rows("block", rows)
        run.summary(largest_gradient=max(table["largest_gradient"] or [0.0]))

    def _floor(self, constants: Mapping[str, Any], clip: float) -> float | None:
        """Least step size that clipping leaves."""
        if clip == torch.inf:
            return None
        lr, b_init = constants["lr"], constants["b_init"]
        bound = max(b_init, clip) if "beta2" in constants else (b_init**2 + self.steps * clip**2) ** 0.5
        return float(lr / bound)

    def _worst(self, values: Tensor) -> list[float]:
        """Largest of every block."""
        return values.view(self.blocks, self.runs).amax(1).tolist()
