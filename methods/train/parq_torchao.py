"""PARQ, STE and BinaryRelax as torchao ships them (`torchao.prototype.parq`), to compare with and to build on."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from methods.train.parq import weight_groups

__all__ = ["TorchaoPARQ"]


class TorchaoPARQ:
    """torchao's QuantOptimizer behind the interface of a whole training, see `methods.train.parq.quantized`.

    torchao hands the closure to its base optimizer after it has put the latent weights in place, so that gradients
    would be taken at them and not at the quantized ones; here the closure is called before its step, without which the
    method is not the paper's.

    Args:
        params, base, bits, anneal, warmup_steps, quant_period: as there.
        per_channel, full_precision, model, total_steps: as there.
        prox: "parq", "hard" or "binary_relax".
        steepness: of "parq".
    """

    def __init__(
        self,
        params: Iterable[Any],
        base: Callable[..., torch.optim.Optimizer],
        bits: int,
        prox: Literal["parq", "hard", "binary_relax"] = "parq",
        steepness: float = 10.0,
        anneal: tuple[float, float] = (0.0, 1.0),
        warmup_steps: int = 0,
        quant_period: int = 10,
        per_channel: bool = False,
        full_precision: Sequence[str] = (),
        model: nn.Module | None = None,
        total_steps: int = 1,
    ) -> None:
        from torchao.prototype import parq

        start, end = (round(share * total_steps) for share in anneal)
        maps: dict[str, Callable[[], Any]] = {
            "parq": lambda: parq.ProxPARQ(start, end, steepness),
            "hard": parq.ProxHardQuant,
            "binary_relax": lambda: parq.ProxBinaryRelax(start, end),
        }
        groups = list(params) if model is None else weight_groups(model, bits, full_precision)
        self.inner = parq.QuantOptimizer(
            base(groups),
            parq.LSBQuantizer(),
            maps[prox](),
            warmup_steps=warmup_steps,
            quant_period=quant_period,
            quant_per_channel=per_channel,
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base optimizer's."""
        groups: list[dict[str, Any]] = self.inner.param_groups
        return groups

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what the closure returns."""
        loss = closure() if closure is not None else None
        self.inner.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's, latent weights and levels among it."""
        state: dict[str, Any] = self.inner.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Back to a checkpoint."""
        self.inner.load_state_dict(state_dict)
