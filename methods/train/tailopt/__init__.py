"""TailOPT: distributed training under heavy-tailed noise with clipped local steps and adaptive steps of the server.

Lee, Zaheer, Li: Efficient Distributed Optimization under Heavy-Tailed Noise (ICML 2025, arXiv 2502.04164).

`BiClipSGD` and `L2ClipSGD` are torch optimizers for the local steps, an `OuterOptimizer` makes the server's step, and
`NestedTrainer` joins them: in one process, over the ranks of `torch.distributed`, or stacked side by side.
`SynchronizeEvery` does the same inside a Hugging Face `Trainer`. A method is named outer-inner: Avg-BiClip is
`OuterAverage` with `BiClipSGD`; Bi²Clip is `OuterBiClip` with `BiClipSGD`.
"""

from typing import Any

from methods.train.tailopt.clip import BiClipSGD, L2ClipSGD, biclip, l2clip
from methods.train.tailopt.nested import NestedTrainer
from methods.train.tailopt.outer import (
    OuterAdagrad,
    OuterAdam,
    OuterAverage,
    OuterBiClip,
    OuterNesterov,
    OuterOptimizer,
    OuterRMSProp,
)

__all__ = [
    "BiClipSGD",
    "L2ClipSGD",
    "NestedTrainer",
    "OuterAdagrad",
    "OuterAdam",
    "OuterAverage",
    "OuterBiClip",
    "OuterNesterov",
    "OuterOptimizer",
    "OuterRMSProp",
    "SynchronizeEvery",
    "biclip",
    "l2clip",
]


def __getattr__(name: str) -> Any:
    if name == "SynchronizeEvery":  # transformers takes seconds to import, and may not be installed
        from methods.train.tailopt.callback import SynchronizeEvery

        return SynchronizeEvery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
