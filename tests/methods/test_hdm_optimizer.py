"""HDM as a torch optimizer: the same numbers as the functional form, and a good citizen of torch."""

import numpy as np
import pytest
import torch

from methods.minimize.hdm import HDM, minimize

CASES = [
    {"lr": 0.01},
    {"lr": 0.01, "preconditioner": "matrix"},
    {"lr": 0.01, "preconditioner": "scalar", "null_step": False},
    {"lr": 0.1, "learner": "adagrad", "momentum": "heavy_ball", "momentum_shape": "diagonal"},
    {"learner": "adagrad", "momentum": "heavy_ball", "adaptive": True, "smoothness": 100.0, "horizon": 60},
    {"lr": 0.01, "learner": "adagrad", "momentum": "nesterov", "smoothness": 100.0},
]


def problem(dtype=np.float64):
    scales = np.logspace(0, 2, 7).astype(dtype)
    x0 = np.random.default_rng(3).standard_normal(7).astype(dtype)
    return scales, x0, (lambda x: float(dtype(0.5) * (scales @ (x * x)))), (lambda x: scales * x)


def closure_for(x, f, grad):
    def closure():
        x.grad = torch.from_numpy(grad(x.detach().numpy()))
        return torch.tensor(f(x.detach().numpy()), dtype=torch.float64)

    return closure


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_functional_and_optimizer_agree_bit_for_bit(options, dtype):
    _scales, x0, f, grad = problem(dtype)
    path = []
    options = {"horizon": 40, **options}
    minimize(f, grad, x0, tol=0, max_iter=40, callback=lambda x, v: path.append((x, v)), **options)
    x = torch.tensor(x0)
    optimizer = HDM([x], **options)
    for point, value in path:
        assert optimizer.step(closure_for(x, f, grad)) == value
        assert (x.numpy() == point).all()
        assert (optimizer.gradient.numpy() == grad(point)).all()
        assert (x.grad.numpy() == grad(point)).all()  # .grad belongs to the accepted point


@pytest.mark.parametrize("options", CASES)
def test_several_parameters_are_one_vector(options):
    _scales, x0, f, grad = problem()
    whole = torch.tensor(x0)
    parts = [torch.tensor(x0[:4].reshape(2, 2)), torch.tensor(x0[4:])]

    def closure():
        x = np.concatenate([p.numpy().reshape(-1) for p in parts])
        g = torch.from_numpy(grad(x))
        parts[0].grad, parts[1].grad = g[:4].view(2, 2).clone(), g[4:].clone()
        return f(x)

    one, two = HDM([whole], **options), HDM(parts, **options)
    for _ in range(30):
        assert one.step(closure_for(whole, f, grad)) == two.step(closure)
    assert torch.equal(whole, torch.cat([p.reshape(-1) for p in parts]))


def test_torch_arithmetic_agrees_with_numpy_arithmetic():
    """Types that NumPy has not, and GPUs, go through torch operators: here forced on float64."""
    _scales, x0, f, grad = problem()
    options = {"learner": "adagrad", "momentum": "heavy_ball", "adaptive": True, "smoothness": 100.0}
    numpy_x, torch_x = torch.tensor(x0), torch.tensor(x0)
    numpy_form, torch_form = HDM([numpy_x], **options), HDM([torch_x], **options)
    torch_form._flat.numpy = False
    for _ in range(40):
        numpy_form.step(closure_for(numpy_x, f, grad))
        torch_form.step(closure_for(torch_x, f, grad))
    assert torch_x.numpy() == pytest.approx(numpy_x.numpy(), rel=1e-6, abs=1e-9)


def test_bfloat16_parameters_run():
    x = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    optimizer = HDM([x], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (x.float() ** 2).sum() / 2
        loss.backward()
        return loss

    values = [optimizer.step(closure) for _ in range(30)]
    assert values[-1] < 1e-3 * values[0]
    assert (np.diff(values) <= 0).all()


def test_trains_a_module_with_autograd_and_zero_grad_between_steps():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(100, 5, generator=generator, dtype=torch.float64)
    y = (X @ torch.arange(5.0, dtype=torch.float64) > 0).double()
    model = torch.nn.Linear(5, 1, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    L = float(torch.linalg.matrix_norm(X, 2) ** 2 + 100) / 4
    optimizer = HDM(
        model.parameters(), lr=10 / L, learner="adagrad", momentum="heavy_ball", adaptive=True, smoothness=L
    )
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(X)[:, 0], y, reduction="sum")
        loss.backward()
        return loss

    values = []
    for _ in range(60):
        values.append(optimizer.step(closure))
        optimizer.zero_grad()  # the optimizer keeps the gradient it needs
    assert calls == 61
    assert (np.diff(values) <= 0).all()
    assert values[-1] < 0.2 * values[0]
    with torch.no_grad():  # gradients are enabled for the closure only
        optimizer.step(closure)


@pytest.mark.parametrize("options", CASES)
def test_state_dict_goes_on_where_it_stopped(options):
    _scales, x0, f, grad = problem()
    x = torch.tensor(x0)
    optimizer = HDM([x], **options)
    for _ in range(17):
        optimizer.step(closure_for(x, f, grad))
    saved = {"x": x.clone(), "state": optimizer.state_dict()}
    saved["state"] = torch.load(_stored(saved["state"]), weights_only=True)
    other = saved["x"].clone()
    resumed = HDM([other], **options)
    resumed.load_state_dict(saved["state"])
    for _ in range(17):
        assert optimizer.step(closure_for(x, f, grad)) == resumed.step(closure_for(other, f, grad))
    assert torch.equal(x, other)


def _stored(state):
    import io

    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("options", CASES)
def test_a_failing_closure_leaves_the_last_point(options):
    _, x0, f, grad = problem()
    x = torch.tensor(x0)
    optimizer = HDM([x], **options)
    good = closure_for(x, f, grad)
    for _ in range(9):
        optimizer.step(good)
    point, value = x.clone(), optimizer.value

    def failing():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(failing)
    assert torch.equal(x, point)
    assert optimizer.value == value == f(x.numpy())
    optimizer.step(good)
    assert optimizer.value == f(x.numpy())


def test_the_state_is_four_vectors():
    _, x0, f, grad = problem()
    x = torch.tensor(x0)
    optimizer = HDM([x], learner="adagrad", momentum="heavy_ball", adaptive=True, smoothness=100.0)
    optimizer.step(closure_for(x, f, grad))
    vectors = [item for item in optimizer.state[x].values() if isinstance(item, torch.Tensor)]
    assert sum(item.numel() for item in vectors) == 4 * x.numel()


def test_a_scheduler_can_change_the_learning_rate():
    _, x0, f, grad = problem()
    x = torch.tensor(x0)
    optimizer = HDM([x], lr=0.01)
    optimizer.step(closure_for(x, f, grad))
    before = optimizer.state[x]["P"].clone()
    optimizer.param_groups[0]["lr"] = 1e-30
    optimizer.step(closure_for(x, f, grad))
    assert torch.allclose(optimizer.state[x]["P"], before, rtol=0, atol=1e-25)


def test_rejected_parameters():
    with pytest.raises(ValueError, match="one parameter group"):
        HDM([{"params": [torch.zeros(2)]}, {"params": [torch.zeros(2)]}])
    with pytest.raises(ValueError, match="one dtype"):
        HDM([torch.zeros(2), torch.zeros(2, dtype=torch.float64)])
    x = torch.zeros(3)
    optimizer = HDM([x])

    def sparse():
        x.grad = torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=True)
        return 1.0

    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step(sparse)
