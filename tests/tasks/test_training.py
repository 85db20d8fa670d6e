"""The training loop in one process: order, schedules, closures, checkpoints, slots."""

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from tasks.data.digits import Digits
from tasks.data.resolve import MissingData
from tasks.training.classification import Classification
from tasks.training.examples import CropFlip, Order, TensorExamples
from tasks.training.loop import Loop, Problem
from tasks.training.models import MLP, ResNet
from tasks.training.recipe import Recipe
from tasks.training.schedule import Constant, Cosine, Linear, Steps
from tests.tasks.training_cases import (
    MODELS,
    OPTIMIZERS,
    Blobs,
    DiskRun,
    Killed,
    products,
    train,
    transform,
)


def result(run: DiskRun) -> tuple[Any, Any]:
    return run.metrics, run.summaries


# -- resuming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "explosive"])
def test_a_killed_run_goes_on_bit_by_bit(optimizer: str) -> None:
    """Dropout, augmentation, every optimizer's state, global generators: the end is that of an undisturbed run."""
    settings: dict[str, Any] = {"optimizer": optimizer, "model": "dropout", "checkpoint_every": 4}
    undisturbed = result(train(DiskRun(), **settings))
    for kill_at in (2, 4, 11):
        run = DiskRun()
        with pytest.raises(Killed):
            train(run, kill_at=kill_at, **settings)
        assert run.saves == kill_at // 4
        assert result(train(run, **settings)) == undisturbed


@pytest.mark.parametrize("model", ["batch_norm", "group_norm"])
def test_running_statistics_and_snapshots_survive_kills(model: str) -> None:
    settings: dict[str, Any] = {"model": model, "checkpoint_every": 3, "pieces": 2, "keep": {"every": 5}}
    undisturbed, run = train(DiskRun(), **settings), DiskRun()
    for _ in range(3):  # each attempt gets one update further than the last checkpoint
        with pytest.raises(Killed):
            train(run, kill_at=4, **settings)
    train(run, **settings)
    assert result(run) == result(undisturbed)
    for name in ("model-5.safetensors", "model-10.safetensors", "model.safetensors"):
        ours, theirs = load_file(run.dir / name), load_file(undisturbed.dir / name)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_run_that_is_told_to_save_does() -> None:
    run = DiskRun()
    run.always_due = True
    assert result(train(run)) == result(train(DiskRun()))
    assert run.saves == 11  # after every update but the last


def test_what_is_kept(tmp_path: Path) -> None:
    for keep, files in [(None, 0), ("none", 0), ("last", 1), ({"every": 6}, 3)]:
        run = train(DiskRun(), keep=keep)
        assert len(list(run.dir.glob("model*.safetensors"))) == files
    for keep in ("first", {"every": 0}, {"last": 1}):
        with pytest.raises(ValueError, match="keep"):
            Loop(batch_size=1, steps=1, keep=keep)  # type: ignore[arg-type]


def test_the_seed_decides_everything() -> None:
    first = train(DiskRun(seed=3), model="dropout")
    assert result(train(DiskRun(seed=3), model="dropout")) == result(first)
    assert result(train(DiskRun(seed=4), model="dropout")) != result(first)


# -- pieces and closures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "group_norm"])
def test_pieces_do_not_change_a_model_without_dropout_and_batch_norm(model: str) -> None:
    settings: dict[str, Any] = {"model": model, "dtype": "float64"}
    whole, cut = train(DiskRun(), **settings), train(DiskRun(), pieces=5, **settings)
    for a, b in zip(whole.metrics, cut.metrics, strict=True):
        assert a == pytest.approx(b, abs=1e-10)


def test_one_piece_is_plain_training() -> None:
    """The loop against the lines that anybody would write, batch normalization included."""
    run = train(DiskRun(seed=1), model="batch_norm", crop=False, schedule=None, steps=8)
    (x, y), (test_x, test_y) = Classification(Blobs(), MLP, Loop(1, 1), test_fraction=0.3).split(run)
    torch.manual_seed(run.generator("model").initial_seed())
    model = MODELS["batch_norm"](inputs=x.shape[1:], classes=4)
    optimizer, losses = OPTIMIZERS["sgd"](model.parameters()), []
    for epoch in range(2):
        for batch in torch.randperm(len(x), generator=run.generator("order", epoch)).split(16):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model.train()(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert [line["loss"] for line in run.metrics if "loss" in line] == losses
    assert run.summaries["test_loss"] == nn.functional.cross_entropy(model.eval()(test_x), test_y).item()


def _one_step(step: Any, model: nn.Module, **settings: Any) -> None:
    """Let `step(closure, parameters)` be the optimizer's step on 12 examples."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, generator=generator), torch.arange(12) % 2

    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any) -> Any:  # type: ignore[override]
            return step(closure, self.param_groups[0]["params"])

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    problem = Problem(TensorExamples(x, y), loss, lambda model, batch: {"loss": loss(model, batch)})
    Loop(**({"batch_size": 12, "steps": 1} | settings)).fit(DiskRun(), Recipe.of(Optimizer), model, problem)


def test_a_step_sees_one_function() -> None:
    """Dropout masks stay, running statistics move at the first call only, gradients do not add up."""
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    seen: list[Any] = []

    def step(closure: Any, parameters: list[Tensor]) -> None:
        for create_graph in (False, True, False):
            loss = closure(create_graph=create_graph)
            mean = model[1].running_mean.clone()
            seen.append((loss.item(), torch.cat([p.grad.detach().flatten() for p in parameters]), mean))

    _one_step(step, model, pieces=3)
    losses, gradients, means = zip(*seen, strict=True)
    assert len(set(losses)) == 1
    assert all(torch.allclose(gradient, gradients[0], atol=1e-7) for gradient in gradients)
    assert torch.equal(means[0], means[1])
    assert torch.equal(means[0], means[2])
    assert means[0].abs().sum() > 0
    assert model[1].num_batches_tracked.item() == 1
    assert all(p.grad is None for p in model.parameters())  # nothing holds on to graphs after the step


def test_gradients_with_a_graph() -> None:
    """Gradient, Hessian-vector product and one derivative more, against torch.func on the whole batch."""
    found = products(0, 1)
    torch.manual_seed(2)
    x, y, signs = torch.randn(10, 3).double(), torch.randint(0, 4, (10,)), torch.randn(1000).double()
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    shapes = {name: p.shape for name, p in net.named_parameters()}

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        weights = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)

    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    z = signs[: len(flat)]
    gradient = torch.func.grad(loss)
    product = lambda w: torch.func.jvp(gradient, (w,), (z,))[1]  # noqa: E731
    assert found["loss"] == pytest.approx([loss(flat).item()])
    for name in ("gradient", "graph_gradient"):
        assert found[name] == pytest.approx(gradient(flat).tolist(), abs=1e-12)
    assert found["product"] == pytest.approx(product(flat).tolist(), abs=1e-12)
    assert found["third"] == pytest.approx(torch.func.jvp(product, (flat,), (z,))[1].tolist(), abs=1e-12)
    assert found["unused"] == [1.0, 1.0]  # as after backward(): no gradient, so that optimizers skip them


def test_clipping() -> None:
    norms = []

    def step(closure: Any, parameters: list[Tensor]) -> None:
        closure()
        norms.append(torch.cat([p.grad.flatten() for p in parameters]).norm().item())

    for clip in (None, 0.01):
        torch.manual_seed(0)
        _one_step(step, nn.Linear(3, 2), clip_norm=clip)
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(0.01, rel=1e-3)
    with pytest.raises(ValueError, match="clip_norm"):
        _one_step(lambda closure, _: closure(create_graph=True), nn.Linear(3, 2), clip_norm=1.0)


def test_an_optimizer_that_ignores_its_closure_is_refused() -> None:
    with pytest.raises(RuntimeError, match="did not call its closure"):
        _one_step(lambda closure, parameters: None, nn.Linear(3, 2))


def test_divergence_ends_the_run() -> None:
    with pytest.raises(FloatingPointError, match="loss"):
        train(DiskRun(), optimizer="explosive")


def test_optimizers_are_told_when_the_model_is_looked_at() -> None:
    """As a schedule-free optimizer, this one trains elsewhere than where the model counts."""
    calls: list[str] = []

    class Shifted(torch.optim.SGD):
        def train(self) -> None:
            calls.append("train")

        def eval(self) -> None:
            calls.append("eval")

    recipe = Recipe.of(functools.partial(Shifted, lr=0.1))
    x, y = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(8)
    loss = lambda model, batch: model(batch[0]).square().mean()  # noqa: E731
    data = TensorExamples(x, y)
    problem = Problem(data, loss, lambda *a: {"loss": loss(*a)}, sets={"test": data}, probes={"norm": _norm})
    run = DiskRun()
    metrics = Loop(batch_size=4, steps=4, evaluations=2, keep="last").fit(
        run, recipe, nn.Linear(2, 1), problem
    )
    assert calls == ["eval", "train"] * 5  # start, two evaluations, the final sets, the weights
    assert {"loss", "test_loss", "norm"} <= set(metrics)


def _norm(model: nn.Module) -> float:
    return float(next(model.parameters()).detach().norm())


# -- slots ---------------------------------------------------------------------------------------------------------


def test_slots_get_what_they_name() -> None:
    seen: dict[str, Any] = {}

    def prepare(
        model: nn.Module, batches: Any, objective: Any, generator: torch.Generator, rank: int
    ) -> nn.Module:
        first = [objective(model, batch).item() for batch in batches]
        assert first == [objective(model, batch).item() for batch in batches]  # may be iterated again
        seen.update(batches=len(first), generator=generator, rank=rank)
        return nn.Sequential(model, nn.Linear(4, 4))

    def params(model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": list(model[1].parameters()), "lr": 0.5}, {"params": list(model[0].parameters())}]  # type: ignore[index]

    def optimizer(params: Any, lr: float, total_steps: int, generator: Any = None) -> Any:
        seen.update(total_steps=total_steps, own=generator)
        return torch.optim.SGD(params, lr=lr)

    method = {
        "prepare": functools.partial(prepare, rank=2),
        "params": params,
        "optimizer": functools.partial(optimizer, lr=0.1, generator="set already"),
        "loss": lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, label_smoothing=0.5),
    }
    run = DiskRun()
    task = Classification(
        Blobs(), MODELS["mlp"], Loop(batch_size=16, epochs=2, evaluations=1), test_fraction=0.3
    )
    task.evaluate(method, run)
    assert seen["batches"] == 4
    assert seen["rank"] == 2
    assert seen["total_steps"] == 8
    assert seen["own"] == "set already"
    assert run.summaries["loss"] > run.summaries["train_loss"]  # smoothed labels cannot be met


def test_bad_methods() -> None:
    with pytest.raises(ValueError, match="needs the slot optimizer"):
        Recipe.of({"prepare": nn.Identity})
    with pytest.raises(ValueError, match="_partial_: true"):
        Recipe.of({"optimizer": 3})  # type: ignore[dict-item]


# -- order, schedules, examples ------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 50), st.booleans(), st.integers(0, 3))
def test_every_epoch_takes_every_example_once(
    size: int, batch_size: int, drop_last: bool, epoch: int
) -> None:
    order = Order(size, batch_size, lambda e: torch.Generator().manual_seed(e), drop_last)
    steps = range(epoch * order.epoch_steps, (epoch + 1) * order.epoch_steps)
    taken = [order(step) for step in steps]
    jumped = Order(size, batch_size, lambda e: torch.Generator().manual_seed(e), drop_last)
    assert torch.equal(jumped(steps[-1]), taken[-1])  # the position is the step alone
    indices = torch.cat(taken).tolist()
    assert (
        len(set(indices)) == len(indices) == (size if not drop_last else size - size % min(size, batch_size))
    )


@pytest.mark.parametrize(
    "schedule", [Constant(0.2), Steps([0.5, 0.75], warmup=3), Linear(0.1, 4), Cosine(0.1, 0.25)]
)
def test_schedules(schedule: Any) -> None:
    factors = [schedule(step, 40) for step in range(40)]
    top = factors.index(1.0)
    assert factors[: top + 1] == pytest.approx([(step + 1) / (top + 1) for step in range(top + 1)])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert min(factors) > 0
    rates = []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any) -> Any:  # type: ignore[override]
            rates.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    data = TensorExamples(torch.ones(4, 2), torch.zeros(4))
    recipe = Recipe(
        functools.partial(Watched, lr=0.5),
        params=lambda m: [{"params": [m.weight], "lr": 0.25}, {"params": [m.bias]}],
    )
    loss = lambda model, batch: model(batch[0]).mean()  # noqa: E731
    problem = Problem(data, loss, lambda *a: {})
    Loop(batch_size=4, steps=40, schedule=schedule).fit(DiskRun(), recipe, nn.Linear(2, 1), problem)
    assert rates == [[0.25 * factor, 0.5 * factor] for factor in factors]


def test_schedule_values() -> None:
    assert Cosine()(50, 100) == pytest.approx(0.5)
    assert [Steps([0.25], gamma=0.5)(step, 8) for step in (1, 2)] == [1.0, 0.5]
    for bad in (lambda: Steps([1.5]), lambda: Constant(-1.0)(0, 10)):
        with pytest.raises(ValueError):
            bad()


@given(st.integers(0, 3), st.booleans(), st.integers(0, 100))
def test_crops_are_windows_of_the_padded_image(pad: int, flip: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images, uniforms = torch.randn(3, 2, 4, 5, generator=generator), torch.rand(3, 3, generator=generator)
    out = CropFlip(pad, flip)(images, uniforms)
    for image, u, got in zip(images, uniforms, out, strict=True):
        i, j = (math.floor(v * (2 * pad + 1)) for v in u[:2].tolist())
        window = nn.functional.pad(image, [pad] * 4)[:, i : i + 4, j : j + 5]
        assert torch.equal(got, window.flip(2) if flip and u[2] < 0.5 else window)


# -- models and data -----------------------------------------------------------------------------------------------


def test_resnets_have_the_sizes_of_their_paper() -> None:
    """Table 6 of He et al. (2016): 0.27M, 0.46M and 0.85M parameters for 20, 32 and 56 layers."""
    for depth, millions in [(20, 0.27), (32, 0.46), (56, 0.85)]:
        model = ResNet((3, 32, 32), 10, depth)
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == millions
        convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
        assert len(convolutions) + 1 == depth
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="6 k"):
        ResNet((3, 32, 32), 10, depth=10)


def test_group_norm_does_not_mix_images() -> None:
    model = ResNet((1, 8, 8), 10, depth=8, norm="group")
    images = torch.randn(6, 1, 8, 8)
    assert torch.allclose(model(images)[:2], model(images[:2]), atol=1e-5)


def _digits() -> Digits:
    root = Path(__file__).parents[2]
    node = yaml.safe_load((root / "conf/data/digits.yaml").read_text())
    return Digits(**{key: value for key, value in node.items() if not key.startswith("_")})


def test_digits() -> None:
    data = _digits()
    assert data.images().shape == (1797, 1, 8, 8)
    assert data.images().max() == 1
    assert data.labels().bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    with pytest.raises(ValueError, match="test_fraction"):
        data.images("train")  # type: ignore[arg-type]
    with pytest.raises(MissingData, match="other numbers"):
        Digits("00").labels()


def test_training_on_digits_learns() -> None:
    run = DiskRun()
    task = Classification(
        _digits(), functools.partial(MLP, hidden=[32]), Loop(64, epochs=4), test_fraction=0.2
    )
    task.evaluate(functools.partial(torch.optim.Adam, lr=0.01), run)
    assert run.summaries["test_accuracy"] > 0.9
    assert run.metrics[0]["test_accuracy"] < 0.3
    assert run.metrics[-1]["step"] == 4 * 23


def test_the_split_is_stratified_and_the_seeds() -> None:
    task = Classification(_digits(), MLP, Loop(64, epochs=1), test_fraction=0.2)
    parts = [task.split(DiskRun(seed)) for seed in (0, 0, 1)]
    (_, train_y), (_, test_y) = parts[0]
    assert len(train_y) + len(test_y) == 1797
    shares = test_y.bincount() / (test_y.bincount() + train_y.bincount())
    assert shares.sub(0.2).abs().max() < 0.005
    assert torch.equal(parts[0][1][0], parts[1][1][0])
    assert not torch.equal(parts[0][1][0][:50], parts[2][1][0][:50])


def test_token_weights_are_those_of_the_whole_batch() -> None:
    """A batch's loss is the mean over its tokens however it is cut, not the mean of its pieces' means."""
    whole, cut = transform(DiskRun()), transform(DiskRun(), pieces=4)
    for a, b in zip(whole.metrics, cut.metrics, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": None},
        {"epochs": 1, "steps": 1},
        {"epochs": 0},
        {"parallel": "mp"},
        {"clip_norm": 0.0},
        {"pieces": 0},
    ],
)
def test_bad_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Loop(**({"batch_size": 4, "epochs": 1} | settings))
