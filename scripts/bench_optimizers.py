"""What one step of our optimizers costs over that of the optimizer they are measured against.

    python scripts/bench_optimizers.py [Clip-Adam ...]

For each pair, on a model of 10 million parameters (24 blocks of a small transformer's shapes): the time of a step
of both, taken in turns in one process, and their ratio, with the limit that it should keep. The fastest of many steps
counts, as other processes only ever add time. OMP_NUM_THREADS sets the number of threads (default 1).
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
from methods.train.tailopt import BiClipSGD, L2ClipSGD

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


def main(names: list[str]) -> None:
    """Print the table, all pairs or those whose name contains one of `names`."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(f"{sum(p.numel() for p in model()) / 1e6:.1f} million parameters")
    print(f"{'optimizer':<26}{'step ms':>10}{'reference ms':>14}{'ratio':>8}{'limit':>8}")
    for pair in PAIRS:
        if names and not any(name.lower() in pair.name.lower() for name in names):
            continue
        ours, theirs = measure(pair)
        limit = "-" if pair.limit is None else f"{pair.limit:.2f}"
        print(f"{pair.name:<26}{ours * 1e3:>10.2f}{theirs * 1e3:>14.2f}{ours / theirs:>8.2f}{limit:>8}")


if __name__ == "__main__":
    main(sys.argv[1:])
