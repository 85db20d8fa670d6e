"""What a task with several nodes asks of a method: rounds of local steps, each with a step of the server."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from torch import Tensor


class Trainer(Protocol):
    """Trains `params` in place.

    Attributes:
        param_groups: those of the optimizer of the last local steps.
        outer: what makes the server's step.
        node_state: numbers in the state of one node's optimizer at the end of its last local steps.
        sent: numbers that a node sent in the last round.
    """

    param_groups: list[dict[str, Any]]
    outer: Any
    node_state: int
    sent: int

    @property
    def own_nodes(self) -> range:
        """The nodes that this process works for."""

    def round(
        self, gradient: Callable[[int, int], Any], after_step: Callable[[int, int], None] | None = None
    ) -> float | None:
        """Local steps on all nodes, then a step of the server; the mean loss of this process's nodes.

        `gradient(node, step)` puts the gradient at `params` into their `.grad` and returns the loss or None;
        `after_step(node, step)` is called when the node has made that step. Between rounds `params` are the server's,
        on every rank. With the backend "stacked" node 0 stands for all nodes: they are rows of the parameters.
        """

    def state_dict(self) -> dict[str, Any]:
        """All but the parameters, for a checkpoint; all ranks call it."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Back to a checkpoint."""


class Method(Protocol):
    """A factory of trainers.

    The task says how many local steps a round has, how many nodes there are, and where they live: "serial" (one after
    the other), "torch.distributed" (dealt out over the ranks in blocks), or "stacked" (the first dimension of every
    parameter counts models: a multiple of the nodes, those of node 0 first).
    """

    def __call__(
        self, params: Iterable[Tensor], *, local_steps: int, nodes: int, backend: Any
    ) -> Trainer: ...
