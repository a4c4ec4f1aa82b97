"""Step `fillNull`: replace nulls of columns by constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.config.steps import FillNullStep, Scalar
from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.cast import cast_array
from pipeline_runtime.steps.checks import Checks, broken, find_field, set_column
from pipeline_runtime.steps.lists import decode, decoded_type, map_chunks

_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_TIME_TYPES = (pa.types.is_date, pa.types.is_timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class FillNull(BoundStep):
    """Nulls of columns replaced by a constant of the column's type; NaN is not null."""

    kind: ClassVar[str] = "fillNull"
    is_columnwise: ClassVar[bool] = True

    columns: tuple[tuple[str, pa.Scalar], ...]

    @classmethod
    def bind(
        cls, config: FillNullStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        columns: list[tuple[str, pa.Scalar]] = []
        for index, column in enumerate(config.columns):
            field = None
            with checks.at(f"columns[{index}].name"):
                field = find_field(input_schema, column.name)
            if field is not None:
                with checks.at(f"columns[{index}].value"):
                    constant = fit_constant(column.value, decoded_type(field.type))
                    columns.append((column.name, constant))
        checks.finish()
        names = frozenset(name for name, _ in columns)
        return cls(columns=tuple(columns), inputs=names, outputs=names, output_schema=input_schema)

    def __call__(self, table: pa.Table) -> pa.Table:
        for name, value in self.columns:
            if name in table.schema.names:
                table = set_column(table, name, _fill(table.column(name), value))
        return table


def fit_constant(value: Scalar, data_type: pa.DataType) -> pa.Scalar:
    """The constant as a scalar of the type; broken rule if it does not fit."""
    wrong = broken(f"must be a constant that fits {data_type}, got {value!r}")
    if not _is_of_kind(value, data_type):
        raise wrong
    try:
        scalar = _build_scalar(value, data_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError) as error:
        raise wrong from error
    if _became_infinite(value, scalar):
        raise wrong
    return scalar


def _build_scalar(value: Scalar, data_type: pa.DataType) -> pa.Scalar:
    """Raises what Arrow does where the type does not hold the value."""
    if pa.types.is_decimal(data_type):
        return pa.scalar(Decimal(repr(value)), data_type)  # as written: no digit is lost
    if pa.types.is_integer(data_type) and isinstance(value, int):
        return pa.scalar(value, data_type)  # by way of int64, uint64 would lose its upper half
    return pa.scalar(value).cast(data_type)


def _became_infinite(value: Scalar, scalar: pa.Scalar) -> bool:
    """Arrow narrows 1e300 to an infinite float without a word."""
    narrowed = scalar.as_py()
    if not (isinstance(value, int | float) and isinstance(narrowed, float)):
        return False
    return math.isinf(narrowed) and not math.isinf(value)


def _is_of_kind(value: Scalar, data_type: pa.DataType) -> bool:
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(data_type))
    if isinstance(value, str):
        return any(is_kind(data_type) for is_kind in _TEXT_TYPES + _TIME_TYPES)
    numeric = pa.types.is_floating(data_type) or pa.types.is_decimal(data_type)
    return bool(numeric or pa.types.is_integer(data_type))


def _fill(column: pa.ChunkedArray, value: pa.Scalar) -> pa.ChunkedArray:
    if not _has_nulls(column):
        return column

    def fill_chunk(chunk: pa.Array) -> pa.Array:
        return cast_array(pc.fill_null(decode(chunk), value), column.type)

    return map_chunks(column, column.type, fill_chunk)


def _has_nulls(column: pa.ChunkedArray) -> bool:
    """Nulls of the column or, where it is encoded, of its dictionary."""
    encoded = pa.types.is_dictionary(column.type) or pa.types.is_run_end_encoded(column.type)
    return bool(encoded or column.null_count > 0)
