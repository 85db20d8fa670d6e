"""Quantizing optimizers in the training loop: checkpoints, two ranks, many levels, torchao's implementation."""

import functools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from methods.train.parq import LSBQuantizer, ProxBinaryRelax, ProxHard, ProxPARQ, QuantOptimizer, quantized
from tasks.training.loop import Loop
from tasks.training.quantization import QuantizedLoop
from tasks.training.recipe import Recipe
from tests.tasks import training_cases
from tests.tasks.training_cases import DiskRun, Killed, train

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)
ADAMW = functools.partial(torch.optim.AdamW, lr=0.01)
OURS = {
    "parq": functools.partial(quantized, base=SGD, bits=2, prox=ProxPARQ, anneal=(0.0, 0.75), quant_period=3),
    "parq_warm_up": functools.partial(
        quantized, base=ADAMW, bits=0, prox=ProxPARQ, warmup_steps=5, per_channel=True, quant_period=2
    ),
    "ste": functools.partial(quantized, base=ADAMW, bits=1, prox=ProxHard),
    "binary_relax": functools.partial(quantized, base=SGD, bits=3, prox=ProxBinaryRelax, assignment="code"),
}


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, factory in OURS.items():
        monkeypatch.setitem(training_cases.OPTIMIZERS, name, _by_shape(factory))


def _by_shape(factory: Any) -> Any:
    """Groups by shape: the helper that kills trainings passes on parameters without their names, and no length."""

    def make(params: Any) -> Any:
        params = list(params)
        weights = {"params": [p for p in params if p.dim() > 1], "quant_bits": factory.keywords["bits"]}
        return factory([weights, {"params": [p for p in params if p.dim() == 1]}], total_steps=12)

    return make


@pytest.mark.parametrize("optimizer", OURS)
def test_a_killed_run_goes_on_bit_by_bit(optimizer: str) -> None:
    settings: dict[str, Any] = {"optimizer": optimizer, "model": "dropout", "checkpoint_every": 4}
    undisturbed = train(DiskRun(), **settings)
    for kill_at in (6, 9):
        run = DiskRun()
        with pytest.raises(Killed):
            train(run, kill_at=kill_at, **settings)
        train(run, **settings)
        assert (run.metrics, run.summaries) == (undisturbed.metrics, undisturbed.summaries)


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    found = {}
    for name, factory in OURS.items():
        training_cases.OPTIMIZERS[name] = _by_shape(factory)
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


def test_the_loop_counts_levels_and_packs() -> None:
    from tasks.training.classification import Classification
    from tests.tasks.training_cases import MODELS, Blobs

    for name, bits in [("parq", 2), ("parq_warm_up", 0), ("binary_relax", 3)]:
        run = DiskRun()
        loop = QuantizedLoop(Loop(batch_size=16, steps=12), per_channel=name == "parq_warm_up")
        Classification(Blobs(), MODELS["mlp"], loop, test_fraction=0.3).evaluate(OURS[name], run)
        assert run.summaries["excess_levels"] <= 0
        weights = run.summaries["quantized_weights"]
        assert weights == 128 * 16 + 16 * 4
        saved = run.summaries["full_bytes"] - run.summaries["packed_bytes"]
        assert saved == pytest.approx(weights * (4 - (bits or 2) / 8), rel=0.1)
    run = DiskRun()
    Classification(
        Blobs(), MODELS["mlp"], QuantizedLoop(Loop(batch_size=16, steps=3)), test_fraction=0.3
    ).evaluate(functools.partial(quantized, base=SGD, bits=16), run)
    assert run.summaries["excess_levels"] is None


def test_a_map_that_has_not_hardened_is_counted() -> None:
    model = nn.Linear(5, 5)
    optimizer = QuantOptimizer(
        SGD([{"params": [model.weight], "quant_bits": 1}]), LSBQuantizer(), ProxPARQ(0, 1000)
    )
    model.weight.grad = torch.ones(5, 5)
    optimizer.step()
    assert QuantizedLoop(Loop(batch_size=1, steps=1))._look_at(optimizer)["excess_levels"] > 0
    with pytest.raises(ValueError, match="make the weights hard"):
        optimizer.export(model)


# -- torchao -------------------------------------------------------------------------------------------------------


def torchao() -> Any:
    return pytest.importorskip("torchao.prototype.parq")


@pytest.mark.slow
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bits", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("base", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_steps_are_those_of_torchao(bits: int, base: Any, per_channel: bool) -> None:
    """The same weights after every step, with the official choices: the quantizer's code in steps that fit levels, and
    ties down."""
    library = torchao()
    maps = {
        "parq": (ProxPARQ(5, 30, steepness=8, ties="down"), library.ProxPARQ(5, 30, steepness=8)),
        "hard": (ProxHard(ties="down"), library.ProxHardQuant()),
        "relax": (ProxBinaryRelax(5, 30, ties="down"), library.ProxBinaryRelax(5, 30)),
    }
    for name, (our_map, their_map) in maps.items():
        models = []
        for _ in range(2):
            torch.manual_seed(bits)
            models.append(
                nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 4)).double()
            )

        def groups(model: nn.Module) -> list[dict[str, Any]]:
            weights = [p for p in model.parameters() if p.dim() > 1]
            return [
                {"params": weights, "quant_bits": bits},
                {"params": [p for p in model.parameters() if p.dim() == 1]},
            ]

        ours = QuantOptimizer(
            base(groups(models[0])), LSBQuantizer(), our_map,
            warmup_steps=3, quant_period=4, per_channel=per_channel, assignment="code",
        )  # fmt: skip
        theirs = library.QuantOptimizer(
            base(groups(models[1])), library.LSBQuantizer(), their_map,
            warmup_steps=3, quant_period=4, quant_per_channel=per_channel,
        )  # fmt: skip
        for step in range(36):
            x = torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            for model, optimizer in zip(models, (ours, theirs), strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), torch.arange(8) % 4).backward()
                optimizer.step()
            for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
                # torchao keeps levels in single precision
                torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5, msg=f"{name}, step {step}")


@pytest.mark.slow
def test_optimal_levels_of_torchao_are_not_optimal() -> None:
    """Why the exhaustive versions are ours: the library's ternary levels of a tensor are half as large as due."""
    library = torchao()
    u = torch.tensor([0.9, -0.35, 0.1, -1.6, 0.55, 0.0, -0.05, 2.2])
    for bits, per_channel, theirs in [(0, False, 2.2825), (2, True, 1.06469)]:
        v = u.unsqueeze(0) if per_channel else u
        code, _ = library.LSBQuantizer(optimal=True).quantize(v, bits, dim=-1 if per_channel else None)
        assert ((v - code) ** 2).sum().item() == pytest.approx(theirs, abs=1e-4)
        best, _ = LSBQuantizer(optimal=True).quantize(v, bits, per_channel)
        assert ((v - best) ** 2).sum().item() < theirs - 0.2


@pytest.mark.slow
def test_torchao_takes_gradients_of_a_closure_at_latent_weights() -> None:
    library = torchao()
    w = nn.Parameter(torch.tensor([0.5, -2.0]))
    optimizer = library.QuantOptimizer(
        torch.optim.SGD([{"params": [w], "quant_bits": 1}], lr=0.0),
        library.LSBQuantizer(),
        library.ProxHardQuant(),
    )
    seen = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        seen.append(w.tolist())
        loss = (w**2).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert w.tolist() == [1.25, -1.25]
    assert seen[1] == [0.5, -2.0]  # not the weights that the model has between steps


@pytest.mark.slow
def test_the_adapter_of_torchao_trains() -> None:
    torchao()
    from methods.train.parq_torchao import TorchaoPARQ

    model = nn.Linear(4, 3)
    optimizer = Recipe.of(functools.partial(TorchaoPARQ, base=SGD, bits=1, anneal=(0.0, 0.5))).make_optimizer(
        model, generator=torch.Generator(), total_steps=10
    )
    for _ in range(10):

        def closure() -> torch.Tensor:
            model.zero_grad()
            loss = (model(torch.ones(2, 4)) - 1).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert model.weight.abs().unique().numel() == 1
