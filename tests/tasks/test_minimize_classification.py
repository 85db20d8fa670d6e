"""Classification problems as exams, and the optimum they are compared with."""

import functools
import json

import numpy as np
import pytest
import torch

from methods.minimize.scipy_minimize import SciPyMinimize
from tasks.data.tabular import Table
from tasks.minimize import optimum
from tasks.minimize.classification import UNSOLVED, Classification, summarise
from tasks.minimize.problems import LinearClassification
from tests.fake_run import FakeRun


class Door:
    """A small noisy problem."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((60, 4))
        y = np.where(X[:, 0] + rng.standard_normal(60) > 0, 1.0, -1.0)
        self.table = Table("noisy", X, y)

    def load(self) -> Table:
        return self.table


def exam(loss, method, **kwargs):
    door = Door()
    node = {"_target_": "tasks.minimize.optimum.build", "data": door, "loss": loss}
    task = Classification(door, node, loss, **kwargs)
    run = FakeRun()
    task.evaluate(method, run)
    return task, run


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_bfgs_solves_and_reaches_the_optimum(loss):
    method = functools.partial(SciPyMinimize, method="BFGS", options={"gtol": 1e-4})
    _task, run = exam(loss, method)
    summary, rows = run.summaries, run.tables["order"]
    assert summary["solved"] is True
    assert summary["gradients"] == np.median(rows["gradients"]) == summary["score"]
    assert len(rows) == 3
    assert summary["gap"] < 1e-6
    assert summary["gradient_norm"] < 1e-4
    assert summary["steps"] == 1
    assert [line["step"] for line in run.metrics] == list(range(1, rows["gradients"][0] + 1))
    gaps = [line["gap"] for line in run.metrics]
    assert gaps == sorted(gaps, reverse=True)


def test_unsolved_runs_rank_behind_solved_ones_by_value():
    worse = exam("logistic", functools.partial(torch.optim.SGD, lr="0.01/L"), max_steps=20)[1].summaries
    better = exam("logistic", functools.partial(torch.optim.SGD, lr="1/L"), max_steps=20)[1].summaries
    assert worse["gradients"] is None
    assert worse["spread"] is None
    assert worse["score"] > better["score"] > UNSOLVED
    assert better["calls_per_step"] == pytest.approx(19 / 20)
    assert better["state_vectors"] == 1.0


def test_medians_over_row_orders():
    rows = [
        {"gradients": count, "value": value, "gap": 0.1, "gradient_norm": 0.2, "steps": 5}
        for count, value in ((10, 1.0), (None, 2.0), (12, 1.5))
    ]
    summary = summarise(rows)
    assert (summary["solved"], summary["gradients"], summary["spread"]) == (True, 12, None)
    assert summary["score"] == 12.0
    assert summary["value"] == 1.5
    summary = summarise([rows[1], rows[1], rows[0]])
    assert (summary["solved"], summary["gradients"], summary["log_gradients"]) == (False, None, None)
    assert summary["score"] == UNSOLVED + 2.0


def test_the_start_is_the_published_one():
    task = Classification(Door(), None, "logistic")
    start = task.start(120)
    z = np.random.RandomState(20250128).randn(120)
    assert (start == z / np.linalg.norm(z)).all()


def test_an_even_number_of_orders_is_refused():
    with pytest.raises(ValueError, match="row_orders=2"):
        Classification(Door(), None, "logistic", row_orders=2)


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_the_optimum_is_stationary(loss, tmp_path):
    optimum.build(tmp_path, Door(), loss)
    record = json.loads((tmp_path / "optimum.json").read_text())
    assert record["gradient_norm"] < 1e-7
    table = Door().table
    problem = LinearClassification(table.X, table.y, loss)
    nearby = [problem.value_and_gradient(np.random.default_rng(i).standard_normal(5))[0] for i in range(50)]
    assert optimum.read(tmp_path) <= min(nearby)
