"""TailOPT: values known beforehand, bad input, backends that agree, checkpoints."""

import copy
import functools
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.train.tailopt import (
    BiClipSGD,
    L2ClipSGD,
    NestedTrainer,
    OuterAdagrad,
    OuterAdam,
    OuterAverage,
    OuterBiClip,
    OuterNesterov,
    OuterRMSProp,
    biclip,
    l2clip,
)

OUTERS = {
    "average": OuterAverage(),
    "nesterov": OuterNesterov(lr=0.5),
    "adagrad": OuterAdagrad(beta1=0.5),
    "rmsprop": OuterRMSProp(),
    "adam": OuterAdam(),
    "biclip": OuterBiClip(lr=0.5, u=0.05, d=0.001, nu=-0.5),
}


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def leaf(*values):
    return double(*values).requires_grad_()


# -- clipping ------------------------------------------------------------------------------------------------------


def test_biclip_by_hand():
    g = double(0, 1e-9, -0.02, 0.05, -0.3, 0.5, -7)
    assert biclip([g], u=0.5, d=0.1)[0].tolist() == [0, 0.1, -0.1, 0.1, -0.3, 0.5, -0.5]
    assert g[-1] == -7  # gradients are left alone


def test_l2clip_by_hand():
    assert l2clip([double(3, -4), double(12)], 6.5)[0].tolist() == [1.5, -2]
    assert l2clip([double(3, -4), double(12)], 20.0)[1].tolist() == [12]
    assert l2clip([double(3, -4)], 100.0, d=10.0)[0].tolist() == pytest.approx([6, -8])
    assert l2clip([double(0, 0)], 100.0, d=10.0)[0].tolist() == [0, 0]


def test_a_norm_that_overflows_is_clipped_like_any_other():
    huge = torch.tensor([3e30, -4e30])
    assert l2clip([huge], 5.0)[0].tolist() == pytest.approx([3, -4])


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(1e-6, 10),
)
@settings(max_examples=50, deadline=None)
def test_biclip_keeps_signs_and_bounds(values, share, u):
    g, d = double(*values), share * u
    h = biclip([g], u, d)[0]
    assert torch.equal(h.sign(), g.sign()) or d == 0
    assert (h.abs() <= u).all()
    assert (h.abs()[g != 0] >= min(d, u)).all() or d == 0
    inside = (g.abs() >= d) & (g.abs() <= u)
    assert torch.equal(h[inside], g[inside])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_thresholds_hold_in_half_precision(dtype):
    p = torch.zeros(3, dtype=dtype, requires_grad=True)
    p.grad = torch.tensor([1e-3, 0.0, 100.0], dtype=dtype)
    BiClipSGD([p], lr=1.0, u=0.5, d=0.125).step()
    assert p.tolist() == [-0.125, 0.0, -0.5]


def test_rows_are_clipped_apart():
    p = leaf([3.0, 4.0], [0.3, 0.4])
    p.grad = p.detach().clone()
    L2ClipSGD([p], lr=1.0, u=1.0, rows=True).step()
    assert p.flatten().tolist() == pytest.approx([2.4, 3.2, 0, 0])


def test_hyperparameters_follow_powers_of_the_round():
    p = leaf(0.0, 0.0, 0.0)
    optimizer = BiClipSGD([p], lr=1.0, u=4.0, d=1.0, nu=-0.5, zeta=-1.0, gamma=-1.5)
    for _ in range(3):
        optimizer.next_round()
    p.grad = double(100, 1e-9, 0)
    optimizer.step()  # round 4: lr 1/2, u 1, d 1/8
    assert p.tolist() == [-0.5, -0.0625, 0]


def test_weight_decay_is_decoupled():
    p = leaf(1.0, 1.0)
    p.grad = double(0, 1)
    BiClipSGD([p], lr=0.5, u=1.0, d=0.5, weight_decay=0.2).step()
    assert p.tolist() == pytest.approx([0.9, 0.45])


@pytest.mark.parametrize("kind", [BiClipSGD, L2ClipSGD])
def test_bad_input(kind):
    p = leaf(1.0, 2.0)
    for bad in ({"lr": -1.0}, {"lr": 0.1, "u": 0.1, "d": 0.2}, {"lr": 0.1, "d": -1.0}, {"lr": 0.1, "u": 0.0}):
        with pytest.raises(ValueError):
            kind([p], **bad)
    with pytest.raises(ValueError, match="complex"):
        kind([torch.zeros(2, dtype=torch.complex64, requires_grad=True)], lr=0.1)
    optimizer = kind([p, q := leaf(3.0)], lr=0.1)
    p.grad, q.grad = double(1, 1), double(math.nan)
    with pytest.raises(FloatingPointError, match="nothing has been changed"):
        optimizer.step()
    assert p.tolist() == [1, 2]
    q.grad = torch.sparse_coo_tensor([[0]], [1.0], (1,), dtype=torch.float64)
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


# -- the server ----------------------------------------------------------------------------------------------------


def test_nesterov_is_that_of_torch():
    x, p = double(1, -2), leaf(1.0, -2.0)
    outer = OuterNesterov(lr=0.7, momentum=0.9)
    reference = torch.optim.SGD([p], lr=0.7, momentum=0.9, nesterov=True)
    for k in range(4):
        delta = double(0.3 * k - 0.2, 0.1)
        outer.step([x], [delta])
        p.grad = -delta
        reference.step()
    assert x.tolist() == pytest.approx(p.tolist())


def test_outer_adam_is_that_of_torch_with_the_gradient_turned_round():
    x, p = double(1, -2), leaf(1.0, -2.0)
    outer, reference = OuterAdam(lr=0.1, tau=1e-3), torch.optim.Adam([p], lr=0.1, eps=1e-3)
    for k in range(4):
        delta = double(0.3 * k - 0.2, 0.1)
        outer.step([x], [delta])
        p.grad = -delta
        reference.step()
    assert x.tolist() == pytest.approx(p.tolist())


def test_adagrad_and_rmsprop_by_hand():
    x = double(0.0)
    outer = OuterAdagrad(lr=1.0, tau=1.0)
    outer.step([x], [double(3.0)])
    assert x.item() == pytest.approx(0.75)
    outer.step([x], [double(4.0)])
    assert x.item() == pytest.approx(0.75 + 4 / 6)
    x = double(0.0)
    OuterRMSProp(lr=1.0, beta2=0.75, tau=1.0).step([x], [double(2.0)])
    assert x.item() == pytest.approx(1.0)


@pytest.mark.parametrize("name", OUTERS)
def test_a_bad_delta_changes_nothing(name):
    x, outer = double(1, 2), copy.deepcopy(OUTERS[name])
    outer.step([x], [double(0.1, 0.1)])
    before, state = x.clone(), copy.deepcopy(outer.state_dict())
    with pytest.raises(FloatingPointError):
        outer.step([x], [double(0.1, math.inf)])
    assert torch.equal(x, before)
    assert str(outer.state_dict()) == str(state)


def test_bad_outer_options():
    for make in (
        lambda: OuterAverage(lr=0.0),
        lambda: OuterAdam(betas=(1.0, 0.9)),
        lambda: OuterAdagrad(tau=0.0),
        lambda: OuterBiClip(u=0.1, d=0.2),
        lambda: OuterNesterov(momentum=1.0),
    ):
        with pytest.raises(ValueError):
            make()


# -- rounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer", "x"),
    [(OuterAverage(), 0.045), (OuterBiClip(u=0.03, d=0.01), 0.03), (OuterBiClip(u=1.0, d=0.2), 0.2)],
)
def test_one_round_by_hand(outer, x):
    p = leaf(0.0)
    trainer = NestedTrainer([p], functools.partial(BiClipSGD, lr=0.1, u=1.0, d=0.1), outer, nodes=2)

    def gradient(node, step):
        p.grad = double([-4.0, 0.02][node])

    trainer.round(gradient)
    assert p.item() == pytest.approx(x)


TARGETS = double([1.0, -2.0, 3.0], [0.5, 0.0, -1.0], [2.0, 2.0, 2.0], [-3.0, 1.0, 0.0])


def problem(params, nodes, stacked=False):
    """Quadratics with a minimum of their own on each node, and gradients that depend on node and step."""

    def gradient(node, step):
        (p,) = params
        target = TARGETS[:nodes] if stacked else TARGETS[node]
        p.grad = (p.detach() - target) * (1 + 0.1 * step)
        return float(p.grad.abs().sum())

    return gradient


INNERS = {
    "biclip": functools.partial(BiClipSGD, lr=0.1, u=0.7, d=0.01, gamma=-0.5),
    "l2clip": functools.partial(L2ClipSGD, lr=0.1, u=0.7),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.05),
    "momentum": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
}


def train(inner, outer, rounds=4, nodes=4, backend="serial", keep_inner=False, break_at=None):
    stacked = backend == "stacked"
    p = torch.zeros(*((nodes, 3) if stacked else (3,)), dtype=torch.float64, requires_grad=True)

    def make():
        return NestedTrainer(
            [p],
            INNERS[inner],
            OUTERS[outer],
            3,
            nodes,
            backend,
            weights=[1, 2, 1, 3][:nodes],
            keep_inner=keep_inner,
        )

    trainer = make()
    for t in range(rounds):
        if t == break_at:
            state = copy.deepcopy(trainer.state_dict())
            trainer = make()
            trainer.load_state_dict(state)
        trainer.round(problem([p], nodes, stacked))
    return (p[0] if stacked else p).detach().clone()


@pytest.mark.parametrize("keep_inner", [False, True])
@pytest.mark.parametrize("inner", INNERS)
def test_a_stack_of_nodes_gives_the_numbers_of_one_after_the_other(inner, keep_inner):
    for outer in ("adam", "biclip"):
        one, all_at_once = (
            train(inner, outer, backend=b, keep_inner=keep_inner) for b in ("serial", "stacked")
        )
        assert all_at_once.tolist() == pytest.approx(one.tolist(), rel=1e-12)


@pytest.mark.parametrize("outer", OUTERS)
def test_a_trainer_goes_on_bit_by_bit(outer):
    for keep_inner in (False, True):
        whole = train("adamw", outer, keep_inner=keep_inner)
        assert torch.equal(whole, train("adamw", outer, keep_inner=keep_inner, break_at=2))


def test_kept_state_matters():
    assert not torch.equal(train("momentum", "average"), train("momentum", "average", keep_inner=True))


def test_special_cases():
    g = [double(0.3, -2.0), double(-0.4, 0.0), double(1.0, 5.0)]
    cases = {
        "sgd": (functools.partial(BiClipSGD, lr=0.1), lambda p: -0.1 * p.grad),
        "signs": (functools.partial(BiClipSGD, lr=0.1, u=1.0, d=1.0), lambda p: -0.1 * p.grad.sign()),
        "clipped": (
            functools.partial(L2ClipSGD, lr=0.1, u=1.0),
            lambda p: -0.1 * p.grad * min(1.0, 1 / p.grad.norm().item()),
        ),
    }
    for inner, rule in cases.values():
        p, plain = leaf(1.0, 1.0), leaf(1.0, 1.0)
        trainer = NestedTrainer([p], inner, OuterAverage())
        for part in g:

            def gradient(node, step, part=part, p=p):
                p.grad = part.clone()

            trainer.round(gradient)
            plain.grad = part.clone()
            with torch.no_grad():
                plain += rule(plain)
        assert p.tolist() == pytest.approx(plain.tolist(), rel=1e-14)


def test_a_bad_gradient_leaves_the_server_as_it_was():
    p = leaf(1.0, 2.0)
    trainer = NestedTrainer([p], INNERS["biclip"], OuterAdam(), local_steps=2, nodes=2)

    def gradient(node, step, bad=False):
        p.grad = double(math.nan if bad and (node, step) == (1, 1) else 1.0, 1.0)

    trainer.round(gradient)
    before, state = p.detach().clone(), copy.deepcopy(trainer.state_dict())
    with pytest.raises(FloatingPointError):
        trainer.round(functools.partial(gradient, bad=True))
    assert torch.equal(p, before)
    assert str(trainer.state_dict()) == str(state)


def test_what_is_kept_and_sent():
    p = torch.zeros(4, 5, requires_grad=True)
    for inner, state in (("biclip", 0), ("l2clip", 0), ("adamw", 40), ("momentum", 20)):
        trainer = NestedTrainer([p], INNERS[inner], OuterAverage(), nodes=3)

        def gradient(node, step):
            p.grad = torch.ones_like(p)

        trainer.round(gradient)
        assert (trainer.node_state, trainer.sent) == (state, 20)


def test_bad_trainers():
    p = leaf(1.0, 2.0, 3.0)
    inner, outer = INNERS["biclip"], OuterAverage()
    for options in (
        {"local_steps": 0},
        {"nodes": 0},
        {"backend": "parallel"},
        {"nodes": 2, "weights": [1.0]},
        {"nodes": 2, "backend": "stacked"},
    ):
        with pytest.raises(ValueError):
            NestedTrainer([p], inner, outer, **options)
    with pytest.raises(ValueError):
        NestedTrainer([], inner, outer)
    with pytest.raises(ValueError, match="complex"):
        NestedTrainer([torch.zeros(2, dtype=torch.complex64)], inner, outer)
    with pytest.raises(RuntimeError, match="process group"):
        NestedTrainer([p], inner, outer, backend="torch.distributed")


CASES = [
    (inner, outer, nodes, keep)
    for inner, outer in (
        ("biclip", "biclip"),
        ("l2clip", "average"),
        ("adamw", "adam"),
        ("adamw", "nesterov"),
    )
    for nodes in (2, 3, 4)
    for keep in (False, True)
]


def _rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    sent = []
    reduce = dist.all_reduce
    dist.all_reduce = lambda tensor, *a, **k: (sent.append(tensor.numel()), reduce(tensor, *a, **k))[1]
    found = [
        train(i, o, nodes=n, backend="torch.distributed", keep_inner=k, break_at=2) for i, o, n, k in CASES
    ]
    assert set(sent) == {3}  # one model a round, nothing else
    assert len(sent) == 4 * len(CASES)
    p = leaf(1.0)
    trainer = NestedTrainer([p], INNERS["biclip"], OuterAverage(), nodes=2, backend="torch.distributed")

    def gradient(node, step):
        p.grad = double(math.nan if node == 1 else 1.0)

    with pytest.raises(FloatingPointError):  # on both ranks, though only one has met it
        trainer.round(gradient)
    assert p.item() == 1
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_give_the_numbers_of_one_process(tmp_path: Path):
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for case, first, second in zip(CASES, *found, strict=True):
        inner, outer, nodes, keep = case
        assert torch.equal(first, second), case
        assert torch.equal(first, train(inner, outer, nodes=nodes, keep_inner=keep)), case
