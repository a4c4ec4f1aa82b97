"""Step `fillNull`: replace nulls of columns by constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.config.decimals import is_number
from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.cast.transform import cast_array
from pipeline_runtime.steps.checks import Checks, broken, find_field, set_column
from pipeline_runtime.steps.fill_null.model import FillNullStep
from pipeline_runtime.steps.list_columns import decode, decoded_type, map_chunks

_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_TIME_TYPES = (pa.types.is_date, pa.types.is_timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class FillNull(BoundStep):
    """Replaces nulls of columns by a constant of the column's type; NaN is not null."""

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


def fit_constant(value: bool | int | str, data_type: pa.DataType) -> pa.Scalar:
    """Return the constant as a scalar of the type. Raises a broken rule if it does not fit.

    A text is a number where the type is one: "0.5" for a float or a decimal.
    """
    advice = _advise(value, data_type)
    wrong = broken(f"must be a constant that fits {data_type}, got {value!r}; {advice}")
    if not _is_of_kind(value, data_type):
        raise wrong
    try:
        scalar = _build_scalar(value, data_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OverflowError) as error:
        raise wrong from error
    # Arrow narrows 1e300 to an infinite float without a word, and no constant is infinite.
    narrowed = scalar.as_py()
    if isinstance(narrowed, float) and math.isinf(narrowed):
        raise wrong
    return scalar


def _build_scalar(value: bool | int | str, data_type: pa.DataType) -> pa.Scalar:
    """Return the scalar. Raises what Arrow does if the type does not hold the value."""
    if not _is_numeric(data_type):
        return pa.scalar(value).cast(data_type)
    if pa.types.is_floating(data_type):
        return pa.scalar(float(value)).cast(data_type)
    number = Decimal(value)
    if pa.types.is_decimal(data_type):
        return pa.scalar(number, data_type)  # as written: no digit is lost
    if number != number.to_integral_value():
        raise OverflowError(f"{value!r} is no integer")
    return pa.scalar(int(number), data_type)  # by way of int64, uint64 would lose its upper half


def _is_numeric(data_type: pa.DataType) -> bool:
    is_float = pa.types.is_floating(data_type)
    return bool(is_float or pa.types.is_decimal(data_type) or pa.types.is_integer(data_type))


def _is_of_kind(value: bool | int | str, data_type: pa.DataType) -> bool:
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(data_type))
    if _is_numeric(data_type):
        return not isinstance(value, str) or is_number(value)
    is_text = any(is_kind(data_type) for is_kind in _TEXT_TYPES + _TIME_TYPES)
    return isinstance(value, str) and is_text


def _advise(value: bool | int | str, data_type: pa.DataType) -> str:
    """Return what to write instead of a constant that does not fit."""
    if pa.types.is_boolean(data_type):
        plain = str(value).strip().lower()
        is_quoted = plain in ("true", "false")
        return f"write {plain} without quotes" if is_quoted else "write true or false"
    if not _is_of_kind(value, data_type):
        if _is_numeric(data_type):
            return "write a number"
        if _is_of_kind(str(value), data_type):
            return "quote it"
    return "write another, or cast the column before this step"


def _fill(column: pa.ChunkedArray, value: pa.Scalar) -> pa.ChunkedArray:
    if not _has_nulls(column):
        return column

    def fill_chunk(chunk: pa.Array) -> pa.Array:
        return cast_array(pc.fill_null(decode(chunk), value), column.type)

    return map_chunks(column, column.type, fill_chunk)


def _has_nulls(column: pa.ChunkedArray) -> bool:
    """Return whether the column may have nulls; the dictionary of an encoded one may."""
    encoded = pa.types.is_dictionary(column.type) or pa.types.is_run_end_encoded(column.type)
    return bool(encoded or column.null_count > 0)
