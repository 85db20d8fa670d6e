"""Shuffling gradient methods: orders, the proximal step, step sizes, averages, and bad input."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch.utils.data import DataLoader

from methods.minimize.prox import closed_form
from methods.minimize.shuffling import (
    FullBatch,
    Incremental,
    ProximalSGD,
    RandomReshuffle,
    SingleShuffle,
    StepSize,
    SuffixAverage,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# -- orders ------------------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 40), seed=st.integers(0, 1000))
def test_every_epoch_is_a_permutation(n, seed):
    for sampler in (
        RandomReshuffle(range(n), seeded(seed)),
        SingleShuffle(range(n), seeded(seed)),
        Incremental(range(n)),
    ):
        assert len(sampler) == n
        for _ in range(3):
            assert sorted(sampler) == list(range(n))


def test_orders_differ_as_they_should():
    fresh, once = RandomReshuffle(range(50), seeded()), SingleShuffle(range(50), seeded())
    assert list(fresh) != list(fresh)
    assert list(once) == list(once)
    assert list(SingleShuffle(range(50), seeded(1))) != list(once)
    assert list(RandomReshuffle(range(50), seeded())) == list(once)


def test_first_places_are_uniform():
    sampler = RandomReshuffle(range(4), seeded())
    counts = np.bincount([next(iter(sampler)) for _ in range(4000)], minlength=4)
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.3  # chi-squared with 3 degrees of freedom: p > 0.001


@pytest.mark.parametrize("make", [RandomReshuffle, SingleShuffle, Incremental])
def test_orders_serve_a_dataloader(make):
    data = torch.arange(6.0)
    loader = DataLoader(data, batch_size=4, sampler=make(data))
    assert sorted(torch.cat(list(loader)).tolist()) == data.tolist()
    assert [len(batch) for batch in loader] == [4, 2]


def test_all_components_at_once():
    data = torch.arange(3.0)
    assert [batch.tolist() for batch in DataLoader(data, batch_sampler=FullBatch(data))] == [[0.0, 1.0, 2.0]]


@pytest.mark.parametrize("make", [RandomReshuffle, SingleShuffle, Incremental, FullBatch])
def test_nothing_to_sample(make):
    with pytest.raises(ValueError, match="no component"):
        make([])


def test_an_order_that_is_none():
    with pytest.raises(ValueError, match=r"no permutation of 0\.\.2"):
        Incremental(range(3), order=[0, 1, 1])


# -- the proximal step -------------------------------------------------------------------------------------------------


def step(x, gradient, lr, prox):
    p = torch.tensor(x, dtype=torch.float64)
    p.grad = torch.tensor(gradient, dtype=torch.float64)
    ProximalSGD([p], lr=lr, prox=prox).step()
    return p.tolist()


def test_known_steps():
    assert step([1.0], [0.4], 0.5, {"l2_squared": 1.0}) == pytest.approx([0.8 / 1.5])
    assert step([0.3], [0.4], 0.5, {"l1": 0.1}) == pytest.approx([0.05])
    assert step([3.0, 4.0], [0.0, 0.0], 0.5, {"ball": 1.0}) == pytest.approx([0.6, 0.8])
    assert step([0.3, -2.0], [0.4, 0.0], 0.5, {"box": (0, 1)}) == pytest.approx([0.1, 0.0])
    assert step([1.0], [0.4], 0.5, None) == pytest.approx([0.8])
    assert step([1.0], [0.4], 0.5, lambda v, eta: v * eta) == pytest.approx([0.4])


def test_two_known_steps_of_the_tug_of_war():
    x, path = torch.ones(1, dtype=torch.float64), []
    optimizer = ProximalSGD([x], lr=0.1)
    for i in Incremental(range(2)):
        x.grad = 0.2 * x.sign() + (1.0, -1.0)[i]
        optimizer.step()
        path.append(x.item())
    assert path == pytest.approx([0.88, 0.96])


@given(
    v=st.floats(-3, 3),
    eta=st.floats(0.01, 2),
    weight=st.floats(0, 2),
    mu=st.floats(0, 2),
    radius=st.floats(0.1, 2),
)
def test_the_operator_is_the_least_point_in_one_dimension(v, eta, weight, mu, radius):
    prox = closed_form({"l1": weight, "l2_squared": mu, "ball": radius})
    found = minimize_scalar(
        lambda x: weight * abs(x) + mu / 2 * x**2 + (x - v) ** 2 / (2 * eta),
        bounds=(-radius, radius),
        method="bounded",
        options={"xatol": 1e-9},
    )
    got = prox(torch.tensor([v], dtype=torch.float64), eta).item()
    assert got == pytest.approx(found.x, abs=1e-5)


def test_sums_with_a_ball_in_two_dimensions():
    """Against the points of a fine grid: none is better."""
    prox = closed_form({"l1": 0.3, "l2_squared": 0.5, "ball": 0.8})
    v, eta = torch.tensor([1.5, -0.7], dtype=torch.float64), 0.6

    def objective(x):
        return 0.3 * x.abs().sum(-1) + 0.25 * x.square().sum(-1) + (x - v).square().sum(-1) / (2 * eta)

    axis = torch.linspace(-0.8, 0.8, 401, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    inside = points[points.norm(dim=-1) <= 0.8]
    found = prox(v, eta)
    assert found.norm() <= 0.8 + 1e-12
    assert objective(found) <= objective(inside).min() + 1e-12


def test_a_ball_holds_each_replicate():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert closed_form({"ball": 1.0})(x, 1.0).tolist() == [
        pytest.approx([0.6, 0.8]),
        pytest.approx([0.3, 0.4]),
        [0.0, 0.0],
    ]


@pytest.mark.parametrize("terms", [{"ball": 1.0, "box": (0, 1)}, {"l1": 0.1, "total_variation": 1.0}])
def test_a_prox_without_closed_form(terms):
    with pytest.raises(ValueError) as caught:
        ProximalSGD([torch.zeros(2)], lr=0.1, prox=terms)
    message = str(caught.value)
    assert message.startswith(f"the prox of {' + '.join(terms)} has no closed form: pass a function")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"lr": 0.0}, ValueError, "lr=0.0: expected a step > 0"),
        ({"lr": lambda t: -1.0}, ValueError, "lr=-1.0"),
        ({"lr": 0.1, "prox": 0.1}, TypeError, "prox is a float"),
        ({"lr": 0.1, "prox": {"l1": -1.0}}, ValueError, "l1=-1.0: expected a number >= 0"),
        ({"lr": 0.1, "prox": {"ball": 0.0}}, ValueError, "ball=0.0: expected a number > 0"),
        ({"lr": 0.1, "prox": {"box": (1, 0)}}, ValueError, "low <= high"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ProximalSGD([torch.zeros(2)], **arguments)


def test_a_prox_of_another_shape():
    with pytest.raises(ValueError, match="returned the shape"):
        step([1.0, 2.0], [0.0, 0.0], 0.1, lambda v, eta: v.sum())


def test_the_step_counts_all_steps_and_survives_a_checkpoint():
    def fresh():
        p = torch.ones(3, dtype=torch.float64)
        return p, ProximalSGD([p], lr=lambda t: t**-0.5, prox={"l1": 0.1})

    def advance(p, optimizer, steps):
        for _ in range(steps):
            p.grad = p.sign()
            optimizer.step()

    whole, optimizer = fresh()
    advance(whole, optimizer, 7)
    assert optimizer.param_groups[0]["lr"] == 7**-0.5
    first, optimizer = fresh()
    advance(first, optimizer, 4)
    state = copy.deepcopy(optimizer.state_dict())
    second, optimizer = fresh()
    second.copy_(first)
    optimizer.load_state_dict(state)
    advance(second, optimizer, 3)
    assert torch.equal(whole, second)


def test_a_number_as_the_step_takes_torchs_schedulers():
    p = torch.zeros(1)
    optimizer = ProximalSGD([p], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (t + 1))
    for _ in range(3):
        p.grad = -torch.ones(1)
        optimizer.step()
        scheduler.step()
    assert p.item() == pytest.approx(1 + 1 / 2 + 1 / 3)


# -- step sizes and averages -------------------------------------------------------------------------------------------


def test_step_sizes():
    assert StepSize(n=16, G=2.0, D=3.0, power=0.5)(4) == pytest.approx(3 / (2 * 4 * 2))
    assert StepSize(n=16, G=2.0, D=3.0, mu=0.5, schedule="inverse")(3) == pytest.approx(1.0)
    assert StepSize(n=16, G=2.0, D=3.0, schedule="constant", scale=0.01)(99) == 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedule": "cosine"}, "sqrt, inverse or constant"),
        ({"schedule": "inverse"}, "mu > 0"),
        ({"scale": 0}, "positive"),
    ],
)
def test_bad_step_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        StepSize(n=4, G=1.0, D=1.0, **arguments)


@given(total=st.integers(1, 30), data=st.data())
def test_the_suffix_average_is_a_mean(total, data):
    window = data.draw(st.integers(1, total))
    path = torch.randn(total, 3, generator=seeded(total), dtype=torch.float64)
    p = torch.zeros(3, dtype=torch.float64)
    average = SuffixAverage([p], window=window, total=total)
    for x in path:
        p.copy_(x)
        average.update()
    assert torch.allclose(average.value()[0], path[-window:].mean(0), atol=1e-12)
    with pytest.raises(RuntimeError, match=f"planned for {total} steps"):
        average.update()


def test_no_suffix_yet():
    average = SuffixAverage([torch.zeros(1)], window=1, total=2)
    average.update()
    with pytest.raises(RuntimeError, match="begins after step 1"):
        average.value()
    with pytest.raises(ValueError, match="1 <= window <= total"):
        SuffixAverage([torch.zeros(1)], window=3, total=2)
