"""Curves of the metrics of the steps `measure`: ROC and reliability.

Owned here: which metrics get a figure, under which title. `drawing.squares` draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """Return the ROC and reliability curves of all metrics, in their order."""
    return [
        curve
        for index, measure in enumerate(measures)
        for curve in _list_curves(f"measure-{index}", measure)
    ]


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
