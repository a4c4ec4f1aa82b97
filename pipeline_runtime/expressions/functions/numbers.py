"""Functions on numbers. Part of `functions`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions import coercion, types
from pipeline_runtime.expressions.functions.base import (
    Arguments,
    Function,
    Rule,
    argument_error,
    constant_int,
    define,
    need_common_type,
    need_float,
    need_number,
)
from pipeline_runtime.expressions.plan import ArgumentError, Datum, Kernel, Plan, build_apply
from pipeline_runtime.grammar.syntax_tree import Span

# Beyond the digits of a float64 (17), and well within the exponent of a float32.
_MAX_ROUND_DIGITS = 18
# Half away from zero, as in SQL; Arrow's default is half to even.
_ROUND = partial(pc.round, round_mode="half_towards_infinity")


def _abs(span: Span, args: Arguments) -> Plan:
    number = need_number(args, 0)
    if pa.types.is_decimal(number.type):
        number = need_float(args, 0)
    is_integer = pa.types.is_integer(number.type)
    # The most negative integer has no absolute value of its type.
    kernel = pc.abs_checked if is_integer else pc.abs
    return build_apply(span, "abs", number.type, kernel, number, is_partial=is_integer)


def _to_integral(name: str, kernel: Kernel) -> Rule:
    """Round a value; integers stay as they are, floats keep their type."""

    def rule(span: Span, args: Arguments) -> Plan:
        if pa.types.is_integer(args[0].type):
            return args[0]
        number = need_float(args, 0)
        return build_apply(span, name, number.type, kernel, number)

    return rule


def _round(span: Span, args: Arguments) -> Plan:
    digits = constant_int(args, 1) if len(args) > 1 else 0
    if abs(digits) > _MAX_ROUND_DIGITS:
        limit = _MAX_ROUND_DIGITS
        raise argument_error(args, 1, f"must lie from -{limit} to {limit}, got {digits}")
    if digits < 0 and pa.types.is_integer(args[0].type):
        raise argument_error(args, 1, "must not be negative for an integer; cast it to float64")
    return _to_integral("round", partial(_ROUND, ndigits=digits))(span, args)


def _on_domain(
    name: str, kernel: Kernel, is_inside: Callable[[Datum, Datum], Datum], bound: float
) -> Rule:
    """A float function that gives null outside its domain, where Arrow gives NaN or infinity."""

    def guarded(values: Datum) -> Datum:
        is_defined = is_inside(values, pa.scalar(bound, values.type))
        # NaN lies outside every domain, but stays what it is.
        is_defined = pc.or_(is_defined, pc.is_nan(values))
        return kernel(pc.if_else(is_defined, values, pa.scalar(None, values.type)))

    return _map_float(name, guarded)


def _map_float(name: str, kernel: Kernel) -> Rule:
    def rule(span: Span, args: Arguments) -> Plan:
        number = need_float(args, 0)
        return build_apply(span, name, number.type, kernel, number)

    return rule


def _extreme(name: str, kernel: Kernel) -> Rule:
    def rule(span: Span, args: Arguments) -> Plan:
        dtype = need_common_type(args)
        if not (types.is_number(dtype) or types.is_text(dtype) or types.is_day_or_time(dtype)):
            raise ArgumentError(f"needs numbers, strings, dates or timestamps, got {dtype}")
        values = (coercion.coerce(plan, dtype) for plan in args)
        chosen = partial(_choose_zoned, kernel) if getattr(dtype, "tz", None) else kernel
        return build_apply(span, name, dtype, chosen, *values)

    return rule


def _choose_zoned(kernel: Kernel, *times: Datum) -> Datum:
    """Choose the least or greatest instant, since Arrow has none for timestamps with a zone."""
    zoned = times[0].type
    return kernel(*(time.cast(pa.timestamp(zoned.unit)) for time in times)).cast(zoned)


FUNCTIONS: tuple[Function, ...] = (
    define("abs", _abs),
    define("round", _round),
    define("floor", _to_integral("floor", pc.floor)),
    define("ceil", _to_integral("ceil", pc.ceil)),
    define("sqrt", _on_domain("sqrt", pc.sqrt, pc.greater_equal, 0.0)),
    define("ln", _on_domain("ln", pc.ln, pc.greater, 0.0)),
    define("log1p", _on_domain("log1p", pc.log1p, pc.greater, -1.0)),
    define("exp", _map_float("exp", pc.exp)),
    define("greatest", _extreme("greatest", pc.max_element_wise)),
    define("least", _extreme("least", pc.min_element_wise)),
)
