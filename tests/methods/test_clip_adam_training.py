"""The clipped optimizers in the training loop: checkpoints, two ranks."""

import functools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from methods.train.clip_adam import ClipAdaGrad, ClipAdaGradNorm, ClipAdam, ClipAdamNorm
from tests.tasks import training_cases
from tests.tasks.training_cases import DiskRun, Killed, train

OURS = {
    "clip_adam": functools.partial(ClipAdam, lr=0.01, clip_mode="layer", clip=0.3),
    "clip_adam_global": functools.partial(ClipAdam, lr=0.01, clip_mode="global", clip=0.3, weight_decay=0.1),
    "clip_adam_delayed": functools.partial(ClipAdam, lr=0.01, delay=True, v_init=1e-3, clip=0.3),
    "clip_adagrad": functools.partial(ClipAdaGrad, lr=0.05, clip_mode="coordinate", clip=0.1),
    "clip_adam_norm": functools.partial(ClipAdamNorm, lr=0.05, clip=0.3),
    "clip_adagrad_norm": functools.partial(ClipAdaGradNorm, lr=0.3, beta1=0.5, clip=0.3, delay=True),
}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, factory in OURS.items():
        monkeypatch.setitem(training_cases.OPTIMIZERS, name, factory)


@pytest.mark.parametrize("optimizer", OURS)
def test_a_killed_run_goes_on_bit_by_bit(optimizer: str) -> None:
    settings: dict[str, Any] = {"optimizer": optimizer, "model": "dropout", "checkpoint_every": 4}
    undisturbed, run = train(DiskRun(), **settings), DiskRun()
    with pytest.raises(Killed):
        train(run, kill_at=9, **settings)
    train(run, **settings)
    assert (run.metrics, run.summaries) == (undisturbed.metrics, undisturbed.summaries)
    assert run.metrics[-1]["test_loss"] < run.metrics[0]["test_loss"]


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    found = {}
    for name, factory in OURS.items():
        training_cases.OPTIMIZERS[name] = factory
        path = Path(folder) / name
        path.mkdir(exist_ok=True)
        run = train(DiskRun(0, path, rank, 2), optimizer=name, model="dropout", pieces=2)
        found[name] = (run.metrics, run.summaries)
    Path(f"{folder}/{rank}.pkl").write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_give_the_numbers_of_one(tmp_path: Path) -> None:
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    found = [pickle.loads((tmp_path / f"{rank}.pkl").read_bytes()) for rank in (0, 1)]
    assert found[0] == found[1]
    for name in OURS:
        run = train(DiskRun(), optimizer=name, model="dropout", pieces=2)
        assert found[0][name] == (run.metrics, run.summaries), name
