"""Step `cast`: convert columns to another type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.errors import StepError
from pipeline_runtime.grammar.calls import MAX_DECIMAL_DIGITS
from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.cast.model import CastStep
from pipeline_runtime.steps.checks import Checks, broken, find_field, replace_types, set_column
from pipeline_runtime.steps.list_columns import decode, decoded_type, map_chunks
from pipeline_runtime.steps.type_names import TypeNameError, parse_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(BoundStep):
    """Converts columns in place; null stays null.

    A value that the new type cannot hold raises `StepError`. Only integers may be rounded, to the
    nearest float. Dictionaries are decoded first.
    """

    kind: ClassVar[str] = "cast"
    is_columnwise: ClassVar[bool] = True

    columns: tuple[tuple[str, pa.DataType], ...]

    @classmethod
    def bind(
        cls, config: CastStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        types: dict[str, pa.DataType] = {}
        for index, column in enumerate(config.columns):
            source = None
            with checks.at(f"columns[{index}].name"):
                source = find_field(input_schema, column.name).type
            with checks.at(f"columns[{index}].type"):
                types[column.name] = _check_cast(source, column.type)
        checks.finish()
        return cls(
            columns=tuple(types.items()),
            inputs=frozenset(types),
            outputs=frozenset(types),
            output_schema=replace_types(input_schema, types),
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        for name, data_type in self.columns:
            if name in table.schema.names:
                table = set_column(table, name, _cast_column(name, table.column(name), data_type))
        return table


def cast_array(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return the values in another type. Raises `pa.ArrowInvalid` if one does not fit."""
    if array.type == data_type:
        return array
    if pa.types.is_dictionary(data_type):
        values = cast_array(array, data_type.value_type)
        return values.dictionary_encode().cast(data_type)
    plain = decode(array)
    if pa.types.is_decimal(data_type) and pa.types.is_integer(plain.type):
        # Arrow refuses a decimal that could not hold every integer of the type, whatever is there.
        plain = plain.cast(pa.decimal256(MAX_DECIMAL_DIGITS, data_type.scale))
    to_float = pa.types.is_integer(_leaf(plain.type)) and pa.types.is_floating(_leaf(data_type))
    options = pc.CastOptions(data_type, allow_float_truncate=to_float)
    values = pc.cast(plain, options=options)
    _check_finite(plain, values)
    return values


def _leaf(data_type: pa.DataType) -> pa.DataType:
    while pa.types.is_nested(data_type) and data_type.num_fields == 1:
        data_type = data_type.field(0).type
    return data_type


def _check_finite(before: pa.Array, after: pa.Array) -> None:
    """Refuse finite values that became infinite: Arrow narrows 1e300 without an error."""
    if not (pa.types.is_floating(after.type) and pa.types.is_floating(before.type)):
        return
    lost = pc.and_(pc.is_inf(after), pc.invert(pc.is_inf(before)))
    if pc.any(lost).as_py():
        value = before[pc.index(lost, True).as_py()]
        raise pa.ArrowInvalid(f"Float value {value.as_py()!r} not in range of {after.type}")


def _check_cast(source: pa.DataType | None, type_name: str) -> pa.DataType:
    """Return the type; a source of None is that of an unknown column."""
    try:
        target = parse_type(type_name)
    except TypeNameError as error:
        raise broken(str(error)) from error
    if source is None:
        return target
    try:
        cast_array(pa.array([], decoded_type(source)), target)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise broken(
            f"must be a type that {source} can become, got {type_name!r}; derive the column instead"
        ) from error
    return target


def _cast_column(name: str, column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    try:
        return map_chunks(column, data_type, lambda chunk: cast_array(chunk, data_type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise StepError(
            f"cast.columns[{name}]: every value must fit {data_type}, got from {column.type}: "
            f"{error}; take a wider type, or filter or derive such values away first"
        ) from error
