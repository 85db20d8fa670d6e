"""The paper tailopt: numbers known beforehand at full size, and its YAML."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from methods.train.tailopt import BiClipSGD, L2ClipSGD, NestedTrainer, OuterAdam, OuterAverage
from runners.expand import Expander
from runners.paper import Paper
from tasks.distributed.least_squares import LeastSquares
from tasks.minimize.power_law import PowerLaw
from tests.fake_run import FakeRun

HOME = Path(__file__).resolve().parents[2]


def median_risk(inner, outer, tail, rounds, local_steps=5):
    run = FakeRun()
    task = LeastSquares(
        PowerLaw(tail or 1.3),
        float(tail is not None),
        50,
        5,
        10,
        200,
        16,
        local_steps,
        rounds,
        repeats=5,
        points=1,
    )
    task.evaluate(functools.partial(NestedTrainer, inner=inner, outer=outer), run)
    return run.summaries["median_risk"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "outer", "tail", "rounds", "low", "high"),
    [
        (functools.partial(torch.optim.SGD, lr=0.03), OuterAverage(), 1.3, 300, 0.1, 3.0),
        (functools.partial(torch.optim.SGD, lr=0.01), OuterAdam(lr=0.03), 1.3, 300, 0.1, 0.6),
        (functools.partial(L2ClipSGD, lr=0.1, u=0.5), OuterAverage(), 1.3, 300, 0.006, 0.02),
        (functools.partial(BiClipSGD, lr=0.03, u=0.5, d=0.01), OuterAverage(), 1.3, 300, 0.008, 0.02),
        (functools.partial(BiClipSGD, lr=0.1, u=0.5), OuterAverage(), None, 300, 1e-10, 3e-9),
        (functools.partial(BiClipSGD, lr=0.1, u=0.5, d=0.01), OuterAverage(), None, 300, 3e-6, 3e-5),
        (functools.partial(L2ClipSGD, lr=0.1, u=1.0), OuterAverage(), 1.3, 100, 0.04, 0.2),
        (functools.partial(BiClipSGD, lr=0.03, u=0.5, d=0.01), OuterAverage(), 1.3, 100, 0.15, 0.7),
    ],
)
def test_known_risks(inner, outer, tail, rounds, low, high):
    assert low < median_risk(inner, outer, tail, rounds) < high


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_scale_composes(scale):
    expander = Expander(Paper("tailopt"), scale)
    assert len(expander.judged("heavy_tails")) == (2 if scale == "smoke" else 5)
    if scale == "smoke":
        return
    assert len(expander.judged("whole_grid")) == 19
    for experiment, methods in (("heavy_tails", 5), ("transformer", 3)):
        seeds = 3 if (experiment, scale) == ("transformer", "paper") else 1
        assert len(expander.tuning(experiment)) == 9 * methods * seeds
    for cell in expander.judged("rate"):
        rounds, lr = cell.config["task"]["rounds"], cell.config["method"]["inner"]["lr"]
        assert lr == pytest.approx(0.03 * (300 / rounds) ** 0.5, rel=0.01)


@pytest.mark.slow
def test_smoke(tmp_path):
    environment = {**os.environ, "REPRISE_OUTPUTS": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "runners.reproduce",
        "paper=tailopt",
        "scale=smoke",
        "launcher.workers=1",
    ]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=HOME)
    assert ended.returncode == 0, ended.stderr
    verdicts = json.loads((tmp_path / "report/tailopt/smoke/verdicts.json").read_text())
    for name, experiment in verdicts["experiments"].items():
        if not experiment["not_run"]:
            assert set(experiment["statuses"]) == {"done"}, name
    judged = {claim["id"]: claim["verdict"] for claim in verdicts["claims"]}
    exact = [name for name in judged if name.startswith(("C4", "C5", "C6"))]
    assert len(exact) == 10
    for name in exact:
        assert judged[name] == "reproduced", name
