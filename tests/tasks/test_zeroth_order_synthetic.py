"""Test functions, the synthetic examination and the frozen gradient."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.zeroth_order.radazo import RAdaZO
from methods.zeroth_order.zo_adamm import ZOAdaMM
from tasks.zeroth_order import functions
from tasks.zeroth_order.frozen import FrozenLinear
from tasks.zeroth_order.synthetic import Synthetic
from tests.fake_run import FakeRun


def scalar_quadratic(x):
    return sum(v * v for v in x) / 2


def scalar_rosenbrock(x):
    return sum(100 * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2 for i in range(len(x) - 1))


def scalar_ackley(x):
    d = len(x)
    root = math.sqrt(sum(v * v for v in x) / d)
    ripples = sum(math.cos(2 * math.pi * v) for v in x) / d
    return -20 * math.exp(-0.2 * root) - math.exp(ripples) + 20 + math.e


def scalar_levy(x):
    w = [1 + (v - 1) / 4 for v in x]
    bowl = sum((v - 1) ** 2 * (1 + 10 * math.sin(math.pi * v + 1) ** 2) for v in w[:-1])
    last = (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
    return math.sin(math.pi * w[0]) ** 2 + bowl + last


SCALAR = {
    "quadratic": scalar_quadratic,
    "rosenbrock": scalar_rosenbrock,
    "ackley": scalar_ackley,
    "levy": scalar_levy,
}


@given(
    name=st.sampled_from(sorted(SCALAR)),
    x=st.lists(st.floats(-5, 5), min_size=2, max_size=6),
    y=st.floats(-5, 5),
)
def test_functions_against_scalar_code(name, x, y):
    points = torch.tensor([x, [y] * len(x)], dtype=torch.float64)
    before = points.clone()
    expected = torch.tensor([SCALAR[name](row) for row in points.tolist()], dtype=torch.float64)
    function = getattr(functions, name)
    torch.testing.assert_close(function(points), expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(function(points)[0], function(points[0]))  # rows do not depend on one another
    assert torch.equal(points, before)


@pytest.mark.parametrize(
    ("name", "minimizer"), [("quadratic", 0), ("rosenbrock", 1), ("ackley", 0), ("levy", 1)]
)
def test_minima(name, minimizer):
    point = torch.full((7,), float(minimizer), dtype=torch.float64)
    assert getattr(functions, name)(point).item() == pytest.approx(0, abs=1e-12)


def test_values_by_hand():
    point = torch.tensor([-3.0, 2.0], dtype=torch.float64)
    assert functions.rosenbrock(point).item() == 4916
    ackley = 20 + math.e - 20 * math.exp(-0.2) - math.e  # at (1, 1) every ripple is at its top
    assert functions.ackley(torch.ones(2, dtype=torch.float64)).item() == pytest.approx(ackley)


def method(cls=RAdaZO, **options):
    return partial(cls, **({"lr": 0.01, "n_samples": 4, "mu": 0.05} | options))


def examined(steps=120, seed=0, run=None, cls=RAdaZO, **options):
    run = run or FakeRun(seed)
    settings = {"dim": 8, "steps": steps, "target": 0.5, "log_every": 10} | options
    Synthetic(functions.quadratic, **settings).evaluate(method(cls), run)
    return run


def test_hitting_time_and_summary():
    run = examined()
    x = torch.randn(8, generator=run.generator("start")).double().requires_grad_()
    initial = functions.quadratic(x.detach()).item()
    optimizer = method()([x], generator=run.generator("directions"))
    hit = None
    for step in range(121):
        if hit is None and functions.quadratic(x.detach()).item() <= initial / 2:
            hit = step
        if step < 120:
            optimizer.step(batched=functions.quadratic)
    summary = run.summaries
    assert summary["steps_to_target"] == hit
    assert summary["initial_gap"] == initial
    assert summary["final_gap"] == functions.quadratic(x.detach()).item()
    assert summary["function_values"] == 120 * 5
    curve = run.curve
    assert curve["step"].tolist() == list(range(0, 130, 10))
    assert summary["mean_gradient_sq"] == pytest.approx(curve["gradient_sq"][:-1].mean())
    assert curve["gradient_sq"].tolist() == pytest.approx(
        (2 * curve["gap"]).tolist()
    )  # of half a squared norm


def test_never_reaching_the_target():
    assert examined(steps=10, target=1e-6).summaries["steps_to_target"] is None


def test_float32_on_request():
    run = FakeRun(dtype=torch.float32)
    assert examined(run=run).summaries["final_gap"] != examined().summaries["final_gap"]


@pytest.mark.parametrize("cls", [RAdaZO, ZOAdaMM])
def test_an_interrupted_run_goes_on_bitwise(cls, monkeypatch):
    monkeypatch.setattr("tasks.zeroth_order.synthetic.CHECKPOINT_SECONDS", -1.0)  # at every step
    whole = examined(cls=cls)
    run = FakeRun()
    for steps in (37, 50):
        run.stop_after = steps
        with pytest.raises(KeyboardInterrupt):
            examined(run=run, cls=cls)
    run.stop_after = None
    examined(run=run, cls=cls)
    assert run.summaries == whole.summaries
    assert run.metrics == whole.metrics


@pytest.mark.parametrize(
    ("options", "message"), [({"dim": 0}, "dim"), ({"steps": 0}, "steps"), ({"target": 1.0}, "target")]
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        Synthetic(functions.quadratic, **({"dim": 2, "steps": 2, "target": 0.5, "log_every": 1} | options))


def test_a_diverging_run_says_so():
    def explode(points):
        return points.square().sum(-1).exp() ** 50

    with pytest.raises(FloatingPointError):
        Synthetic(explode, dim=4, steps=50, target=0.5, log_every=1).evaluate(method(lr=1000.0), FakeRun())


@pytest.mark.parametrize(("cls", "factor"), [(RAdaZO, 1 / 19), (ZOAdaMM, 1.0)])
def test_frozen_gradient(cls, factor):
    """Closed forms at d = 20, K = 4: (d-1)/K, (1-b)/(1+b), and s^2 or s^2/19 above the squared gradient."""
    run = FakeRun()
    options = {"betas": (0.9, 0.99), "n_samples": 4, "mu": 0.1, "scale_by_dim": True}
    FrozenLinear(dim=20, steps=1500, burn_in=700, repeats=3).evaluate(partial(cls, **options), run)
    table = run.tables["repeat"]
    assert len(table) == 3
    assert table["estimate_error"].mean() == pytest.approx(19 / 4, rel=0.06)
    assert table["variance_ratio"].mean() == pytest.approx(1 / 19, rel=0.2)
    assert table["second_moment_error"].mean() == pytest.approx(factor, rel=0.35)


def test_a_repeat_does_not_depend_on_the_others():
    tables = []
    for repeats in (1, 3):
        run = FakeRun()
        options = {"n_samples": 2, "mu": 0.1, "scale_by_dim": True}
        FrozenLinear(dim=5, steps=150, burn_in=100, repeats=repeats).evaluate(partial(RAdaZO, **options), run)
        tables.append(run.tables["repeat"])
    assert tables[0].iloc[0].equals(tables[1].iloc[0])
