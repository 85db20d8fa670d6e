"""The paper shuffling: its YAML, its data, and the smoke run."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from runners import figure_spec
from runners.claims import validate
from runners.expand import Expander
from runners.paper import Paper
from tasks.data.digit_pair import DigitPair

HOME = Path(__file__).resolve().parents[2]


@cache
def cells(experiment, scale):
    return Expander(Paper("shuffling"), scale).judged(experiment)


def test_claims_and_figures_are_well_formed():
    paper = Paper("shuffling")
    validate(paper.claims | paper.findings, paper.experiments)
    for name, figure in paper.figures.items():
        figure_spec.check(name, figure, paper.experiments)


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_every_claim_has_enough_random_orders(scale):
    judged = {claim["experiment"] for claim in Paper("shuffling").claims.values() if claim.get("expect")}
    for experiment in judged - {"closed_form"}:  # nothing is random there
        for cell in cells(experiment, scale):
            assert cell.config["task"]["repeats"] >= 100, experiment


@pytest.mark.parametrize(("scale", "largest"), [("laptop", 256), ("paper", 1024)])
def test_grids_of_the_tug_of_war(scale, largest):
    seen = {
        (cell.config["task"]["n"], tuple(cell.config["task"]["epochs"])) for cell in cells("convex", scale)
    }
    epochs = (4, 16, 64, 256) + ((1024,) if largest == 1024 else ())
    assert {(16, (4, 16)), (64, epochs), (256, (4, 16, 64)), (1024, (4, 16))} <= seen


def test_each_order_has_its_own_step():
    powers = {
        str(cell.coordinates["method"]): cell.config["method"]["step"]["power"]
        for cell in cells("convex", "laptop")
    }
    assert {name.rsplit("/", 1)[-1]: power for name, power in powers.items()} == {
        "random_reshuffle": 0.25,
        "single_shuffle": 0.25,
        "incremental": 0.5,
        "sgd_with_replacement": 0.0,
        "proximal_gd": 0.0,
    }
    assert {cell.config["method"]["step"]["schedule"] for cell in cells("strong", "laptop")} == {"inverse"}


def test_threes_and_eights():
    node = yaml.safe_load((HOME / "conf/data/digits_3_8.yaml").read_text())
    node.pop("_target_")
    table = DigitPair(**node).load()
    assert table.X.shape == (357, 64)
    assert 0 <= table.X.min() <= table.X.max() <= 1
    assert ((table.y == 1).sum(), (table.y == -1).sum()) == (183, 174)


def test_the_paper_scale_composes():
    counts = {"convex": 25, "strong": 20, "closed_form": 4, "deviations": 33, "classifiers": 16, "tuned": 10}
    assert {name: len(cells(name, "paper")) for name in counts} == counts


@pytest.mark.slow
def test_smoke(tmp_path):
    done = reproduce(tmp_path, "scale=smoke", "launcher.workers=1")
    assert done.returncode == 0, done.stderr
    report = tmp_path / "report/shuffling/smoke"
    verdicts = json.loads((report / "verdicts.json").read_text())
    claims = {claim["id"]: claim for claim in verdicts["claims"]}
    for name in (
        "C1_rate_in_epochs",
        "C2_bound",
        "C2_gain_in_components",
        "C4_fixed_order",
        "C9_closed_form",
    ):
        assert claims[name]["verdict"] == "reproduced", name
    assert (report / "figures/epochs.svg").is_file()


def reproduce(outputs, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "runners.reproduce", "paper=shuffling", *arguments],
        cwd=HOME,
        env=os.environ | {"REPRISE_OUTPUTS": str(outputs), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
