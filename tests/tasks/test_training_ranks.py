"""Training on two ranks of a real gloo group gives what one rank gives."""

import pickle
import shutil
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.tasks.training_cases import ENCODER, DiskRun, Killed, on_task, products, train, transform

Result = tuple[list[dict[str, float]], dict[str, Any]]

# name -> (function, settings, largest difference between one rank and two)
CASES: dict[str, tuple[Any, dict[str, Any], float]] = {
    "mlp": (train, {}, 1e-5),  # 63 examples in batches of 16: the last has 15
    "three pieces": (train, {"pieces": 3}, 1e-5),  # dealt out unevenly; the last batch of 15 as 5, 5, 5
    "empty pieces": (train, {"pieces": 4, "batch_size": 31}, 1e-5),  # the last batch has one example
    "one batch an epoch": (train, {"batch_size": 100}, 1e-5),
    "resnet, group norm": (train, {"model": "group_norm", "pieces": 2}, 0.0),
    "resnet, batch norm": (train, {"model": "batch_norm", "pieces": 2}, 0.0),
    "dropout": (train, {"model": "dropout", "pieces": 2}, 0.0),
    "adam": (train, {"optimizer": "adam"}, 1e-5),
    "lbfgs": (train, {"optimizer": "lbfgs", "pieces": 2}, 0.0),
    "two gradients a step": (train, {"optimizer": "sharp", "pieces": 2}, 0.0),
    "Hessian-vector products": (train, {"optimizer": "curvature", "model": "batch_norm", "pieces": 2}, 1e-5),
    "Hessian-vector products, no pieces": (
        train,
        {"optimizer": "curvature", "pieces": 3, "batch_size": 31},
        1e-5,
    ),
    "global generators": (train, {"optimizer": "noisy", "pieces": 2}, 0.0),
    "clipping": (train, {"clip_norm": 0.1, "pieces": 2}, 0.0),
    "tokens": (transform, {}, 1e-5),
    "tokens, dropout": (transform, {"dropout": 0.2, "pieces": 2}, 0.0),
    "images": (on_task, {"task": "images", "pieces": 2, "optimizer": "sgd"}, 1e-5),
    "images, Hessian-vector products": (
        on_task,
        {"task": "images", "pieces": 2, "optimizer": "curvature"},
        1e-5,
    ),
    "language": (on_task, {"task": "language", "pieces": 2}, 1e-5),
    "language, Hessian-vector products": (
        on_task,
        {"task": "language", "pieces": 2, "optimizer": "curvature"},
        1e-5,
    ),
    "language, fsdp": (on_task, {"task": "language", "pieces": 2, "parallel": "fsdp"}, 1e-5),
    "sentences": (on_task, {"task": "sentences", "pieces": 2}, 1e-5),
    "sentences, Hessian-vector products": (
        on_task,
        {"task": "sentences", "pieces": 2, "optimizer": "curvature"},
        1e-5,
    ),
    "fsdp": (transform, {"parallel": "fsdp", "clip_norm": 1.0}, 1e-5),
    "fsdp, dropout": (transform, {"parallel": "fsdp", "dropout": 0.2, "pieces": 4}, 1e-5),
}
RESUMED: dict[str, tuple[Any, dict[str, Any]]] = {
    "curvature": (train, {"optimizer": "curvature", "model": "dropout", "pieces": 2}),
    "images": (on_task, {"task": "images", "pieces": 2, "optimizer": "curvature"}),
    "language": (on_task, {"task": "language", "pieces": 2}),
    "sentences": (on_task, {"task": "sentences", "pieces": 2}),
    "batch norm": (train, {"optimizer": "adam", "model": "batch_norm", "pieces": 2}),
    "fsdp": (transform, {"parallel": "fsdp", "dropout": 0.2, "pieces": 2, "keep": "last"}),
}
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "dropout without pieces": (train, {"model": "dropout"}, "draws random numbers"),
    "batch norm without pieces": (train, {"model": "batch_norm"}, "normalizes over a batch"),
    "too few pieces": (train, {"pieces": 1}, "cannot be dealt out over 2 ranks"),
    "fsdp of an mlp": (train, {"parallel": "fsdp"}, "stack of blocks"),
    "fsdp and graphs": (transform, {"parallel": "fsdp", "optimizer": "curvature"}, "parallel: ddp"),
}


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found: dict[str, Any] = {}
    try:
        found["products"] = products(rank, 2)
        for name, (function, settings, _) in CASES.items():
            found[name] = _result(function(_run(folder, name, rank), **settings))
        for name, (function, settings) in RESUMED.items():
            undisturbed = _result(function(_run(folder, f"{name}, whole", rank), **settings))
            run = _run(folder, f"{name}, killed", rank)
            for kill_at in (2, 4):
                with pytest.raises(Killed):
                    function(run, kill_at=kill_at, checkpoint_every=3, **settings)
            found[f"resumed: {name}"] = (_result(function(run, checkpoint_every=3, **settings)), undisturbed)
        for name, (function, settings, message) in REFUSED.items():
            with pytest.raises(ValueError, match=message):
                function(_run(folder, name, rank), **settings)
        model_differs(rank)
    except BaseException:
        found["error"] = traceback.format_exc()
        raise
    finally:
        Path(f"{folder}/{rank}.pkl").write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


def model_differs(rank: int) -> None:
    """Ranks that have come apart are found out before a checkpoint is written."""
    from tasks.training.parallel import Objective, Replicas

    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, 1.0 + 1e-7 * rank)
    replicas = Replicas(Objective(model, lambda m, batch: m(batch).mean()), 2, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="models differ"):
        replicas.state(torch.optim.SGD(model.parameters()))


def _run(folder: str, name: str, rank: int) -> DiskRun:
    path = Path(folder) / name.replace(" ", "_")
    path.mkdir(exist_ok=True)
    return DiskRun(0, path, rank, 2)


def _result(run: Any) -> Result:
    return run.metrics, run.summaries


def _difference(a: Result, b: Result) -> float:
    lines = [*zip(a[0], b[0], strict=True), (a[1], b[1])]
    assert all(set(x) == set(y) for x, y in lines)
    return max(abs(x[key] - y[key]) for x, y in lines for key in x)


@pytest.mark.slow
def test_two_ranks(tmp_path: Path) -> None:
    """One group for all cases, since starting one is most of the time."""
    shutil.copytree(DiskRun().artifact(ENCODER), tmp_path / "artifact")
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    found = [pickle.loads((tmp_path / f"{rank}.pkl").read_bytes()) for rank in (0, 1)]
    assert found[0] == found[1]  # every rank sees the same numbers
    for name, value in products(0, 1).items():
        assert found[0]["products"][name] == pytest.approx(value, abs=1e-12), name
    for name, (function, settings, tolerance) in CASES.items():
        one = _result(function(DiskRun(), **settings))
        assert _difference(one, found[0][name]) <= tolerance, name
        assert one[1]["loss"] != one[0][1]["loss"], name  # it did train
    for name in RESUMED:
        resumed, undisturbed = found[0][f"resumed: {name}"]
        assert resumed == undisturbed, name
    whole, killed = (tmp_path / f"fsdp,_{what}" / "model.safetensors" for what in ("whole", "killed"))
    assert whole.read_bytes() == killed.read_bytes()
