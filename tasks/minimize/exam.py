"""How every method of this kind is examined on a deterministic problem: evaluations are counted, not
steps."""

import warnings
from dataclasses import dataclass, field

import numpy as np
import torch

from tasks.minimize.interface import Method, bind
from tasks.minimize.problems import Problem


@dataclass
class Trace:
    """Every evaluation (value and gradient) that a method asked for, in order.

    Attributes:
        values: f at the evaluated points.
        norms: ‖∇f‖_∞ there.
        points, gradients: the points and gradients themselves, if kept.
        path: f at the start and at the parameters after every step, if followed; these are not counted.
        solved_at: number of evaluations up to and including the first with ‖∇f‖_∞ < tol, or None.
        steps: calls of `step`, the last, unfinished one included.
        state_floats: floating-point numbers in the optimizer's tensors of more than one entry, parameters
            included.
    """

    values: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    points: list[np.ndarray] = field(default_factory=list)
    gradients: list[np.ndarray] = field(default_factory=list)
    path: list[float] = field(default_factory=list)
    solved_at: int | None = None
    steps: int = 0
    state_floats: int = 0

    @property
    def evaluations(self) -> int:
        """Number of evaluations."""
        return len(self.values)


class _Enough(Exception):
    """Raised out of the closure when the exam is over: no method needs to be asked."""


def examine(
    method: Method,
    problem: Problem,
    start: np.ndarray,
    *,
    tol: float,
    max_steps: int,
    max_evaluations: int | None = None,
    target: float | None = None,
    keep: bool = False,
    follow: bool = False,
) -> Trace:
    """Run a method from `start` until ‖∇f‖_∞ < tol at an evaluated point, or one of the limits.

    Every evaluated point counts: trial points and points of a line search too. Hyperparameters in terms of
    the problem's constants are filled in first.

    Args:
        method: factory of optimizers.
        problem: the objective.
        start: (dim,); not changed.
        tol: tolerance on the gradient, >= 0.
        max_steps: most calls of `step`.
        max_evaluations: most evaluations; None: no limit.
        target: also stop once f < target at the parameters after a step.
        keep: keep points and gradients.
        follow: record `path`.
    """
    x = torch.from_numpy(np.array(start, dtype=np.float64))
    view = x.numpy()
    trace = Trace()
    limit = np.inf if max_evaluations is None else max_evaluations
    floor = -np.inf if target is None else target

    def closure() -> float:
        value, gradient = problem.value_and_gradient(view)
        x.grad = torch.from_numpy(gradient)
        norm = float(np.abs(gradient).max())
        trace.values.append(value)
        trace.norms.append(norm)
        if keep:
            trace.points.append(view.copy())
            trace.gradients.append(gradient.copy())
        if norm < tol:
            trace.solved_at = len(trace.values)
            raise _Enough
        if len(trace.values) >= limit:
            raise _Enough
        return value

    optimizer = bind(method, **problem.constants)([x])
    follow = follow or target is not None
    if follow:
        trace.path.append(problem.value_and_gradient(view)[0])
    # A method that diverges overflows; the trace shows it.
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            for _ in range(max_steps):
                before = len(trace.values)
                trace.steps += 1
                optimizer.step(closure)
                if follow:
                    trace.path.append(problem.value_and_gradient(view)[0])
                    if trace.path[-1] < floor:
                        break
                if len(trace.values) == before or not np.isfinite(view).all():
                    break
        except _Enough:
            pass
    tensors = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    trace.state_floats = x.numel() + sum(t.numel() for t in tensors if t.numel() > 1)
    return trace


def thin(count: int, most: int = 40) -> np.ndarray:
    """At most `most` indices of 0..count-1, dense at the start, both ends included."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.round(np.linspace(0, np.sqrt(count - 1), most) ** 2).astype(int))
