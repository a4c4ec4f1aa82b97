"""Translates predicates into PyIceberg's expressions, by which it prunes manifests and files.

PyIceberg derives conditions on partitions from them, hidden ones included, and compares them with
the bounds in the manifests. `expressions.pushdown` decides what may prune.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg import expressions as ice

from pipeline_runtime import expressions
from pipeline_runtime.sources.base import Predicate

# PyIceberg's classes take arguments by position, which the types of their pydantic fields deny.
_TESTS: Mapping[str, Callable[..., ice.BooleanExpression]] = {
    "=": ice.EqualTo,
    "!=": ice.NotEqualTo,
    "<": ice.LessThan,
    "<=": ice.LessThanOrEqual,
    ">": ice.GreaterThan,
    ">=": ice.GreaterThanOrEqual,
    "in": ice.In,
    "not in": ice.NotIn,
    "is null": ice.IsNull,
    "is not null": ice.NotNull,
}


def build_row_filter(predicates: Sequence[Predicate], schema: pa.Schema) -> ice.BooleanExpression:
    """Return an expression that is true for every row that satisfies all predicates."""
    row_filter: ice.BooleanExpression = ice.AlwaysTrue()
    for predicate in predicates:
        found = expressions.to_filter(predicate.expression, schema, _Terms())
        if found is not None:
            row_filter = ice.And(row_filter, found)
    return row_filter


class _Terms:
    """The terms of PyIceberg's expressions."""

    def compare(self, name: str, op: str, value: pa.Scalar) -> ice.BooleanExpression | None:
        literal = _to_literal(value)
        return None if literal is None else _TESTS[op](ice.Reference(name), literal)

    def is_true(self, name: str, *, negated: bool) -> ice.BooleanExpression:
        return _TESTS["="](ice.Reference(name), not negated)

    def is_in(self, name: str, values: pa.Array, *, negated: bool) -> ice.BooleanExpression | None:
        literals = [_to_literal(value) for value in values]
        if None in literals:
            return None
        return _TESTS["not in" if negated else "in"](ice.Reference(name), literals)

    def is_null(self, name: str, *, negated: bool) -> ice.BooleanExpression:
        return _TESTS["is not null" if negated else "is null"](ice.Reference(name))

    def both(self, left: Any, right: Any) -> ice.BooleanExpression:
        return ice.And(left, right)

    def either(self, left: Any, right: Any) -> ice.BooleanExpression:
        return ice.Or(left, right)


def _to_literal(value: pa.Scalar) -> Any:
    """Return a constant as PyIceberg takes it; None if it cannot hold it exactly."""
    if pa.types.is_timestamp(value.type):
        if value.type.unit == "ns":  # a datetime has microseconds
            return None
        found = value.as_py()
        return found.isoformat() if found is not None else None
    return value.as_py()
