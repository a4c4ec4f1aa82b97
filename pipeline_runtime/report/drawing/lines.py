"""Steps over time, several in one figure: numbers of something, or shares as per cent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipeline_runtime.report.drawing.curves import (
    STAGE_STAND_INS,
    STAND_INS,
    TickFormatter,
    new_figure,
    set_x_axis,
    to_svg,
)

# Room above the highest line.
_TOP_RATIO = 1.08


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """Values that each hold since the one before; `colour` is a variable of the style sheet."""

    seconds: Sequence[float]
    values: Sequence[float]
    colour: str
    is_strong: bool = False
    is_dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesPlot:
    """Lines over one time axis; `name` makes the figure's ids unique in the page."""

    name: str
    label: str
    lines: Sequence[TimeLine]
    is_share: bool = False


def draw_lines(plot: LinesPlot) -> str:
    """An SVG element of the lines, the first on top."""
    figure, axes = new_figure()
    last = max(line.seconds[-1] for line in plot.lines)
    unit = set_x_axis(axes, True, last)
    for line in reversed(plot.lines):
        axes.plot(
            # The first entry holds since the beginning.
            [0.0, *(second / unit for second in line.seconds)],
            [line.values[0], *line.values],
            drawstyle="steps-pre",
            color=(STAND_INS | STAGE_STAND_INS)[line.colour],
            linewidth=2.0 if line.is_strong else 1.2,
            linestyle=(0, (4, 3)) if line.is_dashed else "solid",
        )
    axes.set_xlim(0, last / unit or 1)
    top = max(max(line.values) for line in plot.lines)
    axes.set_ylim(0, _TOP_RATIO * top or 1)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=not plot.is_share))
    percent = FuncFormatter(lambda value, _: f"{100 * value:.3g} %")
    axes.yaxis.set_major_formatter(percent if plot.is_share else TickFormatter())
    return to_svg(figure, plot.name, plot.label)
