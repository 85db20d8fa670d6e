"""Loss and gradients of a batch that is cut into pieces and dealt out over ranks.

`Replicas` (`parallel: ddp`) keeps the whole model on every rank and sums gradients itself. Torch's
`DistributedDataParallel` is not used because its gradients carry no graph; here gradients made with
`create_graph=True` can be differentiated again, and what comes out is summed over the ranks as well.
`Shards` (`parallel: fsdp`) is torch's FSDP2.

What a piece contributes depends on the piece alone (its examples, its dropout masks, its statistics in normalization
layers), so that the number of ranks changes nothing but the order in which pieces are added.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase as NormWithStatistics

from tasks.training.examples import Batch
from tasks.training.random_state import seeded
from tasks.training.recipe import Optimizer, trainable


@dataclass(frozen=True)
class Piece:
    """A part of a step's batch.

    Attributes:
        batch: its examples.
        share: what its mean loss counts in that of the whole batch; the shares of all pieces sum to 1.
        seed: of its dropout masks.
    """

    batch: Batch
    share: float
    seed: int


class Objective(nn.Module):
    """A model and the mean loss of a batch."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        """Mean loss, a scalar."""
        return self.loss(self.model, batch)


class Replicas:
    """The whole model on every rank.

    Args:
        objective: the model, on `device`, equal on all ranks.
        ranks: number of ranks; above 1, torch.distributed's default group is theirs.
        device: where the model is.
        cut_matters: whether a batch may be cut differently for another number of ranks; then the first forward pass
            fails if the loss depends on the cut.

    Raises:
        ValueError: `cut_matters`, and the model has normalization over the batch, or draws random numbers.
    """

    def __init__(
        self, objective: Objective, ranks: int, device: torch.device, cut_matters: bool = False
    ) -> None:
        self.objective, self.ranks, self.device = objective, ranks, device
        self._watch_draws = cut_matters
        self._norms = [
            (name, module)
            for name, module in objective.named_modules()
            if isinstance(module, NormWithStatistics)
        ]
        if cut_matters and self._norms:
            raise _cut_matters(f"normalizes over a batch (layer {self._norms[0][0].removeprefix('model.')})")

    @property
    def model(self) -> nn.Module:
        """The trained model."""
        return self.objective.model

    def gradients(self, pieces: Sequence[Piece], *, create_graph: bool, update_statistics: bool) -> float:
        """Set every parameter's `.grad` to the whole batch's; return the whole batch's loss.

        Args:
            pieces: this rank's; may be none, unless `create_graph`.
            create_graph: the gradients carry a graph.
            update_statistics: move the running statistics of normalization layers, to the mean over the pieces of
                where each piece alone would move them.
        """
        parameters = trainable(self.objective)
        for parameter in parameters:
            parameter.grad = None
        statistics = dict(self._statistics())
        moved = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in statistics.items()}
        with torch.enable_grad():
            if create_graph:
                loss, used = self._backward_with_graph(pieces, parameters, moved, statistics)
            else:
                loss, used = self._backward(pieces, parameters, moved, statistics)
        if update_statistics:
            for name, value in statistics.items():
                value.copy_(moved[name] if value.is_floating_point() else moved[name].round())
        for parameter, was_used in zip(parameters, used, strict=True):
            if not was_used:
                parameter.grad = None
        return loss

    def clip(self, max_norm: float) -> None:
        """Scale the gradients down to a joint Euclidean norm of at most `max_norm`."""
        nn.utils.clip_grad_norm_(trainable(self.objective), max_norm)

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.objective.parameters():
            parameter.grad = None

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        """State of model and optimizer for a checkpoint, whole on rank 0; all ranks call.

        Raises:
            RuntimeError: the ranks' models have come to differ.
        """
        self._check_equal()
        return {"model": self.model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Back to a checkpoint."""
        self.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    def weights(self) -> dict[str, Tensor]:
        """The model's state, whole on rank 0; all ranks call."""
        return dict(self.model.state_dict())

    # -- inside ----------------------------------------------------------------------------------------------------

    def _backward(
        self,
        pieces: Sequence[Piece],
        parameters: list[nn.Parameter],
        moved: dict[str, Tensor],
        statistics: dict[str, Tensor],
    ) -> tuple[float, list[bool]]:
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for piece in pieces:
            with seeded(piece.seed, self.device):
                loss = self._forward(piece, {}, moved, statistics) * piece.share
                loss.backward()
            total += loss.detach()
        used = self._agree(total, [p.grad is not None for p in parameters], moved)
        if self.ranks > 1:
            for parameter, was_used in zip(parameters, used, strict=True):
                if was_used and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [p.grad for p in parameters if p.grad is not None]
            if any(gradient.is_sparse for gradient in gradients):
                raise ValueError(
                    "sparse gradients cannot be summed over ranks: use dense embeddings or one rank"
                )
            _sum_over_ranks(gradients)
        return total.item(), used

    def _backward_with_graph(
        self,
        pieces: Sequence[Piece],
        parameters: list[nn.Parameter],
        moved: dict[str, Tensor],
        statistics: dict[str, Tensor],
    ) -> tuple[float, list[bool]]:
        leaves: Sequence[Tensor] = _Shared.apply(*parameters) if self.ranks > 1 else parameters
        names = {id(parameter): name for name, parameter in self.objective.named_parameters()}
        swapped = (
            {names[id(p)]: leaf for p, leaf in zip(parameters, leaves, strict=True)} if self.ranks > 1 else {}
        )
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        sums: list[Tensor | None] = [None] * len(parameters)
        for piece in pieces:
            with seeded(piece.seed, self.device):
                loss = self._forward(piece, swapped, moved, statistics) * piece.share
                found = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
            total += loss.detach()
            sums = [
                new if old is None else old if new is None else old + new
                for old, new in zip(sums, found, strict=True)
            ]
        used = self._agree(total, [gradient is not None for gradient in sums], moved)
        whole: Sequence[Tensor | None] = sums
        if self.ranks > 1:
            whole = _Summed.apply(
                *[torch.zeros_like(p) if g is None else g for p, g in zip(parameters, sums, strict=True)]
            )
        for parameter, gradient in zip(parameters, whole, strict=True):
            parameter.grad = gradient
        return total.item(), used

    def _forward(
        self,
        piece: Piece,
        swapped: dict[str, Tensor],
        moved: dict[str, Tensor],
        statistics: dict[str, Tensor],
    ) -> Tensor:
        """A piece's mean loss. Layers update copies of their statistics, which a graph may hold on to."""
        copies = {name: value.clone() for name, value in statistics.items()}
        before = torch.get_rng_state() if self._watch_draws else None
        if swapped or copies:
            loss: Tensor = functional_call(self.objective, {**swapped, **copies}, (piece.batch,))
        else:
            loss = self.objective(piece.batch)
        if before is not None and not torch.equal(before, torch.get_rng_state()):
            raise _cut_matters("draws random numbers (dropout)")
        self._watch_draws = False
        for name, value in copies.items():
            moved[name] += piece.share * value
        return loss

    def _statistics(self) -> Iterator[tuple[str, Tensor]]:
        for name, module in self._norms:
            if module.training:
                for key, value in module.named_buffers(recurse=False):
                    yield f"{name}.{key}", value

    def _agree(self, total: Tensor, used: list[bool], moved: dict[str, Tensor]) -> list[bool]:
        """Sum loss and statistics over the ranks, in place; return which parameters any rank has used."""
        if self.ranks == 1:
            return used
        flags = torch.tensor(used, dtype=torch.float64, device=self.device)
        _sum_over_ranks([total, flags, *moved.values()])
        return [bool(flag) for flag in flags.tolist()]

    def _check_equal(self) -> None:
        if self.ranks == 1:
            return
        parts = [p.detach().double() for p in self.model.parameters()]
        marks = torch.stack(
            [mark for part in parts for mark in (part.sum(), part.square().sum())]
        ).nan_to_num()
        extremes = torch.stack([marks, -marks])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
        if not torch.equal(extremes[0], -extremes[1]):
            raise RuntimeError(
                "the ranks' models differ: the optimizer does not draw the same numbers on every rank"
            )


class Shards(Replicas):
    """Every rank holds a part of each tensor of a transformer: its blocks are sharded one by one (FSDP2).

    Gradients carry no graph. The optimizer must have a `step()` without closure, which restoring its state takes.

    Raises:
        ValueError: the model has no `nn.ModuleList` of blocks, or normalizes over the batch.
    """

    def __init__(
        self, objective: Objective, ranks: int, device: torch.device, cut_matters: bool = False
    ) -> None:
        super().__init__(objective, ranks, device, cut_matters)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        blocks = max((m for m in self.model.modules() if isinstance(m, nn.ModuleList)), key=len, default=None)
        if not blocks or self._norms:
            raise ValueError(
                "parallel: fsdp needs a model with a stack of blocks and without batch normalization"
            )
        mesh = init_device_mesh(device.type, (ranks,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def gradients(self, pieces: Sequence[Piece], *, create_graph: bool, update_statistics: bool) -> float:
        """As `Replicas.gradients`; every rank has the same number of pieces, at least one."""
        if create_graph:
            raise ValueError(
                "parallel: fsdp has no gradients that can be differentiated again; use parallel: ddp"
            )
        self.clear()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for number, piece in enumerate(pieces, start=1):
            self.model.set_requires_gradient_sync(number == len(pieces))  # type: ignore[operator]
            with torch.enable_grad(), seeded(piece.seed, self.device):
                loss = self._forward(piece, {}, {}, {}) * piece.share
                (loss * self.ranks).backward()  # FSDP takes the mean over the ranks
            total += loss.detach()
        dist.all_reduce(total)
        return total.item()

    def state(self, optimizer: Optimizer) -> dict[str, Any]:
        """State of model and optimizer for a checkpoint, whole on rank 0; all ranks call."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer_state = get_state_dict(self.model, _torch(optimizer), options=_whole())
        return {"model": model, "optimizer": optimizer_state}

    def load(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Back to a checkpoint, read whole by every rank."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self.model,
            _torch(optimizer),
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_whole(),
        )

    def weights(self) -> dict[str, Tensor]:
        """The model's state, whole on rank 0; all ranks call."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        weights: dict[str, Any] = get_model_state_dict(self.model, options=_whole())
        return weights


class _Shared(torch.autograd.Function):
    """Parameters as this rank's part of the loss sees them: their gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> tuple[Tensor, ...]:
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Summed.apply(*gradients)


class _Summed(torch.autograd.Function):
    """Sums over the ranks. Every rank computes the same function of a sum, so each passes the gradient on as it is."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        sums = [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
        _sum_over_ranks(sums)
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients


def _sum_over_ranks(tensors: Sequence[Tensor]) -> None:
    """In place; one message for each floating-point type."""
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
        group = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(flat)
        for tensor, part in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
            tensor.copy_(part.view_as(tensor))


def _cut_matters(what: str) -> ValueError:
    return ValueError(
        f"the model {what}: its loss depends on how a batch is cut into pieces. "
        "Set the loop's `pieces` to a number, at least that of ranks"
    )


def _whole() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True)


def _torch(optimizer: Any) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"parallel: fsdp needs a torch.optim.Optimizer, not {type(optimizer).__name__}")
    return optimizer
