"""Tasks with several nodes: known values, checkpoints, two ranks."""

import functools
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from methods.train.tailopt import (
    BiClipSGD,
    L2ClipSGD,
    NestedTrainer,
    OuterAdam,
    OuterAverage,
    OuterBiClip,
    OuterNesterov,
)
from tasks.distributed.least_squares import LeastSquares, MoveBounds, Reduction
from tasks.distributed.loop import NestedLoop
from tasks.distributed.zipf import TokenLabels, ZipfTokens
from tasks.minimize.power_law import PowerLaw
from tasks.training.classification import Classification
from tasks.training.transformer import Transformer
from tests.fake_run import FakeRun
from tests.tasks.training_cases import MODELS, Blobs, DiskRun, seed_all

BICLIP = functools.partial(BiClipSGD, lr=0.03, u=0.5, d=0.01)
METHODS = {
    "avg_biclip": functools.partial(NestedTrainer, inner=BICLIP, outer=OuterAverage()),
    "bi2clip": functools.partial(NestedTrainer, inner=BICLIP, outer=OuterBiClip(0.5, 0.03, 1e-3)),
    "avg_l2clip": functools.partial(
        NestedTrainer, inner=functools.partial(L2ClipSGD, lr=0.1, u=1.0), outer=OuterAverage()
    ),
    "local_sgd": functools.partial(
        NestedTrainer, inner=functools.partial(torch.optim.SGD, lr=0.03), outer=OuterAverage()
    ),
    "adam_adam": functools.partial(
        NestedTrainer, inner=functools.partial(torch.optim.Adam, lr=0.01), outer=OuterAdam(0.05)
    ),
    "diloco": functools.partial(
        NestedTrainer,
        inner=functools.partial(torch.optim.AdamW, lr=0.01),
        outer=OuterNesterov(),
        keep_inner=True,
    ),
}


def least_squares(method, kind=LeastSquares, noise=1.0, repeats=3, **options):
    run = FakeRun()
    sizes = {"dim": 12, "frequent": 2, "rows": 40, "batch_size": 8, "rounds": 20} | options
    if kind is not Reduction:
        sizes = {"nodes": 3, "local_steps": 2} | sizes
    kind(noise=PowerLaw(1.3), noise_scale=noise, repeats=repeats, **sizes).evaluate(METHODS[method], run)
    return run


def test_repeats_do_not_depend_on_how_many_there_are():
    few, many = (least_squares("avg_l2clip", repeats=n).tables["repeat"] for n in (2, 4))
    assert few["risk"].tolist() == pytest.approx(many["risk"][:2].tolist(), rel=1e-10)


def test_without_noise_local_sgd_finds_the_weights():
    run = least_squares("local_sgd", noise=0.0, rounds=300, local_steps=10)
    assert run.tables["repeat"]["relative_risk"].max() < 1e-3
    assert run.metrics[0]["risk"] > 100 * run.metrics[-1]["risk"]
    assert (run.summaries["node_state"], run.summaries["sent"]) == (0, 1)


def test_adam_keeps_two_copies():
    assert least_squares("adam_adam").summaries["node_state"] == 2


def test_a_diverged_repeat_counts_as_the_start():
    wild = functools.partial(
        NestedTrainer, inner=functools.partial(torch.optim.SGD, lr=50.0), outer=OuterAverage()
    )
    run = FakeRun()
    LeastSquares(PowerLaw(1.3), 0.0, 12, 2, 3, 40, 8, 5, 40, 3).evaluate(wild, run)
    table = run.tables["repeat"]
    assert table["diverged"].tolist() == [1, 1, 1]
    assert table["relative_risk"].tolist() == [1, 1, 1]


def test_moves_keep_their_bounds():
    table = least_squares("bi2clip", MoveBounds, dim=30).tables["repeat"]
    for name in ("largest_step", "largest_delta", "largest_server_move"):
        assert table[name].max() <= 1 + 1e-9
    assert table["largest_step"].max() == pytest.approx(1)
    assert table["largest_server_move"].max() == pytest.approx(1)
    for name in ("smallest_step", "smallest_server_move"):
        assert table[name].min() == pytest.approx(1)
    assert table["zero_moves"].max() == 0


def test_bounds_see_a_method_that_breaks_them():
    class Longer(BiClipSGD):
        def step(self, closure=None):
            super().step()
            super().step()

    method = functools.partial(
        NestedTrainer, inner=functools.partial(Longer, lr=0.03, u=0.5, d=0.01), outer=OuterAverage()
    )
    run = FakeRun()
    MoveBounds(PowerLaw(1.3), 1.0, 12, 2, 3, 40, 8, 2, 5, 2).evaluate(method, run)
    assert run.tables["repeat"]["largest_step"].min() == pytest.approx(2)


@pytest.mark.parametrize(
    ("inner", "reference"),
    [
        (functools.partial(BiClipSGD, lr=0.03), "sgd"),
        (functools.partial(BiClipSGD, lr=0.03, u=1.0, d=1.0), "signs"),
        (functools.partial(L2ClipSGD, lr=0.03, u=1.0), "clipped"),
    ],
)
def test_reductions(inner, reference):
    def difference(name):
        run = FakeRun()
        task = Reduction(
            name,
            0.03,
            noise=PowerLaw(1.3),
            noise_scale=1.0,
            dim=12,
            frequent=2,
            rows=40,
            batch_size=8,
            rounds=20,
            repeats=3,
        )
        task.evaluate(functools.partial(NestedTrainer, inner=inner, outer=OuterAverage()), run)
        return run.tables["repeat"]["difference"]

    assert difference(reference).max() < 1e-12
    assert difference("signs" if reference != "signs" else "sgd").min() > 1e-3


def test_labels_of_zipf_tokens():
    data = ZipfTokens(tokens=20, exponent=1.0, classes=3, length=5)
    kinds, bits = data.rules(torch.Generator().manual_seed(0))
    x, y = data.sequences(2000, (kinds, bits), torch.Generator().manual_seed(1))
    assert y[7, 3] == (kinds[x[7, 3]] + bits[x[7, 2]]) % 3
    assert torch.equal(y[:, 0], kinds[x[:, 0]])
    shares = torch.bincount(x.flatten(), minlength=20) / x.numel()
    assert shares[0].item() == pytest.approx(1 / sum(1 / k for k in range(1, 21)), rel=0.05)
    assert shares[0] / shares[9] == pytest.approx(10, rel=0.2)


def label(run, method="adam_adam", **options):
    net = functools.partial(Transformer, width=8, layers=1, heads=2)
    sizes = {
        "nodes": 2,
        "local_steps": 2,
        "rounds": 6,
        "batch_size": 4,
        "test_size": 30,
        "repeats": 2,
    } | options
    TokenLabels(ZipfTokens(20, 1.0, 3, 5), net, evaluations=3, **sizes).evaluate(METHODS[method], run)
    return run


def test_the_small_transformer_learns_and_goes_on_bit_by_bit():
    undisturbed = label(FakeRun(), rounds=20)
    assert undisturbed.metrics[-1]["test_loss"] < undisturbed.metrics[0]["test_loss"]
    run = FakeRun()
    run.stop_after = 9
    with pytest.raises(KeyboardInterrupt):
        label(run, rounds=20, checkpoint_every=4)
    run.stop_after = None
    label(run, rounds=20, checkpoint_every=4)
    assert (run.metrics, run.summaries) == (undisturbed.metrics, undisturbed.summaries)


def test_a_stacked_repeat_does_not_depend_on_the_others():
    few, many = (label(FakeRun(), "bi2clip", repeats=n).tables["repeat"] for n in (1, 3))
    assert few["test_loss"][0] == pytest.approx(many["test_loss"][0], rel=1e-4)


def digits(run, method, model="dropout", **options):
    seed_all(run.seed)
    sizes = {
        "nodes": 3,
        "local_steps": 2,
        "rounds": 6,
        "batch_size": 8,
        "points": 6,
        "evaluations": 3,
    } | options
    Classification(Blobs(), MODELS[model], NestedLoop(**sizes), test_fraction=0.3).evaluate(
        METHODS[method], run
    )
    return run


@pytest.mark.parametrize("method", METHODS)
def test_the_loop_goes_on_bit_by_bit(method):
    undisturbed = digits(DiskRun(), method)
    run = DiskRun()
    run.stop_after = 5
    with pytest.raises(KeyboardInterrupt):
        digits(run, method, checkpoint_every=2)
    run.stop_after = None
    digits(run, method, checkpoint_every=2)
    assert (run.metrics, run.summaries) == (undisturbed.metrics, undisturbed.summaries)
    assert run.metrics[-1]["test_loss"] < run.metrics[0]["test_loss"]


def test_bad_loops():
    with pytest.raises(ValueError, match="rounds"):
        NestedLoop(2, 2, 0, 8)
    with pytest.raises(ValueError, match="running statistics"):
        digits(DiskRun(), "avg_biclip", model="batch_norm")
    with pytest.raises(ValueError, match="too few"):
        digits(DiskRun(), "avg_biclip", nodes=1000)


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    found = {}
    for name in METHODS:
        path = Path(folder) / name
        path.mkdir(exist_ok=True)
        run = digits(DiskRun(0, path, rank, 2), name)
        found[name] = (run.metrics, run.summaries)
    Path(f"{folder}/{rank}.pkl").write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_give_the_numbers_of_one(tmp_path: Path) -> None:
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    found = [pickle.loads((tmp_path / f"{rank}.pkl").read_bytes()) for rank in (0, 1)]
    assert found[0] == found[1]
    for name in METHODS:
        run = digits(DiskRun(), name)
        assert found[0][name] == (run.metrics, run.summaries), name
