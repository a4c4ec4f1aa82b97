"""Charts of a metrics history: curves, the stack of time shares, and the numbers behind them.

Owned here: which metrics get a figure, in which order, under which title. Runs after
`files.metrics_history`, before `html`; `drawing.curves` draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline_runtime.formatting import NOTHING, format_count, format_metric
from pipeline_runtime.report.drawing.curves import CurvePlot, draw_curve, draw_stack, is_log_scaled
from pipeline_runtime.report.drawing.series import Series, list_names, select_series, select_stack
from pipeline_runtime.report.supply import CLOCK, SUPPLY_NAMES
from pipeline_runtime.report.view import STAGES, rank_metric

# More pictures than this hide the ones that matter; the file has them all.
MAX_CHARTS = 16

_MIN_POINTS = 2
_EVALUATION_PREFIX = "eval_"
_OVER_TIME = {
    "samples_per_second": "Samples trained per second",
    "rows_per_second": "Rows read per second",
    "step_seconds": "Seconds a step",
    "queue_length": "Ready batches waiting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure: `svg` is safe, all else is escaped by the page."""

    title: str
    note: str
    svg: str
    has_points: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """The values of one metric over the run, as text."""

    name: str
    first: str
    last: str
    lowest: str
    highest: str
    num_values: str


def build_metric_charts(history: pa.Table) -> list[Chart]:
    """Loss with its evaluations first, then the other evaluations, then what else was reported."""
    names = [name for name in list_names(history) if not _is_about_time(name)]
    pairs = sorted(_pair_with_evaluation(names), key=lambda pair: _rank_chart(*pair))
    charts = (
        _build_chart(f"metric-{index}", history, name, evaluation)
        for index, (name, evaluation) in enumerate(pairs)
    )
    return [chart for chart in charts if chart is not None]


def _is_about_time(name: str) -> bool:
    if name in SUPPLY_NAMES:
        return True
    return name in _OVER_TIME or name in {f"share_{stage}" for stage, _, _ in STAGES}


def _pair_with_evaluation(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(metric, its evaluation) pairs; empty text for the one that does not exist."""
    known = set(names)
    for name in names:
        base = name.removeprefix(_EVALUATION_PREFIX)
        if name == base:
            evaluation = _EVALUATION_PREFIX + name
            yield name, evaluation if evaluation in known else ""
        elif base not in known:
            yield "", name


def _rank_chart(name: str, evaluation: str) -> tuple[bool, bool, int]:
    return name != "loss", not evaluation, rank_metric(name or evaluation)


def _build_chart(slug: str, history: pa.Table, name: str, evaluation: str) -> Chart | None:
    series = select_series(history, name) if name else None
    points = select_series(history, evaluation) if evaluation else None
    drawn = [part for part in (series, points) if part is not None]
    if max(len(part.values_N) for part in drawn) < _MIN_POINTS:
        return None  # one number is no curve; it stands in the table
    title = name or f"{evaluation.removeprefix(_EVALUATION_PREFIX)} (evaluation)"
    svg = draw_curve(
        CurvePlot(name=slug, label=_describe(title, drawn, "step"), series=series, points=points)
    )
    return Chart(title=title, note=_note(drawn), svg=svg, has_points=len(drawn) > 1)


def build_time_charts(history: pa.Table) -> list[Chart]:
    """Throughput, step time and queue over time, those that were written."""
    found = [(name, title, select_series(history, name)) for name, title in _OVER_TIME.items()]
    return [
        _build_time_chart(f"time-{name}", title, series)
        for name, title, series in found
        if len(series.values_N)
    ]


def _build_time_chart(slug: str, title: str, series: Series) -> Chart:
    plot = CurvePlot(
        name=slug,
        label=_describe(title, [series], "time"),
        series=series,
        over_time=True,
        from_zero=not is_log_scaled(series),
    )
    return Chart(title=title, note=_note([series]), svg=draw_curve(plot))


def build_stack_chart(history: pa.Table) -> Chart | None:
    """Build the chart of the trainer's time by stage; None if no shares were written."""
    stack = select_stack(history, [name for name, _, _ in STAGES], "share_")
    if not len(stack.seconds_T) or not stack.seconds_T[-1]:
        return None
    label = "Share of the trainer's time by stage over time; the totals are in the table beside it."
    return Chart(title="Over time", note="", svg=draw_stack(stack, "time-shares", label))


def _describe(title: str, drawn: Sequence[Series], axis: str) -> str:
    parts = [
        f"{series.name} from {format_metric(series.values_N[0])} to "
        f"{format_metric(series.values_N[-1])}, lowest {format_metric(series.values_N.min())}, "
        f"highest {format_metric(series.values_N.max())}"
        for series in drawn
        if len(series.values_N)
    ]
    return f"{title} by {axis}: {'; '.join(parts)}"


def _note(drawn: Sequence[Series]) -> str:
    notes = ["logarithmic scale"] if any(map(is_log_scaled, drawn)) else []
    lost = sum(series.num_not_finite for series in drawn)
    if lost:
        notes.append(f"{format_count(lost)} values were not finite and are not drawn")
    return "; ".join(notes)


def build_metric_rows(history: pa.Table) -> list[MetricRow]:
    """The numbers behind the curves, one row a metric."""
    names = [name for name in list_names(history) if name != CLOCK]
    return [_build_metric_row(select_series(history, name)) for name in names]


def _build_metric_row(series: Series) -> MetricRow:
    values = series.values_N
    if not len(values):
        return MetricRow(
            name=series.name,
            first="NaN",
            last="NaN",
            lowest=NOTHING,
            highest=NOTHING,
            num_values=format_count(series.num_not_finite),
        )
    return MetricRow(
        name=series.name,
        first=format_metric(values[0]),
        last=format_metric(values[-1]),
        lowest=format_metric(values.min()),
        highest=format_metric(values.max()),
        num_values=format_count(len(values) + series.num_not_finite),
    )
