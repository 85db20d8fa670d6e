"""The paper radazo: numbers known beforehand, and the numbers in its YAML against their formulas."""

import math
from functools import cache, partial

import pytest

from methods.zeroth_order.radazo import RAdaZO
from methods.zeroth_order.zo_adamm import ZOAdaMM
from runners.expand import Expander
from runners.paper import Paper
from tasks.zeroth_order import functions
from tasks.zeroth_order.synthetic import Synthetic
from tests.fake_run import FakeRun


@cache
def steps_to_target(method, lr, dim, seed):
    run = FakeRun(seed)
    optimizer = partial(method, lr=lr, n_samples=10, mu=0.05)
    Synthetic(functions.quadratic, dim=dim, steps=3500, target=0.5, log_every=3500).evaluate(optimizer, run)
    return run.summaries["steps_to_target"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_known_ratios_on_the_quadratic(seed):
    """d = 1000, K = 10, mu = 0.05: 3.8 times R-AdaZO's iterations at one learning rate, fewer at 4.36 times it."""
    ours = steps_to_target(RAdaZO, 0.001, 1000, seed)
    assert steps_to_target(ZOAdaMM, 0.001, 1000, seed) / ours == pytest.approx(3.8, abs=0.3)
    assert 0.6 < steps_to_target(ZOAdaMM, 0.00436, 1000, seed) / ours < 1.1


@cache
def cells(experiment, scale):
    return Expander(Paper("radazo"), scale).judged(experiment)


def claim(name):
    paper = Paper("radazo")
    return (paper.claims | paper.findings)[name]


def test_targets_of_the_frozen_claims_follow_from_the_settings():
    for cell in cells("frozen", "laptop"):
        method, task = cell.config["method"], cell.config["task"]
        assert method["scale_by_dim"] == (method["direction"] == "sphere")  # unbiased in both forms
        beta, d, k = method["betas"][0], task["dim"], method["n_samples"]
    within = claim("C2_variance_of_first_moment")["statistic"]["within"]
    assert within["target"] == pytest.approx((1 - beta) / (1 + beta), rel=1e-6)
    low, high = (float(text) for text in claim("C3_second_moment")["expect"][4:-1].split(","))
    assert [low, high] == pytest.approx([0.9 * (1 + beta) / (1 - beta), 1.1 * (1 + beta) / (1 - beta)])
    assert claim("C7_variance_on_sphere")["statistic"]["within"]["target"] == pytest.approx((d - 1) / k)
    assert claim("C7_variance_gaussian")["statistic"]["within"]["target"] == pytest.approx((d + 1) / k)


@pytest.mark.parametrize(
    ("experiment", "name"),
    [
        ("matched_lr", "C6_matched_learning_rate"),
        ("attack", "attack_matched_learning_rate"),
        ("finetune", "finetuning_matched_learning_rate"),
    ],
)
def test_matched_learning_rates_are_4_36_times_as_large(experiment, name):
    (statistic,) = claim(name)["statistic"].values()
    ours, theirs = statistic["to"]["method.lr"], statistic["of"]["method.lr"]
    assert theirs / ours == pytest.approx(math.sqrt(1.9 / 0.1), rel=1e-3)
    rates = {
        (cell.config["method"]["_name_"], cell.config["method"]["lr"]) for cell in cells(experiment, "laptop")
    }
    assert {
        ("zeroth_order/radazo", ours),
        ("zeroth_order/zo_adamm", ours),
        ("zeroth_order/zo_adamm", theirs),
    } == rates


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_methods_differ_in_nothing_but_the_second_moment(scale):
    for experiment in ("synthetic", "gaussian", "finetune_opt"):
        shared = {}
        for cell in cells(experiment, scale):
            method = {
                key: value
                for key, value in cell.config["method"].items()
                if key not in ("_target_", "_name_")
            }
            if cell.config["method"]["_name_"] == "zeroth_order/zo_rmsprop":
                continue
            key = (cell.config["task"]["_name_"], cell.config["seed"], method["direction"])
            assert shared.setdefault(key, method) == method


def test_tuning_seeds_are_not_judged():
    expander = Expander(Paper("radazo"), "laptop")
    tuning = {cell.config["seed"] for cell, _, _ in expander.tuning("own_lr")}
    assert tuning
    assert not tuning & {cell.config["seed"] for cell in cells("own_lr", "laptop")}


def test_paper_scale_is_the_benchmarks():
    for cell in cells("synthetic", "paper"):
        task, method = cell.config["task"], cell.config["method"]
        assert (task["dim"], task["steps"], method["n_samples"], method["lr"]) == (10000, 20000, 10, 0.001)
