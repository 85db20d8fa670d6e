"""The paper clip_adam: numbers known beforehand at full size, and its YAML."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from methods.train.clip_adam import ClipAdaGradNorm, ClipAdamNorm
from runners.expand import Expander
from runners.paper import Paper
from tasks.minimize.heavy_tails import HeavyTailedQuadratic
from tasks.minimize.power_law import PowerLaw
from tests.fake_run import FakeRun

HOME = Path(__file__).resolve().parents[2]
LEVELS = [0.1, 0.03, 0.01, 0.003, 0.001]


def rows(method, **options):
    run = FakeRun()
    task = HeavyTailedQuadratic(PowerLaw(1.5), dim=1, start=2.0, blocks=1, levels=LEVELS, points=2, **options)
    task.evaluate(functools.partial(method, rows=True), run)
    return run.tables["block"].iloc[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lr", "clip_mode", "delay", "median", "q95"),
    [
        (1.0, "none", False, 0.138, 0.61),
        (1.0, "none", True, 0.162, None),  # the tail of the delayed method is heavy itself
        (1.0, "global", False, 0.0438, 0.130),
        (1.0, "global", True, 0.0438, 0.130),
        (0.0625, "none", False, 0.321, 0.721),
        (0.0625, "global", True, 0.0117, 0.034),
    ],
)
def test_known_quantiles_on_the_quadratic(lr, clip_mode, delay, median, q95):
    method = functools.partial(
        ClipAdaGradNorm, lr=lr, b_init=3 * lr, clip=0.5, clip_mode=clip_mode, delay=delay
    )
    row = rows(method, steps=10_000, runs=2000)
    assert row["median"] == pytest.approx(median, rel=0.1)
    if q95:
        assert row["q95"] == pytest.approx(q95, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "clip_mode", "delay", "slope"),
    [
        ("adagrad", "none", False, 0.19),
        ("adagrad", "none", True, 1.03),
        ("adagrad", "global", True, 0.16),
        ("adam", "none", True, 0.49),
        ("adam", "global", False, 0.15),
    ],
)
def test_known_slopes_of_the_tail(kind, clip_mode, delay, slope):
    common = {"b_init": 3.0, "clip": 0.5, "clip_mode": clip_mode, "delay": delay}
    method = {
        "adagrad": functools.partial(ClipAdaGradNorm, lr=1.0, **common),
        "adam": functools.partial(ClipAdamNorm, lr=0.03, betas=(0.9, None), **common),
    }[kind]
    row = rows(method, steps=1000, runs=20_000)
    assert row["tail_slope"] == pytest.approx(slope, abs=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_scale_composes(scale):
    expander = Expander(Paper("clip_adam"), scale)
    cells = expander.judged("quadratic")
    assert len(cells) == 8 * (1 if scale == "smoke" else 3)
    for cell in cells:
        assert cell.config["method"]["b_init"] == 3 * cell.config["method"]["lr"]
    if scale != "smoke":
        assert {cell.config["task"]["steps"] for cell in cells} == {10_000}
    if scale == "laptop":
        assert len(expander.judged("finetune")) == 30
    for cell in expander.judged("reweighted"):
        assert cell.config["method"]["eta"] == cell.config["method"]["lr"] ** 2


@pytest.mark.slow
def test_smoke(tmp_path):
    environment = {**os.environ, "REPRISE_OUTPUTS": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "runners.reproduce",
        "paper=clip_adam",
        "scale=smoke",
        "launcher.workers=1",
    ]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=HOME)
    assert ended.returncode == 0, ended.stderr
    verdicts = json.loads((tmp_path / "report/clip_adam/smoke/verdicts.json").read_text())
    for name, experiment in verdicts["experiments"].items():
        if not experiment["not_run"]:
            assert set(experiment["statuses"]) == {"done"}, name
    judged = {claim["id"]: claim["verdict"] for claim in verdicts["claims"] + verdicts["findings"]}
    for name in ("C5_move", "C5_memory", "C5_floor", "C5_first_step", "reweighted"):
        assert judged[name] == "reproduced", name
