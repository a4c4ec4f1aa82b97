"""The pictures of a comparison: intervals of differences, and learning curves of all runs.

Variants have the six colours of the page in turn; a seventh has the first one again, dashed. The
SVGs take their colours from the page. `page` puts them into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from matplotlib.ticker import MaxNLocator

from pipeline_runtime.comparison.gathering import Variant
from pipeline_runtime.comparison.model import ComparedMetric, Comparison, Difference
from pipeline_runtime.formatting import format_metric
from pipeline_runtime.report.drawing.curves import (
    STAGE_STAND_INS,
    STAND_INS,
    TickFormatter,
    new_figure,
    set_x_axis,
    to_svg,
)
from pipeline_runtime.report.drawing.series import (
    Series,
    average_around,
    is_noisy,
    list_names,
    select_series,
    thin_indices,
)

MAX_CURVES = 8
_EVALUATION = "eval_"
_LOSS = "loss"
# A mean over 1/25 of a run keeps the trend and drops the noise of single batches.
_SMOOTH_PARTS = 25
_MANY_POINTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure with its title; the SVG is safe."""

    title: str
    svg: str


def choose_colour(index: int) -> tuple[str, bool]:
    """Return the CSS variable of a variant's colour, and whether its lines are dashed."""
    return f"--stage-{index % len(STAGE_STAND_INS)}", index >= len(STAGE_STAND_INS)


def draw_intervals(comparison: Comparison) -> list[Picture]:
    """Draw the differences in each metric of the shared rows, with their intervals."""
    return [
        _draw_metric(metric, f"interval-{index}")
        for index, metric in enumerate(comparison.metrics)
        if any(each.low is not None for each in metric.differences)
    ]


def _draw_metric(metric: ComparedMetric, name: str) -> Picture:
    figure, axes = new_figure()
    shown = [each for each in metric.differences if each.low is not None]
    axes.axvline(0, color=STAND_INS["--muted"], linewidth=1, linestyle=(0, (4, 3)))
    for place, each in enumerate(shown):
        index = 1 + metric.differences.index(each)
        color = STAGE_STAND_INS[choose_colour(index)[0]]
        ends = [end for end in (each.low, each.high) if end is not None]
        axes.plot(ends, [place] * len(ends), color=color, linewidth=2.5)
        axes.plot([each.value], [place], color=color, marker="o", markersize=6)
    axes.set_yticks(range(len(shown)), [f"{each.label} – A" for each in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(TickFormatter())
    axes.grid(visible=False, axis="y")
    better = (
        "" if metric.rises is None else f", better to the {'right' if metric.rises else 'left'}"
    )
    label = f"Difference in {metric.name}: {'; '.join(map(_describe, shown))}"
    title = f"Difference in {metric.name}{better}"
    return Picture(title=title, svg=to_svg(figure, name, label))


def _describe(difference: Difference) -> str:
    ends = [format_metric(end) for end in (difference.low, difference.high) if end is not None]
    return f"{difference.label} less A {format_metric(difference.value)}, {' to '.join(ends)}"


def draw_curves(variants: Sequence[Variant]) -> list[Picture]:
    """Draw the loss and the evaluations of all runs by step."""
    histories = [[run.read_history() for run in variant.runs] for variant in variants]
    found = dict.fromkeys(
        name for of_variant in histories for history in of_variant for name in list_names(history)
    )
    names = [name for name in found if name == _LOSS or name.startswith(_EVALUATION)]
    pictures = (_draw_curve(name, histories, index) for index, name in enumerate(names))
    return [picture for picture in pictures if picture is not None][:MAX_CURVES]


def _draw_curve(name: str, histories: Sequence[Sequence[pa.Table]], index: int) -> Picture | None:
    lines = list(_list_lines(name, histories))
    if not any(len(series.values_N) > 1 for _, series in lines):
        return None
    figure, axes = new_figure()
    last = max(series.steps_N[-1] for _, series in lines)
    set_x_axis(axes, False, float(last))
    for variant, series in lines:
        colour, is_dashed = choose_colour(variant)
        steps_N, values_N = _smooth(series)
        axes.plot(
            steps_N,
            values_N,
            color=STAGE_STAND_INS[colour],
            linewidth=1.3,
            linestyle=(0, (4, 3)) if is_dashed else "solid",
            marker="o" if len(values_N) <= _MANY_POINTS else None,
            markersize=2.5,
        )
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(TickFormatter())
    title = f"{name.removeprefix(_EVALUATION)} (evaluation)" if name != _LOSS else "training loss"
    return Picture(title=title, svg=to_svg(figure, f"curve-{index}", f"{title} by step"))


def _list_lines(name: str, histories: Sequence[Sequence[pa.Table]]) -> Iterator[tuple[int, Series]]:
    for index, of_variant in enumerate(histories):
        for history in of_variant:
            series = select_series(history, name)
            if len(series.values_N):
                yield index, series


def _smooth(series: Series) -> tuple[Sequence[float], Sequence[float]]:
    values_N = series.values_N
    if len(values_N) > _MANY_POINTS and is_noisy(values_N):
        values_N = average_around(values_N, max(3, len(values_N) // _SMOOTH_PARTS))
    kept = thin_indices(values_N)
    return series.steps_N[kept].tolist(), values_N[kept].tolist()
