"""Functions on values of any type: choice and null handling. Part of `functions`."""

from __future__ import annotations

import pyarrow.compute as pc

from pipeline_runtime.expressions import coercion, operators
from pipeline_runtime.expressions.functions.base import (
    Arguments,
    Function,
    define,
    need_common_type,
)
from pipeline_runtime.expressions.plan import Plan, build_apply, build_shared
from pipeline_runtime.grammar.syntax_tree import Span


def _coalesce(span: Span, args: Arguments) -> Plan:
    dtype = need_common_type(args)
    values = (coercion.coerce(plan, dtype) for plan in args)
    return build_apply(span, "coalesce", dtype, pc.coalesce, *values)


def _nullif(span: Span, args: Arguments) -> Plan:
    value = build_shared(args[0])
    is_equal = operators.build_comparison(span, "=", value, args[1])
    null = operators.build_null(span)
    return operators.build_choice(span, (is_equal,), (null,), value)


def _if(span: Span, args: Arguments) -> Plan:
    condition = operators.need_boolean("if", args[0])
    return operators.build_choice(span, (condition,), (args[1],), args[2])


FUNCTIONS: tuple[Function, ...] = (
    define("coalesce", _coalesce),
    define("nullif", _nullif),
    define("if", _if),
)
