"""Translates a filter into an Arrow dataset filter, to skip partitions and row groups unread.

Runs beside `evaluate`, on the same typed plan, in which a constant already has its column's type.
The translation must be sound: every row for which the expression is true passes it. Other rows may
pass too, so `mask` still filters the rows.

The statistics of a row group ignore NaN. A test of floats that NaN passes (`!=`, or a negated test)
could skip a row group with NaN, so it is not translated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions import types
from pipeline_runtime.expressions.expression import Expression, build_plan
from pipeline_runtime.expressions.operators import MIRRORED
from pipeline_runtime.expressions.plan import Apply, Constant, Plan, Read, Shared

_Test = Callable[[pc.Expression, pa.Scalar], pc.Expression]

_TESTS: dict[str, _Test] = {
    "=": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
}
_OPPOSITES = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_T = TypeVar("_T")


class Terms(Protocol[_T]):
    """The terms of a filter language; a term that it lacks is None, and is left out if it may be.

    Constants are of their column's type, and not null.
    """

    def compare(self, name: str, op: str, value: pa.Scalar) -> _T | None:
        """Return `column op value`, where op is =, !=, <, <=, > or >=."""
        ...

    def is_true(self, name: str, *, negated: bool) -> _T | None:
        """Return a column of booleans, or its opposite."""
        ...

    def is_in(self, name: str, values: pa.Array, *, negated: bool) -> _T | None:
        """Return `column in values`, or its opposite."""
        ...

    def is_null(self, name: str, *, negated: bool) -> _T | None:
        """Return `column is null`, or its opposite. NaN is not null."""
        ...

    def both(self, left: _T, right: _T) -> _T:
        """Return `left and right`."""
        ...

    def either(self, left: _T, right: _T) -> _T:
        """Return `left or right`."""
        ...


class _ArrowTerms:
    """The terms of `pyarrow.dataset`."""

    def compare(self, name: str, op: str, value: pa.Scalar) -> pc.Expression:
        return _TESTS[op](pc.field(name), value)

    def is_true(self, name: str, *, negated: bool) -> pc.Expression:
        return ~pc.field(name) if negated else pc.field(name)

    def is_in(self, name: str, values: pa.Array, *, negated: bool) -> pc.Expression:
        found = pc.field(name).isin(values)
        return ~found if negated else found

    def is_null(self, name: str, *, negated: bool) -> pc.Expression:
        column = pc.field(name)
        return column.is_valid() if negated else column.is_null(nan_is_null=False)

    def both(self, left: pc.Expression, right: pc.Expression) -> pc.Expression:
        return left & right

    def either(self, left: pc.Expression, right: pc.Expression) -> pc.Expression:
        return left | right


def to_dataset_filter(expr: Expression, schema: pa.Schema) -> pc.Expression | None:
    """Return a dataset filter that keeps every row for which `expr` is true; None if there is none.

    The filter of a conjunction has those parts that can be translated. `schema` is the dataset's.
    Raises ExpressionError as `infer_type` does.
    """
    return to_filter(expr, schema, _ArrowTerms())


def to_filter(expr: Expression, schema: pa.Schema, terms: Terms[_T]) -> _T | None:
    """Return a filter of any language as `to_dataset_filter` does, made of its terms."""
    plan = build_plan(expr, schema)
    if not pa.types.is_boolean(plan.type):
        return None
    return _Translator(schema, terms).translate(plan, negated=False)


class _Translator(Generic[_T]):
    """Translates plans over one schema; `negated` asks for the rows where a plan is false."""

    def __init__(self, schema: pa.Schema, terms: Terms[_T]) -> None:
        self._schema = schema
        self._terms = terms

    def translate(self, plan: Plan, *, negated: bool) -> _T | None:
        if isinstance(plan, Read):
            return self._translate_flag(plan, negated=negated)
        if not isinstance(plan, Apply):
            return None
        if plan.op == "not":
            return self.translate(plan.args[0], negated=not negated)
        if plan.op in ("and", "or"):
            return self._translate_logical(plan, negated=negated)
        if plan.op in ("is null", "is not null"):
            return self._translate_null(plan, negated=negated)
        if plan.op == "in":
            return self._translate_in(plan, negated=negated)
        return self._translate_comparison(plan, negated=negated)

    def _translate_logical(self, plan: Apply, *, negated: bool) -> _T | None:
        parts = [self.translate(arg, negated=negated) for arg in plan.args]
        known = [part for part in parts if part is not None]
        if (plan.op == "and") != negated:
            # Each part of a conjunction, on its own, keeps all rows that pass the whole.
            return reduce(self._terms.both, known) if known else None
        return reduce(self._terms.either, known) if len(known) == len(parts) else None

    def _translate_flag(self, plan: Read, *, negated: bool) -> _T | None:
        if not pa.types.is_boolean(self._schema.field(plan.name).type):
            return None
        return self._terms.is_true(plan.name, negated=negated)

    def _translate_null(self, plan: Apply, *, negated: bool) -> _T | None:
        column = _unwrap(plan.args[0])
        if not isinstance(column, Read) or self._is_dictionary(column):
            return None
        is_null = (plan.op == "is null") != negated
        return self._terms.is_null(column.name, negated=not is_null)

    def _translate_in(self, plan: Apply, *, negated: bool) -> _T | None:
        column, *members = (_unwrap(arg) for arg in plan.args)
        values = _valid_scalars(members)
        if not self._is_plain(column) or not values or len(values) < len(members):
            return None
        assert isinstance(column, Read)
        if pa.types.is_floating(column.type):
            # A lookup distinguishes -0.0 from 0.0; a chain of `=` does not.
            if negated:
                return None
            found = [self._terms.compare(column.name, "=", value) for value in values]
            known = [test for test in found if test is not None]
            return reduce(self._terms.either, known) if len(known) == len(found) else None
        members = pa.array([value.as_py() for value in values], type=column.type)
        return self._terms.is_in(column.name, members, negated=negated)

    def _translate_comparison(self, plan: Apply, *, negated: bool) -> _T | None:
        if plan.op not in _TESTS:
            return None
        left, right = (_unwrap(arg) for arg in plan.args)
        op = plan.op
        if isinstance(left, Constant):
            left, right, op = right, left, MIRRORED[op]
        if not self._is_plain(left) or not _valid_scalars([right]):
            return None
        assert isinstance(left, Read)
        assert isinstance(right, Constant)
        is_float = pa.types.is_floating(left.type)
        if is_float and (negated or op == "!="):
            return None
        return self._terms.compare(left.name, _OPPOSITES[op] if negated else op, right.value)

    def _is_dictionary(self, column: Read) -> bool:
        # Arrow 21 treats a row group as empty if it holds only nulls of a dictionary column.
        return bool(pa.types.is_dictionary(self._schema.field(column.name).type))

    def _is_plain(self, plan: Plan) -> bool:
        """Return whether Arrow compares this column with a constant as `evaluate` does."""
        if not isinstance(plan, Read):
            return False
        stored = self._schema.field(plan.name).type
        if pa.types.is_dictionary(stored) and types.is_text(plan.type):
            stored = stored.value_type
        return stored == plan.type and any(is_kind(plan.type) for is_kind in _SAFE_KINDS)


# Kinds whose statistics Arrow compares as `evaluate` compares their values.
_SAFE_KINDS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


def _unwrap(plan: Plan) -> Plan:
    return plan.plan if isinstance(plan, Shared) else plan


def _valid_scalars(plans: Iterable[Plan]) -> list[pa.Scalar]:
    return [plan.value for plan in plans if isinstance(plan, Constant) and plan.value.is_valid]
