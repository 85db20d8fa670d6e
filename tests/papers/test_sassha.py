"""The paper sassha: its YAML at every scale, and ResNet-20 at the paper's settings for a few steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners.expand import Expander
from runners.paper import Paper

HOME = Path(__file__).resolve().parents[2]


def command(outputs, *arguments):
    environment = {**os.environ, "REPRISE_OUTPUTS": str(outputs), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=HOME,
    )


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_scale_composes(scale):
    expander = Expander(Paper("sassha"), scale)
    assert len(expander.judged("digits")) == (2 if scale == "smoke" else 70)
    for cell in expander.judged("label_noise"):
        method = cell.config["method"]
        if method["_name_"] in ("train/sassha", "train/adahessian"):  # the scripts' decay of a step, 5e-4
            assert method["lr"] * method["weight_decay"] == pytest.approx(5e-4)
    if scale == "paper":
        cells = expander.judged("cifar")
        assert len(cells) == 180
        decays = {
            cell.config["method"]["lr"] * cell.config["method"]["weight_decay"]
            for cell in cells
            if cell.config["method"]["_name_"] == "train/sassha"
        }
        assert sorted(round(decay, 9) for decay in decays) == [0.0005, 0.001, 0.0015]


@pytest.mark.slow
def test_resnet20_takes_twenty_steps_here(tmp_path, require_data):
    """The paper's network and settings, with 32 images a step."""
    require_data("cifar10")
    settings = ["method=train/sassha", "method.eps=0.000001", "task=train/cifar10", "task.model=resnet20"]
    settings += ["task.loop.epochs=1", "task.loop.batch_size=32", "task.train_size=640", "task.loop.points=2"]
    settings += ["task.loop.evaluations=1", "task.test_size=100"]
    ended = command(tmp_path, "runners.run", *settings)
    assert ended.returncode == 0, ended.stderr
    (found,) = tmp_path.glob("train/sassha/cifar10/*/result.json")
    assert json.loads(found.read_text())["status"] == "done"
    lines = (found.parent / "metrics.jsonl").read_text().splitlines()
    start, middle, end = (json.loads(line) for line in lines)
    assert end["step"] == 20
    assert end["loss"] < middle["loss"]
    assert end["test_loss"] < start["test_loss"]


@pytest.mark.slow
def test_smoke(tmp_path):
    ended = command(tmp_path, "runners.reproduce", "paper=sassha", "scale=smoke", "launcher.workers=1")
    assert ended.returncode == 0, ended.stderr
    verdicts = json.loads((tmp_path / "report/sassha/smoke/verdicts.json").read_text())
    for name, experiment in verdicts["experiments"].items():
        if not experiment["not_run"]:
            assert set(experiment["statuses"]) == {"done"}, name
    judged = {claim["id"]: claim["verdict"] for claim in verdicts["claims"] + verdicts["findings"]}
    for name in ("C7_products", "C10_newton", "hessian_place", "hessian_place_official"):
        assert judged[name] == "reproduced", name
