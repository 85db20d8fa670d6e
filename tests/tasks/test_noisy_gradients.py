"""Noise in gradients: added to them, and measured in them."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from methods.train.clip_adam import ClipAdam
from tasks.minimize.power_law import PowerLaw
from tasks.training.examples import TensorExamples
from tasks.training.loop import Loop, Problem
from tasks.training.noisy_gradients import GradientNoise, NoisyGradients, outlier_ratios
from tasks.training.recipe import Recipe
from tests.fake_run import FakeRun
from tests.tasks.training_cases import DiskRun, Killed

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]])


def model() -> nn.Module:
    net = nn.Linear(3, 1)
    nn.init.constant_(net.weight, 0.1)
    nn.init.zeros_(net.bias)
    return net


def problem() -> Problem:
    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(net(batch[0]), batch[1])

    return Problem(TensorExamples(X, Y), loss, lambda net, batch: {"loss": loss(net, batch)})


class Recorder(torch.optim.SGD):
    """Keeps every gradient that it is given; calls its closure twice."""

    def __init__(self, params: Any, seen: list[list[torch.Tensor]]) -> None:
        super().__init__(params, lr=0.0)
        self.seen = seen

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        closure()
        loss = closure()
        self.seen.append([p.grad.clone() for p in self.param_groups[0]["params"]])
        return loss


def gradients(scale: float, seed: int = 0, steps: int = 300) -> torch.Tensor:
    """Flat gradients [steps, 4] of a network that stands still."""
    seen: list[list[torch.Tensor]] = []
    loop = Loop(12, steps=steps, points=1, evaluations=1)
    NoisyGradients(loop, PowerLaw(1.5), scale).fit(
        FakeRun(seed), Recipe.of(functools.partial(Recorder, seen=seen)), model(), problem()
    )
    return torch.stack([torch.cat([g.flatten() for g in step]) for step in seen])


def test_added_noise_has_the_law_and_all_directions() -> None:
    noise = gradients(2.0) - gradients(0.0)
    sizes = noise.norm(dim=1) / 2
    for t in (0.587401, 5.0):  # the median, and the tail
        assert (sizes > t).double().mean().item() == pytest.approx((1 + t) ** -1.5, abs=0.08)
    directions = noise / noise.norm(dim=1, keepdim=True)
    assert directions.mean(0).abs().max() < 0.12
    assert (directions.square().mean(0) - 0.25).abs().max() < 0.06
    assert torch.equal(gradients(2.0), gradients(2.0))
    assert not torch.equal(gradients(2.0), gradients(2.0, seed=1))


def test_noisy_training_goes_on_bit_by_bit() -> None:
    def go(run: FakeRun, die_at: int | None = None) -> FakeRun:
        count = itertools.count()

        class Mortal(ClipAdam):
            def step(self, closure: Any = None) -> Any:
                if next(count) == die_at:
                    raise Killed
                return super().step(closure)

        loop = Loop(4, epochs=4, points=4, evaluations=2, checkpoint_every=3)
        noisy = NoisyGradients(loop, PowerLaw(1.5), 0.5)
        method = functools.partial(Mortal, lr=0.05)
        run.summary(**noisy.fit(run, Recipe.of(method), model(), problem()))
        return run

    whole, run = go(DiskRun()), DiskRun()
    with pytest.raises(Killed):
        go(run, die_at=8)
    go(run)
    assert (run.metrics, run.summaries) == (whole.metrics, whole.summaries)


def test_measured_noise_is_that_of_the_batches() -> None:
    run = FakeRun()
    found = GradientNoise(batch_size=4, batches=50).fit(run, Recipe.of(torch.optim.SGD), model(), problem())

    def gradient(rows: torch.Tensor) -> torch.Tensor:
        net = model()
        nn.functional.mse_loss(net(X[rows]), Y[rows]).backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    whole = gradient(torch.arange(12))
    assert found["gradient_norm"] == pytest.approx(whole.norm().item(), rel=1e-5)
    index = torch.randperm(12, generator=run.generator("noise batches", 7))[:4]
    norms = run.tables["batch"]["norm"]
    assert norms[7] == pytest.approx((gradient(index) - whole).norm().item(), rel=1e-4)
    assert found["noise_mean"] == pytest.approx(norms.mean())
    assert (found["rho_moderate"], found["rho_extreme"]) == outlier_ratios(norms)


def test_outliers_of_a_normal_law_count_one() -> None:
    sample = np.random.default_rng(0).standard_normal(400_000)
    moderate, extreme = outlier_ratios(sample)
    assert moderate == pytest.approx(1.0, abs=0.1)
    assert extreme < 10
    heavy = PowerLaw(1.5).sample((10_000,), torch.Generator().manual_seed(0)).tolist()
    assert outlier_ratios(heavy)[1] > 1e4


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="scale must be at least 0"):
        NoisyGradients(Loop(1, steps=1), PowerLaw(), -1.0)
    with pytest.raises(ValueError, match="batches at least 4"):
        GradientNoise(1, 3)
