"""Attacks of least distortion: a classifier whose smallest changes are known, bookkeeping, the distilled network."""

import math
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from methods.zeroth_order.cma_es import CMAES
from methods.zeroth_order.gs_poweropt import GSPowerOpt
from methods.zeroth_order.slgh import SLGH
from tasks.training import distilled
from tasks.zeroth_order.distortion import DistortionLoss, LeastDistortion
from tests.fake_run import FakeRun


class Linear(nn.Module):
    """Logit j is 4 times pixel j; the others are 0."""

    def forward(self, images):
        return 4 * images.flatten(1)[:, :10]


def picture(**pixels):
    image = torch.zeros(1, 4, 4)
    for name, value in pixels.items():
        image.view(-1)[int(name[1:])] = value
    return image


def test_the_loss_by_hand():
    images = torch.stack([picture(p3=1.0), picture(p0=0.5, p1=-0.5)])
    loss = DistortionLoss(Linear(), images, targets=[7, 1], kappa=-0.25, penalty=2.0)
    change = torch.zeros(2, 2, 16, dtype=torch.float64)
    change[0, 1, 7] = 1.5
    change[1, 1, 1] = 0.75
    assert loss.margins(change).tolist() == [[4, -2], [4, 1]]
    assert loss(change).tolist() == [[4, -0.25 + 3], [4, 1 + 1.5]]


def test_an_image_does_not_depend_on_its_batch():
    torch.manual_seed(0)
    model = distilled.DigitCNN([1, 8, 8]).eval()
    images, points = torch.randn(7, 1, 8, 8), torch.randn(7, 11, 64, dtype=torch.float64)
    whole = DistortionLoss(model, images, list(range(7)), -0.001, 1.0)(points)
    for i in range(7):
        assert torch.equal(
            DistortionLoss(model, images[i : i + 1], [i], -0.001, 1.0)(points[i : i + 1])[0], whole[i]
        )


class Patterns:
    """36 images of 8x8 pixels; class k lights row k, class 8 and 9 a column."""

    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.y = torch.arange(36) % 10
        self.x = 0.2 * torch.rand(36, 1, 8, 8, generator=g)
        for x, y in zip(self.x[:, 0], self.y.tolist(), strict=True):
            (x[y] if y < 8 else x[:, y - 6]).fill_(1.0)

    def images(self, split):
        return self.x

    def labels(self, split):
        return self.y


ARGUMENTS = {"channels": 8, "hidden": 16, "epochs": 40, "temperature": 10.0, "lr": 0.01, "batch_size": 8}
ARGUMENTS |= {"validation": 0, "held_out": 12, "train_span": 1.0, "test_span": 1.0, "seed": 0}


@cache
def network():
    """A network of the patterns, made once."""
    folder = Path(tempfile.mkdtemp(prefix="patterns-"))
    distilled.build(folder, Patterns(), **ARGUMENTS)
    return folder


def attack(method, seed=0, run=None, **options):
    run = run or FakeRun(seed)
    run.artifact = lambda node: network()
    settings = {"images": 4, "steps": 30, "penalty": 1.0, "kappa": -0.001, "span": 1.0, "held_out": 12}
    LeastDistortion(Patterns(), None, **settings | options).evaluate(method, run)
    return run


EPGS = partial(GSPowerOpt, N=1.0, lr=0.3, sigma=0.3, n_samples=10)


def test_rows_tell_what_happened():
    run = attack(EPGS, steps=80)
    rows = run.tables["image"]
    assert run.summaries["success_rate"] == rows["success"].mean() > 0.5
    fell = rows[rows["success"]]
    assert (fell["first_step"] <= fell["norm_step"]).all()
    assert (fell["norm"] == fell["score"]).all()
    assert run.summaries["mean_norm"] == pytest.approx(fell["norm"].mean())
    assert run.summaries["values_per_step"] == 11
    for row in fell.to_dict("records"):
        image = Patterns().x[-12:][row["index"]] - 0.5
        total = (image - image.mean()).square().sum().item()
        assert row["r2"] == pytest.approx(1 - row["norm"] ** 2 / total, rel=1e-5)
    curve = run.curve
    assert (np.diff(curve["score"]) <= 0).all()
    assert curve["score"].iloc[-1] == pytest.approx(rows["score"].mean())
    assert curve["success_rate"].iloc[-1] == rows["success"].mean()


def test_an_attack_that_never_succeeds():
    run = attack(partial(GSPowerOpt, lr=1e-6))
    rows = run.tables["image"]
    assert not rows["success"].any()
    assert rows["score"].tolist() == [8.0] * 4  # the diagonal of a unit cube of 64 pixels
    assert rows[["norm", "r2", "norm_step", "first_step"]].isna().all().all()
    assert run.summaries["mean_norm"] is None
    assert run.summaries["success_rate"] == 0


@pytest.mark.parametrize(
    "method", [EPGS, partial(SLGH, lr=0.01, sigma=0.1, eta=0.001), partial(CMAES, sigma=0.1)]
)
def test_the_batch_changes_no_number(method):
    frames = [attack(method, batch=batch).tables["image"] for batch in (1, 3)]
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0], check_exact=True, check_dtype=False)


def test_seeds_share_no_image_and_seed_0_has_the_official_order():
    order = np.random.RandomState(0).choice(range(12), replace=False, size=4)
    first = attack(EPGS, steps=1).tables["image"]
    second = attack(EPGS, seed=1, steps=1).tables["image"]
    assert first["index"].tolist() == list(order)
    assert not set(first["index"]) & set(second["index"])
    assert attack(EPGS, seed=3, steps=1).tables["image"]["index"].tolist() == list(order)  # 3 blocks


def test_the_target_is_the_least_likely_class():
    run = attack(EPGS, steps=1)
    rows = run.tables["image"]
    data = Patterns()
    model, accuracy = distilled.load(network())
    for row in rows.to_dict("records"):
        logits = model(data.x[-12:][row["index"]].unsqueeze(0) - 0.5)
        assert row["target"] == logits.argmin().item()
        assert row["label"] == data.y[-12:][row["index"]]
    assert run.summaries["test_accuracy"] == accuracy


def test_an_overflow_ends_one_batch():
    method = partial(GSPowerOpt, N=1e4, stable=False)
    rows = attack(method, batch=2).tables["image"]
    assert rows["overflow"].all()
    assert not rows["success"].any()
    assert not attack(partial(GSPowerOpt, N=1e4)).tables["image"]["overflow"].any()


def test_an_interrupted_attack_goes_on():
    whole = attack(EPGS, batch=1).tables["image"]
    run = FakeRun()
    run.always_due = True

    class Stop(Exception):
        pass

    saved = run.save

    def stop(state):
        saved(state)
        if len(state["rows"]) == 2:
            raise Stop

    run.save = stop
    with pytest.raises(Stop):
        attack(EPGS, run=run, batch=1)
    run.save = saved
    attack(EPGS, run=run, batch=1)
    pd.testing.assert_frame_equal(run.tables["image"], whole, check_exact=True, check_dtype=False)


def test_bad_arguments():
    for bad, message in (
        ({"images": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"images": 13}, "at most 12"),
    ):
        with pytest.raises(ValueError, match=message):
            attack(EPGS, **bad)


def test_pooling_is_max_pooling():
    x = torch.randn(3, 4, 7, 6)
    assert torch.equal(distilled._pool(x), nn.functional.max_pool2d(x, 2))


def test_the_network_learns_and_is_kept(tmp_path):
    data = Patterns()
    for folder, changes in (("a", {}), ("b", {}), ("other", {"seed": 1})):
        (tmp_path / folder).mkdir()
        distilled.build(tmp_path / folder, data, **ARGUMENTS | {"epochs": 30} | changes)
    model, accuracy = distilled.load(tmp_path / "a")
    found = distilled.parts(data, 12)
    guesses = model(found.test_images - 0.5).argmax(-1)
    assert accuracy == pytest.approx((guesses == found.test_labels).float().mean().item())
    assert (model(found.train_images - 0.5).argmax(-1) == found.train_labels).float().mean() > 0.9
    assert not any(p.requires_grad for p in model.parameters())
    first = (tmp_path / "a" / "model.safetensors").read_bytes()
    assert first == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert first != (tmp_path / "other" / "model.safetensors").read_bytes()


def test_distillation_at_a_temperature_stretches_the_logits(tmp_path):
    spans = {}
    for temperature in (1.0, 20.0):
        folder = tmp_path / str(temperature)
        folder.mkdir()
        distilled.build(folder, Patterns(), **ARGUMENTS | {"temperature": temperature})
        logits = distilled.load(folder)[0](Patterns().x - 0.5)
        spans[temperature] = (logits.amax(1) - logits.amin(1)).mean().item()
    assert spans[20.0] > 3 * spans[1.0]


def test_parts():
    data = Patterns()
    found = distilled.parts(data, 5)
    assert len(found.train_images) == 31
    assert torch.equal(found.test_labels, data.y[-5:])
    assert len(distilled.parts(data, None).test_images) == 36
    with pytest.raises(ValueError, match="held_out must be from 1 to 35"):
        distilled.parts(data, 36)
    assert math.isclose(found.test_images.max().item(), 1.0)
