"""The smallest value of a classification objective, for function gaps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from tasks.minimize.problems import LinearClassification


def build(out: Path, data: Any, loss: str, reg: float = 0.0) -> None:
    """Artifact: `optimum.json` with `value`, the least f found by a trust-region Newton method with exact
    Hessians, and `gradient_norm`, ‖∇f‖_∞ there.

    Where the classes can be separated and `reg` is 0, the logistic infimum is 0 and not attained: `value` is
    then a small positive number. Rounding limits what can be found to about 1e-12 of f.
    """
    table = data.load()
    problem = LinearClassification(table.X, table.y, loss, reg)
    result = minimize(
        problem.value_and_gradient,
        np.zeros(problem.dim),
        jac=True,
        hess=problem.hessian,
        method="trust-exact",
        options={"gtol": 1e-9, "maxiter": 300},
    )
    norm = float(np.abs(problem.value_and_gradient(result.x)[1]).max())
    record = {"value": float(result.fun), "gradient_norm": norm, "iterations": int(result.nit)}
    (out / "optimum.json").write_text(json.dumps(record))


def read(folder: Path) -> float:
    """The value."""
    return float(json.loads((folder / "optimum.json").read_text())["value"])
