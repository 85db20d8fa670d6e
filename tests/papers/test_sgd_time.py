"""The paper sgd_time: its YAML, and the smoke run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners import figure_spec
from runners.claims import validate
from runners.expand import Expander
from runners.paper import Paper

HOME = Path(__file__).resolve().parents[2]


def configs(experiment, scale="laptop"):
    return [cell.config for cell in Expander(Paper("sgd_time"), scale).judged(experiment)]


def test_claims_and_figures_are_well_formed():
    paper = Paper("sgd_time")
    validate(paper.claims | paper.findings, paper.experiments)
    for name, figure in paper.figures.items():
        figure_spec.check(name, figure, paper.experiments)
    numbers = {name.split("_")[0] for name in paper.claims}
    assert numbers == {f"C{k}" for k in range(1, 11)}


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_slopes_have_the_runs_that_the_rule_asks_for(scale):
    for config in configs("camel", scale):
        assert config["task"]["runs"] >= 300
        assert len(config["task"]["levels"]) == 6
    assert {config["method"]["noise"]["std"] for config in configs("camel", scale)} == {3.6, 4.4, 6.2}
    for config in configs("distribution", scale):
        assert config["task"]["runs"] >= 1000
        assert config["task"]["levels"] == [4.0, 5.0]
    (saddle,) = configs("saddle", scale)
    assert saddle["task"]["runs"] >= 1000
    assert {config["task"]["landscape"]["scale"] for config in configs("depth", scale)} == {0.5, 1.0}


def test_both_laws_of_noise_have_one_variance():
    assert {config["method"]["noise"]["std"] for config in configs("noise_law")} == {0.5}


def test_smoke(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "runners.reproduce", "paper=sgd_time", "scale=smoke", "launcher.workers=1"],
        cwd=HOME,
        env=os.environ | {"REPRISE_OUTPUTS": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    report = tmp_path / "report/sgd_time/smoke"
    verdicts = json.loads((report / "verdicts.json").read_text())
    assert {name: e["runs"] for name, e in verdicts["experiments"].items() if e["runs"]} == {
        "camel": 1,
        "saddle": 1,
        "starts": 2,
    }
    claims = {claim["id"]: claim for claim in verdicts["claims"] + verdicts["findings"]}
    assert claims["C1_exponent"]["value"] == pytest.approx(
        1, abs=0.35
    )  # too few runs to judge, enough to test
    assert claims["C7_not_exponential"]["verdict"] == "reproduced"
    assert claims["C8_start"]["verdict"] == "reproduced"
    assert (report / "figures/camel.svg").is_file()
    assert (report / "figures/saddle.svg").is_file()
