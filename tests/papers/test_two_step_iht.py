"""The paper two_step_iht: its YAML, and the smoke run."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from runners import figure_spec
from runners.claims import validate
from runners.expand import Expander
from runners.paper import Paper
from tasks.minimize.sparse_regression import sparsity

HOME = Path(__file__).resolve().parents[2]


@cache
def configs(experiment, scale="laptop"):
    return [cell.config for cell in Expander(Paper("two_step_iht"), scale).judged(experiment)]


def test_claims_and_figures_are_well_formed():
    paper = Paper("two_step_iht")
    validate(paper.claims | paper.findings, paper.experiments)
    for name, figure in paper.figures.items():
        figure_spec.check(name, figure, paper.experiments)


@pytest.mark.parametrize(("scale", "repeats"), [("laptop", {10}), ("paper", {50})])
def test_experiments_have_their_number_of_repeats(scale, repeats):
    for name in (
        "trajectories",
        "global",
        "rates",
        "zeroth_order",
        "stochastic",
        "pipelines",
        "cost",
        "digits",
    ):
        assert {config["task"]["repeats"] for config in configs(name, scale)} == repeats, name


def test_enough_draws():
    (config,) = configs("lemma")
    assert config["task"]["draws"] * len(config["task"]["sets"]) >= 20_000


def test_the_theorems_sparsity_is_used():
    rhos = {config["task"]["rho"] for config in configs("global")}
    assert rhos == {0.5, 0.3, 0.2}
    assert [sparsity(rho, 1.21, 2) for rho in (0.5, 0.3, 0.2)] == [12, 64, 188]


def test_the_budget_is_that_of_growing_directions():
    values, wanted = 0, 60.0
    for _ in range(40):
        values += -int(-wanted // 1) + 1
        wanted *= 1.1
    assert {config["task"]["budget"] for config in configs("zeroth_order")} == {values}


def test_the_real_data_is_part_of_the_config():
    for name in ("tracking", "tracking_constrained"):
        for config in configs(name):
            assert len(config["task"]["data"]["content"]["sp500_dataset.csv.gz"]) == 64
            assert config["task"]["days"] == 6000


def test_smoke(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "runners.reproduce",
            "paper=two_step_iht",
            "scale=smoke",
            "launcher.workers=1",
        ],
        cwd=HOME,
        env=os.environ | {"REPRISE_OUTPUTS": str(tmp_path), "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdicts = json.loads((tmp_path / "report/two_step_iht/smoke/verdicts.json").read_text())
    assert {name: e["runs"] for name, e in verdicts["experiments"].items() if e["runs"]} == {
        "lemma": 1,
        "trajectories": 3,
        "rates": 2,
    }
    claims = {claim["id"]: claim["verdict"] for claim in verdicts["claims"] + verdicts["findings"]}
    for name in (
        *("C1_threshold", "C1_two_step", "C2_one_iteration", "C5_rate", "C8_sparse", "C8_in_the_set"),
        *("exact_on_symmetric_sets", "not_exact_elsewhere"),
    ):
        assert claims[name] == "reproduced", name
