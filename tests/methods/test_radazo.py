"""R-AdaZO and its rivals: the update against closed forms, an independent NumPy version and torch's Adam."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.common.zeroth_order import ZerothOrder
from methods.zeroth_order.radazo import RAdaZO
from methods.zeroth_order.zo_adamm import ZOAdaMM
from methods.zeroth_order.zo_signsgd import ZOSignSGD
from tests.methods.test_zeroth_order_estimator import player


def coupled(x):
    return float(np.sum((x[1:] - x[:-1] ** 2 / 4) ** 2) + np.sum(np.cos(x)))


def reference(
    blocks, draws, steps, *, refined, blockwise, lr, betas, eps, eps_inside, warmup, amsgrad, k, mu, form
):
    """R-AdaZO or ZO-AdaMM in plain NumPy, from the formulas; `draws` yields standard normal vectors."""
    direction, scale_by_dim, symmetric = form
    x = np.concatenate(blocks)
    edges = np.cumsum([0] + [len(block) for block in blocks])
    groups = list(itertools.pairwise(edges)) if blockwise else [(0, len(x))]
    m, v, largest = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    path = []
    for t in range(1, steps + 1):
        for lo, hi in groups:
            gradient = np.zeros(hi - lo)
            for _ in range(k):
                u = next(draws)(hi - lo)
                if direction == "sphere":
                    u = u / np.sqrt(np.sum(u**2))
                ahead, behind = x.copy(), x.copy()
                ahead[lo:hi] += mu * u
                if symmetric:
                    behind[lo:hi] -= mu * u
                width = 2 * mu if symmetric else mu
                gradient += (coupled(ahead) - coupled(behind)) / width * u / k
            gradient *= (hi - lo) if scale_by_dim else 1
            m[lo:hi] = betas[0] * m[lo:hi] + (1 - betas[0]) * gradient
            source = m[lo:hi] if refined else gradient
            v[lo:hi] = betas[1] * v[lo:hi] + (1 - betas[1]) * source**2
            largest[lo:hi] = np.maximum(largest[lo:hi], v[lo:hi])
            root = largest[lo:hi] if amsgrad else v[lo:hi]
            scale = np.sqrt(root + eps) if eps_inside else np.sqrt(root) + eps
            x[lo:hi] -= lr * m[lo:hi] / (np.ones(hi - lo) if t <= warmup else scale)
        path.append(x.copy())
    return np.array(path)


@given(
    refined=st.booleans(),
    form=st.sampled_from(
        [("sphere", False, False), ("sphere", True, False), ("sphere", True, True), ("gaussian", False, True)]
    ),
    blockwise=st.booleans(),
    eps_inside=st.booleans(),
    amsgrad=st.booleans(),
    warmup=st.sampled_from([0, 3]),
    k=st.integers(1, 3),
    seed=st.integers(0, 50),
)
def test_path_against_numpy(refined, form, blockwise, eps_inside, amsgrad, warmup, k, seed):
    rng = np.random.default_rng(seed)
    blocks = [rng.standard_normal(n) for n in (3, 1, 2)]
    stream = [rng.standard_normal(6) for _ in range(200)]
    shared = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-3, "mu": 0.05}
    expected = reference(
        blocks,
        iter([lambda size, z=z: z[:size] for z in stream]),
        8,
        refined=refined,
        blockwise=blockwise,
        eps_inside=eps_inside,
        warmup=warmup,
        amsgrad=amsgrad,
        k=k,
        form=form,
        **shared,
    )
    params = [torch.tensor(block, requires_grad=True) for block in blocks]
    played = iter(stream)
    direction, scale_by_dim, symmetric = form
    optimizer = (RAdaZO if refined else ZOAdaMM)(
        params,
        eps_inside=eps_inside,
        amsgrad=amsgrad,
        warmup_steps=warmup,
        n_samples=k,
        direction=direction,
        scale_by_dim=scale_by_dim,
        symmetric=symmetric,
        blockwise=blockwise,
        sampler=lambda size: torch.tensor(next(played)[:size]),
        **shared,
    )

    def closure():
        return coupled(torch.cat([p.detach() for p in params]).numpy())

    for row in expected:
        optimizer.step(closure)
        found = torch.cat([p.detach() for p in params]).numpy()
        np.testing.assert_allclose(found, row, rtol=1e-7, atol=1e-9)


def test_first_step_in_one_dimension():
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = RAdaZO(
        [x], lr=0.1, betas=(0.9, 0.99), eps=0.0, n_samples=2, mu=0.05, sampler=player([1.0], [-1.0])
    )
    loss = optimizer.step(lambda: x.square())
    state = optimizer.state[x]
    assert loss.item() == 1.0
    assert state["exp_avg"].item() == pytest.approx(0.2, rel=1e-12)
    assert state["exp_avg_sq"].item() == pytest.approx(4e-4, rel=1e-12)
    assert x.item() == pytest.approx(1 - 10 * 0.1, abs=1e-12)


@pytest.mark.parametrize("beta2", [0.99, 0.999])
@pytest.mark.parametrize(("method", "factor"), [(RAdaZO, 1.0), (ZOAdaMM, 0.1)])
def test_first_step_length(method, factor, beta2):
    """lr / sqrt(1 - beta2) a coordinate (R-AdaZO), (1 - beta1) times that (ZO-AdaMM)."""
    x = torch.linspace(-2, 2, 6, dtype=torch.float64, requires_grad=True)
    before = x.detach().clone()
    generator = torch.Generator().manual_seed(0)
    optimizer = method([x], lr=1e-3, betas=(0.9, beta2), eps=0.0, n_samples=4, generator=generator)
    optimizer.step(batched=lambda points: points.square().sum(-1))
    moved = (x.detach() - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, factor * 1e-3 / math.sqrt(1 - beta2)))


def test_constant_gradient():
    """v_t / g^2 = (1 - beta2) sum_j beta2^(t-j) (1 - beta1^j)^2, and m / sqrt(v) tends to 1."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = RAdaZO(
        [x], lr=0.0, betas=(0.9, 0.99), n_samples=1, mu=0.1, generator=torch.Generator().manual_seed(0)
    )
    for t in range(1, 2001):
        optimizer.step(lambda: 3.0 * x)  # in one dimension u is +1 or -1: the estimate is exact
        if t in (1, 2, 10, 100):
            v = sum(0.99 ** (t - j) * (1 - 0.9**j) ** 2 for j in range(1, t + 1)) * 0.01
            assert optimizer.state[x]["exp_avg_sq"].item() / 9 == pytest.approx(v, rel=1e-9)
    state = optimizer.state[x]
    assert (state["exp_avg"] / state["exp_avg_sq"].sqrt()).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("method", "expected"), [(RAdaZO, 1.0), (ZOAdaMM, math.sqrt(0.1 / 1.9))])
def test_steps_under_pure_noise(method, expected):
    """Stationary root mean square of m / sqrt(v): 1 and sqrt((1 - beta1) / (1 + beta1)) = 0.2294."""
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(2000, requires_grad=True)
    optimizer = method([x], lr=0.0, betas=(0.9, 0.999), eps=0.0)
    optimizer.param_groups[0]["updates"] = 1  # as `step` counts
    total, kept = 0.0, 0
    with torch.no_grad():
        for t in range(8000):
            optimizer.update(optimizer.param_groups[0], [x], [torch.randn(2000, generator=generator)])
            if t >= 6000 and t % 20 == 0:
                state = optimizer.state[x]
                total += (state["exp_avg"].square() / state["exp_avg_sq"]).mean().item()
                kept += 1
    assert math.sqrt(total / kept) == pytest.approx(expected, rel=0.02)


def test_where_epsilon_begins_to_matter():
    """1% of the step at sqrt(v) = 1e-6 outside the root; inside at 7.07e-4, and half of it at 5.77e-5."""

    def moved(gradient, inside):
        x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimizer = RAdaZO([x], lr=1.0, betas=(0.0, 0.0), eps=1e-8, eps_inside=inside)
        optimizer.param_groups[0]["updates"] = 1  # as `step` counts
        with torch.no_grad():
            optimizer.update(optimizer.param_groups[0], [x], [torch.full_like(x, gradient)])
        return -x.item()

    assert moved(1e-6, False) == pytest.approx(1 / 1.01, rel=1e-9)
    assert moved(math.sqrt(1e-8 / 0.02), True) == pytest.approx(1 / math.sqrt(1.02), rel=1e-9)
    assert moved(math.sqrt(1e-8 / 3), True) == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_zo_adamm_is_torch_adam_without_bias_correction(amsgrad):
    """torch's Adam at lr (1 - beta1^t) / sqrt(1 - beta2^t) undoes its own correction (not with eps)."""
    generator = torch.Generator().manual_seed(3)
    ours, theirs = (torch.zeros(7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer = ZOAdaMM([ours], lr=0.01, betas=(0.8, 0.95), eps=0.0, amsgrad=amsgrad)
    adam = torch.optim.Adam([theirs], lr=0.01, betas=(0.8, 0.95), eps=0.0, amsgrad=amsgrad)
    for t in range(1, 60):
        gradient = torch.randn(7, dtype=torch.float64, generator=generator)
        with torch.no_grad():
            optimizer.param_groups[0]["updates"] += 1
            optimizer.update(optimizer.param_groups[0], [ours], [gradient.clone()])
        adam.param_groups[0]["lr"] = 0.01 * (1 - 0.8**t) / math.sqrt(1 - 0.95**t)
        theirs.grad = gradient
        adam.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def objective(points):
    return (points - 1).square().sum(-1) + points[..., 0] ** 4


@pytest.mark.parametrize("method", [RAdaZO, ZOAdaMM, ZOSignSGD])
def test_scaling_the_objective_changes_nothing(method):
    paths = []
    for factor in (1.0, 1024.0):
        x = torch.zeros(5, dtype=torch.float64, requires_grad=True)
        options = {} if method is ZOSignSGD else {"eps": 0.0}
        optimizer = method([x], lr=0.01, generator=torch.Generator().manual_seed(0), **options)
        for _ in range(30):
            optimizer.step(batched=lambda points, factor=factor: factor * objective(points))
        paths.append(x.detach().clone())
    assert torch.equal(paths[0], paths[1])


def test_factor_d_cancels_without_epsilon():
    paths = []
    for scale_by_dim in (False, True):
        x = torch.zeros(8, dtype=torch.float64, requires_grad=True)
        generator = torch.Generator().manual_seed(0)
        optimizer = RAdaZO([x], lr=0.01, eps=0.0, scale_by_dim=scale_by_dim, generator=generator)
        for _ in range(30):
            optimizer.step(batched=objective)
        paths.append(x.detach().clone())
    torch.testing.assert_close(paths[0], paths[1], rtol=1e-10, atol=1e-12)


def test_gaussian_probes_stand_farther_away():
    """At the same mu the two forms differ; on a quadratic they agree once mu is multiplied by |z|."""
    draw = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)  # |z| = 3
    steps = []
    for direction, mu in (("gaussian", 0.05), ("sphere", 0.05), ("sphere", 0.15)):
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        optimizer = RAdaZO(
            [x], lr=1.0, betas=(0.0, 0.0), n_samples=1, mu=mu, direction=direction, sampler=player(draw)
        )
        optimizer.step(batched=lambda points: points.square().sum(-1))
        steps.append(optimizer.state[x]["exp_avg"])
    torch.testing.assert_close(steps[0], 9 * steps[2])
    assert not torch.allclose(steps[0], 9 * steps[1], rtol=1e-3)


@pytest.mark.parametrize("method", [RAdaZO, ZOAdaMM, ZOSignSGD])
def test_state_dict_continues_a_run(method):
    def start():
        x = torch.zeros(4, requires_grad=True)
        generator = torch.Generator().manual_seed(5)
        options = {} if method is ZOSignSGD else {"warmup_steps": 15}
        return x, generator, method([x], lr=0.01, generator=generator, **options)

    x, generator, optimizer = start()
    for _ in range(20):
        optimizer.step(batched=objective)
    y, other, half = start()
    for _ in range(10):
        half.step(batched=objective)
    saved = (y.detach().clone(), other.get_state(), half.state_dict())
    z, generator, again = start()
    with torch.no_grad():
        z.copy_(saved[0])
    generator.set_state(saved[1])
    again.load_state_dict(saved[2])
    for _ in range(10):
        again.step(batched=objective)
    assert torch.equal(x, z)


def test_sign_steps():
    x = torch.tensor([2.0, -3.0], dtype=torch.float64, requires_grad=True)
    optimizer = ZOSignSGD([x], lr=0.25, n_samples=50, generator=torch.Generator().manual_seed(0))
    optimizer.step(batched=lambda points: points.square().sum(-1))
    assert x.tolist() == [1.75, -2.75]


@pytest.mark.parametrize(
    "rule",
    [
        lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.5),
        lambda params, lr: torch.optim.RMSprop(params, lr=lr, alpha=0.9),
        torch.optim.Adam,
    ],
)
def test_any_first_order_rule_gets_the_estimate(rule):
    x, y = (torch.full((4,), 2.0, dtype=torch.float64, requires_grad=True) for _ in range(2))
    fed = ZerothOrder(
        [x], rule, lr=0.05, n_samples=3, scale_by_dim=True, generator=torch.Generator().manual_seed(1)
    )
    plain = rule([y], lr=0.05)
    twin = ZerothOrder(
        [y], rule, lr=0.05, n_samples=3, scale_by_dim=True, generator=torch.Generator().manual_seed(1)
    )
    for _ in range(25):
        fed.step(batched=objective)
        y.grad = twin.estimator.batched([y], objective)[1]
        plain.step()
        torch.testing.assert_close(x, y)
    assert x.grad is None


def test_zo_rmsprop_by_formula():
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = ZerothOrder(
        [x],
        lambda params, lr: torch.optim.RMSprop(params, lr=lr, alpha=0.99, eps=0.0),
        lr=0.001,
        n_samples=2,
        mu=0.05,
        sampler=player([1.0], [-1.0]),
    )
    optimizer.step(lambda: x.square())
    assert x.item() == pytest.approx(1 - 0.001 / math.sqrt(0.01), rel=1e-12)


def test_schedulers_and_checkpoints_reach_the_rule():
    x = torch.ones(3, requires_grad=True)
    optimizer = ZerothOrder([x], torch.optim.SGD, lr=1.0, sampler=torch.ones)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer.step(batched=objective)
    schedule.step()
    assert optimizer.rule.param_groups[0]["lr"] == 0.5
    other = ZerothOrder([x], torch.optim.SGD, lr=1.0)
    other.load_state_dict(optimizer.state_dict())
    assert other.rule.param_groups[0]["lr"] == other.param_groups[0]["lr"] == 0.5


def test_frozen_parameters_stay():
    x, y = torch.ones(3, requires_grad=True), torch.ones(2)
    RAdaZO([{"params": [x]}, {"params": [y], "lr": 1.0}], lr=0.1).step(lambda: x.sum() + y.sum())
    assert torch.equal(y, torch.ones(2))
    assert not torch.equal(x, torch.ones(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr"),
        ({"betas": (1.0, 0.9)}, "betas"),
        ({"eps": -1e-8}, "eps"),
        ({"warmup_steps": -1}, "warmup"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        RAdaZO([torch.zeros(1, requires_grad=True)], **options)


def test_bad_steps():
    optimizer = RAdaZO(
        [torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)], blockwise=True
    )
    with pytest.raises(ValueError, match="either closure or batched"):
        optimizer.step()
    with pytest.raises(ValueError, match="either closure or batched"):
        optimizer.step(lambda: 0.0, batched=objective)
    with pytest.raises(ValueError, match="blockwise"):
        optimizer.step(batched=objective)
