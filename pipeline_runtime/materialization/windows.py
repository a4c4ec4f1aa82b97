"""Conditions on partition columns: they choose partitions, and are no part of a recipe.

Tomorrow's `day >= '2026-01-02'` shares all days but two with today's condition. A condition on a
column whose partitions are hours, days, months or years may be true for only some rows of the first
and the last partition; what it says is then a part of the coverage of these two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.expressions import Expression
from pipeline_runtime.grammar.syntax_tree import Between, Binary, Column, Literal
from pipeline_runtime.materialization.states import Dimension, PartitionState

_ORDERS = ("<", "<=", ">", ">=")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PERIODS = ("hour", "day", "month", "year")
_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The conditions that choose partitions.

    Attributes:
        dimensions: those of the table.
        types: of the table's columns.
    """

    conditions: tuple[Expression, ...]
    dimensions: tuple[Dimension, ...]
    types: pa.Schema

    def judge(self, partitions: Mapping[str, PartitionState]) -> dict[str, str]:
        """Return the partitions with a row that satisfies all conditions.

        The value is the conditions that not all rows of the partition satisfy, as a text.
        """
        chosen = dict.fromkeys(partitions, "")
        for condition in self.conditions if partitions else ():
            first, last = self._evaluate(condition, list(partitions.values()))
            for key, is_first, is_last in zip(partitions, first, last, strict=True):
                if not (is_first or is_last):
                    chosen.pop(key, None)
                elif key in chosen and not (is_first and is_last):
                    chosen[key] = f"{chosen[key]} and {condition.text}".removeprefix(" and ")
        return chosen

    def _evaluate(
        self, condition: Expression, partitions: Sequence[PartitionState]
    ) -> tuple[list[bool], list[bool]]:
        """Return whether the first and the last value of each partition satisfy a condition."""
        ends: tuple[dict[str, pa.Array], dict[str, pa.Array]] = ({}, {})
        for place, dimension in enumerate(self.dimensions):
            if dimension.column in condition.columns:
                kind = self.types.field(dimension.column).type
                values = [partition.values[place] for partition in partitions]
                bounds = [_find_bounds(dimension.transform, value, kind) for value in values]
                for side, table in enumerate(ends):
                    found = [bound[side] for bound in bounds]
                    table[dimension.column] = _to_array(found, kind)
        first, last = (expressions.mask(condition, pa.table(each)).to_pylist() for each in ends)
        return first, last


def split_where(
    where: Expression | None, dimensions: Sequence[Dimension], types: pa.Schema
) -> tuple[Window, tuple[Expression, ...]]:
    """Split a condition into those that choose partitions, and those on rows."""
    choosing: list[Expression] = []
    others: list[Expression] = []
    for condition in expressions.conjuncts(where) if where else ():
        for part in _split_between(condition):
            chooses = _is_exact(part, dimensions, types) or _is_monotone(part, dimensions, types)
            (choosing if chooses else others).append(part)
    window = Window(conditions=tuple(choosing), dimensions=tuple(dimensions), types=types)
    return window, tuple(others)


def _split_between(condition: Expression) -> Iterator[Expression]:
    """Yield the two comparisons of `column between low and high`, or else the condition."""
    root = condition.root
    if not isinstance(root, Between) or root.negated:
        yield condition
        return
    operand, low, high = (
        condition.text[node.span.start : node.span.end]
        for node in (root.operand, root.low, root.high)
    )
    yield expressions.parse(f"({operand}) >= ({low})")
    yield expressions.parse(f"({operand}) <= ({high})")


def _is_exact(condition: Expression, dimensions: Sequence[Dimension], types: pa.Schema) -> bool:
    """Return whether the condition is the same for all rows of a partition."""
    exact = {
        dimension.column
        for dimension in dimensions
        if dimension.transform == "identity"
        and dimension.column in types.names
        and _is_plain(types.field(dimension.column).type)
    }
    return bool(condition.columns) and condition.columns <= exact


def _is_monotone(condition: Expression, dimensions: Sequence[Dimension], types: pa.Schema) -> bool:
    """Return whether the condition compares the column of a period with a constant."""
    root = condition.root
    if not isinstance(root, Binary) or root.op not in _ORDERS:
        return False
    if {type(root.left), type(root.right)} != {Column, Literal}:
        return False
    (name,) = condition.columns
    kind = types.field(name).type if name in types.names else pa.null()
    is_time = pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    return is_time and any(d.column == name and d.transform in _PERIODS for d in dimensions)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether a value of a partition becomes a value of this type without conversion."""
    tests = (
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_decimal,
        pa.types.is_date32,
        pa.types.is_timestamp,
    )
    return any(test(kind) for test in tests)


def _to_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of values; dates and times are numbers since 1970."""
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def _find_bounds(transform: str, value: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """Return the first and the last value that is in a partition."""
    if value is None or transform not in _PERIODS:
        return value, value
    first, following = _find_start(transform, value), _find_start(transform, value + 1)
    if pa.types.is_date32(kind):
        return (first - _EPOCH).days, (following - _EPOCH).days - 1
    per_second = _UNITS_PER_SECOND[kind.unit]
    start, end = (_count_seconds(moment) * per_second for moment in (first, following))
    return start, end - 1


def _find_start(transform: str, value: int) -> datetime:
    """Return the start of a period, given as a number since 1970."""
    if transform == "hour":
        return _EPOCH + timedelta(hours=value)
    if transform == "day":
        return _EPOCH + timedelta(days=value)
    if transform == "month":
        return datetime(1970 + value // 12, value % 12 + 1, 1, tzinfo=UTC)
    return datetime(1970 + value, 1, 1, tzinfo=UTC)


def _count_seconds(moment: datetime) -> int:
    passed = moment - _EPOCH
    return passed.days * _SECONDS_PER_DAY + passed.seconds
