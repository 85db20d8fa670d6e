"""One pass over a linear model: against a plain loop, and what its rows and curves say."""

import functools
import math

import numpy as np
import pytest
import torch

from methods.minimize.signsgd import (
    Gaussian,
    SignSGD,
    StudentT,
    matched_sgd_ode,
    risk_ode,
    scheduled_risk,
    sgd_scheduled_risk,
    sign_covariance,
    simulate_sde,
    stationary_risk,
)
from tasks.data.tabular import Table
from tasks.minimize import one_pass
from tasks.minimize.inputs import GaussianInputs, TableInputs
from tasks.minimize.one_pass import OnePass, SignMoments
from tasks.minimize.risk import PathsAgainstODE, RiskGap, RiskLimit, TimeToTarget, first_time
from tests.fake_run import FakeRun

SIGN = functools.partial(SignSGD, lr="0.7/d")


def linear(dim, rotated=False):
    return GaussianInputs(dim, low=0.2, high=2.0, rotated=rotated)


@pytest.mark.parametrize("rotated", [False, True])
def test_it_is_the_plain_loop(rotated):
    d, horizon = 20, 2
    run = FakeRun()
    inputs, noise = linear(d, rotated), Gaussian(0.5)
    OnePass(inputs, noise, horizon, repeats=3, theories={"ode": risk_ode}, records=d).evaluate(SIGN, run)
    K = inputs.covariance(run.rng("rotation"))
    full = np.diag(K) if K.ndim == 1 else K
    for i in range(3):
        target = run.rng("start", i).standard_normal(d) / math.sqrt(d)
        X = inputs.sampler(K, run.rng("inputs", i))(horizon * d)
        y = X @ target + noise.sample(horizon * d, run.rng("noise", i))
        theta, risks = np.zeros(d), [target @ full @ target / 2]
        for x, label in zip(X, y, strict=True):
            theta -= 0.7 / d * np.sign((x @ theta - label) * x)
            risks.append((theta - target) @ full @ (theta - target) / 2)
        ode = risk_ode(K, -target, 0.7, noise)([0.0, 1.0, 2.0])
        error = np.abs(np.array(risks)[[0, d, 2 * d]] - ode).max()
        row = run.tables["repeat"].iloc[i]
        assert row["final_risk"] == pytest.approx(risks[-1], rel=1e-9)
        assert row["peak"] == pytest.approx(max(risks) / risks[0], rel=1e-9)
        assert row["growth"] == pytest.approx(risks[-1] / risks[0], rel=1e-9)
        assert row["error_ode"] == pytest.approx(error, rel=1e-5)
        assert row["relative_error_ode"] == pytest.approx(error / ode.max(), rel=1e-5)


def test_repeats_and_blocks_change_no_number(monkeypatch):
    def rows(repeats):
        run = FakeRun()
        OnePass(linear(30), StudentT(3.0), 2, repeats).evaluate(SIGN, run)
        return run.tables["repeat"]

    five = rows(5)
    monkeypatch.setattr(one_pass, "BLOCK", 700)
    two = rows(2)
    assert two["final_risk"].to_list() == pytest.approx(five["final_risk"][:2].to_list(), rel=1e-9)


def test_the_average_and_the_limit():
    run = FakeRun()
    task = OnePass(linear(50), Gaussian(0.5), 20, 4, limit=stationary_risk, average_from=10.0)
    task.evaluate(SIGN, run)
    table = run.tables["repeat"]
    assert (table["limit_risk"] == stationary_risk(task.inputs.eigenvalues, 0.7, Gaussian(0.5))).all()
    assert table["average_risk"].mean() == pytest.approx(table["limit_risk"][0], rel=0.15)
    assert len(run.curve) <= 130
    assert run.curve["time"].iloc[-1] == 20


def test_torch_optimizers_fit():
    for method in (
        functools.partial(torch.optim.SGD, lr="0.5/d"),
        functools.partial(torch.optim.Adam, lr="0.5/d", betas=(0.5, 0.5), eps=0.0),
    ):
        run = FakeRun()
        OnePass(linear(20), None, 3, 2).evaluate(method, run)
        assert run.summaries["growth"] < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats, horizon and records"),
        ({"average_from": 9.0}, r"average_from must be in \[0, 2\)"),
    ],
)
def test_bad_tasks_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        OnePass(linear(5), None, **({"horizon": 2, "repeats": 1} | options))


def test_inputs_have_their_covariance():
    for inputs in (linear(6), linear(6, rotated=True), GaussianInputs(6, "power", exponent=0.5)):
        K = inputs.covariance(np.random.default_rng(0))
        X = inputs.sampler(K, np.random.default_rng(1))(100_000)
        full = np.diag(K) if K.ndim == 1 else K
        assert np.abs(X.T @ X / 100_000 - full).max() < 0.05
        assert np.linalg.eigvalsh(full) == pytest.approx(np.sort(inputs.eigenvalues))
    for arguments in ({"spectrum": "flat"}, {"low": 0.0}, {"dim": 0}):
        with pytest.raises(ValueError):
            GaussianInputs(**({"dim": 3} | arguments))


class Door:
    def load(self):
        rng = np.random.default_rng(0)
        X = rng.integers(-1, 2, (60, 5)).astype(float)
        X[:, 3] = 7.0
        X[:, 4] = np.tile([-1.0, 0.0, 1.0], 20)  # its mean is 0
        return Table("small", X, np.ones(60))


def test_a_table_loses_constants_and_zeros_and_is_reshuffled():
    inputs = TableInputs(Door())
    assert inputs.dim == 4
    assert (inputs.X != 0).all()
    K = inputs.covariance(np.random.default_rng(0))
    assert np.diag(K) == pytest.approx(1.001)
    draw = inputs.sampler(K, np.random.default_rng(0))
    first, second = draw(60), np.concatenate([draw(25), draw(35)])
    assert not (first == second).all()
    key = [tuple(row) for row in inputs.X]
    assert sorted(map(tuple, first)) == sorted(map(tuple, second)) == sorted(key)
    run = FakeRun()
    OnePass(inputs, Gaussian(0.5), 2, 2, theories={"ode": risk_ode}).evaluate(SIGN, run)
    assert run.summaries["relative_error_ode"] < 1
    normal = TableInputs(Door(), gaussian=True).sampler(K, np.random.default_rng(0))(50_000)
    assert normal.T @ normal / 50_000 == pytest.approx(K, abs=0.05)


def test_moments_of_signs():
    run = FakeRun()
    SignMoments(linear(8, rotated=True), sign_covariance, samples=20_000, batch=3000).evaluate(SIGN, run)
    assert run.summaries["largest_z"] < 5
    assert run.summaries["diagonal_error"] < 1e-9
    wrong = FakeRun()
    SignMoments(linear(8, rotated=True), lambda K: math.pi / 2 * np.eye(8), samples=20_000).evaluate(
        SIGN, wrong
    )
    assert wrong.summaries["largest_z"] > 5


def test_two_theories_side_by_side():
    run = FakeRun()
    reference = functools.partial(matched_sgd_ode, lr=0.7)
    task = RiskGap(GaussianInputs(20), Gaussian(0.5), reference, horizon=5.0)
    task.evaluate(functools.partial(risk_ode, lr=0.7), run)
    assert run.summaries["gap"] <= 1e-8
    task.evaluate(functools.partial(risk_ode, lr=0.8), other := FakeRun())
    assert other.summaries["gap"] > 1e-3


def test_where_a_theory_ends():
    run = FakeRun()
    RiskLimit(linear(20), StudentT(2.1), 60.0).evaluate(functools.partial(risk_ode, lr=0.7), run)
    assert run.summaries["limit"] == pytest.approx(
        stationary_risk(linear(20).eigenvalues, 0.7, StudentT(2.1)), rel=1e-3
    )
    assert run.summaries["change"] < 1e-3


def test_the_best_time_of_a_grid():
    """For K = I signSGD's risk decays like exp(-(4c/π - c²) t), fastest at c = 2/π, SGD's like exp(-(2γ - γ²) t)."""
    for method, rates, rate in (
        (scheduled_risk, (0.02, 20.0, 301), 4 / math.pi**2),
        (sgd_scheduled_risk, (0.02, 200.0, 401), 1.0),
    ):
        run = FakeRun()
        TimeToTarget(GaussianInputs(10), rates, [1, 2], draws=2, longest=1e3).evaluate(method, run)
        table = run.tables["draw"]
        assert table["time_2"].to_list() == pytest.approx([math.log(100) / rate] * 2, rel=1e-3)
        assert table["best_inside_2"].all()
    with pytest.raises(ValueError, match="rates must be"):
        TimeToTarget(GaussianInputs(10), (1.0, 0.5, 3), [1], 1, 10.0)


def test_a_target_that_is_never_reached_is_missing():
    assert first_time(np.array([0.0, 1.0]), np.array([1.0, 0.5]), 0.1) == math.inf
    run = FakeRun()
    TimeToTarget(GaussianInputs(5), (1e-6, 2e-6, 2), [1], draws=1, longest=1.0).evaluate(
        sgd_scheduled_risk, run
    )
    assert run.tables["draw"]["time_1"].isna().all()


def test_paths_beside_the_ode():
    run = FakeRun()
    task = PathsAgainstODE(linear(30), Gaussian(0.5), risk_ode, 0.7, [0, 1], paths=20)
    task.evaluate(functools.partial(simulate_sde, dt=0.02), run)
    table = run.tables["path"]
    assert len(table) == 40
    assert list(table.columns) == ["i", "path", "time", "risk", "ode"]
    at_1 = table[table["time"] == 1.0]
    assert at_1["risk"].mean() == pytest.approx(at_1["ode"].iloc[0], rel=0.15)
