"""The paper parq: numbers known beforehand, paper scale, its YAML."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from methods.train.parq import AProx, ProxPARQ, ProxSGD, quantized
from runners.expand import Expander
from runners.paper import Paper
from tasks.data.imagenet import ImageFolders
from tasks.data.resolve import MissingData
from tasks.minimize.regularized_medians import RegularizedMedians
from tasks.training.examples import Normalize
from tasks.training.image_files import FileClassification, HubNetwork
from tasks.training.loop import Loop
from tasks.training.models import MLP, ResNet
from tasks.training.quantization import Following, QuantizedLoop
from tests.fake_run import FakeRun
from tests.tasks.training_cases import Blobs

HOME = Path(__file__).resolve().parents[2]
SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)


def medians(method, problems=20, steps=4000, looks=(10, 100, 1000, 4000), **options):
    run = FakeRun()
    task = RegularizedMedians(
        20, 500, problems, steps, [0.0, 0.5, 1.0, 2.0], [1.0, 2.0, 3.0], 0.3, looks, looks[1:], **options
    )
    task.evaluate(functools.partial(method, lr="0.5*step"), run)
    return task, run


@pytest.mark.slow
def test_known_numbers_of_the_theory():
    task, ours = medians(AProx)
    _, theirs = medians(ProxSGD)
    gaps = ours.tables["look"].groupby("t")["gap"].mean()
    assert gaps.to_numpy() == pytest.approx([0.445, 0.093, 0.025, 0.015], rel=0.35)
    assert [task.bound(t) for t in (10, 100, 1000, 4000)] == pytest.approx([131, 67.7, 29.7, 17.4], rel=0.01)
    assert ours.summaries["quantized"] == pytest.approx(0.60, abs=0.08)
    assert theirs.summaries["quantized"] == pytest.approx(0.05, abs=0.04)
    assert ours.summaries["optimal_quantized"] == pytest.approx(0.49, abs=0.08)


def test_the_minimizer_is_the_least_of_a_grid():
    task, run = medians(AProx, problems=2, steps=20, looks=(5, 10, 20))
    points, _ = task._draw(run)
    best = task.minimizer(points)
    grid = torch.linspace(-2, 2, 801, dtype=torch.float64)
    for i in range(2):
        for x in grid[::10]:
            for d in (0, 7):
                other = best.clone()
                other[i, d] = x
                assert task.value(best, points)[i] <= task.value(other, points)[i] + 1e-12


def test_whom_a_method_follows():
    """A method that is the hard one follows it all the way, and one in full precision that."""
    loop = Loop(batch_size=16, steps=40, points=40, evaluations=1)
    make = functools.partial(quantized, base=SGD, bits=1, prox=ProxPARQ)
    methods = {
        "a/hard": functools.partial(make, anneal=(-1.0, 0.0)),
        "a/full": functools.partial(quantized, base=SGD, bits=16),
    }
    for own, early in [("a/hard", -1), ("a/full", 1)]:
        run = FakeRun()
        settings = {"data": Blobs(), "model": functools.partial(MLP, hidden=[8]), "test_fraction": 0.3}
        task = Following("own", "a/full", "a/hard", (0.0, 1.0), loop=loop, **settings)
        task.evaluate({**methods, "own": methods[own]}, run)
        assert np.sign(run.summaries["early"]) == early
        assert np.sign(run.summaries["late"]) == -early
    assert set(run.metrics[0]) == {"step", "loss_own", "loss_full", "loss_hard"}
    with pytest.raises(ValueError, match="no method"):
        task.evaluate(methods, run)


def folders(root: Path) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for label in ("n01", "n02"):
            place = root / "tiny" / split / label
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (40, 50, 3), np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.JPEG")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["resnet", "vit"])
def test_image_files_train(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("REPRISE_DATA", str(tmp_path))
    describe = {"name": "tiny", "size_mb": 1.0, "licence": "none"}
    data = ImageFolders("tiny", 8, 4, 2, **describe)
    with pytest.raises(MissingData, match="tiny is missing"):
        data.fetch()
    folders(tmp_path)
    with pytest.raises(MissingData, match="8 images"):
        ImageFolders("tiny", 9, 4, 2, **describe).fetch()
    settings = {
        "resnet": {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8},
        "vit": {
            "hidden_size": 8,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "intermediate_size": 16,
            "patch_size": 8,
        },
    }[kind]
    model = functools.partial(HubNetwork, kind=kind, **settings)
    loop = QuantizedLoop(Loop(batch_size=4, steps=4, evaluations=1), per_channel=True)
    method = functools.partial(
        quantized,
        base=SGD,
        bits=1,
        prox=ProxPARQ,
        per_channel=True,
        full_precision=["*embed*", "*classifier*"],
    )
    run = FakeRun()
    FileClassification(data, model, loop, 32, Normalize([0.5] * 3, [0.25] * 3), 0.1).evaluate(method, run)
    assert run.summaries["excess_levels"] <= 0
    assert 0 < run.summaries["quantized_weights"] < run.summaries["parameters"]


@pytest.mark.slow
def test_resnet_20_takes_20_steps():
    """The paper's network with all its weights quantized, and no more than that."""
    torch.manual_seed(0)
    model = ResNet((3, 32, 32), 10, depth=20)
    optimizer = quantized(None, SGD, 1, ProxPARQ, anneal=(0.0, 0.75), model=model, total_steps=20)
    x, y = torch.randn(8, 3, 32, 32), torch.arange(8)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = [p for p in model.parameters() if p.dim() > 1]
    assert [p for p, _ in optimizer.quantized_parameters()] == weights
    assert all(p.unique().numel() == 2 for p in weights)
    packed = optimizer.export(model)
    assert packed.full_bytes / packed.bytes > 15  # normalization stays as it is
    assert losses[10] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_scale_composes(scale):
    expander = Expander(Paper("parq"), scale)
    digits = expander.judged("digits")
    assert len(digits) == (3 if scale == "smoke" else 3 * 20 + 12 * 6 + 20)
    if scale == "laptop":
        assert {
            cell.config["method"]["anneal"][1] for cell in digits if "anneal" in cell.config["method"]
        } == {0.75}


@pytest.mark.slow
def test_smoke(tmp_path):
    environment = {**os.environ, "REPRISE_OUTPUTS": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "runners.reproduce", "paper=parq", "scale=smoke", "launcher.workers=1"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=HOME)
    assert ended.returncode == 0, ended.stderr
    verdicts = json.loads((tmp_path / "report/parq/smoke/verdicts.json").read_text())
    for name, experiment in verdicts["experiments"].items():
        if not experiment["not_run"]:
            assert set(experiment["statuses"]) == {"done"}, name
    judged = {claim["id"]: claim["verdict"] for claim in verdicts["claims"]}
    exact = {name for name in judged if name.startswith(("C1", "C4", "C5", "C11"))}
    assert {judged[name] for name in exact if not name.startswith("C10")} == {"reproduced"}
