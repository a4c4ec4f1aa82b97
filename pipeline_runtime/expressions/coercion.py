"""Brings operands to one type: literals follow their neighbours, columns are cast.

Used by `binder` and the functions. The rules, in short: a literal takes the type of the column
next to it if its value fits exactly; a string literal next to a date or timestamp is read as one;
numbers widen; nothing else converts without a cast.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions import types
from pipeline_runtime.expressions.plan import (
    Constant,
    Datum,
    Plan,
    TypeRuleError,
    build_apply,
    build_constant,
)
from pipeline_runtime.grammar import literals
from pipeline_runtime.grammar.syntax_tree import Literal, LiteralValue, Span

_INTEGER_RANGES = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (literals.MIN_INT64, literals.MAX_INT64),
    pa.uint8(): (0, 2**8 - 1),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, literals.MAX_UINT64),
}


def literal_type(literal: Literal) -> pa.DataType:
    """Return the type of a literal that has no neighbour."""
    match literal.value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int(value):
            return pa.int64() if value <= literals.MAX_INT64 else pa.uint64()
        case float():
            return pa.float64()
        case str():
            return pa.string()
        case dt.datetime(tzinfo=None):
            return pa.timestamp("us")
        case dt.datetime():
            return pa.timestamp("us", "UTC")
        case dt.date():
            return pa.date32()


def bind_literal(literal: Literal) -> Constant:
    """Return a literal as a constant of its own type, which may still take a neighbour's."""
    dtype = literal_type(literal)
    value = pa.scalar(literal.value, type=dtype)
    return Constant(span=literal.span, type=dtype, value=value, literal=literal)


def common_type(plans: Sequence[Plan]) -> pa.DataType | None:
    """Return the type that all plans can be converted to; None if there is none.

    Columns and results decide first, then literals adapt to them, and strings adapt last.
    Raises TypeRuleError for a string literal that should be a date and is none.
    """
    strong = [plan.type for plan in plans if literal_of(plan) is None]
    weak = [literal for plan in plans if (literal := literal_of(plan)) is not None]
    weak.sort(key=lambda literal: isinstance(literal.value, str))
    result: pa.DataType | None = reduce(_promote_or_none, strong, pa.null())
    for literal in weak:
        if result is None:
            return None
        result = _absorb(result, literal)
    return result


def literal_of(plan: Plan) -> Literal | None:
    """Return the literal of a plan; None if the plan is not a literal."""
    return plan.literal if isinstance(plan, Constant) else None


def _promote_or_none(left: pa.DataType | None, right: pa.DataType) -> pa.DataType | None:
    return None if left is None else types.promote(left, right)


def _absorb(dtype: pa.DataType, literal: Literal) -> pa.DataType | None:
    """Return the type for values of `dtype` and a literal: `dtype` itself if the literal fits."""
    value = literal.value
    if isinstance(value, str) and types.is_day_or_time(dtype):
        return types.promote(dtype, _read_time_type(literal, dtype))
    if isinstance(value, dt.datetime) and types.is_day_or_time(dtype):
        return types.promote(dtype, _timestamp_type(value, dtype))
    if isinstance(value, str) and types.is_text(dtype):
        return dtype
    if isinstance(value, int | float) and not isinstance(value, bool) and types.is_number(dtype):
        return _absorb_number(dtype, literal)
    return types.promote(dtype, literal_type(literal))


def _absorb_number(dtype: pa.DataType, literal: Literal) -> pa.DataType | None:
    if pa.types.is_floating(dtype):
        return dtype
    if pa.types.is_decimal(dtype):
        return types.promote(dtype, _decimal_type(literal))
    if isinstance(literal.value, int) and _fits_integer(literal.value, dtype):
        return dtype
    return types.promote(dtype, literal_type(literal))


def _fits_integer(value: int, dtype: pa.DataType) -> bool:
    low, high = _INTEGER_RANGES[dtype]
    return bool(low <= value <= high)


def _decimal_type(literal: Literal) -> pa.DataType:
    """Return the smallest decimal type that holds a number as written; float64 if there is none."""
    _, digits, exponent = decimal.Decimal(literal.digits).as_tuple()
    scale = max(0, -int(exponent))
    precision = max(len(digits) + max(0, int(exponent)), scale)
    return types.build_decimal(precision, scale) or pa.float64()


def _read_time_type(literal: Literal, dtype: pa.DataType) -> pa.DataType:
    try:
        value = literals.parse_time(str(literal.value))
    except ValueError as error:
        raise TypeRuleError(f"{error}, next to a {dtype}", span=literal.span) from error
    return _timestamp_type(value, dtype) if isinstance(value, dt.datetime) else pa.date32()


def _timestamp_type(value: dt.datetime, neighbour: pa.DataType) -> pa.DataType:
    """Return the coarsest timestamp type for `value`, in the neighbour's zone if it has none."""
    unit = "us" if value.microsecond % 1000 else "ms" if value.microsecond else "s"
    zone = getattr(neighbour, "tz", None) if value.tzinfo is None else "UTC"
    return pa.timestamp(unit, zone)


def coerce(plan: Plan, dtype: pa.DataType) -> Plan:
    """Return `plan` with values of `dtype`, which must come from `common_type` for this plan."""
    if isinstance(plan, Constant) and plan.literal is not None:
        return build_constant(plan.span, _literal_scalar(plan.literal, dtype))
    if plan.type == dtype:
        return plan
    kernel = partial(widen, target=dtype)
    # A coarse timestamp can leave the range of a finer unit; other widenings cannot fail.
    is_partial = pa.types.is_timestamp(dtype)
    return build_apply(plan.span, "widen", dtype, kernel, plan, is_partial=is_partial)


def coerce_time(plan: Plan, dtype: pa.DataType) -> Plan:
    """Return `plan` as a timestamp in the zone of `dtype`, in `dtype`'s unit or in a coarser one.

    A value that is beyond the range of `dtype` keeps a unit that holds it, so this never fails:
    timestamp[ns] ends in 2262, literals in 9999, and dates in the year 5,881,580.

    Args:
        plan: a date, a timestamp, or a literal that is read as one beside `dtype`.
        dtype: the timestamp type that `common_type` returned for `plan` and its neighbours.
    """
    literal = literal_of(plan)
    if literal is not None:
        try:
            return build_constant(plan.span, _literal_scalar(literal, dtype))
        except TypeRuleError:
            widest = pa.timestamp("us", dtype.tz)
            return build_constant(plan.span, _literal_scalar(literal, widest))
    unit = "s" if pa.types.is_date32(plan.type) else getattr(plan.type, "unit", dtype.unit)
    return coerce(plan, pa.timestamp(unit, dtype.tz))


def _literal_scalar(literal: Literal, dtype: pa.DataType) -> pa.Scalar:
    value: LiteralValue | decimal.Decimal = literal.value
    if isinstance(value, str) and types.is_day_or_time(dtype):
        value = literals.parse_time(value)
    if value is not None and pa.types.is_timestamp(dtype):
        return _timestamp_scalar(value, dtype, literal.span)
    if value is not None and pa.types.is_decimal(dtype):
        value = decimal.Decimal(literal.digits)
    if value is not None and pa.types.is_floating(dtype):
        return pa.scalar(float(literal.digits), type=dtype)
    return pa.scalar(value, type=dtype)


def _timestamp_scalar(value: object, dtype: pa.DataType, span: Span) -> pa.Scalar:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        value = dt.datetime(value.year, value.month, value.day)
    assert isinstance(value, dt.datetime)
    try:
        if value.tzinfo is not None or dtype.tz is None:
            return pa.scalar(value, type=dtype)
        local = pa.scalar(value, type=pa.timestamp(dtype.unit))
        return pc.assume_timezone(local, dtype.tz)
    except (pa.ArrowInvalid, OverflowError) as error:
        message = f"'{value}' is not a time that {dtype} can hold ({error}); write another"
        raise TypeRuleError(message, span=span) from error


def widen(values: Datum, target: pa.DataType) -> Datum:
    """Return `values` cast to a type that `types.promote` returned for theirs."""
    if values.type == target:
        return values
    if pa.types.is_date32(values.type) and target.tz is not None:
        midnight = values.cast(pa.timestamp(target.unit))
        return pc.assume_timezone(midnight, target.tz, ambiguous="earliest", nonexistent="latest")
    # Integers beyond 2**53 round to the nearest float, as in SQL.
    return values.cast(target, safe=not pa.types.is_floating(target))
