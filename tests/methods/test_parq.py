"""PARQ: hand-computed values, properties of maps and levels, bookkeeping of the optimizer, packing, bad input."""

import functools
import io
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from methods.train.parq import (
    AProx,
    LSBQuantizer,
    PackedModel,
    PackedTensor,
    ProxBinaryRelax,
    ProxHard,
    ProxPARQ,
    ProxSGD,
    QuantOptimizer,
    TernaryQuantizer,
    inverse_slope,
    nearest_level,
    par_prox,
    par_value,
    piecewise_affine,
    quantized,
    weight_groups,
)

U = torch.tensor([0.9, -0.35, 0.1, -1.6, 0.55, 0.0, -0.05, 2.2])
LEVELS = torch.tensor([-3.0, -1.0, 1.0, 3.0])


def error(u, quantizer, bits):
    code, levels = quantizer.quantize(u, bits)
    near = nearest_level(u, levels)
    assert torch.isclose(((u - code) ** 2).sum(), ((u - near) ** 2).sum(), rtol=1e-5) or bits > 2
    return ((u.double() - code.double()) ** 2).sum().item()


# -- values known beforehand ---------------------------------------------------------------------------------------


def test_schedule():
    for t, value in [
        (1, 0.999291830231),
        (25, 0.929896283455),
        (50, 0.5),
        (75, 0.070103716545),
        (99, 0.000708169769),
    ]:
        assert inverse_slope(t, 0, 100, steepness=10) == pytest.approx(value, abs=1e-12)
    assert inverse_slope(-1, 0, 100) == inverse_slope(0, 0, 100) == 1
    assert inverse_slope(100, 0, 100) == 0
    assert inverse_slope(0, 0, 100, steepness=10, center=0.7) == pytest.approx(
        1.00586, abs=1e-5
    )  # no longer 1


def test_par_prox():
    u = torch.tensor([0.3, 0.9, 1.5, 2.0, 2.9, 3.5, 7.0, -1.2])
    expected = torch.tensor([0, 0.4, 1, 1, 1.4, 2, 2, -0.7])
    assert torch.allclose(par_prox(u, [0, 1, 2], [0.5, 1.5, math.inf]), expected)
    assert torch.equal(par_prox(u, [0, 1, 2], [0.25, 0.75], strength=2.0), par_prox(u, [0, 1, 2], [0.5, 1.5]))
    assert par_value(torch.tensor([0.0, 1.0, 2.0, -2.0]), [0, 1, 2], [0.5, 1.5]).tolist() == [0, 0.5, 2, 2]


def test_prox_parq():
    u = torch.tensor([0.2, 0.6, 1.5, 1.9, 2.4, 5.0])
    assert torch.allclose(piecewise_affine(u, LEVELS, 0.5), torch.tensor([0.4, 1, 1, 1.8, 2.8, 3]))


def test_greedy():
    code, levels = LSBQuantizer().quantize(torch.tensor([1.0, -3.0]), 2)
    assert (code.tolist(), levels.tolist()) == ([1, -3], [-3, -1, 1, 3])
    code, _ = LSBQuantizer().quantize(torch.tensor([0.5, -1.5, 4.0]), 2)
    assert torch.allclose(code, torch.tensor([2 / 3, -2 / 3, 10 / 3]))


def test_the_code_may_miss_the_nearest_level():
    code, levels = LSBQuantizer().quantize(U, 3)
    assert code[2].item() == pytest.approx(0.384375)
    assert nearest_level(U, levels)[2].item() == pytest.approx(0.21875)


def test_optimal_levels():
    assert error(U, LSBQuantizer(optimal=True), 2) == pytest.approx(0.79375, abs=1e-6)
    assert torch.allclose(
        LSBQuantizer(optimal=True).quantize(U, 2)[1], torch.tensor([-1.9, -0.325, 0.325, 1.9]), atol=1e-6
    )
    assert error(U, TernaryQuantizer(optimal=True), 0) == pytest.approx(1.28417, abs=1e-5)
    assert TernaryQuantizer(optimal=True).quantize(U)[1][2].item() == pytest.approx(1.566667, abs=1e-6)
    v = 1.1 * U.abs().mean()
    assert torch.allclose(LSBQuantizer().quantize(U, 0)[1], torch.stack([-v, 0 * v, v]))


def test_zero_goes_up_everywhere():
    zeros = torch.tensor([0.0, -0.0, 1.0, -2.0, 4.0])
    assert LSBQuantizer().quantize(zeros, 1)[0][:2].gt(0).all()
    for bits in (1, 2, 3):
        levels = LSBQuantizer().quantize(zeros, bits)[1]
        assert nearest_level(zeros, levels)[:2].gt(0).all()
        assert nearest_level(zeros, levels, ties="down")[:2].lt(0).all()


def test_official_schedules_that_end_with_the_training_never_reach_zero():
    resnet = 90 * 5005
    assert inverse_slope(resnet - 1, 0, resnet, steepness=75) < 1e-18
    assert inverse_slope(resnet - 1, 0, resnet, steepness=75) > 0
    w = piecewise_affine(torch.tensor([0.0, 1e-3]), torch.tensor([-1.0, 1.0]), 1e-20)
    assert w.tolist() == [0.0, 1.0]  # a midpoint stays where it is


# -- properties ----------------------------------------------------------------------------------------------------

numbers = st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=40)


@given(numbers, st.integers(2, 9), st.floats(1e-3, 1))
def test_the_map_is_monotone_fixes_levels_and_meets_its_formula(values, count, slope):
    u = torch.tensor(values, dtype=torch.float64).sort().values
    levels = torch.linspace(-2, 2, count, dtype=torch.float64) ** 3
    w = piecewise_affine(u, levels, slope)
    assert (w.diff() >= 0).all()
    assert torch.equal(piecewise_affine(levels, levels, slope), levels)
    high = torch.searchsorted(levels, u).clamp(1, count - 1)
    low, top = levels[high - 1], levels[high]
    middle = (low + top) / 2
    assert torch.allclose(w, (middle + (u - middle) / slope).clamp(low, top))


@given(numbers, st.integers(0, 4), st.booleans())
def test_every_weight_gets_its_nearest_level(values, bits, optimal):
    u = torch.tensor(values, dtype=torch.float64)
    _, levels = LSBQuantizer(optimal).quantize(u, bits)
    assert len(levels) == LSBQuantizer().size(bits)
    assert (levels.diff() >= 0).all()
    assert torch.allclose((nearest_level(u, levels) - u).abs(), (levels - u.unsqueeze(1)).abs().min(1).values)


@given(st.integers(0, 10**6))
def test_errors_are_ordered(seed):
    u = torch.randn(30, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    greedy, optimal = LSBQuantizer(), LSBQuantizer(optimal=True)
    assert error(u, optimal, 2) <= error(u, greedy, 2) + 1e-12 <= error(u, greedy, 1) + 2e-12
    assert error(u, optimal, 0) <= error(u, greedy, 0) + 1e-12
    v = torch.rand(300, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    best = min(((u - x * torch.where(u.abs() > x / 2, u.sign(), 0)) ** 2).sum().item() for x in v)
    assert error(u, optimal, 0) <= best + 1e-12


def test_prox_solves_its_minimization():
    q, a = [0.0, 0.5, 1.0, 2.0], [0.2, 0.7, 1.5]
    grid = torch.linspace(-2, 2, 4001, dtype=torch.float64)
    u = 6 * torch.rand(200, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 3
    cost = par_value(grid, q, a) + (grid - u.unsqueeze(1)) ** 2 / 2
    assert (par_prox(u, q, a) - grid[cost.argmin(1)]).abs().max() <= 1e-3


def test_rows_have_levels_of_their_own():
    u = torch.randn(300, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    for bits in (0, 1, 2, 3):
        code, levels = LSBQuantizer().quantize(u, bits, per_channel=True)
        for apply in (nearest_level, functools.partial(piecewise_affine, inverse_slope=0.3)):
            whole = apply(u, levels)
            assert all(torch.equal(whole[r], apply(u[r], levels[r])) for r in (0, 17, 299))
        assert torch.equal(code[5].flatten(), LSBQuantizer().quantize(u[5], bits)[0].flatten())


def test_parts_of_a_large_tensor_are_those_of_the_whole():
    u = torch.randn(200_001, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        piecewise_affine(u, LEVELS, 0.2)[150_000:150_100], piecewise_affine(u[150_000:150_100], LEVELS, 0.2)
    )
    assert torch.equal(nearest_level(u, LEVELS)[-50:], nearest_level(u[-50:], LEVELS))


def test_limits_of_the_annealing():
    u = 3 * torch.randn(4096, generator=torch.Generator().manual_seed(0))
    prox = ProxPARQ(10, 20)
    assert torch.equal(prox.apply(u, LEVELS, 9), u)  # no clipping yet
    assert torch.equal(ProxPARQ(10, 20, clip_early=True).apply(u, LEVELS, 9), u.clamp(-3, 3))
    assert torch.equal(prox.apply(u, LEVELS, 10), u.clamp(-3, 3))
    assert torch.equal(prox.apply(u, LEVELS, 20), ProxHard().apply(u, LEVELS, 0))
    relax = ProxBinaryRelax(10, 20)
    assert torch.equal(relax.apply(u, LEVELS, 10), u)
    assert torch.equal(relax.apply(u, LEVELS, 20), nearest_level(u, LEVELS))


# -- the optimizer -------------------------------------------------------------------------------------------------


def pair(prox=None, momentum=0.9, weight_decay=0.1, **options):
    generator = torch.Generator().manual_seed(0)
    w = nn.Parameter(torch.randn(40, generator=generator))
    b = nn.Parameter(torch.randn(3, generator=generator))
    base = torch.optim.SGD(
        [{"params": [w], "quant_bits": 2}, {"params": [b], "lr": 0.2}],
        lr=0.1,
        momentum=momentum,
        weight_decay=weight_decay,
    )
    return w, b, QuantOptimizer(base, LSBQuantizer(), prox or ProxPARQ(0, 20), **options)


def gradients(step, *params):
    for number, p in enumerate(params):
        generator = torch.Generator().manual_seed(100 * step + number)
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)


def test_the_base_optimizer_moves_latent_weights():
    """Gradients are taken at w, weight decay acts on u, levels are refitted every third step."""
    w, b, optimizer = pair(quant_period=3)
    u, c = nn.Parameter(w.detach().clone()), nn.Parameter(b.detach().clone())
    plain = torch.optim.SGD(
        [{"params": [u]}, {"params": [c], "lr": 0.2}], lr=0.1, momentum=0.9, weight_decay=0.1
    )
    for step in range(25):
        gradients(step, w, b)
        gradients(step, u, c)
        optimizer.step()
        plain.step()
        if step % 3 == 0:
            levels = LSBQuantizer().quantize(u.detach(), 2)[1]
        assert torch.equal(optimizer.latent(w), u)
        assert torch.equal(b, c)
        slope = inverse_slope(step, 0, 20)
        assert torch.equal(
            w, piecewise_affine(u.detach(), levels, slope) if slope else nearest_level(u.detach(), levels)
        )
    assert w.unique().numel() == 4


def test_warm_up_is_plain_and_counts_for_the_annealing():
    w, b, optimizer = pair(warmup_steps=5, prox=ProxPARQ(0, 8))
    for step in range(9):
        gradients(step, w, b)
        optimizer.step()
        shared = optimizer.latent(w).data_ptr() == w.data_ptr()
        assert shared == (step < 5)
        assert (optimizer.levels(w) is None) == (step < 5)
    assert w.unique().numel() == 4


def test_the_last_step_is_hard():
    w, b, optimizer = pair(prox=ProxPARQ(0, 6, steepness=5), total_steps=6)
    for step in range(6):
        assert step == 0 or w.unique().numel() > 4
        gradients(step, w, b)
        optimizer.step()
    assert w.unique().numel() == 4
    w, b, optimizer = pair(prox=ProxPARQ(0, 60))
    gradients(0, w, b)
    optimizer.step()
    optimizer.harden()
    assert torch.equal(w, nearest_level(optimizer.latent(w), optimizer.levels(w)))


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("stop", [0, 3, 4, 7])
@pytest.mark.parametrize("base", [torch.optim.AdamW, torch.optim.SGD])
def test_state_goes_through_a_file(warmup, stop, base):
    def fresh():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        optimizer = quantized(
            None, functools.partial(base, lr=0.1), 2, ProxPARQ, anneal=(0, 0.8), warmup_steps=warmup,
            quant_period=3, model=model, total_steps=12,
        )  # fmt: skip
        return model, optimizer

    def go(model, optimizer, first, last):
        for step in range(first, last):
            gradients(step, *model.parameters())
            optimizer.step()

    model, optimizer = fresh()
    go(model, optimizer, 0, 12)
    halfway, first = fresh()
    go(halfway, first, 0, stop)
    buffer = io.BytesIO()
    torch.save((halfway.state_dict(), first.state_dict()), buffer)
    states = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    again, second = fresh()
    again.load_state_dict(states[0])
    second.load_state_dict(states[1])
    go(again, second, stop, 12)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(optimizer.latent(p), second.latent(q))


def test_schedulers_and_zero_grad_see_the_model():
    w, b, optimizer = pair()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    gradients(0, w, b)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.base_optimizer.param_groups] == [0.05, 0.1]
    optimizer.zero_grad()
    assert w.grad is None
    assert optimizer.param_groups[0]["params"][0] is w


def test_a_closure_is_called_once_at_w():
    w, b, optimizer = pair(prox=ProxHard())
    seen = []

    def closure():
        optimizer.zero_grad()
        loss = (w**2).sum() + (b**2).sum()
        loss.backward()
        seen.append(w.unique().numel())
        return loss

    for _ in range(3):
        assert optimizer.step(closure) > 0
    assert seen == [40, 4, 4]


def test_a_bad_gradient_changes_nothing():
    w, b, optimizer = pair()
    for step in range(3):
        gradients(step, w, b)
        optimizer.step()
    before = (w.detach().clone(), optimizer.latent(w).clone(), b.detach().clone(), optimizer.num_steps)
    buffer = optimizer.base_optimizer.state[optimizer._latents[w]]["momentum_buffer"].clone()
    for bad in (math.nan, math.inf):
        gradients(9, w, b)
        w.grad[7] = bad
        with pytest.raises(FloatingPointError, match="not finite"):
            optimizer.step()
        assert torch.equal(w, before[0])
        assert torch.equal(optimizer.latent(w), before[1])
        assert torch.equal(b, before[2])
        assert optimizer.num_steps == before[3]
        assert torch.equal(optimizer.base_optimizer.state[optimizer._latents[w]]["momentum_buffer"], buffer)
    w.grad = torch.full_like(w, 3e38)  # its sum overflows, but it is finite
    optimizer.step()


def test_bad_input():
    def build(bits=2, dtype=torch.float32, base=torch.optim.SGD, **options):
        w = nn.Parameter(torch.ones(4, dtype=dtype))
        return w, QuantOptimizer(
            base([{"params": [w], "quant_bits": bits}], lr=0.1), LSBQuantizer(), ProxHard(), **options
        )

    for options, message in [
        ({"bits": 9}, "bits must be"),
        ({"bits": -1}, "bits must be"),
        ({"bits": 1.5}, "bits must be"),
        ({"dtype": torch.complex64}, "must be real"),
        ({"quant_period": 0}, "quant_period"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"assignment": "soft"}, "assignment"),
        ({"total_steps": 0}, "total_steps"),
    ]:
        with pytest.raises(ValueError, match=message):
            build(**options)
    w = nn.Parameter(torch.ones(4))
    with pytest.raises(ValueError, match="closure"):
        QuantOptimizer(torch.optim.LBFGS([w]), LSBQuantizer(), ProxHard())
    w, optimizer = build()
    w.grad = torch.ones(4).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    with pytest.raises(ValueError, match="bits must be"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "quant_bits": 12})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "quant_bits": 1})
    for make, message in [
        (lambda: ProxPARQ(5, 5), "anneal_start"),
        (lambda: ProxPARQ(0, 5, steepness=0), "steepness"),
        (lambda: ProxHard(ties="left"), "ties"),
        (lambda: TernaryQuantizer(multiplier=0), "multiplier"),
        (lambda: TernaryQuantizer().quantize(U, 2), "0 bits"),
        (lambda: par_prox(U, [0, 1, 1], [0, 1]), "levels"),
        (lambda: par_prox(U, [0, 1, 2], [1, 1]), "slopes"),
        (lambda: AProx([w], lr=0), "lr"),
        (lambda: quantized([w], torch.optim.SGD, 1), "total_steps"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


def test_groups_of_a_network():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    groups = weight_groups(model, 0, full_precision=["3.*"])
    assert [group["quant_bits"] for group in groups if "quant_bits" in group] == [0]
    assert [tuple(p.shape) for p in groups[0]["params"]] == [(4, 3, 3, 3)]
    assert [tuple(p.shape) for p in groups[1]["params"]] == [(4,), (2, 4)]
    assert groups[2]["weight_decay"] == 0


def test_full_precision_is_the_base_optimizer():
    model = nn.Linear(2, 2)
    assert (
        type(quantized(None, functools.partial(torch.optim.SGD, lr=1.0), 16, model=model)) is torch.optim.SGD
    )


# -- theory --------------------------------------------------------------------------------------------------------


def test_aprox_is_its_one_line_form():
    """w minimizes Σ η_s (<g_s, w> + λ Ψ(w)) + ‖w - w_0‖² / 2 over a grid."""
    q, a, lam = [0.0, 0.5, 1.0], [0.1, 0.6], 0.3
    w = nn.Parameter(torch.tensor([0.2, -0.7], dtype=torch.float64))
    start, optimizer = w.detach().clone(), AProx([w], lr=0.5, lam=lam, q=q, a=a)
    linear, gamma = torch.zeros(2, dtype=torch.float64), 0.0
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    for t in range(1, 8):
        gradients(t, w)

        linear += 0.5 / t**0.5 * w.grad
        gamma += 0.5 / t**0.5
        optimizer.step()
        for i in range(2):
            cost = linear[i] * grid + gamma * lam * par_value(grid, q, a) + (grid - start[i]) ** 2 / 2
            assert w[i].item() == pytest.approx(grid[cost.argmin()].item(), abs=1e-4)


def test_aprox_with_an_indicator_rounds_and_prox_sgd_starts_from_w():
    w = nn.Parameter(torch.tensor([0.2, -0.7]))
    optimizer = AProx([w], lr=0.1, q=[0, 1], a=None)
    gradients(1, w)
    optimizer.step()
    assert set(w.tolist()) <= {-1, 0, 1}
    v = nn.Parameter(torch.tensor([0.2, -0.7]))
    single, first = ProxSGD([v], lr=0.1, q=[0, 1], a=[0.5], decay="none"), v.detach().clone()
    gradients(1, v)
    single.step()
    assert torch.equal(v, par_prox(first - 0.1 * v.grad, [0, 1], [0.5], 0.1))
    v.grad[0] = math.nan
    with pytest.raises(FloatingPointError):
        single.step()


# -- packing -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 4), st.booleans(), st.integers(1, 50))
def test_packing_loses_nothing(bits, per_channel, width):
    u = torch.randn(3, width, generator=torch.Generator().manual_seed(width))
    _, levels = LSBQuantizer().quantize(u, bits, per_channel)
    w = nearest_level(u, levels)
    packed = PackedTensor.of(w, levels)
    assert torch.equal(packed.tensor(), w)
    assert packed.codes.numel() == -(-3 * width * (bits or 2) // 8)
    with pytest.raises(ValueError, match="none of its levels"):
        PackedTensor.of(w + 1e-3, levels)


def test_a_packed_model_goes_through_a_file(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(16, 10))
    optimizer = quantized(
        None,
        functools.partial(torch.optim.SGD, lr=0.1),
        2,
        ProxPARQ,
        per_channel=True,
        model=model,
        total_steps=4,
    )
    for step in range(4):
        gradients(step, *model.parameters())
        optimizer.step()
    packed = optimizer.export(model)
    packed.save(tmp_path / "model.safetensors")
    loaded = PackedModel.load(tmp_path / "model.safetensors")
    assert str(loaded) == str(packed)
    assert "2 of 9 tensors packed at 2 bits" in str(packed)
    assert packed.full_bytes > 2 * packed.bytes
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
