"""What a method is to a task that trains a model: the interface of the kinds `train`, `adapt` and `pretrain`.

A method's YAML has one of two forms. An optimizer, as a library ships it, is its `_target_`::

    _target_: torch.optim.AdamW
    _partial_: true
    lr: 0.001

A method that is more than an optimizer has no `_target_` of its own but one node per slot that it fills, each with
`_partial_: true`; the slots it leaves out keep their default::

    prepare:   {_target_: ..., _partial_: true, rank: 8}     # model -> model; default: the model as it is
    params:    {_target_: ..., _partial_: true}              # model -> parameters or groups; default: all trainable
    optimizer: {_target_: ..., _partial_: true, lr: 0.001}   # parameters -> optimizer; the one slot without default
    loss:      {_target_: ..., _partial_: true}              # (outputs, targets) -> mean loss; default: the task's

A slot is called with its subject (left of the arrow) and, by keyword, with those of these extras that it names in its
signature and that its YAML does not set:

- `generator` (`prepare`, `optimizer`): the `torch.Generator` that all its random draws come from;
- `batches` (`prepare`): the batches of the first epoch, in the order of training; may be iterated again and again;
- `objective` (`prepare`): `objective(model, batch)` is the mean loss of a batch;
- `model` (`optimizer`): the prepared model;
- `total_steps` (`optimizer`): number of updates of the whole training.

The optimizer advances by `step(closure)` and must call the closure at least once. `closure(create_graph=False)` clears
the gradients, computes the loss and the gradients of the whole batch, whatever the number of ranks, and returns the
loss. Within one step every call sees the same function of the parameters: the same examples and the same dropout
masks; running statistics of normalization layers move at the first call only. With `create_graph=True` the gradients
can be differentiated again (`torch.autograd.grad(p.grad, p, z)` is a Hessian-vector product, of the whole batch too).

An optimizer may have `eval()` and `train()`, as schedule-free optimizers do: they are called before and after the
model is looked at, for instance to move the weights to the point that counts and back. Its `state_dict` must hold
whatever its next steps depend on, except the generator that the task gave it; a prepared model keeps what it needs in
parameters and buffers.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Closure(Protocol):
    """Loss and gradients of the step's batch at the parameters as they are."""

    def __call__(self, create_graph: bool = False) -> Tensor: ...


class Optimizer(Protocol):
    """Updates the parameters in place; any `torch.optim.Optimizer` is one."""

    param_groups: list[dict[str, Any]]

    def step(self, closure: Any) -> Any:
        """One update; `closure` is a `Closure`."""

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Back to a checkpoint."""


Method = Callable[..., Optimizer] | Mapping[str, Callable[..., Any]]
"""An optimizer's factory, or slots."""


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that require a gradient, each once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _unchanged(model: nn.Module) -> nn.Module:
    return model


@dataclass(frozen=True)
class Recipe:
    """The slots of a method; the module's docstring says what each is called with.

    Example:
        >>> recipe = Recipe.of({"optimizer": torch.optim.SGD})
        >>> model = recipe.prepare(nn.Linear(2, 1))
        >>> type(recipe.make_optimizer(model, generator=torch.Generator(), total_steps=10)).__name__
        'SGD'
        >>> Recipe.of({"optimiser": torch.optim.SGD})
        Traceback (most recent call last):
        ValueError: a training method has the slots prepare, params, optimizer, loss, not optimiser
    """

    optimizer: Callable[..., Optimizer]
    prepare: Callable[..., nn.Module] = _unchanged
    params: Callable[..., Iterable[Any]] = trainable
    loss: Callable[..., Tensor] | None = None

    @classmethod
    def of(cls, method: Method) -> "Recipe":
        """The slots of what a method's YAML was built into.

        Raises:
            ValueError: a slot that does not exist, or no optimizer.
        """
        if callable(method):
            return cls(optimizer=method)
        known = ("prepare", "params", "optimizer", "loss")
        assert set(known) == {field.name for field in fields(cls)}
        slots = {name: slot for name, slot in method.items() if slot is not None}
        if unknown := set(slots) - set(known):
            raise ValueError(
                f"a training method has the slots {', '.join(known)}, not {', '.join(sorted(unknown))}"
            )
        if "optimizer" not in slots:
            raise ValueError("a training method needs the slot optimizer")
        for name, slot in slots.items():
            if not callable(slot):
                raise ValueError(
                    f"slot {name} is a {type(slot).__name__}: its YAML node needs `_partial_: true`"
                )
        return cls(**slots)

    def make_optimizer(self, model: nn.Module, *, generator: torch.Generator, total_steps: int) -> Optimizer:
        """The optimizer of a prepared model."""
        offers = {"generator": generator, "model": model, "total_steps": total_steps}
        optimizer: Optimizer = call(self.optimizer, self.params(model), **offers)
        return optimizer


def call(slot: Callable[..., Any], *subject: Any, **offers: Any) -> Any:
    """Call `slot` with its subject and with those offers that it names and that are not set yet.

    Example:
        >>> call(lambda model, generator: (model, generator), "net", generator=1, batches=2)
        ('net', 1)
    """
    try:
        parameters = inspect.signature(slot).parameters
    except (TypeError, ValueError):  # a builtin without a signature names nothing
        return slot(*subject)
    set_already = getattr(slot, "keywords", {})
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {
        name: value
        for name, value in offers.items()
        if name in parameters and parameters[name].kind in by_name and name not in set_already
    }
    return slot(*subject, **named)
