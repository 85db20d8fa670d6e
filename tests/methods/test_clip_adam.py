"""Clipped Adam and AdaGrad: values known beforehand, other implementations, bad input, saved state."""

import copy
import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.train.clip_adam import ClipAdaGrad, ClipAdaGradNorm, ClipAdam, ClipAdamNorm
from methods.train.clipping import clipped, parts, plan_clip

MODES = ["none", "global", "layer", "coordinate"]
KINDS = {
    "ClipAdaGradNorm": functools.partial(ClipAdaGradNorm, lr=0.1, beta1=0.5),
    "ClipAdamNorm": functools.partial(ClipAdamNorm, lr=0.1),
    "ClipAdam": functools.partial(ClipAdam, lr=0.1, v_init=0.1),
    "ClipAdaGrad": functools.partial(ClipAdaGrad, lr=0.1, v_init=0.1),
}


def parameters(*values, dtype=torch.float64):
    return [torch.tensor(value, dtype=dtype, requires_grad=True) for value in values]


def set_gradients(params, *values):
    for p, value in zip(params, values, strict=True):
        p.grad = torch.tensor(value, dtype=p.dtype)


def random_gradients(params, seed, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = scale * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)


def walk(optimizer, params, steps, seed=0):
    for step in range(steps):
        random_gradients(params, 1000 * seed + step)
        optimizer.step()


# -- values known beforehand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "x", "b_squared"),
    [
        (ClipAdaGradNorm, {}, 0.776393202, 1.25),
        (ClipAdaGradNorm, {"delay": True}, 0.75, 1.25),
        (ClipAdaGradNorm, {"clip_mode": "none"}, 0.525658351, 10.0),
        (ClipAdamNorm, {}, 0.974990620, 0.99925),
        (ClipAdamNorm, {"delay": True}, 0.975, 0.99925),
    ],
)
def test_one_step_of_the_norm_versions(kind, options, x, b_squared):
    params = parameters([1.0])
    optimizer = kind(params, lr=0.5, clip=0.5, b_init=1.0, **options)
    assert optimizer.scale is None
    set_gradients(params, [3.0])
    optimizer.step()
    assert params[0].item() == pytest.approx(x, abs=5e-10)
    assert optimizer.scale.item() ** 2 == pytest.approx(b_squared, rel=1e-12)


def test_one_step_of_clip_adam_with_two_tensors():
    params = parameters([1.0, 2.0], [-1.0])
    set_gradients(params, [3.0, -4.0], [0.5])
    ClipAdam(params, lr=0.1, clip_mode="layer", clip=1.0).step()
    assert params[0].tolist() == pytest.approx([0.9000053, 2.0999960], abs=5e-8)
    assert params[1].tolist() == pytest.approx([-1.0999937], abs=5e-8)


def test_the_four_modes_clip_what_they_say():
    gradients = [torch.tensor([3.0, -4.0]), torch.tensor([12.0])]
    assert clipped(gradients, "none", 1.0)[0].tolist() == [3.0, -4.0]
    joint = clipped(gradients, "global", 6.5)
    assert torch.cat(joint).tolist() == pytest.approx([1.5, -2.0, 6.0])
    layers = clipped(gradients, "layer", 6.0)
    assert torch.cat(layers).tolist() == pytest.approx([3.0, -4.0, 6.0])
    assert torch.cat(clipped(gradients, "coordinate", 3.5)).tolist() == [3.0, -3.5, 3.5]
    assert torch.cat(gradients).tolist() == [3.0, -4.0, 12.0]  # as they were


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=6),
    st.floats(0.01, 100.0),
    st.sampled_from(MODES[1:]),
)
def test_clipping_shortens_to_the_level_and_keeps_signs(values, level, mode):
    g = torch.tensor(values, dtype=torch.float64)
    [h] = clipped([g], mode, level)
    length = h.abs().max() if mode == "coordinate" else h.norm()
    assert length <= level * (1 + 1e-12)
    assert (h * g >= 0).all()
    if (g.abs().max() if mode == "coordinate" else g.norm()) <= level:
        assert torch.equal(h, g)


# -- other implementations ---------------------------------------------------------------------------------------------


def twins():
    start = ([[1.0, -2.0], [0.5, 3.0]], [0.3])
    return parameters(*start), parameters(*start)


def test_without_clipping_clip_adam_is_adam():
    ours, theirs = twins()
    first = ClipAdam(ours, lr=0.01, eps=0.0, clip_mode="none")
    second = torch.optim.Adam(theirs, lr=0.01, eps=0.0)
    walk(first, ours, 20)
    walk(second, theirs, 20)
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


def test_without_clipping_clip_adagrad_is_adagrad():
    ours, theirs = twins()
    first = ClipAdaGrad(ours, lr=0.1, clip_mode="none")
    second = torch.optim.Adagrad(theirs, lr=0.1)
    walk(first, ours, 20)
    walk(second, theirs, 20)
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-14)


def test_global_clipping_is_clip_grad_norm():
    ours, theirs = twins()
    first = ClipAdam(ours, lr=0.01, eps=0.0, clip_mode="global", clip=2.0)
    second = torch.optim.Adam(theirs, lr=0.01, eps=0.0)
    for step in range(20):
        random_gradients(ours, step)
        random_gradients(theirs, step)
        torch.nn.utils.clip_grad_norm_(theirs, 2.0)
        first.step()
        second.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)  # clip_grad_norm_ divides by the norm + 1e-6


@pytest.mark.parametrize("zero", [True, False])
def test_delay_is_the_recursion_with_the_previous_gradient(zero):
    """v_t sees h_{t-1}, also where the gradient's memory is used again (zero_grad(set_to_none=False))."""
    p, beta1, beta2, lr, eps, v = torch.tensor([1.0, -1.0]).double(), 0.9, 0.99, 0.1, 1e-6, 1e-5
    params = [p.clone().requires_grad_()]
    optimizer = ClipAdam(
        params,
        lr=lr,
        betas=(beta1, beta2),
        eps=eps,
        clip=1.0,
        delay=True,
        v_init=v,
        eta=0.5,
        bias_correction=False,
    )
    momentum, previous = torch.zeros(2).double(), torch.zeros(2).double()
    square = torch.full((2,), v, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for _ in range(6):
        g = 2 * torch.randn(2, generator=generator).double()
        if params[0].grad is None or zero:
            params[0].grad = g.clone()
        else:
            params[0].grad.copy_(g)
        optimizer.step()
        optimizer.zero_grad(set_to_none=zero)
        h = g * min(1.0, 1.0 / g.norm().item())
        momentum = beta1 * momentum + (1 - beta1) * h
        square = beta2 * square + (1 - beta2) * 0.5 * previous**2
        p = p - lr * momentum / (square.sqrt() + eps)
        previous = h
        torch.testing.assert_close(params[0].detach(), p, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("delay", [False, True])
def test_in_one_dimension_norm_and_coordinate_versions_agree(delay):
    ours, theirs = parameters([1.0]), parameters([1.0])
    walk(ClipAdaGradNorm(ours, lr=0.3, b_init=0.5, delay=delay, eta=0.7), ours, 30)
    walk(ClipAdaGrad(theirs, lr=0.3, v_init=0.25, eps=0.0, delay=delay, eta=0.7), theirs, 30)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [ClipAdaGradNorm, ClipAdamNorm])
def test_rows_are_problems_of_their_own(kind, mode):
    start = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(1)).double()
    other = torch.randn(3, 4, generator=torch.Generator().manual_seed(2)).double()
    together = [start.clone().requires_grad_(), other.clone().requires_grad_()]
    walk(kind(together, lr=0.1, clip=2.0, clip_mode=mode, rows=True), together, 5)
    for row in range(3):
        apart = [start[row].clone().requires_grad_(), other[row].clone().requires_grad_()]
        optimizer = kind(apart, lr=0.1, clip=2.0, clip_mode=mode)
        shapes = [torch.zeros(3, 2, 2).double(), torch.zeros(3, 4).double()]
        for step in range(5):
            random_gradients(shapes, step)
            for p, whole in zip(apart, shapes, strict=True):
                p.grad = whole.grad[row].clone()
            optimizer.step()
        for p, whole in zip(apart, together, strict=True):
            torch.testing.assert_close(p, whole[row], rtol=1e-12, atol=1e-14)


def test_beta2_from_the_horizon():
    params = parameters([1.0])
    optimizer = ClipAdamNorm(params, lr=0.5, betas=(0.0, None), total_steps=4)
    assert optimizer.param_groups[0]["beta2"] == 0.75
    with pytest.raises(ValueError, match="total_steps"):
        ClipAdamNorm(params, lr=0.5, betas=(0.0, None))


def test_groups_have_their_own_rate_and_decay_and_share_the_norm():
    params = parameters([1.0], [1.0])
    groups = [{"params": params[:1], "lr": 0.5}, {"params": params[1:], "weight_decay": 0.1}]
    optimizer = ClipAdaGradNorm(groups, lr=1.0, clip=1.0)
    set_gradients(params, [3.0], [4.0])
    optimizer.step()
    b = 2.0**0.5
    assert params[0].item() == pytest.approx(1 - 0.5 * 0.6 / b)
    assert params[1].item() == pytest.approx((1 - 0.8 / b) * (1 - 0.1))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_weight_decay_comes_last_with_the_plain_rate(kind):
    with_decay, without = twins()
    walk(kind(with_decay, weight_decay=0.2), with_decay, 1)
    walk(kind(without), without, 1)
    for p, q in zip(with_decay, without, strict=True):
        torch.testing.assert_close(p, q * (1 - 0.1 * 0.2), rtol=1e-14, atol=0)


# -- a citizen of torch.optim ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_closure_gradients_and_parameters_without_one(kind):
    params = parameters([1.0, 2.0], [3.0])
    optimizer = kind(params)

    def closure():
        optimizer.zero_grad()
        loss = params[0].square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 5.0
    assert params[0].grad.tolist() == [2.0, 4.0]  # step does not clip in place
    assert params[1].tolist() == [3.0]
    kind(params).step()
    kind(parameters([1.0])).step()  # no gradient at all


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("delay", [False, True])
def test_a_loaded_state_goes_on_bit_by_bit(kind, dtype, delay, tmp_path):
    params = parameters([[1.0, -2.0], [0.5, 3.0]], [0.3], dtype=dtype)
    optimizer = kind(params, delay=delay)
    walk(optimizer, params, 5)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    copies = [p.detach().clone().requires_grad_() for p in params]
    resumed = kind(copies, delay=delay)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    walk(optimizer, params, 5, seed=1)
    walk(resumed, copies, 5, seed=1)
    for p, q in zip(params, copies, strict=True):
        assert torch.equal(p, q)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(kind, mode, bad):
    params = parameters([1.0, 2.0], [3.0], dtype=torch.float32)
    optimizer = kind(params, clip_mode=mode)
    for steps in (0, 3):  # before there is any state, and after
        walk(optimizer, params, steps)
        before = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in params]
        set_gradients(params, [1.0, 1.0], [bad])
        with pytest.raises(FloatingPointError, match=r"parameter 1 .*shape \(1,\)\) is not finite"):
            optimizer.step()
        after = optimizer.state_dict()
        assert repr(after) == repr(before[0])
        assert all(torch.equal(p, q) for p, q in zip(params, before[1], strict=True))
    walk(optimizer, params, 1)
    assert all(p.isfinite().all() for p in params)


def test_finite_gradients_whose_norm_overflows_are_clipped():
    huge = torch.tensor([3e30, -4e30])
    assert clipped([huge], "global", 1.0)[0].tolist() == pytest.approx([0.6, -0.8])
    [p] = parameters([0.0, 0.0], dtype=torch.float32)
    optimizer = ClipAdam([p], lr=0.1)
    p.grad = huge
    optimizer.step()
    state = optimizer.state[p]
    assert state["exp_avg"].tolist() == pytest.approx([0.06, -0.08])
    assert state["exp_avg_sq"].tolist() == pytest.approx([0.36e-3, 0.64e-3])


def test_parts_hold_all_tensors_in_order():
    tensors = [torch.empty(size) for size in (3, 2, 9, 1, 1, 4)]
    assert [tensors[part] for part in parts(tensors, 5)] == [
        tensors[:2],
        tensors[2:3],
        tensors[3:5],
        tensors[5:],
    ]


@pytest.mark.parametrize("mode", MODES)
def test_parts_make_no_difference(mode, monkeypatch):
    results = []
    for size in (1, 2**19):
        monkeypatch.setattr("methods.train.clip_adam.parts", functools.partial(parts, numbers=size))
        params = twins()[0]
        walk(ClipAdam(params, lr=0.1, clip_mode=mode), params, 4)
        results.append(params)
    assert all(torch.equal(p, q) for p, q in zip(*results, strict=True))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_unclipped_gradients_that_cannot_be_squared_change_nothing(kind):
    params = parameters([1.0], [0.0, 0.0], dtype=torch.float32)
    optimizer = kind(params, clip_mode="none")
    set_gradients(params, [1.0], [3e30, -4e30])
    with pytest.raises(FloatingPointError, match=r"parameter 1 .*shape \(2,\)\) is too large to be squared"):
        optimizer.step()
    assert optimizer.state_dict()["state"] == {}
    assert params[0].item() == 1.0


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5, 1e12])
def test_lazy_clipping_is_clipping(size):
    gradients = [
        size * torch.tensor([3.0, -4.0], dtype=torch.float64),
        torch.tensor([0.5], dtype=torch.float64),
    ]
    for mode in MODES:
        h, lazy = clipped(gradients, mode, 1.0), plan_clip(gradients, mode, 1.0).of(gradients)
        for start, weight in ((0.0, 0.1), (2.0, 1.0)):
            averages, sums = ([torch.full_like(g, start) for g in gradients] for _ in range(2))
            lazy.average_into(averages, weight)
            lazy.add_squares_to(sums, weight)
            for a, s, v in zip(averages, sums, h, strict=True):
                torch.testing.assert_close(a, (1 - weight) * start + weight * v, rtol=1e-12, atol=1e-15)
                torch.testing.assert_close(s, start + weight * v**2, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_sparse_gradients_and_complex_parameters_are_refused(kind):
    with pytest.raises(ValueError, match=r"does not take complex parameters: optimize torch.view_as_real"):
        kind([torch.zeros(2, dtype=torch.complex64, requires_grad=True)])
    optimizer = kind(parameters([1.0]))
    with pytest.raises(ValueError, match="complex"):
        optimizer.add_param_group({"params": [torch.zeros(2, dtype=torch.complex64, requires_grad=True)]})
    assert len(optimizer.param_groups) == 1
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = kind(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="does not take sparse gradients"):
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ClipAdam, {"lr": -1.0}, "lr must be at least 0"),
        (ClipAdam, {"lr": float("nan")}, "lr must be at least 0"),
        (ClipAdam, {"clip": 0.0}, "clip must be above 0"),
        (ClipAdam, {"clip_mode": "local"}, "clip_mode must be one of none, global, layer, coordinate"),
        (ClipAdam, {"betas": (1.0, 0.9)}, "beta1"),
        (ClipAdam, {"delay": True}, "delay needs v_init above 0"),
        (ClipAdaGrad, {"delay": True}, "delay needs v_init above 0"),
        (ClipAdaGrad, {"eta": -1.0}, "eta"),
        (ClipAdaGradNorm, {"lr": 1.0, "b_init": 0.0}, "b_init must be above 0"),
        (ClipAdamNorm, {"lr": 1.0, "betas": (0.9, 1.0)}, "beta2"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(parameters([1.0]), **options)


def test_a_group_cannot_clip_otherwise():
    first, second = parameters([1.0], [2.0])
    with pytest.raises(ValueError, match="clip must be the same in all parameter groups"):
        ClipAdam([{"params": [first]}, {"params": [second], "clip": 2.0}], clip=1.0)
