"""Convex classification problems on real data: how many gradients until the gradient is small?"""

from functools import lru_cache
from typing import Any

import numpy as np

from tasks.data.tabular import Table
from tasks.minimize import optimum as optima
from tasks.minimize.exam import Trace, examine, thin
from tasks.minimize.interface import Method
from tasks.minimize.problems import LinearClassification
from tasks.run import Run

UNSOLVED = 1e7  # added to the best value of an unsolved run to rank it behind every solved one
GAP_FLOOR = 1e-10  # function gaps below the accuracy of the optimum are drawn there


class Classification:
    """Logistic regression or a smoothed SVM, from one fixed random start, to a tolerance on the gradient.

    The same problem is solved for several orders of the data's rows: the objective is the same, its rounding
    is not, and gradient counts depend on that. Order 0 is the file's own.

    Args:
        data: door with `load() -> Table`.
        optimum: artifact of `tasks.minimize.optimum`.
        loss: "logistic" or "squared_hinge".
        reg: weight of the ridge term, >= 0.
        tol: a point with ‖∇f‖_∞ below it solves the problem, > 0.
        max_steps: T, most steps of the method.
        row_orders: number of row orders, odd.
        start_seed: the start is z/‖z‖ with z from `numpy.random.RandomState(start_seed).randn`.

    Records, for each order as a row of unit `order` and as medians in the summary: `gradients` until solved
    (None: unsolved), `value`, `gap` and `gradient_norm`, the least seen. Summary too: `solved`,
    `log_gradients`; `spread`, largest over smallest count minus 1 if all orders are solved; `steps`; `score`,
    a key that sorts by gradients if solved and behind them by value; `calls_per_step`, evaluations after the
    first by steps; `state_vectors`, floats kept between steps by dimension. The curve is that of order 0:
    least gap and least gradient norm so far against the evaluations made.
    """

    def __init__(
        self,
        data: Any,
        optimum: Any,
        loss: str,
        reg: float = 0.0,
        tol: float = 1e-4,
        max_steps: int = 1000,
        row_orders: int = 3,
        start_seed: int = 20250128,
    ) -> None:
        if row_orders < 1 or row_orders % 2 == 0:
            raise ValueError(f"row_orders={row_orders}: expected an odd number, so that a median is a count")
        self.data, self.optimum = data, optimum
        self.loss, self.reg = loss, reg
        self.tol, self.max_steps, self.row_orders = tol, max_steps, row_orders
        self.start_seed = start_seed

    def evaluate(self, method: Method, run: Run) -> None:
        """Solve for every row order; record counts, values and one curve."""
        best = optima.read(run.artifact(self.optimum))
        table = self.data.load()
        start = self.start(table.X.shape[1] + 1)
        rows, traces = [], []
        for order in run.track(range(self.row_orders)):
            problem = _problem(table, self.loss, self.reg, order)
            trace = examine(method, problem, start, tol=self.tol, max_steps=self.max_steps)
            traces.append(trace)
            value, norm = float(np.nanmin(trace.values)), float(np.nanmin(trace.norms))
            rows.append(
                {"i": order, "gradients": trace.solved_at, "value": value, "gradient_norm": norm}
                | {"gap": max(value - best, GAP_FLOOR), "steps": trace.steps}
            )
        self._curve(traces[0], best, run)
        run.rows("order", rows)
        run.summary(**summarise(rows))
        run.summary(
            calls_per_step=(traces[0].evaluations - 1) / traces[0].steps,
            state_vectors=traces[0].state_floats / start.size,
        )

    def start(self, dim: int) -> np.ndarray:
        """The start, a unit vector, (dim,)."""
        # The legacy generator is the one with which the published start was drawn.
        z = np.random.RandomState(self.start_seed).randn(dim)
        return z / np.linalg.norm(z)

    def _curve(self, trace: Trace, best: float, run: Run) -> None:
        gaps = np.maximum(np.fmin.accumulate(trace.values) - best, GAP_FLOOR)
        norms = np.fmin.accumulate(trace.norms)
        for index in thin(trace.evaluations):
            run.log(step=int(index) + 1, gap=float(gaps[index]), gradient_norm=float(norms[index]))


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over row orders; a median count is None if most orders are unsolved."""
    counts = [row["gradients"] for row in rows]
    scores = [row["value"] + UNSOLVED if row["gradients"] is None else row["gradients"] for row in rows]
    middle = float(np.median([np.inf if count is None else count for count in counts]))
    solved = bool(np.isfinite(middle))
    return {
        "solved": solved,
        "gradients": int(middle) if solved else None,
        "log_gradients": float(np.log(middle)) if solved else None,
        "spread": None if None in counts else max(counts) / min(counts) - 1,
        "score": float(np.median(scores)),
        **{key: float(np.median([row[key] for row in rows])) for key in ("value", "gap", "gradient_norm")},
        "steps": int(np.median([row["steps"] for row in rows])),
    }


@lru_cache(maxsize=12)
def _problem(table: Table, loss: str, reg: float, order: int) -> LinearClassification:
    if order == 0:
        return LinearClassification(table.X, table.y, loss, reg)
    rows = np.random.default_rng(order).permutation(table.y.size)
    return LinearClassification(table.X[rows], table.y[rows], loss, reg)
