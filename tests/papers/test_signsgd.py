"""The paper signsgd: its YAML, its known numbers, and the smoke run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from methods.minimize.signsgd import (
    Gaussian,
    Rademacher,
    StudentT,
    risk_ode,
    scheduled_risk,
    sgd_scheduled_risk,
    sgd_stationary_risk,
    stationary_risk,
)
from runners import figure_spec
from runners.claims import validate
from runners.expand import Expander
from runners.paper import Paper
from tasks.minimize.inputs import GaussianInputs
from tasks.minimize.risk import TimeToTarget
from tests.fake_run import FakeRun

HOME = Path(__file__).resolve().parents[2]


def test_claims_and_figures_are_well_formed():
    paper = Paper("signsgd")
    validate(paper.claims | paper.findings, paper.experiments)
    for name, figure in paper.figures.items():
        figure_spec.check(name, figure, paper.experiments)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_scale_composes(scale):
    expander, paper = Expander(Paper("signsgd"), scale), Paper("signsgd")
    for name, experiment in paper.experiments.items():
        if scale in experiment.get("scales", [scale]):
            assert expander.judged(name), name


def test_the_settings_of_the_claims():
    expander = Expander(Paper("signsgd"), "laptop")
    dims = {cell.config["task"]["inputs"]["dim"] for cell in expander.judged("tracking")}
    assert dims == {100, 400, 1600}
    for name in ("tracking", "laws", "rotated", "limit", "heavy_limit", "cauchy", "small_risk", "adam"):
        for cell in expander.judged(name):
            assert cell.config["method"]["lr"] == "0.7/d", name
    for cell in expander.judged("tracking"):
        theory = cell.config["task"]["theories"]["ode"]["_target_"].rpartition(".")[2]
        assert theory == ("risk_ode" if cell.coordinates["method"] == "minimize/signsgd" else "sgd_risk_ode")


# -- numbers known beforehand ------------------------------------------------------------------------------------------


def test_known_limits_under_heavy_tails():
    K = np.linspace(0.2, 2, 100)
    limits = [stationary_risk(K, 0.7, StudentT(df)) for df in (2.02, 2.1, 2.5, 3.0, 5.0)]
    assert limits[0] == pytest.approx(0.4499, abs=2e-4)
    assert limits[-1] == pytest.approx(0.3988, abs=2e-4)
    assert sorted(limits, reverse=True) == limits
    sgd = [sgd_stationary_risk(K, 0.7, StudentT(df)) for df in (2.02, 5.0)]
    assert sgd[0] / sgd[1] == pytest.approx(101 / (5 / 3))


def test_known_rise_from_a_small_risk():
    K = np.arange(1.0, 301) ** -0.5
    rng = np.random.default_rng(0)
    R = risk_ode(K, rng.standard_normal((20, 300)) / np.sqrt(300), 0.7, Rademacher(1.0))([0.0, 8.0]).mean(0)
    assert R[0] == pytest.approx(0.056, rel=0.1)
    assert R[1] == pytest.approx(0.17, rel=0.1)


def test_known_limit_of_the_first_experiment():
    K = np.linspace(0.2, 2, 500)
    a = np.pi * 0.7 * np.sqrt(K).mean() / 8
    assert stationary_risk(K, 0.7, Gaussian(0.5)) == pytest.approx(a * (a + np.sqrt(a**2 + 0.25)))


@pytest.mark.parametrize(
    ("rotated", "ratios"), [(False, {2: 1.06, 3: 4.1, 4: 9.3}), (True, {2: 0.39, 3: 0.35, 4: 0.30})]
)
def test_known_gains_and_losses_of_the_preconditioner(rotated, ratios):
    inputs = GaussianInputs(120, "log", low=1e-4, high=1.0, rotated=rotated)
    tables = []
    for method, largest in ((sgd_scheduled_risk, 200.0), (scheduled_risk, 20.0)):
        run = FakeRun()
        TimeToTarget(inputs, (0.02, largest, 60), list(ratios), draws=2, longest=1e7, points=500).evaluate(
            method, run
        )
        tables.append(run.tables["draw"])
    for k, expected in ratios.items():
        ratio = np.exp(np.log(tables[0][f"time_{k}"] / tables[1][f"time_{k}"]).mean())
        assert ratio == pytest.approx(expected, rel=0.35), k


@pytest.mark.slow
def test_smoke(tmp_path):
    environment = {**os.environ, "REPRISE_OUTPUTS": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "runners.reproduce",
        "paper=signsgd",
        "scale=smoke",
        "launcher.workers=1",
    ]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=HOME)
    assert ended.returncode == 0, ended.stderr
    verdicts = json.loads((tmp_path / "report/signsgd/smoke/verdicts.json").read_text())
    for name, experiment in verdicts["experiments"].items():
        assert set(experiment.get("statuses") or {"done": 0}) == {"done"}, name
    claims = {claim["id"]: claim["verdict"] for claim in verdicts["claims"] + verdicts["findings"]}
    for name in ("C5_effective_rate", "C10_sign_covariance", "C11_adam_without_memory"):
        assert claims[name] == "reproduced", name
    assert claims["C1_rate"] == "shown"
