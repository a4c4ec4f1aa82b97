"""Renders the prompts of a table's rows from a template, column by column.

A value is put in place of its column's name and never read as a template: braces in it stay. Arrow
writes numbers, booleans, decimals, dates and times; lists, structs and maps are JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.config.texts.prompt_template import TemplatePart, parse_template
from pipeline_runtime.steps.checks import broken, find_field
from pipeline_runtime.steps.list_columns import decoded_type


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """A template whose columns exist and have a text."""

    parts: tuple[TemplatePart, ...]

    @classmethod
    def bind(cls, text: str, schema: pa.Schema) -> Self:
        """Return the template. Raises a broken rule for a column without one."""
        parts = parse_template(text)
        for part in parts:
            if part.is_column:
                _check_text(find_field(schema, part.text))
        return cls(parts=parts)

    @property
    def columns(self) -> frozenset[str]:
        """The columns in the template."""
        return frozenset(part.text for part in self.parts if part.is_column)

    def render(self, table: pa.Table) -> pa.Array:
        """Return the prompt of each row, as large_string: null if all its columns are null.

        A null among other values has no text.
        """
        texts = {name: to_text(table.column(name)) for name in sorted(self.columns)}
        parts = [
            texts[part.text] if part.is_column else pa.scalar(part.text, pa.large_string())
            for part in self.parts
        ]
        joined = pc.binary_join_element_wise(
            *parts,
            pa.scalar("", pa.large_string()),
            null_handling="replace",
            null_replacement="",
        )
        known = pc.is_valid(pc.coalesce(*texts.values()))
        return pc.if_else(known, joined, pa.scalar(None, pa.large_string()))


def _check_text(field: pa.Field) -> None:
    if not _has_text(field.type):
        raise broken(
            f"must have columns with a text, but {field.name!r} has {field.type}; cast it to a "
            "string in a step before"
        )


def _has_text(kind: pa.DataType) -> bool:
    """Return whether values of a type can be written: neither bytes nor calendar intervals."""
    kind = decoded_type(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_text(kind.storage_type)
    if pa.types.is_nested(kind):
        return all(_has_text(kind.field(index).type) for index in range(kind.num_fields))
    without = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_binary_view,
        pa.types.is_interval,
    )
    return not any(test(kind) for test in without)


def to_text(column: pa.ChunkedArray) -> pa.Array:
    """Return the values of a column as large_string; nulls stay null."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = decoded_type(array.type)
    if pa.types.is_nested(kind):
        return pa.array(_write_json(array.to_pylist()), pa.large_string())
    if kind != array.type and not pa.types.is_dictionary(array.type):
        array = pc.run_end_decode(array)
    return array.cast(pa.large_string())


def _write_json(values: Sequence[object]) -> list[str | None]:
    return [
        None if value is None else json.dumps(_to_json(value), ensure_ascii=False, default=str)
        for value in values
    ]


def _to_json(value: Any) -> Any:
    """Return a value of Arrow as JSON has it: NaN and infinity are null, pairs of a map lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    return value
