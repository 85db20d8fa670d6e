"""Paint: colours, axes, legends and byte-for-byte repeatable SVG files. What is drawn comes from `figures`.

Colours are those of Okabe and Ito (*Color Universal Design*, 2008), told apart under all common colour
blindness; yellow is left out (too pale on white). A method keeps its colour in every figure of a paper,
because colours follow the paper's list of methods and not the figure's.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

STYLE_FILE = Path(__file__).with_name("reprise.mplstyle")
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2, 2, 2)))
MARKERS = "osD^vPX"
AFTER_LOSS = (0, (1.5, 2.5))
TITLE_HEIGHT, KEY_HEIGHT = 0.27, 0.19  # inches
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
BROWSER_FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Look:
    """How one line looks in every panel and figure."""

    color: str
    dash: Any = "-"
    marker: str = "o"


@dataclass
class Line:
    """One line (or row of points) of one panel, aggregated and ready to be drawn.

    ``x`` holds numbers, or category names for bars. ``low`` and ``high`` are NaN where there is no
    interval. ``breaks`` are the x at which runs diverged; ``notes`` says what is not in the line.
    """

    panel: str
    line: str
    x: list[Any]
    center: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray
    breaks: list[float] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    missing: dict[Any, str] = field(default_factory=dict)


def look(index: int, dash: int = 0) -> Look:
    """The look of the ``index``-th method of a paper; beyond seven, colours repeat with another dash."""
    turn, place = divmod(index, len(OKABE_ITO))
    return Look(OKABE_ITO[place], DASHES[(dash + turn) % len(DASHES)], MARKERS[(place + turn) % len(MARKERS)])


def ramp(count: int) -> list[Look]:
    """Looks for ``count`` ordered numeric values: dark to light along viridis, safe for colour-blind eyes."""
    points = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, max(count, 1)))
    return [
        Look(matplotlib.colors.to_hex(color), "-", MARKERS[i % len(MARKERS)])
        for i, color in enumerate(points)
    ]


def tick(value: float, _: int | None = None) -> str:
    """A tick of a log axis as plain text: ``0.01``, ``100``, ``10⁻⁷``, ``2·10⁵``."""
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    power = math.floor(math.log10(value) + 1e-9)
    if -3 < power < 4:
        return f"{value:.10g}"
    lead = value / 10.0**power
    text = "10" + str(power).translate(SUPERSCRIPTS)
    return text if abs(lead - 1) < 1e-6 else f"{lead:.3g}·{text}"


def new_figure(
    panels: int, columns: int | None, title: str = "", key_rows: int = 0
) -> tuple[Figure, list[Axes]]:
    """A figure with ``panels`` axes, room above them for a title and ``key_rows`` rows of legend.

    At most ``columns`` panels stand in a row (default: `per_row`).
    """
    columns = columns or per_row(panels)
    rows = math.ceil(panels / columns)
    width = {1: 5.6, 2: 7.6}.get(columns, 2.9 * columns + 0.6)
    head = (TITLE_HEIGHT if title else 0) + KEY_HEIGHT * key_rows
    height = (3.0 if columns == 1 else 2.35) * rows + 0.15 + head
    room = (0, 0, 1, 1 - head / height)
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.05, rect=room)
    figure = Figure(figsize=(width, height), layout=layout)
    if title:
        figure.text(0.012, 1 - 0.06 / height, title, ha="left", va="top", fontsize=10.5, fontweight="bold")
    grid = figure.subplots(rows, columns, squeeze=False)
    axes = list(grid.flat)
    for spare in axes[panels:]:
        spare.set_visible(False)
    return figure, axes[:panels]


def per_row(panels: int) -> int:
    """Panels in a row: up to three, but four stand two by two."""
    return 2 if panels == 4 else min(panels, 3)


def scale_axis(axes: Axes, which: str, scale: str) -> None:
    """Set a linear, log or symlog axis with plain-text ticks."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    setter = axes.set_xscale if which == "x" else axes.set_yscale
    if scale == "linear":
        axis.set_major_locator(MaxNLocator(5))
        return
    setter(scale)
    if scale == "log":
        low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
        decades = math.log10(high / low) if 0 < low < high else 1.0
        subs = (1.0,) if decades >= 2 else (1.0, 2.0, 5.0) if decades >= 0.7 else tuple(range(1, 10))
        axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=7))
        axis.set_major_formatter(FuncFormatter(tick))
        axis.set_minor_formatter(NullFormatter())


def paint_curve(axes: Axes, line: Line, style: Look) -> None:
    """Centre line with its band; dotted after the first diverged run, a cross where each one left."""
    x = np.asarray(line.x, dtype=float)
    if not len(x):
        return
    loss = min(line.breaks, default=math.inf)
    whole, rest = x <= loss, x >= loss
    if np.isfinite(line.low).any():
        axes.fill_between(x, line.low, line.high, color=style.color, alpha=0.16, linewidth=0)
    axes.plot(x[whole], line.center[whole], color=style.color, linestyle=style.dash)
    if rest.any() and rest.sum() > 1:
        axes.plot(x[rest], line.center[rest], color=style.color, linestyle=AFTER_LOSS)
    for where in sorted(set(line.breaks)):
        nearest = int(np.argmin(np.abs(x - where)))
        axes.plot(
            x[nearest], line.center[nearest], "X", color=style.color, markersize=6.5, markeredgecolor="white"
        )


def paint_steps(axes: Axes, line: Line, style: Look) -> None:
    """A step function (performance profile) with its band."""
    x = np.asarray(line.x, dtype=float)
    if np.isfinite(line.low).any():
        axes.fill_between(x, line.low, line.high, step="post", color=style.color, alpha=0.12, linewidth=0)
    axes.plot(x, line.center, color=style.color, linestyle=style.dash, drawstyle="steps-post")


def paint_points(axes: Axes, line: Line, style: Look) -> None:
    """A cloud of points."""
    axes.plot(
        line.x, line.center, style.marker, color=style.color, markersize=4, alpha=0.7, markeredgewidth=0
    )


def paint_bars(axes: Axes, lines: Sequence[Line], looks: dict[str, Look], as_points: bool) -> None:
    """Groups of bars with intervals; points instead of bars where the axis has no zero (log)."""
    places = list(dict.fromkeys(x for line in lines for x in line.x))
    beside = len(places) < sum(len(line.x) for line in lines)
    width = 0.8 / (max(len(lines), 1) if beside else 1.6)
    for i, line in enumerate(lines):
        style = looks[line.line]
        shift = (i - (len(lines) - 1) / 2) * width if beside else 0.0
        at = np.array([places.index(x) for x in line.x]) + shift
        if as_points:
            axes.plot(at, line.center, style.marker, color=style.color, markersize=5.5)
        else:
            axes.bar(at, line.center, width * 0.88, color=style.color, alpha=0.8, linewidth=0)
        ok = np.isfinite(line.low) & np.isfinite(line.high)
        ink = style.color if as_points else "#222222"
        axes.vlines(at[ok], line.low[ok], line.high[ok], color=ink, linewidth=1.3)
        for x, text in line.missing.items():
            spot = at[line.x.index(x)]
            value = line.center[line.x.index(x)]
            base = value if math.isfinite(value) else 0.0
            high = line.high[line.x.index(x)]
            top = high if math.isfinite(high) else base
            if as_points and not math.isfinite(value):
                axes.text(spot, 0.02, text, transform=axes.get_xaxis_transform(), **_small(style))
            else:
                axes.annotate(text, (spot, top), xytext=(0, 3), textcoords="offset points", **_small(style))
    axes.set_xticks(range(len(places)), [str(place) for place in places])
    longest = max((len(str(place)) for place in places), default=0)
    if longest * len(places) > 44:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.grid(visible=False, axis="x")


def _small(style: Look) -> dict[str, Any]:
    return {"ha": "center", "va": "bottom", "fontsize": 6.5, "color": style.color, "rotation": 90}


def frame_view(axes: Axes, lines: Sequence[Line], scale: str, limits: Any) -> None:
    """Set the y range by the centre lines: a band of two or three runs may not crush them."""
    if limits is not None:
        axes.set_ylim(*limits)
        return
    log = scale == "log"
    forward: Callable[[np.ndarray], np.ndarray] = np.log10 if log else np.asarray
    centers = np.concatenate([line.center for line in lines] or [np.array([])])
    edges = np.concatenate([np.concatenate([line.low, line.high]) for line in lines] or [np.array([])])
    centers, edges = centers[np.isfinite(centers)], edges[np.isfinite(edges)]
    if log:
        centers, edges = centers[centers > 0], edges[edges > 0]
    if not len(centers):
        return
    middle = forward(centers)
    low, high = float(middle.min()), float(middle.max())
    room = max(high - low, 0.3 if log else 0.05 * max(abs(low), abs(high), 1e-12))
    if len(edges):
        band = forward(edges)
        low, high = max(float(band.min()), low - room), min(float(band.max()), high + room)
        low, high = min(low, float(middle.min())), max(high, float(middle.max()))
    pad = 0.04 * max(high - low, room)
    low, high = low - pad, high + pad
    axes.set_ylim(*((10**low, 10**high) if log else (low, high)))


def key(
    figure: Figure, labels: dict[str, str], looks: dict[str, Look], kind: str, columns: int, title: str
) -> None:
    """One legend for all panels, above them and below the title."""
    handles = []
    for name, text in labels.items():
        style = looks[name]
        if kind in ("bars", "scatter"):
            shape: dict[str, Any] = {
                "marker": style.marker if kind == "scatter" else "s",
                "linestyle": "",
                "markersize": 6,
            }
        else:
            shape = {"linestyle": style.dash}
        handles.append(Line2D([], [], color=style.color, label=text, **shape))
    top = 1 - ((TITLE_HEIGHT if title else 0.03) / figure.get_figheight())
    place: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (0.006, top),
        "borderaxespad": 0.0,
        "borderpad": 0.2,
    }
    figure.legend(handles=handles, ncols=columns, labelspacing=0.25, **place).set_in_layout(False)


def style() -> Any:
    """Context in which every figure is made: the style file over matplotlib's own defaults."""
    params = matplotlib.rc_params_from_file(STYLE_FILE, fail_on_error=True, use_default_template=True)
    # The default template names an interactive backend, which must not be switched to or looked for.
    return matplotlib.rc_context({name: value for name, value in params.items() if name != "backend"})


def save(figure: Figure, path: Path, title: str) -> None:
    """Write a small SVG that is the same bytes each time: fixed salt, no date, no version, text as text."""
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(
        buffer, metadata={"Date": None, "Creator": None, "Title": title or path.stem}
    )
    text = buffer.getvalue()
    text = re.sub(
        r"<\?xml.*?\?>\s*|<!DOCTYPE.*?>\s*|<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", text, flags=re.S
    )
    text = re.sub(r' d="([^"]*)"', lambda found: f' d="{_thin(found[1])}"', text)
    text = re.sub(r'( (?:x|y|width|height)=")(-?\d+\.\d+)', lambda found: found[1] + _short(found[2]), text)
    text = text.replace("'DejaVu Sans', sans-serif", BROWSER_FONTS).replace("'DejaVu Sans'", BROWSER_FONTS)
    text = re.sub(r"\n\s+", "\n", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def _short(number: float | str, digits: int = 2) -> str:
    text = f"{float(number):.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def _thin(d: str) -> str:
    """Path data without needless digits: a polyline's points as steps of a tenth of a point."""
    points = re.findall(r"([ML]) (\S+) (\S+)", d)
    if len(points) < 12 or re.search(r"[^MLze\s\d.+-]", d):
        return re.sub(r"\s+", " ", re.sub(r"-?\d+\.\d+", lambda found: _short(found[0]), d)).strip()
    parts, last = [], (0, 0)
    for command, x, y in points:
        here = round(float(x) * 10), round(float(y) * 10)
        if command == "M":
            parts.append(f"M{here[0] / 10:g} {here[1] / 10:g}")
        elif here != last:
            step = [
                re.sub(r"^(-?)0\.", r"\1.", _short((a - b) / 10, 1)) for a, b in zip(here, last, strict=True)
            ]
            parts.append("l" + step[0] + ("" if step[1].startswith("-") else " ") + step[1])
        last = here
    return "".join(parts) + ("z" if d.rstrip().endswith("z") else "")
