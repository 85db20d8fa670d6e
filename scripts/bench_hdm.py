"""What one step of hypergradient descent costs over the gradient that it evaluates, on real data.

    REPRISE_DATA=... python scripts/bench_hdm.py [libsvm/a3a libsvm/w8a ...]

For each data set, loss and form (`minimize`, and the torch optimizer with NumPy or autograd gradients): the median
time of a step over the median time of the evaluation inside it, in one process and one thread. The fastest of five
rounds counts, as other processes only ever add time.
"""

# ruff: noqa: E402 (thread counts and the search path come before the libraries)
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

import numpy as np
import torch
import yaml

from methods.minimize.hdm import HDM, minimize
from tasks.data.libsvm import LibSVM
from tasks.minimize.problems import LinearClassification

STEPS, ROUNDS = 300, 5
OPTIONS: dict[str, Any] = {
    "learner": "adagrad",
    "momentum": "heavy_ball",
    "adaptive": True,
    "momentum_lr": 3.0,
}


class Stopwatch:
    """Wraps an evaluation and keeps how long every call took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds: list[float] = []

    def __call__(self, *args: Any) -> Any:
        start = time.perf_counter()
        result = self.function(*args)
        self.seconds.append(time.perf_counter() - start)
        return result


def functional(problem: LinearClassification, start: np.ndarray) -> tuple[float, float]:
    """Median seconds of a step and of its evaluation, `minimize` with one function for value and gradient."""
    last: dict[str, Any] = {}

    def value(x: np.ndarray) -> float:
        last["f"], last["g"] = problem.value_and_gradient(x)
        return last["f"]

    watch, ends = Stopwatch(value), []
    L = problem.constants["L"]
    minimize(
        watch,
        lambda _: last["g"],
        start,
        lr=10 / L,
        smoothness=L,
        tol=0.0,
        max_iter=STEPS,
        callback=lambda *_: ends.append(time.perf_counter()),
        **OPTIONS,
    )
    return float(np.median(np.diff(ends))), float(np.median(watch.seconds))


def optimizer(x: torch.Tensor, closure: Callable[[], Any], L: float) -> tuple[float, float]:
    """The same for the torch optimizer."""
    watch, steps = Stopwatch(closure), []
    hdm = HDM([x], lr=10 / L, smoothness=L, **OPTIONS)
    for _ in range(STEPS):
        start = time.perf_counter()
        hdm.step(watch)
        steps.append(time.perf_counter() - start)
    return float(np.median(steps)), float(np.median(watch.seconds))


def numpy_closure(problem: LinearClassification, x: torch.Tensor) -> Callable[[], Any]:
    """A closure with the analytic gradient."""
    view = x.detach().numpy()

    def closure() -> float:
        value, gradient = problem.value_and_gradient(view)
        x.grad = torch.from_numpy(gradient)
        return value

    return closure


def autograd_closure(problem: LinearClassification, x: torch.Tensor) -> Callable[[], Any]:
    """A closure as a torch user writes it: dense data, autograd."""
    dense = problem._A if isinstance(problem._A, np.ndarray) else problem._A.toarray()
    A = torch.from_numpy(dense)

    def closure() -> torch.Tensor:
        x.grad = None
        margins = A @ x
        if problem.loss == "logistic":
            loss = -torch.nn.functional.logsigmoid(margins).sum()
        else:
            loss = 0.5 * (1 - margins).clamp(min=0).square().sum()
        loss.backward()
        return loss

    return closure


def forms(problem: LinearClassification) -> dict[str, Callable[[], tuple[float, float]]]:
    """The measurements of one problem by name."""
    L = problem.constants["L"]
    start = np.random.default_rng(0).standard_normal(problem.dim) / np.sqrt(problem.dim)

    def analytic() -> tuple[float, float]:
        x = torch.tensor(start)
        return optimizer(x, numpy_closure(problem, x), L)

    def automatic() -> tuple[float, float]:
        x = torch.tensor(start, requires_grad=True)
        return optimizer(x, autograd_closure(problem, x), L)

    return {
        "minimize": lambda: functional(problem, start),
        "HDM, NumPy gradient": analytic,
        "HDM, autograd": automatic,
    }


def main(options: list[str]) -> None:
    """Print one line per data set, loss and form."""
    torch.set_num_threads(1)
    print(f"{'data':<14}{'loss':<16}{'form':<22}{'step us':>10}{'gradient us':>13}{'ratio':>8}")
    for option in options:
        node = yaml.safe_load((HOME / f"conf/data/{option}.yaml").read_text())
        node.pop("_target_")
        table = LibSVM(**node).load()
        for loss in ("squared_hinge", "logistic"):
            for name, form in forms(LinearClassification(table.X, table.y, loss)).items():
                step, gradient = min((form() for _ in range(ROUNDS)), key=lambda pair: pair[0])
                cells = f"{step * 1e6:>10.1f}{gradient * 1e6:>13.1f}{step / gradient:>8.2f}"
                print(f"{option.split('/')[1]:<14}{loss:<16}{name:<22}{cells}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["libsvm/a3a", "libsvm/w8a"])
