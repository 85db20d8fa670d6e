"""Sassha and its baselines: values known beforehand, other implementations, bad input, saved state."""

import copy
import functools

import pytest
import torch
from torch import nn

from methods.train.curvature import hessian_diagonal, signs
from methods.train.sam import SAM
from methods.train.sassha import MSassha, Sassha
from methods.train.second_order import AdaHessian, SophiaH

KINDS = {
    "sassha": functools.partial(Sassha, lr=0.05, rho=0.1, lazy_hessian=3),
    "sassha_asam": functools.partial(Sassha, lr=0.05, rho=0.1, adaptive=True, n_samples=2, weight_decay=0.1),
    "m_sassha": functools.partial(MSassha, lr=0.05, rho=0.1, lazy_hessian=3),
    "adahessian": functools.partial(AdaHessian, lr=0.05, lazy_hessian=2),
    "sophia": functools.partial(SophiaH, lr=0.01, lazy_hessian=2, weight_decay=0.1),
    "sam": functools.partial(SAM, base=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), rho=0.1),
}
CURVED = [name for name in KINDS if name != "sam"]


def quartic(value=1.0):
    """w⁴/4 at one point, and its closure."""
    w = torch.tensor([value], dtype=torch.float64, requires_grad=True)

    def closure(create_graph=False):
        w.grad = None
        loss = (w**4 / 4).sum()
        loss.backward(create_graph=create_graph)
        return loss

    return w, closure


def network(seed=0):
    """A small network in double precision, and the closure of its loss, for any optimizer."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        x, y = torch.randn(20, 4).double(), torch.randint(0, 3, (20,))

    def loss():
        return nn.functional.cross_entropy(net(x), y)

    def closure(create_graph=False):
        net.zero_grad()
        value = loss()
        value.backward(create_graph=create_graph)
        return value.detach()

    return net, loss, closure


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def full_hessian(net, loss):
    gradients = torch.autograd.grad(loss(), list(net.parameters()), create_graph=True)
    joint = torch.cat([g.flatten() for g in gradients])
    rows = [torch.autograd.grad(g, list(net.parameters()), retain_graph=True) for g in joint]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


# -- values known beforehand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("restored", "expected"), [(False, 0.930144283902), (True, 0.923159115581)])
def test_the_first_step_on_a_quartic(restored, expected):
    w, closure = quartic()
    Sassha([w], lr=0.1, rho=0.1, restore_before_hvp=restored).step(closure)
    assert w.item() == pytest.approx(expected, abs=1e-12)


def test_hutchinson_on_a_quadratic():
    q = torch.tensor([[2.0, 1.0], [1.0, -3.0]])
    x = torch.tensor([0.3, -0.7], requires_grad=True)
    for draws, expected in [([(1, -1)], [1, -4]), ([(1, 1)], [3, -2]), ([(1, -1), (1, 1)], [2, -3])]:
        x.grad = None
        (x @ q @ x / 2).backward(create_graph=True)
        played = iter([torch.tensor(draw, dtype=torch.float32) for draw in draws])
        found = hessian_diagonal([x], lambda p, played=played: next(played), samples=len(draws))
        assert found[0].tolist() == expected


def test_the_absolute_value_comes_after_the_mean():
    """Estimates 3 and -1 of one diagonal entry: |mean| = 1, while the mean of |.| is 2."""
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def closure(create_graph=False):
        x.grad = None
        loss = x[0] ** 2 / 2 + 2 * x[0] * x[1] + x[0] + x[1]
        loss.backward(create_graph=create_graph)
        return loss

    draws = iter([torch.tensor([1.0, 1.0]).double(), torch.tensor([1.0, -1.0]).double()])
    optimizer = Sassha(
        [x], lr=1.0, betas=(0.0, 0.0), eps=0.0, hessian_power=1.0, lazy_hessian=1, n_samples=2,
        probe=lambda p: next(draws),
    )  # fmt: skip
    optimizer.step(closure)
    assert optimizer.state[x]["hessian"].tolist() == [1.0, 0.0]


def test_newton_step_of_a_separable_function():
    a = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    x = torch.tensor([0.7, 1.3, -1.1], dtype=torch.float64, requires_grad=True)
    start = x.detach().clone()
    optimizer = Sassha([x], lr=0.1, rho=0.0, betas=(0.0, 0.999), eps=0.0, hessian_power=1.0, lazy_hessian=1)
    (a * x**4 / 4).sum().backward()
    optimizer.perturb()
    (a * x**4 / 4).sum().backward(create_graph=optimizer.hessian_due)
    optimizer.unperturb()
    optimizer.step()
    expected = start - 0.1 * (a * start**3) / (3 * a * start**2).abs()
    torch.testing.assert_close(x.detach(), expected, rtol=1e-12, atol=0)


def reference(start, loss, probes, lr, rho, betas, eps, weight_decay, k, steps):
    """Sassha's formulas, by hand, with torch.func's Hessian-vector products."""
    x, m, d, corrected = start.clone(), torch.zeros_like(start), torch.zeros_like(start), None
    for t in range(1, steps + 1):
        g = torch.func.grad(loss)(x)
        there = x + rho * g / (g.norm() + 1e-12)
        m = betas[0] * m + (1 - betas[0]) * torch.func.grad(loss)(there)
        if t % k == 1 or k == 1:
            z = next(probes)
            _, product = torch.func.jvp(torch.func.grad(loss), (there,), (z,))
            d = betas[1] * d + (1 - betas[1]) * (z * product).abs()
            corrected = (d / (1 - betas[1] ** t)).sqrt()
        x = x - lr * weight_decay * x - lr * m / (1 - betas[0] ** t) / (corrected + eps)
    return x


@pytest.mark.parametrize("k", [1, 3])
def test_many_steps_against_the_formulas(k):
    generator = torch.Generator().manual_seed(1)
    a, start = torch.randn(7, 5, generator=generator).double(), torch.randn(5, generator=generator).double()
    y = torch.randn(7, generator=generator).double()

    def loss(x):
        return (torch.tanh(a @ x) - y).square().mean() + (x**4).mean()

    drawn = [signs(start, generator) for _ in range(12)]
    settings = {"lr": 0.05, "rho": 0.1, "betas": (0.9, 0.99), "eps": 1e-4, "weight_decay": 0.1}
    expected = reference(start, loss, iter(drawn), k=k, steps=12, **settings)
    x, played = start.clone().requires_grad_(), iter(drawn)
    optimizer = Sassha([x], lazy_hessian=k, probe=lambda p: next(played), **settings)

    def closure(create_graph=False):
        x.grad = None
        value = loss(x)
        value.backward(create_graph=create_graph)
        return value

    for _ in range(12):
        optimizer.step(closure)
    torch.testing.assert_close(x.detach(), expected, rtol=1e-10, atol=1e-12)


def test_the_lazy_scale_is_too_small_at_first():
    """At t = 11 with k = 10 the average has two terms but is divided as after eleven: about 2/11 of |H|."""
    w, closure = quartic()
    optimizer = Sassha([w], lr=0.0, rho=0.0, lazy_hessian=10)
    for _ in range(11):
        optimizer.step(closure)
    state = optimizer.state[w]
    corrected = state["hessian"].item() / (1 - 0.999 ** state["hessian_step"])
    assert state["hessian_step"] == 11
    assert corrected / 3 == pytest.approx(2 / 11, rel=0.01)


def test_restoring_before_the_product_mixes_two_points():
    """In a tanh network the authors' order gives the Hessian of neither point."""
    net, loss, closure = network()
    params = list(net.parameters())
    z = {p: signs(p, torch.Generator().manual_seed(i)) for i, p in enumerate(params)}
    before = flat(params)
    found = {}
    for restored in (False, True):
        optimizer = Sassha(
            params, lr=0.0, rho=0.5, betas=(0.9, 0.0), restore_before_hvp=restored, probe=z.get
        )
        optimizer.step(closure)
        found[restored] = flat([optimizer.state[p]["hessian"] for p in params])
        assert torch.equal(flat(params), before)
    vector = flat([z[p] for p in params])
    here = (vector * (full_hessian(net, loss) @ vector)).abs()
    closure()
    norm = flat([p.grad for p in params]).norm()
    with torch.no_grad():
        for p in params:
            p += 0.5 * p.grad / norm
    there = (vector * (full_hessian(net, loss) @ vector)).abs()
    torch.testing.assert_close(found[False], there, rtol=1e-9, atol=1e-12)
    assert (found[True] - there).norm() > 1e-3 * there.norm()
    assert (found[True] - here).norm() > 1e-3 * here.norm()


def test_m_sassha_takes_its_gradient_along_the_momentum():
    w, closure = quartic()
    optimizer = MSassha([w], lr=0.1, rho=0.3, weight_decay=0.0, lazy_hessian=1)
    optimizer.step(closure)  # no momentum yet: at w = 1, g = 1, |h| = 3
    x = 1 - 0.1 / (3**0.5 + 1e-4)
    assert w.item() == pytest.approx(x - 0.3, abs=1e-9)
    optimizer.step(closure)
    there = x - 0.3
    m = (0.9 * 0.1 + 0.1 * there**3) / (1 - 0.9**2)
    d = (0.999 * 0.001 * 3 + 0.001 * 3 * there**2) / (1 - 0.999**2)
    optimizer.eval()
    assert w.item() == pytest.approx(x - 0.1 * m / (d**0.5 + 1e-4), abs=1e-9)
    optimizer.eval()  # again: nothing
    optimizer.train()
    assert w.item() == pytest.approx(x - 0.1 * m / (d**0.5 + 1e-4) - 0.3, abs=1e-9)


@pytest.mark.parametrize(
    ("schedule", "power"), [("constant", 0.5), ("proportion", 0.75), ("linear", 0.75), ("cosine", 0.75)]
)
def test_power_schedules_half_way(schedule, power):
    w, closure = quartic()
    optimizer = Sassha([w], lr=0.1, power_schedule=schedule, total_steps=10)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 10)
        optimizer.step(closure)
    assert optimizer.param_groups[0]["hessian_power"] == pytest.approx(power)


def test_adahessian_averages_over_a_kernel():
    kernel = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], dtype=torch.float64, requires_grad=True)
    (kernel**3).sum().backward(create_graph=True)  # diagonal 6, 12, 18, 24
    optimizer = AdaHessian([kernel], betas=(0.9, 0.0), lr=0.0)
    optimizer.step()
    assert optimizer.state[kernel]["hessian"].flatten().tolist() == pytest.approx([15.0**2] * 4)


# -- other implementations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["adahessian", "sophia"])
def test_against_pytorch_optimizer(kind):
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    (mine, _, closure), (theirs, loss, _) = network(), network()
    played: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(3)

    def probe(p):
        played.append(signs(p, generator))
        return played[-1]

    settings = {"betas": (0.9, 0.99), "weight_decay": 0.1}
    if kind == "adahessian":
        ours = AdaHessian(mine.parameters(), lr=0.05, eps=1e-4, probe=probe, **settings)
        other = pytorch_optimizer.AdaHessian(theirs.parameters(), lr=0.05, eps=1e-4, **settings)
    else:  # theirs clips m/h to ±p without dividing by it
        ours = SophiaH(
            mine.parameters(), lr=0.01, eps=0.0, clip=0.05, probe=probe, weight_decay=0.1, betas=(0.9, 0.99)
        )
        other = pytorch_optimizer.SophiaH(
            theirs.parameters(), lr=0.2, p=0.05, eps=1e-12, betas=(0.9, 0.99), weight_decay=0.005
        )
    for _ in range(8):
        played.clear()
        ours.step(closure)
        theirs.zero_grad()
        gradients = torch.autograd.grad(loss(), list(theirs.parameters()), create_graph=True)
        products = torch.autograd.grad(gradients, list(theirs.parameters()), played)
        for p, gradient in zip(theirs.parameters(), gradients, strict=True):
            p.grad = gradient.detach()
        other.step(hessian=[z * product for z, product in zip(played, products, strict=True)])
    torch.testing.assert_close(flat(mine.parameters()), flat(theirs.parameters()), rtol=1e-9, atol=1e-12)


def test_sam_against_pytorch_optimizer():
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    (mine, _, closure), (theirs, _, other_closure) = network(), network()
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
    ours = SAM(mine.parameters(), functools.partial(torch.optim.SGD, **settings), rho=0.2)
    other = pytorch_optimizer.SAM(theirs.parameters(), torch.optim.SGD, rho=0.2, **settings)
    for _ in range(5):
        ours.step(closure)
        other_closure()
        other.step(other_closure)
    # theirs takes the norm in single precision
    torch.testing.assert_close(flat(mine.parameters()), flat(theirs.parameters()), rtol=1e-6, atol=1e-8)


def test_the_adaptive_form_climbs_by_squares():
    x = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    x.grad = torch.tensor([3.0, 2.0], dtype=torch.float64)
    Sassha([x], rho=0.1, adaptive=True).perturb()
    assert x.tolist() == pytest.approx([1 + 0.1 * 3 / 5, -2 + 0.1 * 4 * 2 / 5])


# -- the two ways to step, laziness, saved state -----------------------------------------------------------------------


def test_step_by_step_is_step_with_a_closure():
    (one, _, closure), (two, loss, _) = network(), network()
    whole = Sassha(one.parameters(), lr=0.05, rho=0.1, lazy_hessian=2)
    parts = Sassha(two.parameters(), lr=0.05, rho=0.1, lazy_hessian=2)
    for _ in range(5):
        whole.step(closure)
        two.zero_grad()
        loss().backward()
        before = flat(two.parameters())
        parts.perturb()
        assert (flat(two.parameters()) - before).norm().item() == pytest.approx(0.1)
        loss().backward(create_graph=parts.hessian_due)
        parts.unperturb()
        assert torch.equal(flat(two.parameters()), before)
        parts.step()
    assert torch.equal(flat(one.parameters()), flat(two.parameters()))


@pytest.mark.parametrize(("name", "k"), [("sassha", 1), ("sassha", 4), ("m_sassha", 3), ("sophia", 2)])
def test_the_graph_is_asked_for_when_it_is_due(name, k):
    net, _, closure = network()
    asked = []

    def watching(create_graph=False):
        asked.append(create_graph)
        return closure(create_graph)

    optimizer = KINDS[name](net.parameters(), lazy_hessian=k)
    for _ in range(9):
        optimizer.step(watching)
    assert sum(asked) == -(-9 // k)
    assert len(asked) == (18 if name == "sassha" else 9)
    assert not any(p.grad.requires_grad for p in net.parameters())


@pytest.mark.parametrize("name", KINDS)
def test_the_loss_falls_and_a_saved_state_goes_on_bit_by_bit(name):
    net, loss, closure = network()
    optimizer = KINDS[name](net.parameters())
    first = loss().item()
    for _ in range(5):
        optimizer.step(closure)
    saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    for _ in range(5):
        optimizer.step(closure)
    end = flat(net.parameters())
    net.load_state_dict(saved[0])
    other = KINDS[name](net.parameters())
    other.load_state_dict(saved[1])
    for _ in range(5):
        other.step(closure)
    assert torch.equal(flat(net.parameters()), end)
    assert loss().item() < first


def test_a_generator_gives_the_signs():
    ends = []
    for seed in (0, 0, 1):
        net, _, closure = network()
        optimizer = Sassha(net.parameters(), generator=torch.Generator().manual_seed(seed))
        optimizer.step(closure)
        ends.append(flat(net.parameters()))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_a_parameter_takes_part_from_the_first_hessian_at_which_it_has_a_gradient():
    a, b = (torch.tensor([1.0], requires_grad=True) for _ in "ab")
    optimizer = Sassha([a, b], lr=0.1, lazy_hessian=3)
    late = []
    for step in range(6):

        def closure(create_graph=False, late=step >= 1):
            optimizer.zero_grad()
            loss = (a**4).sum() + ((b**4).sum() if late else 0)
            loss.backward(create_graph=create_graph)
            return loss

        optimizer.step(closure)
        late.append(b.item())
    assert late[:3] == [1.0, 1.0, 1.0]
    assert 0.5 < late[3] < 1.0


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_gradient_that_is_not_finite_changes_nothing(name):
    net, _, closure = network()
    optimizer = KINDS[name](net.parameters())
    for _ in range(2):
        optimizer.step(closure)
    before = flat(net.parameters())
    state = copy.deepcopy(optimizer.state_dict())
    for bad in range(2 if name.startswith("sa") else 1):
        calls = iter(range(2))

        def broken(create_graph=False, bad=bad, calls=calls):
            value = closure(create_graph)
            if next(calls) == bad:
                p = next(net.parameters())
                p.grad = p.grad * torch.nan
            return value

        with pytest.raises(FloatingPointError, match="not finite"):
            optimizer.step(broken)
        assert torch.equal(flat(net.parameters()), before)
        now = optimizer.state_dict()
        assert now["param_groups"] == state["param_groups"]
        for index, values in state["state"].items():
            for key, value in values.items():
                same = now["state"][index][key]
                assert torch.equal(same, value) if isinstance(value, torch.Tensor) else same == value
    optimizer.step(closure)


def test_an_interrupted_closure_leaves_no_perturbed_point():
    net, _, closure = network()
    before, calls = flat(net.parameters()), iter(range(2))

    def dying(create_graph=False):
        if next(calls):
            raise KeyboardInterrupt
        return closure(create_graph)

    for optimizer in (KINDS["sassha"](net.parameters()), KINDS["sam"](net.parameters())):
        calls = iter(range(2))
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(dying)
        assert torch.equal(flat(net.parameters()), before)
        optimizer.step(closure)
        before = flat(net.parameters())


@pytest.mark.parametrize("name", KINDS)
def test_sparse_and_complex(name):
    table = nn.Embedding(5, 2, sparse=True)

    def closure(create_graph=False):
        table.weight.grad = torch.sparse_coo_tensor([[1]], [[1.0, 1.0]], (5, 2))
        return torch.zeros(())

    with pytest.raises(RuntimeError, match="sparse gradients"):
        KINDS[name](table.parameters()).step(closure)
    with pytest.raises(ValueError, match="complex parameters"):
        KINDS[name]([torch.zeros(2, dtype=torch.complex64, requires_grad=True)])


@pytest.mark.parametrize("name", KINDS)
def test_without_a_closure(name):
    net, loss, _ = network()
    optimizer = KINDS[name](net.parameters())
    with pytest.raises(RuntimeError, match=r"needs"):
        optimizer.step()
    if name in CURVED and not name.startswith("sassha"):
        loss().backward()
        with pytest.raises(RuntimeError, match="create_graph=True"):
            optimizer.step()


def test_the_order_of_the_parts():
    net, loss, _ = network()
    optimizer = Sassha(net.parameters(), rho=0.1)
    with pytest.raises(RuntimeError, match="needs gradients"):
        optimizer.perturb()
    with pytest.raises(RuntimeError, match="needs perturb"):
        optimizer.unperturb()
    before = flat(net.parameters())
    loss().backward()
    optimizer.perturb()
    with pytest.raises(RuntimeError, match="twice"):
        optimizer.perturb()
    with pytest.raises(RuntimeError, match="before step"):
        optimizer.step()
    loss().backward()
    with pytest.raises(RuntimeError, match="create_graph=True"):
        optimizer.unperturb()
    assert torch.equal(flat(net.parameters()), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"rho": -0.1}, "rho must be at least 0"),
        ({"betas": (1.0, 0.9)}, "beta1 must be in"),
        ({"hessian_power": -1.0}, "hessian_power"),
        ({"lazy_hessian": 0}, "lazy_hessian must be a whole number"),
        ({"n_samples": 0}, "n_samples must be a whole number"),
        ({"power_schedule": "slow"}, "power_schedule must be"),
        ({"power_schedule": "linear"}, "needs total_steps"),
        ({"generator": torch.Generator(), "probe": torch.ones_like}, "not both"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Sassha([torch.zeros(1, requires_grad=True)], **options)
