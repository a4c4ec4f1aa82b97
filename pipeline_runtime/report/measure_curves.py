"""Figures of steps that measure rows: ROC and reliability curves, and bars of an ablation.

Owned here: which metrics get a figure, under which title. `drawing.squares` and `drawing.bars`
draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline_runtime.report.drawing.bars import MAX_BARS, Bar, BarPlot, draw_bars
from pipeline_runtime.report.drawing.squares import SquarePlot, draw_square
from pipeline_runtime.report.files.measures_file import MeasureResult
from pipeline_runtime.report.measures import format_value


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureCurve:
    """One figure; `svg` is safe, all else is escaped by the page."""

    title: str
    svg: str
    note: str = ""
    has_points: bool = False


def build_measure_curves(measures: Sequence[MeasureResult]) -> list[MeasureCurve]:
    """Return the figures of all ablations, and the curves of all metrics, in their order."""
    curves = [
        curve
        for index, measure in enumerate(measures)
        for curve in _list_curves(f"measure-{index}", measure)
    ]
    return [*_list_ablations(measures), *curves]


def _list_ablations(measures: Sequence[MeasureResult]) -> Iterator[MeasureCurve]:
    """Yield a figure of the importances of each step."""
    defined = [m for m in measures if m.kind == "importance" and m.value is not None]
    for step in dict.fromkeys(measure.step for measure in defined):
        mine = [measure for measure in defined if measure.step == step]
        first = mine[0]
        shown = sorted(mine, key=lambda m: -(m.value or 0.0))[:MAX_BARS]
        title = f"Importance of inputs of {first.model}"
        plot = BarPlot(
            name=f"ablation-{defined.index(first)}",
            label=f"{title}: drop of {first.metric} by group of columns",
            x_title=f"drop of {first.metric}",
            bars=[
                Bar(
                    name=measure.name,
                    value=measure.value or 0.0,
                    low=measure.interval[0] if measure.interval else None,
                    high=measure.interval[1] if measure.interval else None,
                )
                for measure in shown
            ],
        )
        note = f"{step}; whiskers: 95 % interval over {len(first.drops)} permutations"
        if len(first.drops) == 1:
            note = f"{step}; one permutation"
        if len(mine) > len(shown):
            note += f"; the {len(shown)} largest of {len(mine)} groups"
        yield MeasureCurve(title=title, svg=draw_bars(plot), note=note)


def _list_curves(slug: str, measure: MeasureResult) -> Iterator[MeasureCurve]:
    if measure.roc:
        title = f"{measure.name}: ROC"
        plot = SquarePlot(
            name=f"{slug}-roc",
            label=f"{title}, area {format_value(measure.value)}",
            x_title="false positive rate",
            y_title="true positive rate",
            points=measure.roc,
        )
        yield MeasureCurve(title=title, svg=draw_square(plot))
    if measure.bins:
        title = f"{measure.name}: reliability"
        plot = SquarePlot(
            name=f"{slug}-reliability",
            label=f"{title}, mean label by mean score in {len(measure.bins)} ranges of the score",
            x_title="mean score",
            y_title="mean label",
            points=[(line["meanScore"], line["meanLabel"]) for line in measure.bins],
            has_markers=True,
        )
        yield MeasureCurve(title=title, svg=draw_square(plot))
