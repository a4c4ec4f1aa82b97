"""Horizontal bars with whiskers as inline SVG, such as the importance of groups of columns.

Owned here: the drawing; `measure_curves` says what is drawn. Colours and ids are those of `curves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from pipeline_runtime.report.drawing.curves import (
    FONT_POINTS,
    STAND_INS,
    TickFormatter,
    new_panels,
    to_svg,
)

# More are not told apart at the size of a figure.
MAX_BARS = 30
# Longer names leave no room for the bars.
_MAX_NAME_CHARS = 24
_MARGIN_INCHES, _BAR_INCHES = 0.6, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar, and the ends of its whisker if it has one.

    Attributes:
        name: any text, which is escaped.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPlot:
    """Bars from above down.

    Attributes:
        name: makes the figure's ids unique in the page.
        label: the figure in words.
    """

    name: str
    label: str
    x_title: str
    bars: Sequence[Bar]


def draw_bars(plot: BarPlot) -> str:
    """Return an SVG element of the bars, with a line at zero."""
    height_inches = _MARGIN_INCHES + _BAR_INCHES * max(3, len(plot.bars))
    figure, [axes] = new_panels(1, height_inches)
    places = range(len(plot.bars))
    axes.barh(places, [bar.value for bar in plot.bars], height=0.6, color=STAND_INS["--accent"])
    for place, bar in zip(places, plot.bars, strict=True):
        if bar.low is not None and bar.high is not None:
            lengths = [[bar.value - bar.low], [bar.high - bar.value]]
            axes.errorbar(
                [bar.value], [place], xerr=lengths, fmt="none", ecolor=STAND_INS["--ink"], capsize=3
            )
    axes.axvline(0, color=STAND_INS["--muted"], linewidth=0.8)
    names = [_shorten(bar.name) for bar in plot.bars]
    axes.set_yticks(list(places), names, parse_math=False)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.grid(axis="x", color=STAND_INS["--grid"], linewidth=0.7)
    axes.set_xlabel(plot.x_title, color=STAND_INS["--muted"], fontsize=FONT_POINTS)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(TickFormatter())
    return to_svg(figure, plot.name, plot.label)


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 1]}…"
