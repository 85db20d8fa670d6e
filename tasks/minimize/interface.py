"""What a task of the kind `minimize` asks of a method: the shape of every torch optimizer.

A task owns the parameters and the closure, and so everything that tells problems apart: a deterministic task
evaluates all of f and counts the evaluations (`tasks.minimize.exam`), a stochastic or finite-sum task draws the next
component or batch inside its closure. Methods whose shape differs (SciPy's solvers) come through an adapter.
"""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_EXPRESSION = re.compile(
    rf"^\s*(?:(?P<number>{_NUMBER})(?:\s*(?P<sign>[*/])\s*)?)?(?P<name>[A-Za-z]\w*)?\s*$"
)


class Optimizer(Protocol):
    """`torch.optim.Optimizer`, as far as a task uses it."""

    state: Any

    def step(self, closure: Callable[[], Any]) -> Any:
        """Improve the parameters. The closure evaluates the loss at the parameters, sets their `.grad` and
        returns the loss; a step may call it any number of times (a line search, a whole solve). A step that
        does not call it has nothing more to do. Evaluations, not steps, are what a task counts and
        compares."""


class Method(Protocol):
    """A factory of optimizers; a task calls `bind` first, as hyperparameters may be in terms of its constants."""

    def __call__(self, params: Iterable[torch.Tensor]) -> Optimizer: ...


def bind(method: Method, **constants: float) -> Method:
    """Fill in hyperparameters that a method's YAML states in terms of the problem's constants.

    A text such as "0.01", "L", "10/L" or "0.5*mu" among the keywords of a `functools.partial` becomes a
    number; any other text is left as it is.

    Raises:
        ValueError: an expression names a constant that the problem does not state.

    >>> bind(functools.partial(torch.optim.SGD, lr="2/L"), L=4.0).keywords
    {'lr': 0.5}
    """
    if not isinstance(method, functools.partial):
        return method
    filled = {name: _value(name, value, constants) for name, value in method.keywords.items()}
    return functools.partial(method.func, *method.args, **filled)


def _value(key: str, text: Any, constants: dict[str, float]) -> Any:
    if not isinstance(text, str) or not (match := _EXPRESSION.match(text)):
        return text
    number, sign, name = match["number"], match["sign"], match["name"]
    if number is None:  # a bare word is a choice ("diagonal") unless it is a constant
        return constants.get(text.strip(), text)
    if name is None:
        return text if sign else float(number)
    if sign is None:
        return text
    if name not in constants:
        known = ", ".join(constants) or "none"
        raise ValueError(f"{key}={text!r}: this problem states no {name} (its constants: {known})")
    return float(number) / constants[name] if sign == "/" else float(number) * constants[name]
