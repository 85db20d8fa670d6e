"""Hypergradient descent (HDM): gradient descent whose preconditioner is learned online from its own progress.

Chu, Gao, Ye, Udell: Provable and Practical Online Learning Rate Adaptation with Hypergradient Descent
(ICML 2025).
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from scipy.optimize import OptimizeResult
from torch import Tensor

from methods.minimize.flat import Array, FlatParams
from methods.minimize.hdm_rule import HDMOptions, HDMRule

__all__ = ["HDM", "minimize"]


class HDM(torch.optim.Optimizer):
    r"""Hypergradient descent for deterministic problems, with null steps and momentum.

    At x with gradient g the trial point x⁺ = x - P g + β (x - x_prev) is evaluated. The feedback
    h(P) = [f(x⁺) - f(x)] / N, N = ‖g‖² + ν ‖x - x_prev‖², is convex in (P, β); one step of online learning on
    its gradient ∇f(x⁺) moves P (and β). Then x moves to x⁺ if f(x⁺) < f(x), else it stays (a null step). P
    starts at 0, so the first step never moves x.

    This is not the stochastic hypergradient method of Baydin et al. (2018), which evaluates no trial point.

    `step(closure)` calls the closure once, at the trial point (and once more in the very first step, at the
    start). The closure clears the gradients, computes the loss, calls `backward` (or sets `.grad`) and
    returns the loss; it must be deterministic. After a step the parameters, `value` and `.grad` belong to the
    accepted point, and only `step` may move them. They are treated as one vector of n floats. Between steps
    the state is four vectors for a diagonal P (gradient, previous point, P, AdaGrad sums), besides the
    parameters themselves.

    Args:
        params: tensors to optimize (one group, one dtype and device).
        lr: η, learning rate of P, > 0; P scales like 1/L for an L-smooth f. None: 10/L for a convex problem,
            2/L for another one, 0.1 if `smoothness` is unknown (the official defaults).
        preconditioner: "matrix" (n x n), "diagonal" or "scalar".
        learner: "ogd" (P -= η ∇h, the theory) or "adagrad" (the experiments).
        momentum: "none", "heavy_ball" (β is learned) or "nesterov" (`smoothness` is required; the strongly
            convex form if `strong_convexity` is given; three closure calls a step).
        momentum_lr: η_β, learning rate of β, > 0.
        momentum_init: β at the start, in [0, 0.9995], to which β is always clipped.
        momentum_shape: "scalar" or "diagonal" β.
        nu: ν of N, >= 0, until L is estimated (then ν = L²/4).
        null_step: False always accepts the trial point (the classical, unstable method).
        projection: in-place projection Π of P (an array of shape (n, n), (n,) or (1,)) onto its set, called
            after every update.
        adaptive: the safeguards of HDM-Best: P clipped to [0, 1e10/L] (if `convex`), η decayed every 50
            steps, L estimated once from a long row of accepted steps (then η = 1/L, AdaGrad sums cleared, ν =
            L²/4).
        horizon: T, planned number of steps, >= 1; sets how long a row `adaptive` waits for.
        convex: chooses clip and decay of `adaptive` and the default of `lr`.
        smoothness: L or an estimate of it, > 0.
        strong_convexity: μ, > 0, for "nesterov" only.

    Raises:
        ValueError: a hyperparameter is out of its range.

    Warns:
        RuntimeWarning: with null steps, once, if ∇f overflows at a trial point: P then stays as it is, and so
            does x.

    Source: the paper's HDM and HDM-HB; `adaptive` and "nesterov" follow the authors' HDM-Best (called
    OSGM-Best in arXiv 2509.11007) and accelerated online scaled gradient method (arXiv 2411.01803).

    >>> x = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = HDM([x], lr=1 / 4)
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (x[0] ** 2 + 4 * x[1] ** 2) / 2
    ...     loss.backward()
    ...     return loss
    >>> values = [optimizer.step(closure) for _ in range(40)]
    >>> values[0], values[-1] < 1e-12
    (2.5, True)
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | None = None,
        *,
        preconditioner: str = "diagonal",
        learner: str = "ogd",
        momentum: str = "none",
        momentum_lr: float = 10.0,
        momentum_init: float = 0.95,
        momentum_shape: str = "scalar",
        nu: float = 0.0,
        null_step: bool = True,
        projection: Callable[[Array], Any] | None = None,
        adaptive: bool = False,
        horizon: int = 1000,
        convex: bool = True,
        smoothness: float | None = None,
        strong_convexity: float | None = None,
    ) -> None:
        self._options = HDMOptions(
            lr=lr,
            preconditioner=preconditioner,
            learner=learner,
            momentum=momentum,
            momentum_lr=momentum_lr,
            momentum_init=momentum_init,
            momentum_shape=momentum_shape,
            nu=nu,
            null_step=null_step,
            projection=projection,
            adaptive=adaptive,
            horizon=horizon,
            convex=convex,
            smoothness=smoothness,
            strong_convexity=strong_convexity,
        )
        super().__init__(params, {"lr": self._options.start_lr, "momentum_lr": momentum_lr})
        if len(self.param_groups) != 1:
            raise ValueError("HDM has one parameter group")
        self._flat = FlatParams(self.param_groups[0]["params"])
        self._rule: HDMRule | None = None

    @property
    def value(self) -> float:
        """f at the current point, as of the last step."""
        return self._memory["value"]

    @property
    def gradient(self) -> Tensor:
        """∇f at the current point, as of the last step: a flat vector that the next step overwrites."""
        return self._memory["gradient"]

    def step(self, closure: Callable[[], Any]) -> float:  # type: ignore[override]
        """One iteration; returns f at the point where the parameters then are."""
        rule, group, flat = self._ready(closure), self.param_groups[0], self._flat
        numbers = rule.numbers
        if rule.stationary:
            return numbers["value"]
        numbers["lr"], numbers["momentum_lr"] = group["lr"], group["momentum_lr"]
        iteration = rule.step(flat.read())
        point = next(iteration)
        try:
            while True:
                flat.write(point)
                point = iteration.send(self._evaluate(closure))
        except StopIteration as end:
            if end.value is not point:
                flat.write(end.value)
                flat.write_grad(rule.arrays["gradient"])
        except BaseException:  # the closure failed or was interrupted: no trial point stays in the parameters
            flat.write(rule.arrays["previous"])
            raise
        group["lr"] = numbers["lr"]
        return numbers["value"]

    def start(self, closure: Callable[[], Any]) -> float:
        """Evaluate f and ∇f at the current parameters unless known (`step` does it by itself); returns f."""
        return self._ready(closure).numbers["value"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict` of an optimizer with the same hyperparameters and parameters."""
        super().load_state_dict(state_dict)
        self._rule = None

    @property
    def _memory(self) -> dict[str, Any]:
        return self.state[self._flat.params[0]]

    def _ready(self, closure: Callable[[], Any]) -> HDMRule:
        if self._rule is not None:
            return self._rule
        flat, memory = self._flat, self._memory
        fresh = "value" not in memory
        if fresh:
            value, gradient = self._evaluate(closure)
            for name, shape in HDMRule.shapes(self._options, flat.numel).items():
                memory[name] = torch.zeros(shape, dtype=flat.dtype, device=flat.device)
        arrays = {name: flat.array(item) for name, item in memory.items() if isinstance(item, Tensor)}
        info = torch.finfo(flat.dtype)
        self._rule = HDMRule(self._options, memory, arrays, info.tiny / info.eps)
        if fresh:
            self._rule.start(flat.read(), value, gradient)
        return self._rule

    def _evaluate(self, closure: Callable[[], Any]) -> tuple[float, Array]:
        if torch.is_grad_enabled():
            loss = closure()
        else:
            with torch.enable_grad():
                loss = closure()
        return loss.item() if isinstance(loss, Tensor) else float(loss), self._flat.read_grad()


def minimize(
    f: Callable[[np.ndarray], float],
    grad: Callable[[np.ndarray], np.ndarray],
    x0: np.ndarray,
    *,
    tol: float = 1e-4,
    max_iter: int = 1000,
    callback: Callable[[np.ndarray, float], Any] | None = None,
    **options: Any,
) -> OptimizeResult:
    """Minimize f with hypergradient descent, in NumPy; the same numbers as `HDM`, bit for bit.

    Args:
        f: (n,) -> float.
        grad: (n,) -> (n,), its gradient.
        x0: start, (n,); not changed. Computed in its dtype (float32 or float64; float64 for any other).
        tol: stops when ‖∇f(x)‖_∞ < tol, >= 0.
        max_iter: most steps, >= 0.
        callback: called as callback(x, f(x)) after every step, null steps too; x is a copy.
        **options: the hyperparameters of `HDM`; `horizon` defaults to `max_iter`.

    Returns:
        x, fun, jac (at x), success (tol met), nit (steps), nfev, njev (evaluations, the one at x0 included),
        message.

    Raises:
        ValueError: as `HDM`; also if x0 is not a vector.
        TypeError: an option that `HDM` does not have.

    >>> scales = np.array([1.0, 4.0])
    >>> result = minimize(lambda x: scales @ x**2 / 2, lambda x: scales * x, np.ones(2), lr=1 / 4)
    >>> result.success, bool(abs(result.x).max() < 1e-4), result.njev == result.nit + 1
    (True, True, True)
    """
    x = np.array(x0, dtype=x0.dtype if getattr(x0, "dtype", None) in (np.float32, np.float64) else np.float64)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"x0 has shape {x.shape}: expected a vector")
    settings = HDMOptions(**{"horizon": max(max_iter, 1), **options})
    arrays = {name: np.zeros(shape, x.dtype) for name, shape in HDMRule.shapes(settings, x.size).items()}
    info = np.finfo(x.dtype)
    rule = HDMRule(settings, {}, arrays, float(info.tiny / info.eps))

    def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
        return float(f(point)), np.asarray(grad(point), dtype=x.dtype)

    rule.start(x, *evaluate(x))
    steps, calls, solved = 0, 1, False
    while (
        not (solved := bool(np.abs(arrays["gradient"]).max() < tol) or rule.stationary) and steps < max_iter
    ):
        iteration = rule.step(x)
        point = next(iteration)
        try:
            while True:
                calls += 1
                point = iteration.send(evaluate(point))
        except StopIteration as end:
            x = end.value.copy() if end.value is arrays["previous"] else end.value
        steps += 1
        if callback is not None:
            callback(x.copy(), rule.numbers["value"])
    return OptimizeResult(
        x=x,
        fun=rule.numbers["value"],
        jac=arrays["gradient"].copy(),
        success=solved,
        nit=steps,
        nfev=calls,
        njev=calls,
        message="gradient below tol" if solved else "max_iter reached",
    )
