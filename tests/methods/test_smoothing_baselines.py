"""Standard homotopy, ZO-SLGH, ZO-SGD and ZO-AdaMM with decaying rates, CMA-ES, PSO: second writings and bad input."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from methods.common.zeroth_order import ZerothOrder
from methods.zeroth_order.cma_es import CMAES
from methods.zeroth_order.gs_poweropt import GSPowerOpt
from methods.zeroth_order.pso import PSO
from methods.zeroth_order.slgh import SLGH
from methods.zeroth_order.std_homotopy import STDHomotopy
from methods.zeroth_order.zo_adamm import ZOAdaMM
from methods.zeroth_order.zo_signsgd import ZOSignSGD
from tasks.zeroth_order import functions
from tests.methods.smoothing_cases import Stream, slgh, std_homotopy, steps


def wavy(x):
    return x.square().sum(-1) + torch.cos(3 * x).sum(-1)


def fitness(shift=0.0):
    return lambda x: shift - wavy(torch.from_numpy(x)).item()


@pytest.mark.parametrize("baseline", [True, False])
@pytest.mark.parametrize("limits", [(500, 100, 10), (7, 3, 3), (40, 4, 2), (10, 2, 2)])
def test_std_homotopy_against_numpy(baseline, limits):
    level_steps, patience, levels = limits
    options = {
        "lr": 0.3,
        "sigma": 1.5,
        "decay": 0.5,
        "level_steps": level_steps,
        "patience": patience,
        "levels": levels,
    }
    make = partial(STDHomotopy, n_samples=6, decay_steps=50, shift=20.0, baseline=baseline, **options)
    T = 150
    ours = steps(make, (2.0, -1.5), T, wavy, Stream(0))
    theirs = std_homotopy(
        fitness(20.0), np.array([2.0, -1.5]), Stream(0), K=6, T=T, s=50, baseline=baseline, **options
    )
    n = len(theirs)
    assert (n < T) == (limits in ((7, 3, 3), (40, 4, 2), (10, 2, 2)))  # these searches end before T
    assert ours[:n] == pytest.approx(theirs, abs=1e-9)
    assert (ours[n:] == ours[n - 1]).all()


@pytest.mark.parametrize(("eta", "sigma"), [(None, 1.0), (0.01, 1.0), (0.5, 0.3), (0.0, 1.0)])
def test_slgh_against_numpy(eta, sigma):
    options = {"lr": 0.02, "sigma": sigma, "gamma": 0.9, "eta": eta}
    ours = steps(partial(SLGH, n_samples=5, sigma_min=0.05, **options), (2.0, -1.5), 60, wavy, Stream(1))
    theirs = slgh(fitness(), np.array([2.0, -1.5]), Stream(1), K=5, T=60, floor=0.05, **options)
    assert ours == pytest.approx(theirs, abs=1e-9)


def test_slgh_without_eta_pays_half():
    x = torch.zeros(3)
    assert SLGH([x], n_samples=4).ask().shape == (5, 3)
    assert SLGH([x], n_samples=4, eta=0.1).ask().shape == (9, 3)


def radial(stream, K, d):
    """Directions as the estimator draws them for one replicate: all vectors, then all radii."""
    vectors = stream.rows(K, d)
    radii = torch.special.ndtr(torch.from_numpy(stream.rows(K, 1))).numpy()
    return radii * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class OneReplicate:
    """A method that is asked for one replicate, as a method without replicates."""

    def __init__(self, make):
        self.make = make

    def path(self, start, T, seed):
        x = torch.tensor([start], dtype=torch.float64, requires_grad=True)
        optimizer = self.make([x], generator=[torch.Generator()])
        optimizer.estimator.draws.sampler = Stream(seed)
        path = []
        for _ in range(T):
            optimizer.step(batched=wavy)
            path.append(x.detach()[0].clone().numpy())
        return np.array(path)


def test_zo_sgd_with_radial_directions_against_numpy():
    make = partial(ZerothOrder, rule=torch.optim.SGD, lr=0.05, mu=0.1, n_samples=4, scale_by_dim=True)
    ours = OneReplicate(partial(make, direction="radial", decay_steps=20)).path((2.0, -1.5), 40, 3)
    stream, x, f = Stream(3), np.array([2.0, -1.5]), fitness()
    for k in range(40):
        u = radial(stream, 4, 2)
        g = 2 / 0.1 * np.mean([(f(x + 0.1 * row) - f(x)) * row for row in u], axis=0)
        x = x + 0.05 * 20 / (20 + k) * g
        assert ours[k] == pytest.approx(x, abs=1e-9)


def test_zo_adamm_with_radial_directions_against_numpy():
    make = partial(
        ZOAdaMM, lr=0.1, mu=0.1, n_samples=4, betas=(0.7, 0.3), eps=0.0, amsgrad=True, scale_by_dim=True
    )
    ours = OneReplicate(partial(make, direction="radial", decay_steps=20)).path((2.0, -1.5), 40, 4)
    stream, x, f = Stream(4), np.array([2.0, -1.5]), fitness()
    m, v, largest = np.zeros(2), np.zeros(2), np.zeros(2)
    for k in range(40):
        u = radial(stream, 4, 2)
        g = 2 / 0.1 * np.mean([(f(x + 0.1 * row) - f(x)) * row for row in u], axis=0)
        m, v = 0.7 * m + 0.3 * g, 0.3 * v + 0.7 * g**2
        largest = np.maximum(largest, v)
        x = x + 0.1 * 20 / (20 + k) * m / np.sqrt(largest)
        assert ours[k] == pytest.approx(x, abs=1e-9)


def test_a_radial_estimate_is_a_third_of_the_gradient():
    a = torch.tensor([3.0, -4.0], dtype=torch.float64)
    x = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    make = partial(ZerothOrder, rule=torch.optim.SGD, lr=1.0, n_samples=100_000, scale_by_dim=True)
    make([x], direction="radial", generator=[torch.Generator().manual_seed(0)]).step(
        batched=lambda points: points @ a
    )
    assert -3 * x.detach()[0] == pytest.approx(a, abs=0.1)


METHODS = {
    "epgs": partial(GSPowerOpt, N=2.0, decay_steps=100.0),
    "pgs": partial(GSPowerOpt, variant="pgs", N=7, shift=60.0),
    "std_homotopy": partial(STDHomotopy, level_steps=9, patience=4, levels=3, shift=20.0),
    "slgh_d": partial(SLGH, lr=0.02, eta=0.01),
    "slgh_r": partial(SLGH, lr=0.02),
    "zo_adamm": partial(ZOAdaMM, lr=0.05, mu=0.1, amsgrad=True, direction="radial", decay_steps=10.0),
    "zo_sgd": partial(ZerothOrder, rule=torch.optim.SGD, lr=0.01, mu=0.1, scale_by_dim=True),
    "zo_signsgd": partial(ZOSignSGD, lr=0.01, mu=0.1, symmetric=True),
    "cma_es": CMAES,
    "pso": PSO,
}
pytest.importorskip("cma")


@pytest.mark.parametrize(
    "function", [functions.ackley, functions.rosenbrock, functions.two_log, functions.levy]
)
@pytest.mark.parametrize("name", METHODS)
def test_replicates_do_not_see_each_other(name, function):
    """A replicate's numbers are the same bits alone, with others, and in another place."""

    def run(members):
        x = torch.stack(
            [torch.full((3,), 0.4 + 0.1 * i, dtype=torch.float64) for i in members]
        ).requires_grad_()
        options = {"shift": 1e6} if name == "pgs" else {}
        generators = [torch.Generator().manual_seed(100 + i) for i in members]
        optimizer = METHODS[name]([x], n_samples=5, generator=generators, **options)
        values = [optimizer.step(batched=function) for _ in range(25)]
        return x.detach(), torch.stack(values)

    x, values = run(range(7))
    for members in ([4], [6, 1, 4]):
        y, alone = run(members)
        assert torch.equal(y, x[members])
        assert torch.equal(alone, values[:, members])


@pytest.mark.parametrize("name", METHODS)
def test_several_parameters_are_one_point(name):
    """A [R, 2] and a [R, 1, 1] parameter move as one of [R, 3]."""

    def run(shapes):
        params = [torch.full(shape, 0.5, dtype=torch.float64, requires_grad=True) for shape in shapes]
        optimizer = METHODS[name](
            params, n_samples=4, generator=[torch.Generator().manual_seed(i) for i in (1, 2)]
        )
        for _ in range(5):
            optimizer.step(batched=wavy)
        return torch.cat([p.detach().reshape(2, -1) for p in params], dim=1)

    assert torch.equal(run([(2, 3)]), run([(2, 2), (2, 1, 1)]))


@pytest.mark.parametrize("name", METHODS)
def test_a_closure_needs_one_value(name):
    x = torch.zeros(2, 3, requires_grad=True)
    optimizer = METHODS[name]([x], n_samples=4, generator=[torch.Generator(), torch.Generator()])
    with pytest.raises(ValueError, match="replicates need a batched function"):
        optimizer.step(lambda: 0.0)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("pso", "cma_es")])
def test_the_step_returns_the_objective_before_it(name):
    x = torch.tensor([[0.5, 1.0], [2.0, 0.1]], dtype=torch.float64, requires_grad=True)
    before = wavy(x.detach())
    optimizer = METHODS[name]([x], n_samples=50, generator=[torch.Generator(), torch.Generator()])
    assert optimizer.step(batched=wavy) == pytest.approx(before, abs=0.5 if name == "zo_signsgd" else 1e-12)


@pytest.mark.parametrize("make", [CMAES, PSO])
@pytest.mark.parametrize("maximize", [True, False])
def test_the_best_point_so_far(make, maximize):
    sign = -1 if maximize else 1
    x = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
    optimizer = make(
        [x], sigma=1.0, n_samples=6, maximize=maximize, generator=torch.Generator().manual_seed(0)
    )
    seen = [wavy(x.detach()).item()]
    for _ in range(30):
        points = optimizer.ask()
        before = optimizer.tell(sign * wavy(points))
        assert before.item() == pytest.approx(sign * min(seen))
        seen += wavy(points).tolist()
        assert wavy(x.detach()).item() == min(seen)
    assert min(seen) < -0.2  # the minimum is -0.2154


@pytest.mark.parametrize("name", ["cma_es", "pso", "std_homotopy", "slgh_d"])
def test_a_checkpoint_continues_a_run(name, tmp_path):
    def begin(x):
        generator = torch.Generator().manual_seed(0)
        return METHODS[name]([x], n_samples=5, generator=generator), generator

    x, y = (torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True) for _ in range(2))
    whole, _ = begin(x)
    for _ in range(20):
        whole.step(batched=wavy)
    first, generator = begin(y)
    for _ in range(8):
        first.step(batched=wavy)
    torch.save({"optimizer": first.state_dict(), "draws": generator.get_state()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=False)
    second, generator = begin(y)
    second.load_state_dict(saved["optimizer"])
    generator.set_state(saved["draws"])
    for _ in range(12):
        second.step(batched=wavy)
    assert torch.equal(x, y)


def test_cma_leaves_the_global_generators_alone():
    np.random.seed(1)  # noqa: NPY002 (the legacy generator is the point)
    torch.manual_seed(1)
    states = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    x = torch.tensor([2.0, -1.0], requires_grad=True)
    optimizer = CMAES([x], generator=torch.Generator().manual_seed(0))
    for _ in range(5):
        optimizer.step(batched=wavy)
    assert (np.random.get_state()[1] == states[0]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[1])


def test_cma_takes_options_and_stops():
    x = torch.tensor([2.0, -1.0], dtype=torch.float64, requires_grad=True)
    optimizer = CMAES([x], options={"maxiter": 3}, generator=torch.Generator().manual_seed(0))
    path = []
    for _ in range(6):
        optimizer.step(batched=wavy)
        path.append(x.detach().clone())
    assert torch.equal(path[2], path[5])
    assert not torch.equal(path[1], x.new_tensor([2.0, -1.0]))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (STDHomotopy, {"decay": 1.0}, r"decay must be in \(0, 1\), not 1.0"),
        (STDHomotopy, {"patience": 1}, "patience must be a whole number of at least 2"),
        (STDHomotopy, {"levels": 1}, "levels must be a whole number of at least 2"),
        (STDHomotopy, {"sigma": -1.0}, "sigma must be above 0"),
        (SLGH, {"gamma": 0.0}, r"gamma must be in \(0, 1\]"),
        (SLGH, {"eta": -0.1}, "eta must be at least 0"),
        (SLGH, {"sigma_min": 0.0}, "sigma_min must be above 0"),
        (CMAES, {"n_samples": 1}, "n_samples must be a whole number of at least 2"),
        (PSO, {"sigma": math.nan}, "sigma must be above 0"),
        (ZOAdaMM, {"direction": "ball"}, "'sphere', 'gaussian' or 'radial'"),
        (ZOAdaMM, {"decay_steps": -1.0}, "decay_steps must be above 0"),
        (ZOAdaMM, {"blockwise": True, "generator": [torch.Generator()]}, "not blockwise"),
    ],
)
def test_bad_options(make, options, message):
    with pytest.raises(ValueError, match=message):
        make([torch.zeros(1, 2, requires_grad=True)], **options)
