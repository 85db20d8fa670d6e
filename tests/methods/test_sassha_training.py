"""Sassha and its baselines in the training loop: checkpoints, two ranks, batch normalization."""

import functools
import importlib.util
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from methods.train.sam import SAM
from methods.train.sassha import MSassha, Sassha
from methods.train.second_order import AdaHessian, SophiaH
from tests.tasks import training_cases
from tests.tasks.training_cases import DiskRun, Killed, train

OURS: dict[str, Any] = {
    "sassha": functools.partial(Sassha, lr=0.05, rho=0.1, lazy_hessian=3, weight_decay=0.1),
    "sassha_proportion": functools.partial(
        Sassha, lr=0.05, rho=0.1, power_schedule="proportion", adaptive=True
    ),
    "sassha_restored": functools.partial(Sassha, lr=0.05, rho=0.1, lazy_hessian=1, restore_before_hvp=True),
    "m_sassha": functools.partial(MSassha, lr=0.05, rho=0.1, lazy_hessian=3),
    "adahessian": functools.partial(AdaHessian, lr=0.05, lazy_hessian=2),
    "sophia_h": functools.partial(SophiaH, lr=0.01, n_samples=2),
    "sam_sgd": functools.partial(SAM, base=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), rho=0.1),
    "sam_adamw": functools.partial(SAM, base=functools.partial(torch.optim.AdamW, lr=0.01), rho=0.1),
}
if importlib.util.find_spec("pytorch_optimizer"):
    from pytorch_optimizer import Shampoo

    OURS["shampoo"] = functools.partial(Shampoo, lr=0.1, momentum=0.9, matrix_eps=1e-4)


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


@pytest.mark.parametrize("optimizer", ["sassha", "m_sassha"])
def test_with_batch_normalization(optimizer: str) -> None:
    run = train(DiskRun(), optimizer=optimizer, model="batch_norm", pieces=2, steps=6, points=6)
    assert run.metrics[-1]["loss"] < run.metrics[1]["loss"]


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
