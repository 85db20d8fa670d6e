"""The gradient estimator: closed forms, batches against single calls, what it leaves behind."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.common.gradient_estimator import GradientEstimator


def player(*draws):
    """A sampler that plays fixed draws, one direction a call."""
    queue = [torch.as_tensor(draw, dtype=torch.float64) for draw in draws]
    return lambda size: queue.pop(0)


def quadratic(x):
    return 0.5 * (x * torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)).mul(x).sum(-1)


def test_one_dimension_by_hand():
    x = torch.ones(1, dtype=torch.float64)
    values = []
    for draw in ([1.0], [-1.0]):
        estimate = GradientEstimator(n_samples=1, mu=0.05, sampler=player(draw))
        values.append(estimate.batched([x], lambda points: points.square().sum(-1))[1].item())
    assert values == pytest.approx([2.05, 1.95], rel=1e-12)
    both = GradientEstimator(n_samples=2, mu=0.05, sampler=player([3.0], [-0.1]))
    value, gradient = both.batched([x], lambda points: points.square().sum(-1))
    assert value.item() == 1.0
    assert gradient.item() == pytest.approx(2.0, rel=1e-12)


def test_directions_by_hand():
    x = torch.zeros(2, dtype=torch.float64)
    slope = torch.tensor([1.0, 1.0], dtype=torch.float64)

    def estimate(**options):
        estimator = GradientEstimator(n_samples=1, mu=0.1, sampler=player([3.0, 4.0]), **options)
        return estimator.batched([x], lambda points: points @ slope)[1].tolist()

    assert estimate() == pytest.approx([1.4 * 0.6, 1.4 * 0.8])
    assert estimate(scale_by_dim=True) == pytest.approx([2 * 1.4 * 0.6, 2 * 1.4 * 0.8])
    assert estimate(direction="gaussian") == pytest.approx([7 * 3.0, 7 * 4.0])
    assert estimate(symmetric=True) == pytest.approx([1.4 * 0.6, 1.4 * 0.8])


@given(
    shapes=st.lists(st.lists(st.integers(1, 3), max_size=2), min_size=1, max_size=3),
    n_samples=st.integers(1, 4),
    direction=st.sampled_from(["sphere", "gaussian"]),
    symmetric=st.booleans(),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_closure_and_batch_agree(shapes, n_samples, direction, symmetric, seed, dtype):
    params = [
        torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) for shape in shapes
    ]
    before = [p.clone() for p in params]
    calls = []

    def closure():
        calls.append(1)
        return quadratic(torch.cat([p.reshape(-1) for p in params]))

    options = {"n_samples": n_samples, "mu": 0.1, "direction": direction, "symmetric": symmetric}
    single = GradientEstimator(generator=torch.Generator().manual_seed(seed), **options)
    together = GradientEstimator(generator=torch.Generator().manual_seed(seed), **options)
    value, gradient = single(params, closure)
    batch_value, batch_gradient = together.batched(params, quadratic)
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(value, batch_value, **tolerance)
    torch.testing.assert_close(gradient, batch_gradient, **tolerance)
    assert all(torch.equal(p, old) for p, old in zip(params, before, strict=True))
    assert len(calls) == single.evaluations == (2 * n_samples if symmetric else n_samples + 1)


def test_parameters_are_put_back_when_the_closure_raises():
    x = torch.tensor([0.1, 0.2, 0.3])
    before = x.clone()
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the instrument failed")
        return x.sum()

    with pytest.raises(RuntimeError, match="instrument"):
        GradientEstimator(n_samples=5, mu=1.0)([x], closure)
    assert torch.equal(x, before)


def test_half_precision_parameters():
    x = torch.randn(40, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    estimate = GradientEstimator(
        n_samples=3, mu=0.1, direction="gaussian", generator=torch.Generator().manual_seed(0)
    )
    value, gradient = estimate([x], lambda: x.float().square().sum())
    assert gradient.dtype == torch.float32
    assert torch.isfinite(gradient).all()
    assert math.isfinite(value)


@pytest.mark.parametrize(("direction", "factor"), [("sphere", -1), ("gaussian", +1)])
def test_variance_on_a_linear_function(direction, factor):
    """E|g - a|^2 = (d - 1)|a|^2 / K on the sphere with the factor d, (d + 1)|a|^2 / K with Gaussian directions."""
    d, k = 20, 5
    slope = torch.linspace(-1, 2, d)
    estimate = GradientEstimator(
        n_samples=k,
        mu=0.05,
        direction=direction,
        scale_by_dim=direction == "sphere",
        generator=torch.Generator().manual_seed(1),
    )
    x = torch.zeros(d)
    draws = torch.stack([estimate.batched([x], lambda points: points @ slope)[1] for _ in range(4000)])
    errors = (draws - slope).square().sum(-1) / slope.square().sum()
    expected = (d + factor) / k
    assert abs(errors.mean() - expected) < 4 * errors.std() / 4000**0.5
    assert abs(errors.mean() - expected) < 0.05 * expected
    bias = draws.mean(0) - slope
    assert (bias.abs() < 5 * draws.std(0) / 4000**0.5).all()


def test_directions_are_uniform_on_the_sphere():
    """The second moment of u is I/d and the fourth moment of a coordinate is 3/(d(d+2))."""
    d, seen = 6, []
    estimate = GradientEstimator(n_samples=20000, mu=1.0, generator=torch.Generator().manual_seed(2))

    def function(points):
        seen.append(points[1:].clone())
        return points.sum(-1)

    estimate.batched([torch.zeros(d)], function)
    u = seen[0].double()
    torch.testing.assert_close(u.norm(dim=1), torch.ones(20000, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(u.T @ u / 20000, torch.eye(d, dtype=torch.float64) / d, rtol=0, atol=0.006)
    assert u[:, 0].pow(4).mean().item() == pytest.approx(3 / (d * (d + 2)), rel=0.05)


def test_draws_do_not_depend_on_the_precision_of_the_parameters():
    points = {}
    for dtype in (torch.float32, torch.float64):
        estimate = GradientEstimator(
            n_samples=2, mu=1.0, direction="gaussian", generator=torch.Generator().manual_seed(0)
        )

        def keep(x, dtype=dtype):
            points[dtype] = x.clone()
            return x.sum(-1)

        estimate.batched([torch.zeros(33, dtype=dtype)], keep)
    assert torch.equal(points[torch.float32].double(), points[torch.float64])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_samples": 1.5}, "n_samples"),
        ({"mu": 0.0}, "mu"),
        ({"direction": "cube"}, "direction"),
        ({"direction": "gaussian", "scale_by_dim": True}, "scale_by_dim"),
        ({"generator": torch.Generator(), "sampler": torch.randn}, "not both"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        GradientEstimator(**options)


def test_a_batched_function_must_return_one_value_a_point():
    with pytest.raises(ValueError, match="3"):
        GradientEstimator(n_samples=2).batched([torch.zeros(4)], lambda points: points.sum())
