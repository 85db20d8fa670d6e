"""What one step of our optimizers costs over that of the optimizer they are measured against.

    python scripts/bench_optimizers.py [Clip-Adam Sassha PARQ ...]

For each pair, on a model of 10 million parameters (24 blocks of a small transformer's shapes): the time of a step
of both, taken in turns in one process, and their ratio, with the limit that it should keep. The fastest of many steps
counts, as other processes only ever add time. For PARQ, the mean of ten steps in a row counts, as every tenth one fits
the levels anew; its step is also measured as part of a training step of ResNet-20, gradient included.
OMP_NUM_THREADS sets the number of threads (default 1).

Sassha is measured on ResNet-20 with 128 images, against the bare computation that its step needs: two gradients, and
a Hessian-vector product in the steps in which the Hessian is renewed; processor time.
"""

# Thread counts and the search path come before the libraries.
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from methods.train.clip_adam import ClipAdaGrad, ClipAdam, ClipAdamNorm
from methods.train.parq import LSBQuantizer, ProxPARQ, QuantOptimizer
from methods.train.sassha import Sassha
from methods.train.tailopt import BiClipSGD, L2ClipSGD
from tasks.training.models import ResNet

ROUNDS = 100
Build = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Pair:
    """One line of the table: `ours` against `theirs`; `limit` None: only shown."""

    name: str
    ours: Build
    theirs: Build
    limit: float | None = None


def adamw(params: list[torch.Tensor]) -> torch.optim.Optimizer:
    """PyTorch's AdamW with its foreach kernels."""
    return torch.optim.AdamW(params, lr=1e-4, foreach=True)


def clip_adam(mode: str, **options: object) -> Build:
    """ClipAdam in one of its modes."""
    return lambda params: ClipAdam(params, lr=1e-4, clip_mode=mode, **options)  # type: ignore[arg-type]


def sgd(params: list[torch.Tensor]) -> torch.optim.Optimizer:
    """PyTorch's SGD with its foreach kernels."""
    return torch.optim.SGD(params, lr=1e-4, foreach=True)


PAIRS = [
    Pair("Clip-Adam (layer)", clip_adam("layer"), adamw, 1.05),
    Pair("Clip-Adam (global)", clip_adam("global"), adamw, 1.05),
    Pair("Clip-Adam (coordinate)", clip_adam("coordinate"), adamw, 1.05),
    Pair("Clip-Adam (none)", clip_adam("none"), adamw, 1.05),
    Pair("Clip-AdamD (layer)", clip_adam("layer", delay=True, v_init=1e-5), adamw),
    Pair("Clip-Adam-Norm", lambda params: ClipAdamNorm(params, lr=1e-4), adamw),
    Pair(
        "Clip-AdaGrad (layer)",
        lambda params: ClipAdaGrad(params, lr=1e-4),
        lambda params: torch.optim.Adagrad(params, lr=1e-4, foreach=True),
    ),
    Pair("BiClip SGD", lambda params: BiClipSGD(params, lr=1e-4, u=0.5, d=0.01), sgd),
    Pair("L2Clip SGD", lambda params: L2ClipSGD(params, lr=1e-4, u=1.0), sgd),
]


def model(width: int = 188, blocks: int = 24) -> list[torch.Tensor]:
    """10.2 million parameters in the shapes of a transformer, each with a gradient."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(3 * width, width), (3 * width,), (width, width), (width,)]
    shapes += [(4 * width, width), (4 * width,), (width, 4 * width), (width,), (width,), (width,)]
    params = [torch.randn(shape, generator=generator) for _ in range(blocks) for shape in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)
    return params


def measure(pair: Pair) -> tuple[float, float]:
    """Seconds of the fastest step: ours, theirs."""
    optimizers = [pair.ours(model()), pair.theirs(model())]
    seconds: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for optimizer, times in zip(optimizers, seconds, strict=True):
            start = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - start)
    return min(seconds[0]), min(seconds[1])


def measure_sassha(rounds: int = 5, images: int = 128) -> list[tuple[str, float, float, float]]:
    """Name, seconds of Sassha's step, seconds of the bare computation, limit: with a Hessian at every step, and at
    every tenth, where both are means over ten steps."""
    torch.manual_seed(0)
    net = ResNet(inputs=(3, 32, 32), classes=10, depth=20)
    x, y = torch.randn(images, 3, 32, 32), torch.randint(0, 10, (images,))
    params = list(net.parameters())

    def closure(create_graph: bool = False) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(net(x), y)
        gradients = torch.autograd.grad(loss, params, create_graph=create_graph)
        for p, gradient in zip(params, gradients, strict=True):
            p.grad = gradient
        return loss.detach()

    def bare(hessian: bool) -> None:
        closure()
        closure(create_graph=hessian)
        if hessian:
            torch.autograd.grad([p.grad for p in params], params, [torch.ones_like(p) for p in params])
        for p in params:
            p.grad = None

    always = Sassha(params, lr=1e-3, rho=0.05, lazy_hessian=1)
    never = Sassha(params, lr=1e-3, rho=0.05, lazy_hessian=10**9)
    never.step(closure)  # the one step with a Hessian
    turns: dict[str, Callable[[], object]] = {
        "with": lambda: always.step(closure),
        "without": lambda: never.step(closure),
        "bare with": lambda: bare(True),
        "bare without": lambda: bare(False),
    }
    best = dict.fromkeys(turns, float("inf"))
    for _ in range(rounds):
        for name, turn in turns.items():
            start = time.process_time()
            turn()
            best[name] = min(best[name], time.process_time() - start)
    lazy = [(9 * best[f"{prefix}without"] + best[f"{prefix}with"]) / 10 for prefix in ("", "bare ")]
    return [
        ("Sassha (k = 1)", best["with"], best["bare with"], 1.15),
        ("Sassha (k = 10)", lazy[0], lazy[1], 1.05),
    ]


# -- PARQ: the mean of a period of steps -------------------------------------------------------------------------------

PERIOD = 10  # steps between two fits of the levels


def groups(params: list[torch.Tensor], bits: int) -> list[dict[str, object]]:
    """Matrices are quantized, vectors are not."""
    weights = [p for p in params if p.dim() > 1]
    return [{"params": weights, "quant_bits": bits}, {"params": [p for p in params if p.dim() == 1]}]


def sgd(params: list[dict[str, object]]) -> torch.optim.Optimizer:
    """Momentum SGD with its foreach kernels."""
    return torch.optim.SGD(params, lr=1e-4, momentum=0.9, weight_decay=1e-4, foreach=True)


def parq(bits: int, base: Callable[..., torch.optim.Optimizer]) -> Build:
    """PARQ in the middle of its annealing."""
    return lambda params: QuantOptimizer(
        base(groups(params, bits)), LSBQuantizer(), ProxPARQ(-(10**6), 10**6), quant_period=PERIOD
    )


def unquantized(bits: int, base: Callable[..., torch.optim.Optimizer]) -> Build:
    """The base optimizer alone, over the same groups."""
    return lambda params: base(groups(params, bits))


def torchao(bits: int, base: Callable[..., torch.optim.Optimizer]) -> Build:
    """The same by torchao; raises ImportError without it."""
    from torchao.prototype import parq as library

    return lambda params: library.QuantOptimizer(
        base(groups(params, bits)),
        library.LSBQuantizer(),
        library.ProxPARQ(-(10**6), 10**6),
        quant_period=PERIOD,
    )


def periods(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int, steps: int = PERIOD
) -> tuple[float, float]:
    """Seconds a step of the fastest period, ours and theirs taken in turns; the first period warms up."""
    best = [float("inf"), float("inf")]
    for number in range(rounds + 1):
        for place, step in enumerate((ours, theirs)):
            start = time.perf_counter()
            for _ in range(steps):
                step()
            if number:
                best[place] = min(best[place], (time.perf_counter() - start) / steps)
    return best[0], best[1]


def training(build: Build, batch: int = 32) -> Callable[[], object]:
    """Training steps of ResNet-20."""
    torch.manual_seed(0)
    net = ResNet((3, 32, 32), classes=10, depth=20)
    optimizer = build(list(net.parameters()))
    images, labels = torch.randn(batch, 3, 32, 32), torch.arange(batch) % 10

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step


def bench_parq() -> None:
    """Rows of PARQ: of a training step, of the update alone, against torchao."""
    for bits in (1, 2, 4):
        ours, theirs = periods(training(parq(bits, sgd)), training(unquantized(bits, sgd)), rounds=3)
        row(f"PARQ, ResNet-20, {bits} bit", ours, theirs, 1.10)
    for name, base in (("SGD", sgd), ("AdamW", adamw)):
        for bits in (1, 2, 4):
            mine, plain = parq(bits, base)(model()).step, unquantized(bits, base)(model()).step
            row(f"PARQ ({name}, {bits} bit)", *periods(mine, plain, rounds=8), None)
            try:
                library = torchao(bits, base)(model()).step
            except ImportError:
                print("torchao is not installed")
                continue
            row(f"  over torchao's ({bits} bit)", *periods(mine, library, rounds=3), 1.00)


def row(name: str, ours: float, theirs: float, limit: float | None) -> None:
    """Print a line of the table."""
    shown = "-" if limit is None else f"{limit:.2f}"
    print(f"{name:<26}{ours * 1e3:>10.2f}{theirs * 1e3:>14.2f}{ours / theirs:>8.2f}{shown:>8}", flush=True)


def main(names: list[str]) -> None:
    """Print the table, all pairs or those whose name contains one of `names`."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(f"{sum(p.numel() for p in model()) / 1e6:.1f} million parameters")
    print(f"{'optimizer':<26}{'step ms':>10}{'reference ms':>14}{'ratio':>8}{'limit':>8}")
    for pair in PAIRS:
        if names and not any(name.lower() in pair.name.lower() for name in names):
            continue
        row(pair.name, *measure(pair), pair.limit)
    if not names or any(name.lower() in "sassha" for name in names):
        for line in measure_sassha():
            row(*line)
    if not names or any(name.lower() in "parq" for name in names):
        bench_parq()


if __name__ == "__main__":
    main(sys.argv[1:])
