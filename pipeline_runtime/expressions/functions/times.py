"""Functions on dates and timestamps. Part of `functions`.

A timestamp with a zone is read in that zone; one without a zone counts as UTC.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions.functions.base import (
    Arguments,
    Function,
    Rule,
    define,
    need_day_or_time,
    need_time,
)
from pipeline_runtime.expressions.plan import Datum, Kernel, Plan, build_apply
from pipeline_runtime.grammar.syntax_tree import Span


def _part(name: str, kernel: Kernel, need: Callable[[Arguments, int], Plan]) -> Rule:
    def rule(span: Span, args: Arguments) -> Plan:
        return build_apply(span, name, pa.int64(), kernel, need(args, 0))

    return rule


def _date(span: Span, args: Arguments) -> Plan:
    return build_apply(span, "date", pa.date32(), _to_date, need_day_or_time(args, 0))


def _to_date(times: Datum) -> Datum:
    return times.cast(pa.date32())


def _date_diff_days(span: Span, args: Arguments) -> Plan:
    ends = (need_day_or_time(args, 0), need_day_or_time(args, 1))

    def kernel(start: Datum, end: Datum) -> Datum:
        return pc.subtract(_to_days(end), _to_days(start))

    return build_apply(span, "date_diff_days", pa.int64(), kernel, *ends)


def _to_days(times: Datum) -> Datum:
    return _to_date(times).cast(pa.int32()).cast(pa.int64())


def _epoch_seconds(times: Datum) -> Datum:
    if pa.types.is_date32(times.type):
        return times.cast(pa.timestamp("s")).cast(pa.int64())
    # Arrow rounds in the column's zone, where the repeated hour of autumn is ambiguous; an instant
    # has one epoch second in every zone.
    whole = pc.floor_temporal(times.cast(pa.timestamp(times.type.unit, "UTC")), unit="second")
    return whole.cast(pa.timestamp("s", "UTC")).cast(pa.int64())


FUNCTIONS: tuple[Function, ...] = (
    define("year", _part("year", pc.year, need_day_or_time)),
    define("month", _part("month", pc.month, need_day_or_time)),
    define("day", _part("day", pc.day, need_day_or_time)),
    define("day_of_week", _part("day_of_week", pc.day_of_week, need_day_or_time)),
    define("hour", _part("hour", pc.hour, need_time)),
    define("minute", _part("minute", pc.minute, need_time)),
    define("date", _date),
    define("date_diff_days", _date_diff_days),
    define("epoch_seconds", _part("epoch_seconds", _epoch_seconds, need_day_or_time)),
)
