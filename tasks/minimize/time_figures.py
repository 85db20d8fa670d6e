"""The figure of the paper: a landscape, and the time of SGD on it against 1/η."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from tasks.minimize.landscapes import Camel


def camel(frame: Any, curves: Any, rows: Any, look: Any, cells: int = 50, levels: int = 10) -> Figure:
    """Contours of the three-hump camel; η · mean time against 1/η on a logarithmic axis, dashed as predicted.

    Args:
        frame, curves, rows, look: as every figure function gets them.
        cells: points along each axis of the map.
        levels: number of contours.
    """
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    plane, times = figure.subplots(1, 2)
    x, y = np.linspace(-2.3, 2.3, cells), np.linspace(-1.6, 1.6, cells)
    values = Camel().value(np.stack(np.meshgrid(x, y), axis=-1))
    plane.contourf(x, y, np.log1p(values), levels=levels, cmap="viridis")
    plane.plot(0, 0, "*", color="white", markersize=9)
    plane.plot(-1.747552, 0.873776, "o", color="white", fillstyle="none")
    plane.set(xlabel="x", ylabel="y", title="log(1 + f), start and target")
    done = frame[frame["status"].isin(["done", "diverged"])].sort_values("method.noise.std")
    shades = colormaps["viridis"](np.linspace(0, 0.85, max(len(done), 1)))
    for shade, (_, run) in zip(shades, done.iterrows(), strict=False):
        curve = curves(run["id"])
        times.plot(
            curve["inverse"], curve["scaled"], "o", color=shade, label=f"std {run['method.noise.std']:g}"
        )
        if "predicted" in curve:
            times.plot(curve["inverse"], curve["predicted"], "--", color=shade, linewidth=1)
    times.set(xlabel="1/η", ylabel="η · mean time", yscale="log", title="points: SGD; lines: C exp(E/η)")
    if len(done):
        times.legend()
    return figure
