"""SciPy's minimisers in the shape of a torch optimizer."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from methods.minimize.flat import FlatParams


class SciPyMinimize(torch.optim.Optimizer):
    """One call of `scipy.optimize.minimize` as one `step(closure)`.

    Like `torch.optim.LBFGS`, a step evaluates the closure many times: it is a whole solve, from the current
    parameters until SciPy stops. Further steps evaluate nothing. Every closure call is one value and one
    gradient.

    Args:
        params: tensors to optimize (one group, one dtype, on the CPU; SciPy computes in float64).
        method: a method of `scipy.optimize.minimize` that uses gradients, e.g. "BFGS", "L-BFGS-B", "CG".
        options: SciPy's options of that method.

    Attributes:
        result: SciPy's `OptimizeResult` after the step, else None.

    >>> x = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
    >>> optimizer = SciPyMinimize([x], method="BFGS", options={"gtol": 1e-8})
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = (x[0] ** 2 + 4 * x[1] ** 2) / 2
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure) < 1e-16, optimizer.result.success
    (True, True)
    """

    def __init__(
        self, params: Iterable[Tensor], method: str = "L-BFGS-B", options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(params, {})
        if len(self.param_groups) != 1:
            raise ValueError("SciPyMinimize has one parameter group")
        self._flat = FlatParams(self.param_groups[0]["params"])
        self.method, self.options = method, dict(options or {})
        self.result: optimize.OptimizeResult | None = None

    def step(self, closure: Callable[[], Any]) -> float:  # type: ignore[override]
        """Solve; returns f at the solution, which the parameters then are.

        Raises:
            ValueError: SciPy knows no such method.
        """
        flat = self._flat
        if self.result is not None:
            return float(self.result.fun)

        def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
            flat.write(x if flat.numpy else torch.as_tensor(x, dtype=flat.dtype))
            with torch.enable_grad():
                loss = closure()
            gradient = np.array(flat.read_grad(), dtype=np.float64)
            return loss.item() if isinstance(loss, Tensor) else float(loss), gradient

        start = np.array(flat.read(), dtype=np.float64)
        self.result = optimize.minimize(
            value_and_gradient, start, jac=True, method=self.method, options=self.options
        )
        flat.write(self.result.x if flat.numpy else torch.as_tensor(self.result.x, dtype=flat.dtype))
        return float(self.result.fun)
