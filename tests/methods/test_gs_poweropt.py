"""GS-PowerOpt: hand-computed values, invariances, a second writing, bad input."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.zeroth_order.gs_poweropt import GSPowerOpt
from tasks.zeroth_order import functions
from tests.methods.smoothing_cases import Stream, gs_poweropt, steps


def bowl(x):
    return (x - 1).square().sum(-1) / 2


def wavy(x):
    return x.square().sum(-1) + torch.cos(3 * x).sum(-1)


def one_step(loss, start=(0.3, -0.7), draws=None, **options):
    """Where one update goes."""
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    sampler = Stream(0) if draws is None else lambda n: torch.as_tensor(draws, dtype=torch.float64)
    optimizer = GSPowerOpt([x], **{"sampler": sampler, **options})
    optimizer.step(batched=loss)
    return x.detach()


@pytest.mark.parametrize("N", [0.5, 2.0])
@pytest.mark.parametrize("K", [1, 7])
@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("decay_steps", [None, 20.0])
def test_epgs_against_numpy(N, K, stable, decay_steps):
    start, T, lr, sigma = (1.5, -0.4, 0.2), 30, 0.2, 0.7
    make = partial(GSPowerOpt, lr=lr, sigma=sigma, N=N, n_samples=K, stable=stable, decay_steps=decay_steps)
    ours = steps(make, start, T, wavy, Stream(1))
    s = decay_steps or math.inf
    theirs = gs_poweropt(
        lambda x: -wavy(torch.from_numpy(x)).item(),
        np.array(start),
        Stream(1),
        K=K,
        T=T,
        lr=lr,
        std=sigma,
        weight=lambda f, here: math.exp(N * (f - here)),
        schedule=lambda k: 1 / (1 + k / s),
    )
    assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("stable", [True, False])
@pytest.mark.parametrize("variance", [True, False])
def test_pgs_against_numpy(stable, variance):
    start, sigma, N = (1.5, -0.4), 1.7, 5
    make = partial(
        GSPowerOpt,
        variant="pgs",
        lr=0.1,
        sigma=sigma,
        N=N,
        n_samples=8,
        shift=60.0,
        decay_steps=5000,
        sigma_is_variance=variance,
        stable=stable,
    )
    theirs = gs_poweropt(
        lambda x: 60 - wavy(torch.from_numpy(x)).item(),
        np.array(start),
        Stream(2),
        K=8,
        T=30,
        lr=0.1,
        std=math.sqrt(sigma) if variance else sigma,
        weight=lambda f, here: (f / here) ** N,
        schedule=lambda k: 5000 / (5000 + k),
    )
    assert steps(make, start, 30, wavy, Stream(2)) == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("N", [2, 3])
@pytest.mark.parametrize("stable", [True, False])
def test_a_negative_fitness_turns_the_sign_of_an_odd_power(N, stable):
    """With fitness -1 at x = 1 and 1 at x = -2: the weights are (-1)^N and 1."""
    x = one_step(
        lambda points: torch.where(points[:, 0] > 0.5, 1.0, -1.0),
        start=[0.0],
        draws=[1.0, -2.0],
        variant="pgs",
        N=N,
        n_samples=2,
        lr=1.0,
        nonpositive="power",
        stable=stable,
    )
    assert x.item() == (-1.0 if (1.0 * (-1) ** N - 2.0) < 0 else 1.0)
    optimizer = GSPowerOpt([torch.zeros(1)], variant="pgs", N=N, nonpositive="power", stable=stable)
    weights, scale = optimizer.transform(torch.tensor([2.0, -1.0, -2.0]))
    powers = torch.tensor([(-2.0) ** N, 1.0, 2.0**N])
    assert (weights * scale.exp()).tolist() == pytest.approx(powers.tolist())


def test_a_linear_objective_gives_its_direction():
    """Tilting a Gaussian shifts its mean by N sigma^2 b: with many draws the step points along b."""
    b = torch.tensor([3.0, -4.0, 12.0], dtype=torch.float64)
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    optimizer = GSPowerOpt([x], lr=1.0, sigma=0.3, N=0.5, n_samples=200_000, generator=generator)
    optimizer.step(batched=lambda points: -points @ b)
    assert x.detach() / x.detach().norm() == pytest.approx(b / 13, abs=0.02)
    state = optimizer.state[x]
    exact = 0.5 * 0.09 * b * math.exp(0.5 * (0.5 * 0.3 * 13) ** 2)
    assert (state["estimate"] * state["log_scale"].exp())[0] == pytest.approx(exact, rel=0.05)


def test_estimate_against_the_closed_form():
    """f(x) = -(x - 1)^2 / 2 in one dimension at mu = 0, N = sigma = 1: 1/2 2^(-1/2) e^(-1/4)."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = GSPowerOpt([x], lr=0.0, n_samples=1_000_000, generator=torch.Generator().manual_seed(3))
    optimizer.step(batched=bowl)
    state = optimizer.state[x]
    estimate = (state["estimate"] * state["log_scale"].exp()).item()
    assert 0.5 * 2**-0.5 * math.exp(-0.25) == pytest.approx(0.2753477, abs=1e-7)
    assert estimate == pytest.approx(0.2753477, abs=4 * 0.5 / 1000)
    assert x.item() == 0


def test_every_step_has_the_scheduled_length():
    path = steps(partial(GSPowerOpt, lr=0.1, n_samples=3, decay_steps=1000), (5.0, 5.0), 200, wavy, Stream(4))
    lengths = np.linalg.norm(np.diff(path, axis=0), axis=1)
    assert lengths == pytest.approx(0.1 * 1000 / (1000 + np.arange(1, 200)), rel=1e-9)
    assert lengths[-1] == pytest.approx(0.0834, abs=1e-4)


def test_sigma_as_a_variance():
    assert GSPowerOpt([torch.zeros(2)], variant="pgs", sigma=2.0, sigma_is_variance=True).spread == math.sqrt(
        2
    )
    assert GSPowerOpt([torch.zeros(2)], sigma=2.0).spread == 2.0


def test_logits_of_several_hundred():
    """e^{Nf} underflows to 0 for all draws at f = -800, or overflows at 800; relative weights do not."""
    for level in (800.0, -800.0):

        def loss(x, level=level):
            return level + bowl(x)

        with pytest.raises(
            FloatingPointError, match=r"N = 1 overflows exp: log f_N ranges from .* limit of 709\.8"
        ):
            one_step(loss, stable=False)
        moved = one_step(loss)
        assert moved == pytest.approx(one_step(bowl), abs=1e-9)
        assert one_step(loss, N=0.05, stable=False) == pytest.approx(one_step(bowl, N=0.05), abs=1e-9)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (lambda x: bowl(x) - 10, {"N": 1e308}),
        (lambda x: bowl(x) * math.nan, {}),
        (lambda x: torch.full_like(x[:, 0], -math.inf), {}),
        (lambda x: torch.full_like(x[:, 0], math.inf), {}),
    ],
)
def test_a_power_that_overflows_whatever_the_scale(loss, options):
    with pytest.raises(FloatingPointError, match="overflows exp"):
        one_step(loss, **options)


def test_infeasible_points_weigh_nothing():
    def half(x):
        return torch.where(x[:, 0] > 0.3, math.inf, bowl(x))

    draws = Stream(5)(20)
    x = one_step(half, n_samples=10, draws=draws)
    kept = draws.reshape(10, 2)
    kept = kept[kept[:, 0] <= 0]
    assert 0 < len(kept) < 10
    start = torch.tensor([0.3, -0.7], dtype=torch.float64)
    weights = (-bowl(start + kept)).exp()
    g = (kept * weights.unsqueeze(1)).sum(0)
    assert x == pytest.approx(start + 0.1 * g / g.norm(), abs=1e-12)


def test_no_direction_no_step():
    still = one_step(bowl, draws=[0.0, 0.0], n_samples=1)
    assert still.tolist() == [0.3, -0.7]


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), N=st.floats(0.1, 5), offset=st.floats(-100, 100))
def test_adding_a_constant_changes_nothing_in_epgs(seed, N, offset):
    make = partial(GSPowerOpt, N=N, n_samples=5)
    plain = steps(make, (0.5, 0.5), 5, wavy, Stream(seed))
    assert steps(make, (0.5, 0.5), 5, lambda x: wavy(x) + offset, Stream(seed)) == pytest.approx(
        plain, abs=1e-8
    )


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), N=st.integers(1, 60), factor=st.floats(0.01, 100))
def test_scaling_the_fitness_changes_nothing_in_pgs(seed, N, factor):
    def path(scale):
        make = partial(GSPowerOpt, variant="pgs", N=N, n_samples=5, shift=200.0 * scale)
        return steps(make, (0.5, 0.5), 5, lambda x: scale * wavy(x), Stream(seed))

    assert path(factor) == pytest.approx(path(1.0), abs=1e-7)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), angle=st.floats(0, 6.28))
def test_turning_the_plane_turns_the_path(seed, angle):
    turn = torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64
    )
    start = torch.tensor([0.5, -0.3], dtype=torch.float64)
    draws = [Stream(seed)(10).reshape(5, 2) for _ in range(4)]
    make = partial(GSPowerOpt, n_samples=5)
    plain = steps(make, start.tolist(), 4, wavy, Replay(draws))
    turned = steps(
        make, (turn @ start).tolist(), 4, lambda x: wavy(x @ turn), Replay([z @ turn.T for z in draws])
    )
    assert turned == pytest.approx(plain @ turn.numpy().T, abs=1e-9)


class Replay:
    def __init__(self, draws):
        self.draws = iter(draws)

    def __call__(self, n):
        return next(self.draws)


def test_maximizing_is_minimizing_the_negative():
    ahead = one_step(lambda x: -bowl(x), maximize=True, shift=3.0)
    assert torch.equal(ahead, one_step(bowl, shift=3.0))


def test_closures_and_batches_and_ask_tell_agree():
    paths = []
    for how in ("batched", "closure", "ask"):
        a, b = (torch.full((2,), 0.5, dtype=torch.float64, requires_grad=True) for _ in range(2))
        optimizer = GSPowerOpt([a, b], n_samples=6, generator=torch.Generator().manual_seed(1))
        for _ in range(5):
            if how == "batched":
                value = optimizer.step(batched=wavy)
            elif how == "closure":
                value = optimizer.step(lambda a=a, b=b: wavy(torch.cat([a, b])))
            else:
                value = optimizer.tell(wavy(optimizer.ask()))
        paths.append(torch.cat([a.detach(), b.detach(), value.reshape(1)]))
    assert torch.equal(paths[0], paths[1])
    assert torch.equal(paths[0], paths[2])


@pytest.mark.parametrize("maximize", [True, False])
def test_the_returned_value_is_that_before_the_update(maximize):
    x = torch.tensor([2.0], requires_grad=True)
    assert GSPowerOpt([x], maximize=maximize).step(batched=bowl).item() == 0.5
    assert x.item() != 2.0


def test_minimize_selects_an_iterate():
    options = {"sigma": 0.5, "N": 3.0, "lr": 0.3, "K": 10, "T": 40}
    found = {
        select: GSPowerOpt.minimize(
            wavy, torch.ones(2, dtype=torch.float64), **options, select=select, sampler=Stream(6)
        )
        for select in ("last", "best", lambda path, values: int(path.norm(dim=1).argmin()))
    }
    last, best, nearest = found.values()
    assert torch.equal(last.path, best.path)
    assert last.path.shape == (41, 2)
    assert last.path[0].tolist() == [1, 1]
    assert last.values == pytest.approx(wavy(last.path))
    assert (last.chosen, best.chosen) == (40, int(last.values.argmin()))
    assert best.value == last.values.min().item()
    assert torch.equal(nearest.x, last.path[last.path.norm(dim=1).argmin()])


def test_minimize_takes_a_schedule():
    start = torch.zeros(2)
    found = GSPowerOpt.minimize(
        bowl, start, lr=0.5, K=4, T=6, schedule=lambda k: 1 / (1 + k), sampler=Stream(0)
    )
    lengths = found.path.diff(dim=0).norm(dim=1)
    assert lengths == pytest.approx(0.5 / torch.arange(1, 7), rel=1e-5)
    assert start.tolist() == [0, 0]


def test_it_finds_the_global_maximum_of_the_two_log_function():
    start = torch.tensor([0.6, 0.4], dtype=torch.float64)  # in the wrong pit
    generator = torch.Generator().manual_seed(0)
    right = GSPowerOpt.minimize(
        functions.two_log, start, N=4.0, K=100, T=200, select="best", generator=generator
    )
    assert right.x == pytest.approx([-0.5, -0.5], abs=0.05)
    smooth = GSPowerOpt.minimize(functions.two_log, start, N=0.5, K=100, T=200, generator=generator)
    assert (smooth.x + 0.5).norm() > 0.2


def test_a_checkpoint_continues_a_run():
    def start():
        return torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)

    stream, x = Stream(7), start()
    whole = GSPowerOpt([x], decay_steps=5, sampler=stream)
    for _ in range(8):
        whole.step(batched=wavy)
    stream, y = Stream(7), start()
    first = GSPowerOpt([y], decay_steps=5, sampler=stream)
    for _ in range(4):
        first.step(batched=wavy)
    second = GSPowerOpt([y], decay_steps=5, sampler=stream)
    second.load_state_dict(first.state_dict())
    for _ in range(4):
        second.step(batched=wavy)
    assert torch.equal(x, y)


def test_a_torch_scheduler_sets_the_length():
    x = torch.zeros(2, requires_grad=True)
    optimizer = GSPowerOpt([x], lr=1.0, generator=torch.Generator().manual_seed(0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer.step(batched=bowl)
    scheduler.step()
    before = x.detach().clone()
    optimizer.step(batched=bowl)
    assert (x.detach() - before).norm().item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"N": 0}, "N must be above 0"),
        ({"N": math.inf}, "N must be finite"),
        ({"N": math.nan}, "N must be above 0"),
        ({"sigma": 0}, "sigma must be above 0"),
        ({"n_samples": 0}, "n_samples must be a whole number of at least 1"),
        ({"n_samples": 2.5}, "n_samples must be a whole number"),
        ({"lr": -1}, "lr must be at least 0"),
        ({"decay_steps": 0}, "decay_steps must be above 0"),
        ({"variant": "gps"}, "variant must be 'epgs' or 'pgs', not 'gps'"),
        ({"nonpositive": "clip"}, "nonpositive must be 'error' or 'power'"),
        ({"variant": "pgs", "nonpositive": "power", "N": 2.5}, "N must be whole"),
        ({"generator": torch.Generator(), "sampler": torch.randn}, "a generator or a sampler, not both"),
        ({"generator": []}, "no replicates"),
        (
            {"generator": [torch.Generator()] * 3},
            r"3 replicates need parameters with a leading axis of 3, not \(2,\)",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        GSPowerOpt([torch.zeros(2)], **options)


def test_bad_steps():
    x = torch.zeros(2)
    optimizer = GSPowerOpt([x], n_samples=3)
    with pytest.raises(ValueError, match="either closure or batched"):
        optimizer.step()
    with pytest.raises(ValueError, match="tell follows ask"):
        optimizer.tell(torch.zeros(4))
    with pytest.raises(ValueError, match=r"values of shape \(4,\) are expected, not \(3,\)"):
        optimizer.step(batched=lambda points: points[1:].sum(-1))
    with pytest.raises(ValueError, match=r"pgs needs a fitness above 0, not -\S+: give a larger shift"):
        GSPowerOpt([x], variant="pgs").step(batched=lambda points: 1 + points.square().sum(-1))
    with pytest.raises(ValueError, match="one parameter group"):
        GSPowerOpt([{"params": [x]}, {"params": [torch.zeros(1)]}])
    with pytest.raises(ValueError, match="T must be a whole number"):
        GSPowerOpt.minimize(bowl, x, T=0)


def test_a_failing_closure_leaves_the_parameters():
    x = torch.tensor([1.0, 2.0])

    def closure():
        raise RuntimeError("no value")

    with pytest.raises(RuntimeError, match="no value"):
        GSPowerOpt([x]).step(closure)
    assert x.tolist() == [1.0, 2.0]
