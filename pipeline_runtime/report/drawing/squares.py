"""Curves in the unit square as inline SVG: ROC and reliability, with the diagonal.

Owned here: the drawing; `measures` says what is drawn. Colours and ids are those of `curves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from pipeline_runtime.report.drawing.curves import (
    FONT_POINTS,
    STAND_INS,
    TickFormatter,
    new_figure,
    to_svg,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquarePlot:
    """A curve from 0 to 1 on both axes.

    Attributes:
        name: makes the figure's ids unique in the page.
        label: the figure in words.
        points: x and y of each point.
        has_markers: whether the points themselves are of interest.
    """

    name: str
    label: str
    x_title: str
    y_title: str
    points: Sequence[tuple[float, float]]
    has_markers: bool = False


def draw_square(plot: SquarePlot) -> str:
    """Return an SVG element of a curve and the diagonal."""
    figure, axes = new_figure()
    axes.plot([0, 1], [0, 1], color=STAND_INS["--muted"], linewidth=0.8, linestyle="--")
    xs, ys = zip(*plot.points, strict=True)
    marker = "o" if plot.has_markers else ""
    axes.plot(xs, ys, color=STAND_INS["--accent"], linewidth=1.5, marker=marker, markersize=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel(plot.x_title, color=STAND_INS["--muted"], fontsize=FONT_POINTS)
    axes.set_ylabel(plot.y_title, color=STAND_INS["--muted"], fontsize=FONT_POINTS)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(TickFormatter())
    return to_svg(figure, plot.name, plot.label)
