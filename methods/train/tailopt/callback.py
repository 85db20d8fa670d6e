"""Local steps and their synchronization inside a Hugging Face `Trainer`."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainerCallback

from methods.train.tailopt.nested import all_reduce
from methods.train.tailopt.outer import OuterOptimizer

__all__ = ["SynchronizeEvery", "keep_local"]


class SynchronizeEvery(TrainerCallback):
    """After every z optimizer steps of a `Trainer`: the outer step on the mean move over all ranks.

    The local steps are the trainer's own, for instance those of `BiClipSGD` given as `optimizers=(optimizer, None)`;
    its optimizer keeps its state. Without a process group there is one node. With one, `Trainer` averages gradients
    in every step; nodes go their own ways if its wrapped model has `register_comm_hook(None, keep_local)`. The outer
    optimizer's state is not in the trainer's checkpoints: save `outer.state_dict()` beside them, and resume from a
    step that z divides.

    Args:
        outer: step of the server.
        local_steps: z >= 1.

    Raises:
        ValueError: local_steps is less than 1.
    """

    def __init__(self, outer: OuterOptimizer, local_steps: int) -> None:
        if local_steps < 1:
            raise ValueError(f"local_steps must be at least 1, not {local_steps}")
        self.outer, self.local_steps = outer, local_steps
        self.server: list[Tensor] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        """Remember where the nodes start from."""
        self.server = [p.detach().clone() for p in _trained(model)]

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        """Synchronize if it is time to."""
        if state.global_step % self.local_steps:
            return
        params = _trained(model)
        delta = [p.float() - x.float() for p, x in zip(params, self.server, strict=True)]
        if dist.is_available() and dist.is_initialized():
            all_reduce(delta)
            torch._foreach_div_(delta, dist.get_world_size())
        self.outer.step(self.server, delta)
        torch._foreach_copy_(params, self.server)


def keep_local(state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    """Communication hook of `DistributedDataParallel` that leaves every rank its own gradient."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _trained(model: Any) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]
