"""The picture of how data workers kept up: shares above, their number below, decisions in both.

Owned here: what `supply` has chosen, drawn with the look of `curves`.
"""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pipeline_runtime.report.drawing.curves import (
    STAGE_STAND_INS,
    STAND_INS,
    new_panels,
    set_x_axis,
    to_svg,
)
from pipeline_runtime.report.drawing.series import Series, thin_indices
from pipeline_runtime.report.files.autoscaler_decisions import ScalingDecision

# Variables of the page's CSS; busy and waits as in the stack of shares.
BUSY = "--stage-0"
WAITS = "--stage-1"
GPUS = "--stage-4"
WORKERS = "--ink"
DECIDED = "--stage-3"
_HEIGHT_INCHES = 3.0
_COLORS = STAND_INS | STAGE_STAND_INS


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A decision, and when it was made on the axis of the history."""

    seconds: float
    decision: ScalingDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyPlot:
    """The data of the figure; `what` names the series of workers."""

    name: str
    label: str
    waits: Series
    busy: Series
    workers: Series
    what: str
    markers: tuple[Marker, ...]

    @property
    def gpu_points(self) -> list[tuple[float, float]]:
        """(seconds, share) of the decisions that knew how busy the GPUs were."""
        return [
            (marker.seconds, marker.decision.inputs["gpuUtilization"])
            for marker in self.markers
            if "gpuUtilization" in marker.decision.inputs
        ]


def draw_supply(plot: SupplyPlot) -> str:
    """An SVG element."""
    figure, [above, below] = new_panels(2, _HEIGHT_INCHES)
    last = max([plot.waits.seconds_N[-1], *(marker.seconds for marker in plot.markers)])
    unit = set_x_axis(below, True, float(last))
    _draw_shares(above, plot, unit)
    _draw_workers(below, plot, unit)
    for axes in (above, below):
        for marker in plot.markers:
            axes.axvline(
                marker.seconds / unit, color=_COLORS["--muted"], linewidth=0.7, linestyle=":"
            )
    below.set_xlim(0, last / unit or 1)
    return to_svg(figure, plot.name, plot.label)


def _draw_shares(axes: Axes, plot: SupplyPlot, unit: float) -> None:
    for series, color in ((plot.busy, BUSY), (plot.waits, WAITS)):
        if len(series.values_N):
            shown = thin_indices(series.values_N)
            # Each entry is the mean since the one before, so the first begins at 0.
            x = [0.0, *(series.seconds_N[shown] / unit)]
            y = [series.values_N[shown][0], *series.values_N[shown]]
            axes.step(x, y, where="pre", color=_COLORS[color], linewidth=1.3)
    if plot.gpu_points:
        seconds, shares = zip(*plot.gpu_points, strict=True)
        axes.plot(
            [at / unit for at in seconds],
            shares,
            color=_COLORS[GPUS],
            linestyle="",
            marker="D",
            markersize=3.5,
        )
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))


def _draw_workers(axes: Axes, plot: SupplyPlot, unit: float) -> None:
    """Draw workers as steps; a triangle shows a requested change and its direction."""
    series = plot.workers
    if len(series.values_N):
        shown = thin_indices(series.values_N)
        x, y = series.seconds_N[shown] / unit, series.values_N[shown]
        axes.step(x, y, where="post", color=_COLORS[WORKERS], linewidth=1.4)
    for marker in plot.markers:
        after, is_up = marker.decision.after, marker.decision.after > marker.decision.before
        axes.plot(
            [marker.seconds / unit],
            [after],
            color=_COLORS[DECIDED],
            marker="^" if is_up else "v",
            markersize=5,
            linestyle="",
        )
    asked = [marker.decision.after for marker in plot.markers]
    axes.set_ylim(0, 1.15 * max([1, *asked, *series.values_N]))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
