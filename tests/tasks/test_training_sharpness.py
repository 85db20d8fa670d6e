"""Sharpness: products with the Hessian, its largest eigenvalue and trace, against the dense matrix."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tasks.training.classification import Classification
from tasks.training.loop import Loop
from tasks.training.models import MLP, ResNet
from tasks.training.sharpness import Hessian, Sharpness
from tests.tasks.training_cases import Blobs, DiskRun


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def tiny(seed: int = 0) -> tuple[nn.Module, list[tuple[Any, float]], Tensor]:
    """A network of 63 numbers, two of them unused, 11 examples in two batches, and its dense Hessian."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(11, 4, generator=generator).double(), torch.arange(11) % 3
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)).double()
        net.register_parameter("unused", nn.Parameter(torch.zeros(2).double()))
    names = [name for name, _ in net.named_parameters()]
    shapes = [parameter.shape for parameter in net.parameters()]

    def of_flat(flat: Tensor) -> Tensor:
        parts = flat.split([shape.numel() for shape in shapes])
        weights = {n: part.view(shape) for n, part, shape in zip(names, parts, shapes, strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(net, weights, (x,)), y)

    flat = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    dense = torch.autograd.functional.hessian(of_flat, flat)
    return net, [((x[:8], y[:8]), 8.0), ((x[8:], y[8:]), 3.0)], dense


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_against_the_dense_matrix(seed: int) -> None:
    net, batches, dense = tiny(seed)
    hessian = Hessian(net, loss, batches)
    assert hessian.size == len(dense) == 61
    columns = torch.stack([hessian.product(column) for column in torch.eye(61, dtype=torch.float64)])
    assert torch.allclose(columns, dense, atol=1e-12)
    generator = torch.Generator().manual_seed(7)
    top = torch.linalg.eigvalsh(dense)[-1].item()
    assert hessian.top_eigenvalue(generator, tolerance=1e-8) == pytest.approx(top, rel=1e-7)
    assert hessian.top_eigenvalue(generator) == pytest.approx(top, rel=1e-3)
    trace = hessian.trace(torch.Generator().manual_seed(7), probes=400)
    off_diagonal = dense - torch.diag(dense.diagonal())
    spread = (2 * off_diagonal.square().sum() / 400).sqrt().item()  # Hutchinson's standard error
    assert abs(trace - dense.trace().item()) < 4 * spread
    assert spread < 0.2 * dense.trace().item()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_largest_eigenvalue_is_not_the_largest_in_absolute_value() -> None:
    model = nn.Linear(3, 1, bias=False).double()
    curvatures = torch.tensor([1.0, -9.0, 2.0]).double()
    hessian = Hessian(model, lambda m, batch: (curvatures * m.weight.square()).sum() / 2, [(None, 1.0)])
    assert hessian.top_eigenvalue(torch.Generator().manual_seed(0)) == pytest.approx(2.0)
    assert hessian.trace(torch.Generator().manual_seed(0), probes=1) == pytest.approx(-6.0)


def evaluated(seed: int = 0, **settings: Any) -> dict[str, Any]:
    run = DiskRun(seed)
    Classification(
        Blobs(),
        functools.partial(MLP, hidden=[4]),
        Loop(batch_size=16, steps=10),
        test_fraction=0.3,
        dtype="float64",
        sharpness=Sharpness(**settings) if settings else None,
    ).evaluate(functools.partial(torch.optim.SGD, lr=0.1), run)
    assert not any("trace" in line for line in run.metrics)  # measured once, at the end
    return run.summaries


def test_a_task_measures_it_at_the_end() -> None:
    plain, sharp = evaluated(), evaluated(batch_size=7, probes=3)
    assert sharp.pop("top_eigenvalue") > 0
    assert sharp.pop("trace") > 0
    assert sharp == plain  # looking at it changes nothing


def test_it_does_not_depend_on_the_batches_and_repeats() -> None:
    one, other = evaluated(batch_size=5, probes=2), evaluated(batch_size=500, probes=2)
    for name in ("top_eigenvalue", "trace"):
        assert one[name] == pytest.approx(other[name], rel=1e-6)
    assert evaluated(batch_size=5, probes=2) == one
    assert evaluated(examples=9, probes=2)["trace"] != other["trace"]


def test_batch_normalization_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model = ResNet((2, 8, 8), 4, depth=8, width=4).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    functions = Sharpness(probes=2).functions(loss, _examples(), DiskRun())
    assert functions["top_eigenvalue"](model) > 0
    assert functions["trace"](model) == functions["trace"](model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def _examples() -> Any:
    from tasks.training.examples import TensorExamples

    return TensorExamples(Blobs().x[:20], Blobs().y[:20])


def test_bad_settings() -> None:
    for bad in ({"probes": 0}, {"examples": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Sharpness(**bad)
