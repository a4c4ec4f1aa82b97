"""Kernels of `cast(x as type)`: SQL's explicit conversions, which raise for an unfit value.

Used by `binder`. Differences from Arrow's own casts: floats round to the nearest integer instead of
raising, strings may have spaces around them, and a zoned timestamp becomes its local time.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions import types
from pipeline_runtime.expressions.plan import Datum, Kernel, KernelError, TypeRuleError
from pipeline_runtime.grammar.calls import MAX_DECIMAL_DIGITS


def build_cast(source: pa.DataType, target: pa.DataType) -> Kernel:
    """Return the kernel from `source` to `target`. Raises TypeRuleError if there is none."""
    if not _has_cast(source, target):
        raise TypeRuleError(f"cast cannot convert {source} to {target}{_hint(source, target)}")

    def kernel(values: Datum) -> Datum:
        try:
            return _cast(values, target)
        except pa.ArrowInvalid as error:
            raise KernelError(f"cast to {target}: {_shorten(str(error))}") from error

    return kernel


def _has_cast(source: pa.DataType, target: pa.DataType) -> bool:
    if source == target or pa.types.is_null(source):
        return True
    if pa.types.is_string(target):
        return is_simple(source)
    if types.is_text(source):
        return is_simple(target)
    if pa.types.is_timestamp(target):
        return types.is_day_or_time(source) or pa.types.is_integer(source)
    if pa.types.is_date32(target):
        return types.is_day_or_time(source)
    return _is_numeric(source) and _is_numeric(target)


def is_simple(dtype: pa.DataType) -> bool:
    """True for types whose values can be written as a string."""
    return _is_numeric(dtype) or types.is_text(dtype) or types.is_day_or_time(dtype)


def _is_numeric(dtype: pa.DataType) -> bool:
    return types.is_number(dtype) or bool(pa.types.is_boolean(dtype))


def _hint(source: pa.DataType, target: pa.DataType) -> str:
    if types.is_day_or_time(source) and types.is_number(target):
        return "; use epoch_seconds(t)"
    return ""


def _cast(values: Datum, target: pa.DataType) -> Datum:
    source = values.type
    if types.is_text(source) and not types.is_text(target):
        values = pc.utf8_trim_whitespace(values)
    if pa.types.is_integer(target) and types.is_number(source):
        return _to_integer(values, target)
    if pa.types.is_decimal(target) and _is_whole(source):
        return _whole_to_decimal(values, target)
    if pa.types.is_boolean(target) and pa.types.is_decimal(source):
        return pc.not_equal(values, pa.scalar(0, source))
    if pa.types.is_timestamp(source) and source.tz and pa.types.is_timestamp(target):
        values = pc.local_timestamp(values)
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return _change_unit(values, target)
    if pa.types.is_timestamp(target) and pa.types.is_integer(source):
        values = values.cast(pa.int64())
    return values.cast(target, safe=not pa.types.is_floating(target))


def _is_whole(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_boolean(dtype))


def _whole_to_decimal(values: Datum, target: pa.DataType) -> Datum:
    """Cast through the widest decimal: Arrow refuses a type that cannot hold every int64."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    widest = pa.decimal256(MAX_DECIMAL_DIGITS, target.scale)
    return values.cast(pa.decimal256(MAX_DECIMAL_DIGITS, 0)).cast(widest).cast(target)


def _to_integer(values: Datum, target: pa.DataType) -> Datum:
    if pa.types.is_decimal(values.type):
        # 99.5 rounds to 100: one more digit than decimal(3, 1) has.
        precision = min(values.type.precision + 1, MAX_DECIMAL_DIGITS)
        values = values.cast(types.build_decimal(precision, values.type.scale))
    if not pa.types.is_integer(values.type):
        values = pc.round(values, round_mode="half_to_even")
    return values.cast(target)


def _change_unit(values: Datum, target: pa.DataType) -> Datum:
    """Change the unit of time; a coarser one rounds towards the past, as `date` does for a day."""
    if types.finer_unit(values.type.unit, target.unit) == values.type.unit:
        names = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}
        values = pc.floor_temporal(values, unit=names[target.unit])
    return values.cast(target)


def _shorten(message: str) -> str:
    """Shorten long numbers in a message: Arrow prints a float of 300 digits in full."""
    return re.sub(r"(\d{20})\d+", r"\1…", message)
