"""Heavy-tailed noise, and the tasks that use it: laws, bounds and counts known beforehand."""

import functools
import math

import numpy as np
import pytest
import scipy.stats
import torch

from methods.train.clip_adam import ClipAdaGradNorm, ClipAdamNorm
from tasks.minimize.heavy_tails import HeavyTailedQuadratic, noise_steps
from tasks.minimize.one_spike import OneSpike
from tasks.minimize.power_law import PowerLaw
from tasks.minimize.step_bounds import StepBounds
from tests.fake_run import FakeRun


@pytest.mark.parametrize("tail", [0.5, 1.5, 3.0])
def test_the_sampler_follows_its_law(tail):
    noise = PowerLaw(tail)
    drawn = noise.sample((200, 100), torch.Generator().manual_seed(0)).flatten()
    test = scipy.stats.kstest(drawn.numpy(), lambda x: noise.cdf(torch.as_tensor(x)).numpy())
    assert test.pvalue > 0.01
    for t in (1.0, 10.0, 100.0):
        expected = (1 + t) ** -tail * drawn.numel()
        assert (drawn.abs() > t).sum().item() == pytest.approx(expected, abs=4 * expected**0.5 + 1)


def test_the_parts_of_the_law_fit_together():
    noise, x = PowerLaw(1.5), torch.linspace(-5, 5, 2001, dtype=torch.float64)
    torch.testing.assert_close(noise.quantile(noise.cdf(x)), x, rtol=1e-9, atol=1e-9)
    mass = torch.trapezoid(noise.density(x), x)
    torch.testing.assert_close(mass, noise.cdf(x[-1]) - noise.cdf(x[0]), rtol=1e-4, atol=0)
    assert noise.density(torch.tensor(0.0)).item() == 0.75
    extreme = noise._inverse(torch.tensor([2.0**-53 - 1, 1 - 2.0**-53], dtype=torch.float64))
    assert extreme.tolist() == pytest.approx([1 - 2 ** (106 / 3), 2 ** (106 / 3) - 1])
    with pytest.raises(ValueError, match="tail must be above 0"):
        PowerLaw(0.0)


def test_the_noise_of_a_block_does_not_depend_on_the_others():
    noise = PowerLaw(1.5)
    few = torch.stack(list(noise_steps(noise, FakeRun(), 2, (3, 1), 10)))
    many = torch.stack(list(noise_steps(noise, FakeRun(), 4, (3, 1), 10, chunk=40)))
    assert few.shape == (10, 6, 1)
    assert torch.equal(few, many[:, :6])
    assert not torch.equal(few[:, :3], few[:, 3:])


def quadratic(**options):
    settings = {"noise": PowerLaw(1.5), "dim": 1, "start": 2.0, "steps": 40, "runs": 30, "blocks": 2}
    return HeavyTailedQuadratic(**{**settings, "levels": [0.3, 0.1], "points": 8, **options})


def test_rows_are_those_of_a_plain_loop():
    run = FakeRun()
    method = functools.partial(ClipAdaGradNorm, lr=0.5, clip=0.5, b_init=1.0, rows=True)
    quadratic().evaluate(method, run)
    x = np.full((2, 30), 2.0)
    b = np.ones_like(x)
    for noise in noise_steps(PowerLaw(1.5), FakeRun(), 2, (30, 1), 40):
        g = x + noise.view(2, 30).numpy()
        h = np.clip(g, -0.5, 0.5)
        b = np.sqrt(b**2 + h**2)
        x = x - 0.5 * h / b
    table = run.tables["block"]
    assert table["median"].tolist() == pytest.approx(np.median(np.abs(x), axis=1), rel=1e-9)
    assert table["mse"].tolist() == pytest.approx((x**2).mean(1), rel=1e-9)
    assert table["signed_mean"].tolist() == pytest.approx(np.abs(x.mean(1)), rel=1e-9)
    q = np.quantile(np.abs(x), [0.7, 0.9], axis=1)
    slopes = np.log(q[1] / q[0]) / np.log(3.0)
    assert table["tail_slope"].tolist() == pytest.approx(slopes, rel=1e-9)
    tails = run.tables["tail"]
    assert tails["distance"].tolist() == pytest.approx(q.T.ravel(), rel=1e-9)
    assert tails["i"].tolist() == [0, 0, 1, 1]
    assert run.curve["step"].tolist()[0] == 0
    assert run.curve["step"].tolist()[-1] == 40
    assert run.curve["q95"][0] == 2.0


def test_the_horizon_reaches_the_method():
    seen = {}

    def method(params, total_steps):
        seen["total_steps"] = total_steps
        return torch.optim.SGD(params, lr=0.1)

    quadratic(steps=7).evaluate(method, FakeRun())
    assert seen == {"total_steps": 7}


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="levels"):
        quadratic(levels=[0.1])
    with pytest.raises(ValueError, match="at least 1"):
        quadratic(runs=0)


# -- bounds on single steps --------------------------------------------------------------------------------------------

NORM = {"lr": 0.5, "b_init": 1.0, "rows": True}
ADAGRAD = functools.partial(ClipAdaGradNorm, **NORM)
ADAM = functools.partial(ClipAdamNorm, betas=(0.0, None), **NORM)


def bounds(method):
    run = FakeRun()
    StepBounds(PowerLaw(1.5), start=2.0, steps=60, runs=50, blocks=2).evaluate(method, run)
    assert len(run.tables["block"]) == 2
    return run.tables["block"]


@pytest.mark.parametrize("base", [ADAGRAD, ADAM], ids=["adagrad", "adam"])
def test_the_bounds_hold(base):
    free = bounds(functools.partial(base, clip_mode="none"))
    assert 0.5 < free["move_ratio"].max() <= 1 + 1e-9
    if base is ADAGRAD:
        assert 0.9 < free["memory_ratio"].max() <= 1 + 1e-9
    assert free["floor_ratio"].isna().all()
    for delay in (False, True):
        tame = bounds(functools.partial(base, clip=0.5, delay=delay))
        assert tame["floor_ratio"].min() >= 1 - 1e-9
    late = bounds(functools.partial(base, clip_mode="none", delay=True))
    assert late["first_ratio"].tolist() == pytest.approx([1.0, 1.0], rel=1e-12)


def test_the_bounds_can_fail():
    late = bounds(functools.partial(ADAGRAD, clip_mode="none", delay=True))
    assert late["move_ratio"].max() > 1.5
    assert bounds(functools.partial(ADAM, clip_mode="none"))["memory_ratio"].max() > 1.5
    with pytest.raises(ValueError, match="without momentum"):
        bounds(functools.partial(ADAGRAD, beta1=0.5))


# -- one bad gradient --------------------------------------------------------------------------------------------------


def spike(method, deltas, **options):
    run = FakeRun()
    settings = {"sigma": 1.0, "start": 5.0, "threshold": 1.0, "eps": 0.005, "max_steps": 3000, "growth": 1.03}
    OneSpike(deltas, **{**settings, **options}).evaluate(method, run)
    return run.tables["delta"]["K"].tolist(), run.summaries


SPIKE = {"lr": 0.5, "b_init": 0.1}


def test_known_counts_after_one_bad_gradient():
    """Counts from an independent simulation; that of Adam-Norm is known to 3%."""
    counts, summary = spike(functools.partial(ClipAdaGradNorm, clip_mode="none", **SPIKE), [1e-3, 1e-4])
    assert counts[1] == 992
    assert summary["slope"] == pytest.approx(math.log(counts[1] / counts[0]) / math.log(10))
    assert spike(functools.partial(ClipAdaGradNorm, clip=1.0, **SPIKE), [1e-3, 1e-4])[0] == [60, 60]
    adam = functools.partial(ClipAdamNorm, betas=(0.0, None), **SPIKE)
    assert spike(functools.partial(adam, clip=1.0), [1e-3, 1e-4])[0] == [10, 10]
    counts, _ = spike(functools.partial(adam, clip_mode="none"), [1e-2, 1e-4])
    assert counts[1] == pytest.approx(117, rel=0.03)


def test_counts_never_fall_below_the_proven_bound():
    counts, _ = spike(functools.partial(ClipAdaGradNorm, clip_mode="none", **SPIKE), [1e-2, 1e-3])
    for delta, count in zip([1e-2, 1e-3], counts, strict=True):
        size = 1 / math.sqrt(2 * delta)
        assert count >= 1 + (5 - 0.1) * (size - 1) / 0.5


def test_a_method_that_does_not_arrive():
    counts, summary = spike(
        functools.partial(ClipAdaGradNorm, clip_mode="none", **SPIKE), [1e-2, 1e-4], max_steps=500
    )
    assert counts[1] is None or math.isnan(counts[1])
    assert summary["slope"] is None
    with pytest.raises(ValueError, match="deltas"):
        spike(None, [0.7, 0.1])
