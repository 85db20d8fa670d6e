"""The two-dimensional test functions as contour maps."""

from typing import Any

import torch
from matplotlib.figure import Figure

from tasks.zeroth_order import functions

# title, function, the corner of the plane, its minimizer, where searches start, logarithmic levels
PLANES = (
    ("two-log", functions.two_log, (-1.0, 1.0, -1.0, 1.0), (-0.5, -0.5), None, False),
    ("Ackley", functions.ackley, (-6.0, 6.0, -6.0, 6.0), (0.0, 0.0), (5.0, 5.0), False),
    ("Rosenbrock", functions.rosenbrock, (-3.5, 2.0, -2.0, 5.0), (1.0, 1.0), (-3.0, 2.0), True),
)


def draw(frame: Any, curves: Any, rows: Any, look: Any, cells: int = 40, levels: int = 8) -> Figure:
    """Three contour maps, dark is low: the minimizer as a star, the centre of the starts as a ring.

    Args:
        frame, curves, rows, look: as every figure function gets them; nothing here depends on a run.
        cells: points along each axis.
        levels: number of contours.
    """
    figure = Figure(figsize=(9.3, 3.0), layout="constrained")
    for axes, (title, function, (left, right, low, high), minimizer, start, log) in zip(
        figure.subplots(1, 3), PLANES, strict=True
    ):
        x = torch.linspace(left, right, cells, dtype=torch.float64)
        y = torch.linspace(low, high, cells, dtype=torch.float64)
        points = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
        values = function(points)
        axes.contourf(x, y, values.log1p() if log else values, levels=levels, cmap="viridis")
        axes.plot(*minimizer, "*", color="white", markersize=9)
        if start is not None:
            axes.plot(*start, "o", color="white", fillstyle="none")
        axes.set_title(title + (" (log)" if log else ""))
    return figure
