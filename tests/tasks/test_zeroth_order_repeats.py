"""Global search over repeats, smoothed surrogates, estimates: hand-computed values, independence of the batch."""

import math
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from methods.zeroth_order.gs_poweropt import GSPowerOpt
from tasks.zeroth_order import functions
from tasks.zeroth_order.repeats import Repeats
from tasks.zeroth_order.smoothing import EstimatorError, SmoothedMaximizer, smoothed_quadratic
from tests.fake_run import FakeRun

HOME = Path(__file__).resolve().parents[2]


def test_known_values_of_the_test_functions():
    def at(function, *x):
        return function(torch.tensor(x, dtype=torch.float64)).item()

    assert 20 + math.e - at(functions.ackley, 1.0, 1.0) == pytest.approx(19.0928969, abs=1e-7)
    assert at(functions.ackley, 0.0, 0.0) == pytest.approx(0.0, abs=1e-12)
    assert -at(functions.rosenbrock, -3.0, 2.0) == -4916
    for d, value in ((1, 11.502975), (2, 10.814791), (5, 9.901490)):
        assert -at(functions.two_log, *[-0.5] * d) == pytest.approx(value, abs=1e-6)


def test_the_two_log_function_has_two_pits():
    grid = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    values = functions.two_log(grid.unsqueeze(1))
    assert grid[values.argmin()].item() == pytest.approx(-0.5)
    right = values[grid > 0]
    assert grid[grid > 0][right.argmin()].item() == pytest.approx(0.5, abs=0.02)
    assert right.min() - values.min() > 5


class Steps:
    """An optimizer that goes where it is told: repeat r is at `path[step][r]` after each step."""

    def __init__(self, path, params, generator):
        self.path, self.x, self.step_no = path, params[0], 0
        self.param_groups, self.state = [], {}

    @torch.no_grad()
    def step(self, *, batched):
        values = batched(self.x.unsqueeze(1))
        self.x.copy_(torch.tensor(self.path[self.step_no]))
        self.step_no += 1
        return values[:, 0]


def bowl(x):
    return (x - 1).square().sum(-1)


def told(path, **options):
    run = FakeRun()
    settings = {
        "minimizer": [1.0, 2.0],
        "dim": 2,
        "start": "normal",
        "center": 5.0,
        "spread": 0.1,
        "target": 0.5,
    }
    task = Repeats(bowl, **settings | {"repeats": len(path[0]), "steps": len(path), **options})
    task.evaluate(lambda params, generator: Steps(path, params, generator), run)
    return run


def test_which_iterates_are_looked_at():
    nan = float("nan")
    first = [[3.0, 2.0], [1.0, 1.0], [1.0, 2.5], [5.0, 2.0]]
    second = [[9.0, 9.0], [1.0, 3.0], [nan, 2.0], [nan, nan]]
    third = [[nan, nan]] * 4
    run = told(list(zip(first, second, third, strict=True)))
    rows = run.tables["repeat"]
    row = rows.iloc[0]
    # mean squared errors 2, 0.5, 0.125, 8; objectives 4 + 1, 0, 2.25, 16 + 1
    assert (row.nearest_mse, row.nearest_step, row.nearest_loss) == (0.125, 3, 2.25)
    assert (row.best_mse, row.best_step, row.best_loss) == (0.5, 2, 0.0)
    assert (row.last_mse, row.last_loss) == (8.0, 17.0)
    assert row.steps_to_target == 2
    row = rows.iloc[1]
    assert (row.nearest_mse, row.nearest_step) == (0.5, 2)
    assert pd.isna(row.last_mse)
    assert pd.isna(row.last_loss)
    assert rows.iloc[2][[c for c in rows if c.endswith(("mse", "loss", "target"))]].isna().all()
    assert run.summaries["last_mse"] is None
    assert run.summaries["nearest_mse"] is None
    assert run.summaries["reached"] == pytest.approx(2 / 3)
    assert run.summaries["mean_steps_to_target"] == pytest.approx((2 + 2 + 4) / 3)
    assert run.summaries["values_per_step"] == 1
    assert run.curve["step"].tolist() == [0]  # later means are not finite


def test_curves_and_means():
    run = told([[[1.0, 2.0], [3.0, 2.0]], [[1.0, 4.0], [1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]]])
    assert run.curve["step"].tolist() == [0, 1, 2, 3]
    assert run.curve["mse"].tolist()[1:] == [1.0, 1.0, 0.0]
    assert run.curve["nearest_mse"].tolist()[1:] == [1.0, 0.0, 0.0]
    assert run.summaries["nearest_mse"] == 0
    assert run.summaries["nearest_step"] == 1.5
    assert run.summaries["best_step"] == pytest.approx((1 + 2) / 2)
    assert len(told([[[0.0, 0.0]]] * 700, points=50).curve) == 51


@pytest.mark.parametrize(("start", "center"), [("normal", 5.0), ("uniform", [2.0, -3.0])])
def test_starts(start, center):
    seen = []

    def method(params, generator):
        seen.append(params[0].detach().clone())
        return Steps([[[0.0, 0.0]] * 400], params, generator)

    for _ in range(2):
        task = Repeats(bowl, 0.0, 2, start, center, 0.5, repeats=400, steps=1, target=0.1)
        task.evaluate(method, FakeRun(seed=3))
    assert torch.equal(*seen)
    apart = seen[0] - torch.tensor(center, dtype=torch.float64)
    assert apart.mean(0) == pytest.approx([0, 0], abs=0.1)
    assert apart.std(0) == pytest.approx([0.5 if start == "normal" else 0.5 / math.sqrt(3)] * 2, rel=0.15)
    if start == "uniform":
        assert apart.abs().max() <= 0.5


@pytest.mark.parametrize("name", ["global_ackley", "global_rosenbrock", "two_log"])
def test_a_repeat_does_not_depend_on_how_many_there_are(name):
    node = yaml.safe_load((HOME / "conf/task/zeroth_order" / f"{name}.yaml").read_text())
    function = getattr(functions, node.pop("function")["_target_"].rsplit(".", 1)[1])
    node = {key: value for key, value in node.items() if key not in ("_target_", "compare")}
    tables = []
    for repeats in (1, 2, 5, 8):
        run = FakeRun(seed=1)
        task = Repeats(function, **node | {"repeats": repeats, "steps": 30})
        task.evaluate(partial(GSPowerOpt, N=2.0, decay_steps=1000.0), run)
        tables.append(run.tables["repeat"])
    for table in tables[:-1]:
        pd.testing.assert_frame_equal(
            table, tables[-1].iloc[: len(table)], check_exact=True, check_dtype=False
        )


def test_known_iteration_of_table_1():
    """20 repeats: best of EPGS's grid, mean squared error 6.5e-5 at the nearest iterate (about the
    149th), 0.006 to 0.01 at the last."""
    run = FakeRun()
    task = Repeats(functions.ackley, 0.0, 2, "normal", 5.0, 0.01, repeats=100, steps=200, target=0.01)
    task.evaluate(partial(GSPowerOpt, lr=0.1, sigma=1.0, N=2.0, n_samples=10, decay_steps=1000), run)
    assert 3e-5 < run.summaries["nearest_mse"] < 1.5e-4
    assert 140 < run.summaries["nearest_step"] < 160
    assert 0.005 < run.summaries["last_mse"] < 0.013


def test_bad_arguments():
    good = {
        "minimizer": 0.0,
        "dim": 2,
        "start": "normal",
        "center": 0.0,
        "spread": 1.0,
        "repeats": 1,
        "steps": 1,
    }
    for bad, message in (
        ({"repeats": 0}, "must be at least 1"),
        ({"start": "gaussian"}, "'normal' or 'uniform', not 'gaussian'"),
        ({"center": [1.0]}, "center has 1 coordinates, not 2"),
        ({"minimizer": [1.0, 2.0, 3.0]}, "minimizer has 3 coordinates, not 2"),
    ):
        with pytest.raises(ValueError, match=message):
            Repeats(bowl, target=0.1, **good | bad)


@pytest.mark.parametrize(
    ("variant", "known"),
    [("pgs", {1: -0.04, 5: -0.25, 15: -0.49}), ("epgs", {0.1: -0.07, 0.4: -0.32, 1: -0.49})],
)
def test_known_maximizers_of_figure_1(variant, known):
    found = {}
    for N in known:
        run = FakeRun()
        SmoothedMaximizer(functions.two_log, -0.5, -1.0, 1.0, 200).evaluate(
            partial(GSPowerOpt, variant=variant, N=N, sigma=0.5, shift=10.0), run
        )
        found[N] = run.summaries["maximizer"]
        assert run.summaries["distance"] == pytest.approx(abs(found[N] + 0.5))
        assert len(run.curve) == 200
        assert run.curve["surrogate"].max() == run.curve["transformed"].max() == 1
        assert run.curve["mu"].iloc[run.curve["surrogate"].argmax()] == found[N]
    assert found == pytest.approx(known, abs=0.0101)  # the grid's step is 0.01


def test_the_surrogate_of_a_narrow_smoothing_is_the_function():
    run = FakeRun()
    task = SmoothedMaximizer(lambda x: (x - 0.2).square().sum(-1), 0.2, -1.0, 1.0, 100)
    task.evaluate(partial(GSPowerOpt, N=3.0, sigma=0.001), run)
    assert run.curve["surrogate"].to_numpy() == pytest.approx(run.curve["transformed"].to_numpy(), rel=1e-6)
    assert run.summaries["maximizer"] == pytest.approx(0.2)


def test_the_closed_form_against_quadrature():
    x = torch.linspace(-9, 9, 200_001, dtype=torch.float64)
    for mu, c, N, sigma in ((0.0, 1.0, 1.0, 1.0), (0.4, -0.7, 2.5, 0.6)):
        density = torch.exp(-((x - mu) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
        exact = torch.trapezoid((x - mu) * torch.exp(-N * (x - c) ** 2 / 2) * density, x)
        found = smoothed_quadratic(
            torch.tensor([mu], dtype=x.dtype), torch.tensor([c], dtype=x.dtype), N, sigma
        )
        assert found.item() == pytest.approx(exact.item(), rel=1e-9)
    two = smoothed_quadratic(torch.zeros(2).double(), torch.ones(2).double(), 1.0, 1.0)
    assert two.tolist() == pytest.approx([0.5 / 2 * math.exp(-0.5)] * 2)


def test_the_estimate_is_unbiased_and_its_error_falls_as_one_over_the_root():
    run = FakeRun()
    EstimatorError(dim=2, offset=1.0, samples=[4, 64], blocks=10, estimates=100).evaluate(GSPowerOpt, run)
    levels, blocks = run.tables["level"], run.tables["block"]
    assert levels["samples"].tolist() == [4, 64]
    assert (levels["z"] < 4).all()
    errors = blocks.groupby("samples")["rms_error"].mean()
    assert errors[4] / errors[64] == pytest.approx(4, rel=0.1)
    assert run.summaries["largest_z"] == levels["z"].max()


class Biased(GSPowerOpt):
    def learn(self, x, points, losses):
        moved = super().learn(x, points, losses)
        self.memory["estimate"] = 1.3 * self.memory["estimate"]
        return moved


def test_a_biased_estimate_is_found_out():
    run = FakeRun()
    EstimatorError(dim=2, offset=1.0, samples=[100], blocks=10, estimates=100).evaluate(Biased, run)
    assert run.summaries["largest_z"] > 4
