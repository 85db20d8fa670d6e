"""Training on several nodes that synchronize after every few local steps."""

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from methods.train.tailopt.outer import OuterOptimizer

__all__ = ["Backend", "NestedTrainer", "all_reduce"]

Backend = Literal["serial", "torch.distributed", "stacked"]


class NestedTrainer:
    r"""TailOPT: z local steps on each of N nodes, then one step of the server along the mean of their moves.

    In a round every node starts from the server's x and takes z steps of its own optimizer, to x_i. With
    Δ = Σ_i w_i (x_i - x) / Σ_i w_i the outer optimizer moves x, which is then sent to all nodes. Only the model and Δ
    travel, one model's size each way; nodes keep nothing from round to round but with `keep_inner`.

    Between rounds `params` hold x, within a round the parameters of the node that is at work. The backends differ in
    where nodes live:

    - "serial": one after the other in this process;
    - "torch.distributed": dealt out over the ranks in blocks, Δ summed by `all_reduce`. Needs an initialized process
      group and equal parameters on all ranks. With two ranks the numbers are those of "serial" to the last bit, with
      more up to the order of additions;
    - "stacked": side by side in the parameters, whose first dimension counts models. It may be a multiple R of
      `nodes`; then R independent trainings run at once, and those of node 0 come first. All optimizers must treat
      rows as models of their own: coordinate-wise ones do, and one that takes `rows` is told.

    Args:
        params: real tensors, all that is trained.
        inner: parameters -> optimizer of the local steps; a new one each round. If its groups have a `round`, it is
            set to the number of the round, from 1.
        outer: step of the server; a copy of it is used.
        local_steps: z >= 1.
        nodes: N >= 1.
        backend: see above.
        weights: w_i > 0, N numbers; None: all the same.
        keep_inner: whether a node's optimizer state lives on in the next round, as in DiLoCo.

    Attributes:
        rounds: number of finished rounds.
        node_state: numbers in the state of one node's optimizer at the end of its last local steps.
        sent: numbers that a node sent in the last round, and that it got back.
        param_groups: those of the optimizer of the last local steps.

    Raises:
        ValueError: a value out of its range, complex parameters, a stack that `nodes` does not divide.
        RuntimeError: "torch.distributed" without a process group.

    Source: Algorithm 1 of the paper, whose lines are read from its abstract and the authors' code.

    >>> from methods.train.tailopt import BiClipSGD, OuterBiClip
    >>> x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    >>> def inner(params):
    ...     return BiClipSGD(params, lr=0.1, u=1.0, d=0.1)
    >>> trainer = NestedTrainer([x], inner, OuterBiClip(u=1.0, d=0.0), nodes=2)
    >>> def gradient(node, step):
    ...     x.grad = torch.tensor([[-4.0], [0.02]][node], dtype=torch.float64)
    >>> trainer.round(gradient)
    >>> round(x.item(), 9)
    0.045
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        inner: Callable[[list[Tensor]], Any],
        outer: OuterOptimizer,
        local_steps: int = 1,
        nodes: int = 1,
        backend: Backend = "serial",
        weights: Sequence[float] | None = None,
        keep_inner: bool = False,
    ) -> None:
        self.params = list(params)
        if not self.params or any(not isinstance(p, Tensor) for p in self.params):
            raise ValueError("params must be tensors, at least one")
        if any(p.is_complex() for p in self.params):
            raise ValueError(
                "NestedTrainer does not take complex parameters: train torch.view_as_real of them"
            )
        if local_steps < 1 or nodes < 1:
            raise ValueError(f"local_steps and nodes must be at least 1, not {local_steps} and {nodes}")
        if backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, not {backend!r}")
        if weights is not None and (len(weights) != nodes or min(weights) <= 0):
            raise ValueError(f"weights must be {nodes} numbers above 0, not {list(weights)}")
        if backend == "stacked" and any(p.dim() < 1 or len(p) % nodes for p in self.params):
            raise ValueError(f"stacked parameters need a first dimension that is a multiple of nodes={nodes}")
        if backend == "torch.distributed" and not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError("backend torch.distributed needs an initialized process group")
        self.inner, self.outer = inner, copy.deepcopy(outer)
        if backend == "stacked" and "rows" in inspect.signature(inner).parameters:
            self.inner = lambda params: inner(params, rows=True)  # type: ignore[call-arg]
        self.local_steps, self.nodes, self.backend, self.keep_inner = local_steps, nodes, backend, keep_inner
        self.weights = [1.0] * nodes if weights is None else [float(weight) for weight in weights]
        self.ranks, self.rank = 1, 0
        if backend == "torch.distributed":
            self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
            if self.ranks > nodes:
                raise ValueError(f"{nodes} nodes are too few for {self.ranks} ranks")
        self.rounds = 0
        self.node_state, self.sent = 0, 0
        self.param_groups: list[dict[str, Any]] = []
        self._kept: dict[int, Any] = {}
        self._loaded: dict[int, Any] = {}

    @property
    def own_nodes(self) -> range:
        """The nodes that this process works for."""
        return range(
            self.rank * self.nodes // self.ranks,
            (self.rank + 1) * self.nodes // self.ranks,
        )

    def round(
        self,
        gradient: Callable[[int, int], Any],
        after_step: Callable[[int, int], None] | None = None,
    ) -> float | None:
        """One round: z local steps on every node, one step of the server.

        Args:
            gradient: (node, step) puts the stochastic gradient at `params` into their `.grad`, and returns the loss
                or None. The backend "stacked" calls it with node 0 once for all of them.
            after_step: (node, step), called after each local step.

        Returns:
            Mean of the losses of this process's nodes and all steps, or None if there are none.

        Raises:
            FloatingPointError: a gradient of a clipped optimizer, or Δ, is not finite; parameters and the outer
                optimizer's state are as before the round, on every rank.
        """
        losses: list[Any] = []
        server = [p.detach().clone() for p in self._server()]
        error: FloatingPointError | None = None
        try:
            if self.backend == "stacked":
                self._local_steps(0, gradient, after_step, losses)
                total = self._sum(range(self.nodes), lambda node: self._move(server, node))
            else:

                def train(node: int) -> list[Tensor]:
                    self._load(server)
                    self._local_steps(node, gradient, after_step, losses)
                    return self._move(server, node)

                total = self._sum(self.own_nodes, train)
        except FloatingPointError as failed:
            error, total = failed, [torch.full_like(p, float("nan")) for p in server]
        finally:
            self._load(server)
        if self.ranks > 1:  # a rank that failed takes part too, so that none waits for it
            all_reduce(total)
        if error is not None:
            raise error
        self.sent = sum(part.numel() for part in total)
        delta = list(torch._foreach_div(total, sum(self.weights)))
        self.outer.step(server, delta)
        self._load(server)
        self.rounds += 1
        kept = [float(loss) for loss in losses if loss is not None]
        return sum(kept) / len(kept) if kept else None

    def state_dict(self) -> dict[str, Any]:
        """All but the parameters, for a checkpoint; with `keep_inner`, all ranks must call it."""
        inner = {node: optimizer.state_dict() for node, optimizer in self._kept.items()}
        inner = self._loaded | inner
        if self.ranks > 1 and self.keep_inner:
            parts: list[Any] = [None] * self.ranks
            dist.all_gather_object(parts, inner)
            inner = {node: state for part in parts for node, state in part.items()}
        return {"rounds": self.rounds, "outer": self.outer.state_dict(), "inner": inner}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Back to a checkpoint, on any number of ranks; the parameters are loaded apart from it."""
        self.rounds = state_dict["rounds"]
        self.outer.load_state_dict(state_dict["outer"])
        self._kept = {}
        self._loaded = {node: state for node, state in state_dict["inner"].items() if node in self.own_nodes}

    # -- local work ------------------------------------------------------------------------------------------------

    def _local_steps(
        self,
        node: int,
        gradient: Callable[[int, int], Any],
        after_step: Callable[[int, int], None] | None,
        losses: list[Any],
    ) -> None:
        optimizer = self._optimizer(node)
        self.param_groups = optimizer.param_groups
        for step in range(self.local_steps):
            with torch.enable_grad():
                loss = gradient(node, step)
            losses.append(loss.detach() if isinstance(loss, Tensor) else loss)
            optimizer.step()
            if after_step is not None:
                after_step(node, step)
        self.node_state = sum(
            value.numel()
            for values in optimizer.state.values()
            for value in values.values()
            if isinstance(value, Tensor) and value.dim() > 0
        )

    def _optimizer(self, node: int) -> Any:
        if node in self._kept:
            optimizer = self._kept[node]
        else:
            optimizer = self.inner(self.params)
            if node in self._loaded:
                optimizer.load_state_dict(self._loaded.pop(node))
            if self.keep_inner:
                self._kept[node] = optimizer
        for group in optimizer.param_groups:
            if "round" in group:
                group["round"] = self.rounds + 1
        return optimizer

    # -- the server ------------------------------------------------------------------------------------------------

    def _server(self) -> list[Tensor]:
        """The parameters that travel: one model's, or one for each training in the stack."""
        if self.backend != "stacked":
            return self.params
        return [p.detach()[: len(p) // self.nodes] for p in self.params]

    @torch.no_grad()
    def _load(self, server: list[Tensor]) -> None:
        for p, x in zip(self.params, server, strict=True):
            if self.backend == "stacked":
                p.view(self.nodes, *x.shape).copy_(x.expand(self.nodes, *x.shape))
            else:
                p.copy_(x)

    @torch.no_grad()
    def _move(self, server: list[Tensor], node: int) -> list[Tensor]:
        """w_i (x_i - x), in single precision at least."""
        local = self.params
        if self.backend == "stacked":
            local = [p.view(self.nodes, *x.shape)[node] for p, x in zip(self.params, server, strict=True)]
        exact = [torch.promote_types(x.dtype, torch.float32) for x in server]
        moves = [p.to(t) - x.to(t) for p, x, t in zip(local, server, exact, strict=True)]
        if self.weights[node] != 1:
            torch._foreach_mul_(moves, self.weights[node])
        return moves

    def _sum(self, nodes: range, move: Callable[[int], list[Tensor]]) -> list[Tensor]:
        """Sum over nodes, in halves: two ranks add up the same halves."""
        if len(nodes) == 1:
            return move(nodes[0])
        middle = (nodes.start + nodes.stop) // 2
        total = self._sum(range(nodes.start, middle), move)
        torch._foreach_add_(total, self._sum(range(middle, nodes.stop), move))
        return total


def all_reduce(tensors: list[Tensor]) -> None:
    """Sum over ranks, in place: one message for each floating-point type and device."""
    for kind in dict.fromkeys((t.dtype, t.device) for t in tensors):
        part = [t for t in tensors if (t.dtype, t.device) == kind]
        flat = torch.cat([t.flatten() for t in part])
        dist.all_reduce(flat)
        for t, piece in zip(part, flat.split([t.numel() for t in part]), strict=True):
            t.copy_(piece.view_as(t))
