"""Finite sums: constants, least values and subgradients against independent ones; the exam against a plain loop."""

import functools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.utils.data import RandomSampler

from methods.minimize import shuffling
from tasks.data.tabular import Table
from tasks.minimize import finite_sums, shuffling_rates
from tasks.minimize.finite_sums import LeastAbsoluteDeviations, LinearClassifier, LinearModel, Tug, TugOfWar
from tests.fake_run import FakeRun


def method(sampler, power=0.25, **step):
    return {
        "sampler": sampler,
        "optimizer": shuffling.ProximalSGD,
        "step": functools.partial(shuffling.StepSize, power=power, **step),
        "average": shuffling.SuffixAverage,
    }


RR, IG, GD = (
    method(make) for make in (shuffling.RandomReshuffle, shuffling.Incremental, shuffling.FullBatch)
)


def examined(task, how, seed=0):
    run = FakeRun(seed)
    task.evaluate(how, run)
    return run


def rows(run, epochs):
    table = run.tables["repeat"]
    return table[table["epochs"] == epochs].set_index("i").drop(columns="epochs")


# -- problems ----------------------------------------------------------------------------------------------------------


def models():
    rng = np.random.default_rng(0)
    A, x = rng.standard_normal((2, 12, 3)), np.full((2, 3), 0.5)
    labels = np.sign(rng.standard_normal((2, 12)))
    yield LinearModel(A, rng.standard_normal((2, 12)), "absolute", {"l1": 0.1}, x)
    yield LinearModel(A, labels, "hinge", {"l2_squared": 0.1}, x)
    yield LinearModel(A, labels, "logistic", {}, x)


@pytest.mark.parametrize("model", list(models()), ids=lambda model: model.loss)
def test_subgradients_by_differences(model):
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    every = torch.arange(model.n).expand(2, -1)
    smooth = LinearModel(model.A.numpy(), model.b.numpy(), model.loss, {}, np.zeros((2, 3)))
    singles = torch.stack([model.gradient(x, every[:, i : i + 1]) for i in range(model.n)])
    assert torch.allclose(singles.mean(0), model.gradient(x, every))
    for j in range(3):
        h = torch.zeros(3, dtype=torch.float64)
        h[j] = 1e-6
        difference = (smooth.value(x + h) - smooth.value(x - h)) / 2e-6
        assert torch.allclose(model.gradient(x, every)[:, j], difference, atol=1e-6)
    assert float(singles.norm(dim=-1).max()) <= float(model.A.norm(dim=-1).max()) + 1e-12


def test_the_tug_of_war():
    tug = Tug(4, 0.2, 1.0)
    x = torch.tensor([[2.0], [-1.0], [0.0]], dtype=torch.float64)
    assert tug.value(x).tolist() == pytest.approx([0.4 + 2.0, 0.2 + 0.5, 0.0])
    assert tug.gradient(x, torch.tensor([[0], [1], [3]])).flatten().tolist() == pytest.approx(
        [1.2, 0.8, -1.0]
    )
    assert tug.gradient(x, torch.arange(4).expand(3, -1)).flatten().tolist() == pytest.approx(
        [0.2, -0.2, 0.0]
    )
    with pytest.raises(ValueError, match="even n"):
        Tug(3, 0.2, 0.0)


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_least_deviations_against_a_search(weight):
    rng = np.random.default_rng(3)
    A = rng.standard_normal((40, 3))
    b = A @ [1.0, -0.5, 0.0] + rng.laplace(size=40)

    def objective(x):
        return np.abs(A @ x - b).mean() + weight * np.abs(x).sum()

    x = finite_sums.least_deviations(A, b, weight)
    found = minimize(
        objective, x + 0.1, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 4000}
    )
    assert objective(x) <= found.fun + 1e-9
    assert objective(x) == pytest.approx(found.fun, abs=1e-4)


def test_least_classifiers_against_nearby_points():
    rng = np.random.default_rng(4)
    A = rng.standard_normal((60, 4))
    y = np.sign(A[:, 0] + 0.5 * rng.standard_normal(60))
    for loss, solve in (("hinge", finite_sums.least_hinge), ("logistic", finite_sums.least_logistic)):
        x = solve(A, y, 0.1)
        model = LinearModel(A[None], y[None], loss, {"l2_squared": 0.1}, x[None])
        near = torch.from_numpy(x + 1e-2 * rng.standard_normal((500, 4)))
        assert (model.value(near) >= model.best - 1e-7).all()


@pytest.mark.parametrize("regularizer", ["none", "l1", "ball"])
def test_deviations_are_scaled_to_distance_one(regularizer):
    task = LeastAbsoluteDeviations(n=32, dim=3, regularizer=regularizer, noise=1.0, epochs=[1], repeats=4)
    problem = task.problem(FakeRun())
    assert abs(problem.D - 1) < 1e-12
    assert abs(problem.G - problem.A.norm(dim=-1).mean()) < 0.3
    assert problem.best.shape == (4,)
    assert len(set(problem.best.tolist())) == 4
    more = LeastAbsoluteDeviations(n=32, dim=3, regularizer=regularizer, noise=1.0, epochs=[1], repeats=6)
    assert torch.equal(more.problem(FakeRun()).b[:4], problem.b)


# -- the exam ----------------------------------------------------------------------------------------------------------


def test_the_exam_is_the_plain_loop():
    run = examined(TugOfWar(6, 0.2, 1.0, epochs=[1, 2], repeats=3), RR)
    step = shuffling.StepSize(n=6, G=1.2, D=1.0, mu=1.0)
    signs = [1, 1, 1, -1, -1, -1]
    for i in range(3):
        order = shuffling.RandomReshuffle(range(6), FakeRun().generator("order", i))
        x, path, middle = 1.0, [], None
        for epoch in range(3):
            for k, j in enumerate(order):
                t = len(path) + 1
                x = (x - step(t) * (0.2 * np.sign(x) + signs[j])) / (1 + step(t))
                path.append(x)
                if epoch == 2 and k == 2:
                    middle = x

        def value(x):
            return 0.2 * abs(x) + x**2 / 2

        row = rows(run, 2).loc[i]
        assert row["error"] == pytest.approx(value(path[11]))
        assert row["half"] == pytest.approx(value(middle))
        assert row["suffix"] == pytest.approx(value(np.mean(path[6:12])))
        assert row["uniform"] == pytest.approx(value(np.mean(path[:12])))
        assert rows(run, 1).loc[i]["half"] == pytest.approx(value(path[8]))
    assert run.summaries["steps"] == 15
    assert run.summaries["error"] == pytest.approx(rows(run, 2)["error"].mean())


def test_a_replicate_does_not_depend_on_the_others():
    few, many = (examined(TugOfWar(8, 0.2, 0.0, [3], repeats), RR) for repeats in (2, 5))
    assert rows(few, 3)["error"].tolist() == rows(many, 3)["error"].tolist()[:2]
    few, many = (
        examined(LeastAbsoluteDeviations(16, 2, "ball", 1.0, [2], repeats), RR) for repeats in (2, 5)
    )
    assert rows(few, 2)["error"].tolist() == pytest.approx(rows(many, 2)["error"].tolist()[:2], rel=1e-9)


def test_what_is_not_random_runs_once():
    run = examined(TugOfWar(8, 0.2, 0.0, [1, 4], 3), IG)
    assert rows(run, 4)["error"].nunique() == 1
    assert len(rows(run, 4)) == 3


def test_full_gradients_take_one_step_an_epoch():
    run = examined(TugOfWar(8, 0.2, 0.0, [1, 4], 2), method(shuffling.FullBatch, power=0.0))
    x = 1.0
    for k in range(1, 5):
        x -= 0.2 * np.sign(x) / (1.2 * np.sqrt(k))
    assert rows(run, 4)["error"].tolist() == pytest.approx([0.2 * abs(x)] * 2)
    assert rows(run, 4)["half"].isna().all()
    assert run.summaries["steps"] == 4
    assert run.summaries["half"] is None


def test_torchs_sampler_with_replacement():
    how = method(functools.partial(RandomSampler, replacement=True), power=0.0)
    run = examined(TugOfWar(40, 0.2, 0.0, [2], 3), how)
    assert rows(run, 2)["error"].nunique() == 3


def test_classifiers_run():
    rng = np.random.default_rng(0)
    table = Table("toy", rng.standard_normal((30, 2)), np.where(np.arange(30) % 3 == 0, 1.0, -1.0))

    class Door:
        def load(self):
            return table

    for loss in ("hinge", "logistic"):
        run = examined(LinearClassifier(Door(), loss, 0.1, [1, 8], 5), RR)
        assert rows(run, 8)["error"].mean() < rows(run, 1)["error"].mean()
        assert rows(run, 8)["rr_convex"].max() < 1


@pytest.mark.parametrize("epochs", [[], [4, 1], [0, 1]])
def test_bad_epochs(epochs):
    with pytest.raises(ValueError, match="increasing numbers"):
        TugOfWar(4, 0.2, 0.0, epochs, 1)


def test_a_wrong_least_value_is_noticed():
    task = TugOfWar(4, 0.2, 0.0, [1], 1)
    task._problem.best = torch.ones(1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="below what was taken for its least value"):
        examined(task, IG)


# -- rates -------------------------------------------------------------------------------------------------------------


def test_forms_of_the_bounds():
    forms = shuffling_rates.forms(16, 9, G=2.0, D=3.0, mu=0.5)
    assert forms == pytest.approx(
        {
            "rr_convex": 6 / (2 * 3),
            "any_convex": 2.0,
            "ss_convex": max(6 / 144**0.25, 1.5),
            "rr_strong": 4 / (0.5 * 4 * 9),
            "any_strong": 4 / (0.5 * 9),
            "ss_strong": 8 * (1 / 12 + 1 / 16),
        }
    )


def test_known_errors_of_the_tug_of_war():
    """The fixed order at 16 epochs (deterministic) and its stationary error with a constant step."""
    for n, known in ((16, 0.035), (64, 0.034), (256, 0.034)):
        run = examined(TugOfWar(n, 0.2, 0.0, [16], 1), method(shuffling.Incremental, power=0.5))
        assert run.summaries["any_convex"] == pytest.approx(known, abs=0.0006)
    constant = method(shuffling.Incremental, schedule="constant", scale=1e-3)
    run = examined(TugOfWar(64, 0.2, 0.0, [200], 1), constant)
    assert run.summaries["error"] == pytest.approx(0.00304, abs=1e-5)
    frame = run.curve
    frame.attrs["config"] = {"task": {"n": 64, "gamma": 0.2}, "method": {"step": {"scale": 1e-3}}}
    assert shuffling_rates.incremental_excess(frame) <= 1
    frame["error"] *= 2
    assert shuffling_rates.incremental_excess(frame) > 1


def test_known_errors_of_random_orders():
    """Derived means at 16 epochs over n^(1/4) √K / (G D), within four standard errors of 100 orders."""
    for n, known in ((16, 0.0296), (64, 0.0281)):
        values = rows(examined(TugOfWar(n, 0.2, 0.0, [16], 100), RR), 16)["rr_convex"]
        assert values.mean() == pytest.approx(known, abs=4 * values.std() / 10)
