"""The metrics of steps that measure rows as text and tables.

Owned here: what is shown of each kind. `terminal` shows the values, `html` all of it, with the
curves of `measure_curves`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake

from pipeline_runtime.formatting import NOTHING, format_count, format_metric
from pipeline_runtime.report.files.measures_file import GroupResult, Measure, MeasureResult

# Numbers of a result that count something.
_COUNTS = ("measuredGroups", "leftOutGroups", "largeGroups", "scatteredGroups")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRow:
    """The value of a metric."""

    name: str
    kind: str
    step: str
    value: str
    rows: str
    left_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureTable:
    """More than one number of a metric; cells are texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def build_measure_rows(measures: Iterable[Measure]) -> list[MeasureRow]:
    """Return the value of each metric."""
    return [
        MeasureRow(
            name=measure.name,
            kind=measure.kind,
            step=measure.step,
            value=_format_measured(measure),
            rows=format_count(measure.rows),
            left_out=", ".join(f"{role}: {n:,}" for role, n in measure.left_out.items()),
        )
        for measure in measures
    ]


def build_measure_tables(measures: Iterable[MeasureResult]) -> list[MeasureTable]:
    """Return the tables of all metrics, in their order."""
    return [table for measure in measures for table in _list_tables(measure)]


def _list_tables(measure: MeasureResult) -> Iterator[MeasureTable]:
    if numbers := measure.list_numbers():
        cells = [[_name(name), _format_number(name, each)] for name, each in numbers.items()]
        yield MeasureTable(title=measure.name, columns=("Number", "Value"), rows=cells)
    for lines in (measure.quantiles, measure.thresholds, measure.bins, measure.top):
        if lines:
            yield MeasureTable(
                title=measure.name,
                columns=[_name(key) for key in lines[0]],
                rows=[[format_value(value) for value in line.values()] for line in lines],
            )
    if measure.drops:
        yield MeasureTable(
            title=f"{measure.name}: {', '.join(measure.columns)} permuted",
            columns=("Repeat", f"Drop of {measure.metric}"),
            rows=[[str(index), format_value(drop)] for index, drop in enumerate(measure.drops, 1)],
        )
    if measure.groups:
        rows = [_describe_group(group) for group in measure.groups]
        if measure.other:
            other = ["other groups", *[""] * (len(measure.group_by) - 1)]
            rows.append([*other, *_describe_group(measure.other)])
        title = f"{measure.name} by {', '.join(measure.group_by)}"
        columns = (*measure.group_by, "Value", "Rows")
        yield MeasureTable(title=title, columns=columns, rows=rows)


def _format_measured(measure: Measure) -> str:
    """Return the value of a metric, and its interval if there is one."""
    value = format_value(measure.value)
    if measure.interval is None:
        return value
    low, high = map(format_value, measure.interval)
    return f"{value} ({low} to {high})"


def _describe_group(group: GroupResult) -> list[str]:
    texts = ["null" if value is None else str(value) for value in group.group]
    return [*texts, format_value(group.value), format_count(group.rows)]


def _name(key: str) -> str:
    return to_snake(key).replace("_", " ")


def _format_number(name: str, value: float) -> str:
    return format_count(int(value)) if name in _COUNTS else format_value(value)


def format_value(value: Any) -> str:
    """Return a value of a result as text."""
    if value is None:
        return NOTHING
    if isinstance(value, str | bool | Mapping):
        return str(value)
    return format_count(value) if isinstance(value, int) else format_metric(value)
