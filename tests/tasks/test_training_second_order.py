"""Tasks that look at second-order optimizers: the first step, the cost of a step, a convex problem; wide networks."""

import functools

import pytest
import torch

from methods.train.sam import SAM
from methods.train.sassha import Sassha
from methods.train.second_order import AdaHessian
from tasks.training.convex import LogisticRegression
from tasks.training.first_step import FirstStep
from tasks.training.loop import Loop
from tasks.training.models import MLP
from tasks.training.schedule import Linear
from tasks.training.step_cost import StepCost
from tasks.training.wide_resnet import WideResNet
from tests.fake_run import FakeRun
from tests.tasks.training_cases import Blobs

NEWTON = {"lr": 0.1, "betas": (0.0, 0.999), "eps": 0.0, "hessian_power": 1.0, "lazy_hessian": 1}


@pytest.mark.parametrize(
    ("options", "perturbed", "restored"),
    [
        ({"rho": 0.0}, True, True),
        ({"rho": 0.1}, True, False),
        ({"rho": 0.1, "restore_before_hvp": True}, False, True),
    ],
)
def test_where_the_hessian_is_taken(options, perturbed, restored):
    run = FakeRun()
    FirstStep(functions=3, dim=8).evaluate(functools.partial(Sassha, **NEWTON, **options), run)
    table = run.tables["function"]
    assert len(table) == 3
    assert ((table["perturbed_error"] < 1e-12) == perturbed).all()
    assert ((table["newton_error"] < 1e-12) == perturbed).all()
    assert ((table["restored_error"] < 1e-12) == restored).all()


def test_the_curvature_is_read_off_plain_steps_only():
    with pytest.raises(ValueError, match="read off"):
        FirstStep().evaluate(functools.partial(Sassha, lr=0.1), FakeRun())


def test_gradients_and_products_are_counted_in_the_graph():
    run = FakeRun()
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    methods = {
        "sassha": functools.partial(Sassha, lazy_hessian=4, n_samples=3),
        "adahessian": AdaHessian,
        "sam": functools.partial(SAM, base=sgd),
        "sgd": sgd,
    }
    StepCost(Blobs(), functools.partial(MLP, hidden=[8]), steps=3, blocks=2, batch_size=16).evaluate(
        methods, run
    )
    total = run.tables["total"].set_index("method")
    assert total["steps"].tolist() == [6] * 4
    assert total["gradients"].tolist() == [12, 6, 12, 6]
    assert total["products"].tolist() == total["expected_products"].tolist() == [6, 6, 0, 0]
    assert (run.tables["block"]["seconds"] > 0).all()
    assert len(run.tables["block"]) == 8


def test_logistic_regression_converges_and_measures_its_gradient():
    run = FakeRun()
    loop = Loop(batch_size=1000, steps=200, schedule=Linear(), pieces=1, points=4, evaluations=4)
    LogisticRegression(Blobs(), loop, l2=0.1).evaluate(
        functools.partial(torch.optim.SGD, lr=0.02, momentum=0.9), run
    )
    norms = [row["gradient_norm"] for row in run.metrics]
    assert len(norms) == 5
    assert norms[-1] < 1e-3 * norms[0]
    assert run.summaries["gradient_norm"] == norms[-1]
    assert run.summaries["train_accuracy"] > 0.9


def test_the_wide_network_has_the_known_number_of_parameters():
    with torch.device("meta"):
        net = WideResNet(inputs=(3, 32, 32), classes=10)
    assert sum(p.numel() for p in net.parameters()) == 36_479_194  # Zagoruyko and Komodakis: 36.5 million
    with pytest.raises(ValueError, match="depth"):
        WideResNet(inputs=(3, 32, 32), classes=10, depth=20)
