"""Type rules and kernels of the operators: comparison, logic, arithmetic, `in`, `like`, `case`.

Used by `binder` and by the functions that are spelled with operators (`nullif`, `if`). Owns their
null behaviour: `and` and `or` follow Kleene; all others return null where an operand is null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions import coercion, types
from pipeline_runtime.expressions.plan import (
    Choose,
    Constant,
    Datum,
    KernelError,
    Plan,
    TypeRuleError,
    build_apply,
    build_constant,
    build_shared,
)
from pipeline_runtime.grammar.syntax_tree import Span

_COMPARISONS: dict[str, Callable[[Datum, Datum], Datum]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
# `a < b` is `b > a`.
MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# The way out in messages about operands of different kinds.
_CAST_HINT = "write cast(x as type) on one side"


# -- comparison ----------------------------------------------------------------------------------


def build_comparison(span: Span, op: str, left: Plan, right: Plan) -> Plan:
    """Build `left op right`, with both converted to one type."""
    dtype = coercion.common_type((left, right))
    if dtype is None:
        raise TypeRuleError(_mismatch(op, left, right))
    if not types.is_comparable(dtype):
        raise TypeRuleError(f"`{op}` compares numbers, strings, times and booleans, got {dtype}")
    # Arrow cannot compare two nulls, except as booleans; the result is null either way.
    dtype = pa.bool_() if pa.types.is_null(dtype) else dtype
    if pa.types.is_timestamp(dtype):
        times = (coercion.coerce_time(left, dtype), coercion.coerce_time(right, dtype))
        return _build_time_comparison(span, op, *times)
    args = (coercion.coerce(left, dtype), coercion.coerce(right, dtype))
    return build_apply(span, op, pa.bool_(), _COMPARISONS[op], *args)


def _build_time_comparison(span: Span, op: str, left: Plan, right: Plan) -> Plan:
    """Compare timestamps of one zone in the coarser of their units, whose range holds both values.

    With a in the finer unit and b in the coarser one: a < b if floor(a) < b, a <= b if
    ceil(a) <= b, and a = b if b is both floor(a) and ceil(a).
    """
    if left.type == right.type:
        return build_apply(span, op, pa.bool_(), _COMPARISONS[op], left, right)
    if types.finer_unit(left.type.unit, right.type.unit) != left.type.unit:
        left, right, op = right, left, MIRRORED[op]
    floor, ceil = _build_roundings(build_shared(left), right.type)
    if op in ("=", "!="):
        right = build_shared(right)
        parts = [_build_time_comparison(span, op, each, right) for each in (floor, ceil)]
        return build_logical(span, "and" if op == "=" else "or", parts)
    return _build_time_comparison(span, op, floor if op in ("<", ">=") else ceil, right)


def _build_roundings(times: Plan, coarser: pa.DataType) -> tuple[Plan, Plan]:
    """Return `times` rounded down and rounded up to the unit of `coarser`."""
    ticks = types.ticks_per_second(times.type.unit) // types.ticks_per_second(coarser.unit)

    def floor(values: Datum) -> Datum:
        return _divide_ticks(values, ticks, pc.less, -1).cast(coarser)

    def ceil(values: Datum) -> Datum:
        return _divide_ticks(values, ticks, pc.greater, 1).cast(coarser)

    return (
        build_apply(times.span, "floor", coarser, floor, times),
        build_apply(times.span, "ceil", coarser, ceil, times),
    )


def _divide_ticks(
    times: Datum, ticks: int, is_beyond: Callable[[Datum, Datum], Datum], step: int
) -> Datum:
    """Divide towards zero, and add `step` where the exact quotient lies beyond the result."""
    values = times.cast(pa.int64())
    quotients = pc.divide(values, ticks)
    is_short = is_beyond(values, pc.multiply(quotients, ticks))
    return pc.add(quotients, pc.if_else(is_short, step, 0))


def _mismatch(op: str, left: Plan, right: Plan) -> str:
    return f"`{op}` needs two values of one kind, got {left.type} and {right.type}; {_CAST_HINT}"


def build_between(span: Span, operand: Plan, low: Plan, high: Plan) -> Plan:
    """Build `low <= operand and operand <= high`, with `operand` evaluated once."""
    shared = build_shared(operand)
    bounds = (
        build_comparison(span, ">=", shared, low),
        build_comparison(span, "<=", shared, high),
    )
    return build_logical(span, "and", bounds)


def build_is_null(span: Span, operand: Plan, *, negated: bool) -> Plan:
    """Build `operand is [not] null`; NaN is a value, not null."""
    kernel = pc.is_valid if negated else pc.is_null
    return build_apply(span, "is not null" if negated else "is null", pa.bool_(), kernel, operand)


def build_in(span: Span, operand: Plan, items: Sequence[Plan]) -> Plan:
    """Build `operand in (items)`: a hash lookup of constants, or else `=` joined by `or`."""
    dtype = coercion.common_type((operand, *items))
    if dtype is None:
        other = next((item for item in items if not _is_alike(operand, item)), items[0])
        raise TypeRuleError(_mismatch("in", operand, other))
    if pa.types.is_timestamp(dtype):
        values = tuple(coercion.coerce_time(item, dtype) for item in items)
        units = {getattr(each.type, "unit", None) for each in (operand, *values)}
        if units != {dtype.unit}:  # a value may be beyond the range of `dtype`
            return _build_any_equal(span, operand, values)
    operand = coercion.coerce(operand, dtype)
    values = tuple(coercion.coerce(item, dtype) for item in items)
    constants = [value.value for value in values if isinstance(value, Constant)]
    is_lookup = len(constants) == len(values) and not pa.types.is_null(dtype)
    if is_lookup and types.is_comparable(dtype):
        return build_apply(span, "in", pa.bool_(), _Lookup(constants, dtype), operand, *values)
    return _build_any_equal(span, operand, values)


def _build_any_equal(span: Span, operand: Plan, values: Sequence[Plan]) -> Plan:
    shared = build_shared(operand)
    matches = tuple(build_comparison(span, "=", shared, value) for value in values)
    return matches[0] if len(matches) == 1 else build_logical(span, "or", matches)


def _is_alike(left: Plan, right: Plan) -> bool:
    try:
        return coercion.common_type((left, right)) is not None
    except TypeRuleError:
        return False


class _Lookup:
    """The kernel of `in` over constants; the set is built once, when the expression is bound."""

    def __init__(self, constants: Sequence[pa.Scalar], dtype: pa.DataType) -> None:
        valid = [scalar for scalar in constants if scalar.is_valid]
        self._has_null = len(valid) < len(constants)
        self._set = _join_zeros(pa.array([scalar.as_py() for scalar in valid], type=dtype))

    def __call__(self, operand: Datum, *_: Datum) -> Datum:
        found = pc.is_in(_join_zeros(operand), value_set=self._set)
        unknown = pa.scalar(None, pa.bool_())
        # A null member may equal anything, so a value that is not found is unknown, as in SQL.
        known = found if self._has_null else pc.is_valid(operand)
        return pc.if_else(known, found, unknown)


def _join_zeros(values: Datum) -> Datum:
    """Replace -0.0 by 0.0, since the lookup compares bits and `=` does not."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.add(values, pa.scalar(0.0, values.type))


# -- logic ---------------------------------------------------------------------------------------


def build_logical(span: Span, op: str, operands: Sequence[Plan]) -> Plan:
    """Build `and` or `or` over two or more operands."""
    args = tuple(need_boolean(op, plan) for plan in operands)
    kernel = pc.and_kleene if op == "and" else pc.or_kleene
    return build_apply(span, op, pa.bool_(), lambda *arrays: reduce(kernel, arrays), *args)


def build_not(span: Span, operand: Plan) -> Plan:
    """Build `not operand`."""
    return build_apply(span, "not", pa.bool_(), pc.invert, need_boolean("not", operand))


def need_boolean(op: str, plan: Plan) -> Plan:
    """Return `plan` as a boolean; a null literal counts as one."""
    if pa.types.is_boolean(plan.type) or pa.types.is_null(plan.type):
        return coercion.coerce(plan, pa.bool_())
    message = f"`{op}` needs a boolean, got {plan.type}; compare it, as in `x > 0`"
    raise TypeRuleError(message, span=plan.span)


# -- arithmetic ----------------------------------------------------------------------------------


def build_arithmetic(span: Span, op: str, left: Plan, right: Plan) -> Plan:
    """Build `left op right`: checked int64 or uint64, or floats; `/` always returns a float."""
    for plan in (left, right):
        _need_number(op, plan)
    dtype = _arithmetic_type(op, (left, right))
    args = tuple(_as_operand(plan, dtype) for plan in (left, right))
    kernel = _arithmetic_kernel(op, dtype)
    is_partial = pa.types.is_integer(dtype)
    return build_apply(span, op, dtype, kernel, *args, is_partial=is_partial)


def _need_number(op: str, plan: Plan) -> None:
    if types.is_number(plan.type) or pa.types.is_null(plan.type):
        return
    if types.is_day_or_time(plan.type):
        hint = "use date_diff_days(a, b) or epoch_seconds(t)"
    else:
        hint = "join strings with `||`" if types.is_text(plan.type) else "use cast(x as float64)"
    raise TypeRuleError(f"`{op}` needs numbers, got {plan.type}; {hint}", span=plan.span)


def _arithmetic_type(op: str, plans: Sequence[Plan]) -> pa.DataType:
    weak = [plan for plan in plans if coercion.literal_of(plan) is not None]
    strong = [plan.type for plan in plans if coercion.literal_of(plan) is None]
    dtypes = strong or [plan.type for plan in weak]
    if strong and all(pa.types.is_float32(dtype) for dtype in strong):
        return pa.float32()
    all_types = [plan.type for plan in plans]
    if op == "/" or any(_is_inexact(dtype) for dtype in all_types):
        return pa.float64()
    is_unsigned = any(pa.types.is_uint64(dtype) for dtype in dtypes)
    if is_unsigned and all(_is_never_negative(plan) for plan in plans):
        return pa.uint64()
    return pa.int64()


def _is_inexact(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_floating(dtype) or pa.types.is_decimal(dtype))


def _is_never_negative(plan: Plan) -> bool:
    literal = coercion.literal_of(plan)
    if literal is not None and isinstance(literal.value, int):
        return literal.value >= 0
    return bool(pa.types.is_unsigned_integer(plan.type) or pa.types.is_null(plan.type))


def _as_operand(plan: Plan, dtype: pa.DataType) -> Plan:
    if pa.types.is_uint64(plan.type) and pa.types.is_int64(dtype):
        return build_apply(plan.span, "widen", dtype, _to_signed, plan, is_partial=True)
    return coercion.coerce(plan, dtype)


def _to_signed(values: Datum) -> Datum:
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid as error:
        message = "a uint64 beside a signed number counts as int64, and a value does not fit"
        raise KernelError(f"{message}; cast the other to uint64, or both to float64") from error


def _arithmetic_kernel(op: str, dtype: pa.DataType) -> Callable[[Datum, Datum], Datum]:
    if op == "/":
        return _divide
    if op == "%":
        return _remainder
    checked = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
    plain = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
    kernels: dict[str, Callable[[Datum, Datum], Datum]]
    kernels = checked if pa.types.is_integer(dtype) else plain
    return kernels[op]


def _divide(left: Datum, right: Datum) -> Datum:
    return pc.divide(left, _null_if_zero(right))


def _null_if_zero(divisor: Datum) -> Datum:
    zero = pa.scalar(0, divisor.type)
    return pc.if_else(pc.equal(divisor, zero), pa.scalar(None, divisor.type), divisor)


def _remainder(left: Datum, right: Datum) -> Datum:
    """Return C's remainder, with the sign of `left`, by NumPy: Arrow 21 has no such kernel."""
    divisor = _null_if_zero(right)
    valid = pc.and_(pc.is_valid(left), pc.is_valid(divisor))
    with np.errstate(invalid="ignore"):  # the remainder of infinity is NaN, without a warning
        values = np.fmod(_to_numpy(left), _to_numpy(divisor, fill=1))
    return pc.if_else(valid, pa.array(values, type=left.type), pa.scalar(None, left.type))


def _to_numpy(values: Datum, fill: int = 0) -> np.ndarray:
    if isinstance(values, pa.Scalar):
        values = pa.repeat(values, 1)  # NumPy broadcasts the one row
    filled = pc.fill_null(values, pa.scalar(fill, values.type))
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def build_negation(span: Span, operand: Plan) -> Plan:
    """Build `-operand`."""
    _need_number("-", operand)
    dtype = pa.int64() if not _is_inexact(operand.type) else operand.type
    dtype = pa.float64() if pa.types.is_decimal(dtype) else dtype
    is_integer = pa.types.is_integer(dtype)
    kernel = pc.negate_checked if is_integer else pc.negate
    operand = _as_operand(operand, dtype)
    return build_apply(span, "-", dtype, kernel, operand, is_partial=is_integer)


# -- choice --------------------------------------------------------------------------------------


def build_null(span: Span) -> Plan:
    """Build a null, which adapts to any type."""
    return build_constant(span, pa.scalar(None, pa.null()))


def build_choice(
    span: Span, conditions: Sequence[Plan], values: Sequence[Plan], default: Plan | None
) -> Plan:
    """Build the choice of the first true condition's value, else of `default`, else of null."""
    checked = tuple(need_boolean("when", plan) for plan in conditions)
    branches = (*values, default or build_null(span))
    dtype = coercion.common_type(branches)
    if dtype is None:
        kinds = ", ".join(dict.fromkeys(str(plan.type) for plan in branches))
        raise TypeRuleError(f"all branches need one type, got {kinds}; write cast(x as type)")
    *chosen, fallback = (coercion.coerce(plan, dtype) for plan in branches)
    return Choose(
        span=span,
        type=dtype,
        conditions=checked,
        values=tuple(chosen),
        default=fallback,
        can_fail=any(plan.can_fail for plan in (*checked, *chosen, fallback)),
    )
