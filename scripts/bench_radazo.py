"""What one step of R-AdaZO costs over the K+1 function values that it evaluates.

    python scripts/bench_radazo.py [dim ...]

For each test function and precision, for a small network's training loss as a function of its weights, and for the
attacked MNIST networks: the fastest of many rounds of a step, of
its evaluation alone, and of drawing its K x d standard normal numbers alone, interleaved in one process and one
thread, as other processes only ever add time. A step cannot be cheaper than evaluation plus draws, so the ratio
comes near 1 where the evaluation is dear; `rest` is what the step adds beyond the two.
"""

# ruff: noqa: E402 (thread counts and the search path come before the libraries)
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from methods.zeroth_order.radazo import RAdaZO
from tasks.training.mnist_cnn import MnistCNN
from tasks.zeroth_order import functions
from tasks.zeroth_order.attack import TargetedLoss

SAMPLES, TARGET, SECONDS = 10, 1.15, 2.0


def fastest(jobs: list[Callable[[], object]]) -> list[float]:
    """Least seconds of each job over rounds in which all take turns."""
    best = [float("inf")] * len(jobs)
    end, rounds = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < end or rounds < 20:
        for index, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            best[index] = min(best[index], time.perf_counter() - start)
        rounds += 1
    return best


def measure(label: str, function: Callable[[Tensor], Tensor], dim: int, dtype: torch.dtype) -> None:
    """One line: a step, its evaluation, its draws, and the ratio of the first two."""
    x = torch.randn(dim, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()
    optimizer = RAdaZO([x], lr=0.0, n_samples=SAMPLES, mu=0.05, generator=torch.Generator().manual_seed(1))
    points = x.detach() + 0.05 * torch.randn(SAMPLES + 1, dim, dtype=dtype)
    draws, generator = torch.empty(SAMPLES, dim), torch.Generator().manual_seed(2)
    step, evaluation, normal = fastest(
        [
            lambda: optimizer.step(batched=function),
            lambda: function(points),
            lambda: draws.normal_(generator=generator),
        ]
    )
    ratio = step / evaluation
    mark = "ok" if ratio <= TARGET else f"above {TARGET}"
    print(
        f"{label:26}{dim:>7}  {str(dtype).removeprefix('torch.'):8}"
        f"{step * 1e6:10.0f}{evaluation * 1e6:12.0f}{normal * 1e6:8.0f}"
        f"{(step - evaluation - normal) * 1e6:8.0f}{ratio:8.2f}  {mark}"
    )


class NetworkLoss:
    """Cross-entropy of a network with one hidden layer on 500 examples of 784 features, as a function of its weights.

    Points are flattened weights and biases; all of them are evaluated in batched products.
    """

    def __init__(self, hidden: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(500, 784, generator=generator)
        self.classes = torch.randint(10, (500,), generator=generator)
        self.shapes = [(784, hidden), (1, hidden), (hidden, 10), (1, 10)]
        self.dim = sum(a * b for a, b in self.shapes)

    def __call__(self, points: Tensor) -> Tensor:
        parts = points.split([a * b for a, b in self.shapes], dim=1)
        w, b, v, c = (part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True))
        logits = torch.baddbmm(c, torch.baddbmm(b, self.inputs.expand(len(w), -1, -1), w).relu(), v)
        return -logits.log_softmax(-1)[:, torch.arange(500), self.classes].mean(-1)


def main() -> None:
    """The table."""
    print(
        f"{'K = 10':26}{'d':>7}  {'dtype':8}{'step us':>10}{'values us':>12}{'draws':>8}{'rest':>8}{'ratio':>8}"
    )
    for dim in [int(text) for text in sys.argv[1:]] or [1000, 10000]:
        for name in ("quadratic", "rosenbrock", "ackley", "levy"):
            for dtype in (torch.float32, torch.float64):
                measure(name, getattr(functions, name), dim, dtype)
    network = NetworkLoss(hidden=12)
    measure("network's loss", network, network.dim, torch.float32)
    image = torch.rand(1, 28, 28, generator=torch.Generator().manual_seed(0))
    for width in (8, 32):
        model = MnistCNN(width).eval().requires_grad_(False)
        measure(f"attack, width {width}", TargetedLoss(model, image, 3, 0.3), 784, torch.float32)


if __name__ == "__main__":
    main()
