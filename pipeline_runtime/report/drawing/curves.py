"""Curves and areas as inline SVG that takes its colours from the page.

Owned here: everything that matplotlib draws. `view` says what to draw, `html` puts the SVG into
the page. No text of the user's enters a picture but its label, which is escaped; ticks are numbers.
Colours are drawn as stand-ins and replaced by CSS variables, which is how one SVG serves light and
dark; fonts are left to the page; ids carry the figure's name, since a page holds many figures.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator, NullFormatter

from pipeline_runtime.formatting import format_short, format_tick
from pipeline_runtime.report.drawing.series import (
    Floats,
    Series,
    Stack,
    average_around,
    is_noisy,
    thin_indices,
)

# 4.3 in are 310 px in the SVG: on a phone of 390 px a figure is shown at about its own size, on a
# desktop in two columns at 1.7 times, so 8 pt text stays readable on both.
_WIDTH_INCHES = 4.3
_HEIGHT_INCHES = 2.3
FONT_POINTS = 8

# Above this many points markers run into each other, and a mean helps the eye.
_MAX_MARKED_POINTS = 60
# A mean over 1/25 of the run keeps the trend and drops the noise of single batches.
_SMOOTH_PARTS = 25
# Where the largest value is this many times the smallest, a linear axis shows one of them as 0.
_LOG_RATIO = 100

_SECONDS_PER_MINUTE = 60
_SECONDS_PER_HOUR = 3600

_SVG_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "lastmile",
    "svg.fonttype": "none",
    "font.size": FONT_POINTS,
    "font.family": ["DejaVu Sans"],
    "axes.unicode_minus": False,
    "path.simplify": True,
}

# Stand-ins that no palette has; matplotlib writes colours in lower case.
STAND_INS = {
    "--ink": "#010203",
    "--muted": "#010204",
    "--grid": "#010205",
    "--accent": "#010206",
    "--second": "#010207",
    "--surface": "#010208",
}
STAGE_STAND_INS = {f"--stage-{index}": f"#0102{index + 16:02x}" for index in range(6)}
_VARIABLES = {code: name for name, code in (STAND_INS | STAGE_STAND_INS).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePlot:
    """The data of a curve figure.

    `name` makes the figure's ids unique in the page; `points` is drawn over `series` (evaluations
    over the training curve); `over_time` puts minutes instead of steps on the x axis.
    """

    name: str
    label: str
    series: Series | None
    points: Series | None = None
    over_time: bool = False
    from_zero: bool = False


def draw_curve(plot: CurvePlot) -> str:
    """An SVG element of one metric, its points and its moving mean."""
    figure, axes = new_figure()
    drawn = [series for series in (plot.series, plot.points) if series is not None]
    xs = [_get_x(plot, series) for series in drawn]
    unit = set_x_axis(axes, plot.over_time, max((x[-1] for x in xs if len(x)), default=0.0))
    if plot.series is not None:
        _draw_series(axes, _get_x(plot, plot.series) / unit, plot.series.values_N, "--accent")
    if plot.points is not None:
        _draw_points(axes, _get_x(plot, plot.points) / unit, plot.points.values_N, "--second")
    _set_y_axis(axes, drawn, from_zero=plot.from_zero)
    return to_svg(figure, plot.name, plot.label)


def draw_stack(stack: Stack, name: str, label: str) -> str:
    """An SVG element of the shares over time, stacked, each as a block since the moment before."""
    figure, axes = new_figure()
    unit = set_x_axis(axes, True, float(stack.seconds_T[-1]))
    # Each entry is the mean since the one before, so the first begins at 0.
    x = [0.0, *(stack.seconds_T / unit)]
    rows = [[row[0], *row] for row in stack.shares_ST]
    colors = [STAGE_STAND_INS[f"--stage-{index}"] for index in range(len(rows))]
    axes.stackplot(x, rows, colors=colors, step="pre", linewidth=0)
    axes.set_ylim(0, 1)
    axes.set_xlim(0, x[-1] or 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    return to_svg(figure, name, label)


def is_log_scaled(series: Series) -> bool:
    """Return whether the values span so much that they need a logarithmic axis."""
    values = series.values_N
    return bool(len(values) and values.min() > 0 and values.max() / values.min() > _LOG_RATIO)


def new_figure() -> tuple[Figure, Axes]:
    """An empty figure of the report's size and look."""
    figure, [axes] = new_panels(1, _HEIGHT_INCHES)
    return figure, axes


def new_panels(num_panels: int, height_inches: float) -> tuple[Figure, list[Axes]]:
    """An empty figure of axes one below the other, which share their x axis."""
    with mpl.rc_context(_SVG_SETTINGS):
        figure = Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
        FigureCanvasSVG(figure)
        panels = list(figure.subplots(num_panels, sharex=True, squeeze=False)[:, 0])
    figure.patch.set_visible(False)
    for axes in panels:
        _dress(axes)
    return figure, panels


def _dress(axes: Axes) -> None:
    axes.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(STAND_INS["--muted"])
    axes.tick_params(
        color=STAND_INS["--muted"],
        labelcolor=STAND_INS["--muted"],
        labelsize=FONT_POINTS,
        length=3,
    )
    axes.tick_params(axis="y", which="both", length=0)
    axes.grid(axis="y", color=STAND_INS["--grid"], linewidth=0.7)
    axes.set_axisbelow(True)


def _get_x(plot: CurvePlot, series: Series) -> Floats:
    return series.seconds_N if plot.over_time else series.steps_N


def set_x_axis(axes: Axes, over_time: bool, last: float) -> float:
    """Label the x axis; what to divide x by."""
    unit, text = _choose_time_unit(last) if over_time else (1.0, "step")
    axes.set_xlabel(text, color=STAND_INS["--muted"], fontsize=FONT_POINTS)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=not over_time))
    axes.xaxis.set_major_formatter(TickFormatter())
    return unit


def _choose_time_unit(last_seconds: float) -> tuple[float, str]:
    if last_seconds < 3 * _SECONDS_PER_MINUTE:
        return 1.0, "seconds"
    if last_seconds < 3 * _SECONDS_PER_HOUR:
        return float(_SECONDS_PER_MINUTE), "minutes"
    return float(_SECONDS_PER_HOUR), "hours"


def _set_y_axis(axes: Axes, drawn: list[Series], *, from_zero: bool) -> None:
    if any(is_log_scaled(series) for series in drawn):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_short(value)))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(TickFormatter())
    if from_zero:
        axes.set_ylim(bottom=0)


class TickFormatter(Formatter):
    """Ticks with one SI prefix and as many decimals as tell two of them apart."""

    def __call__(self, value: float, pos: int | None = None) -> str:
        return format_short(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        largest = max((abs(value) for value in values), default=0.0)
        gap = min((b - a for a, b in pairwise(values)), default=largest)
        return [format_tick(value, largest=largest, gap=gap) for value in values]


def _draw_series(axes: Axes, x: Floats, values: Floats, role: str) -> None:
    color = STAND_INS[role]
    shown = thin_indices(values)
    if len(values) <= _MAX_MARKED_POINTS:
        axes.plot(x, values, color=color, linewidth=1.5, marker="o", markersize=2.5)
        return
    if not is_noisy(values):
        axes.plot(x[shown], values[shown], color=color, linewidth=1.6)
        return
    axes.plot(x[shown], values[shown], color=color, linewidth=0.6, alpha=0.35)
    window = max(3, len(values) // _SMOOTH_PARTS)
    smooth = average_around(values, window)
    smooth_shown = thin_indices(smooth)
    axes.plot(x[smooth_shown], smooth[smooth_shown], color=color, linewidth=1.6)


def _draw_points(axes: Axes, x: Floats, values: Floats, role: str) -> None:
    shown = thin_indices(values)
    size = 3.5 if len(values) <= _MAX_MARKED_POINTS else 0
    color = STAND_INS[role]
    axes.plot(x[shown], values[shown], color=color, linewidth=1.2, marker="o", markersize=size)


def to_svg(figure: Figure, name: str, label: str) -> str:
    """The figure as an SVG element; `name` makes its ids unique in the page, `label` says it."""
    buffer = io.StringIO()
    with mpl.rc_context(_SVG_SETTINGS):
        figure.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": None, "Type": None, "Format": None},
        )
    return _adopt_svg(buffer.getvalue(), name, label)


def _adopt_svg(text: str, name: str, label: str) -> str:
    """Make matplotlib's document an element of the page: own ids, the page's colours and size."""
    body = text[text.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, count=1, flags=re.S)
    view_box = re.search(r'viewBox="[-0-9. ]+"', body)
    assert view_box is not None, "matplotlib writes a viewBox"
    body = body[body.index(">") + 1 :]
    # It speaks of `*`, which in a page is everything; the page's own style says it for figures.
    body = re.sub(r"<style.*?</style>", "", body, count=1, flags=re.S)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = body.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    body = re.sub(r"#0102[0-9a-f]{2}", lambda match: f"var({_VARIABLES[match[0]]})", body)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{view_box[0]} role="img" aria-label="{html.escape(label)}">'
    )
    return head + body.strip()
