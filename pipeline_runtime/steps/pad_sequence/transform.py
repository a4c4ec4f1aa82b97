"""Step `padSequence`: make every list of a column exactly as long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.errors import ManifestError
from pipeline_runtime.kernels import Kernels, describe, select
from pipeline_runtime.sources.gather import Int64s, place_in_chunks
from pipeline_runtime.steps.base import BindContext, BoundStep, wants_kernels
from pipeline_runtime.steps.checks import Checks, broken, find_field, replace_types, set_column
from pipeline_runtime.steps.fill_null.transform import fit_constant
from pipeline_runtime.steps.list_columns import Ragged, is_list, map_chunks, split_lists
from pipeline_runtime.steps.pad_sequence.model import PadSequenceStep

Numbers = npt.NDArray[Any]

# Rows padded at once: their index matrix (8 bytes an item) stays near the cache at usual lengths.
_BLOCK_ITEMS = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class PadSequence(BoundStep):
    """Makes fixed-size lists of lists of numbers: cuts their end, or fills them up with a value.

    A null list becomes all value, a null item becomes the value.
    """

    kind: ClassVar[str] = "padSequence"
    picks_rows: ClassVar[bool] = True
    is_columnwise: ClassVar[bool] = True

    columns: tuple[tuple[str, pa.Scalar], ...]  # the value in the type of the column's items
    length: int
    kernels: bool = True  # pipelineOptions.debug.kernels

    @classmethod
    def bind(
        cls, config: PadSequenceStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        columns: list[tuple[str, pa.Scalar]] = []
        for index, name in enumerate(config.columns):
            with checks.at(f"columns[{index}]"):
                item_type = _item_type(find_field(input_schema, name))
                columns.append((name, _fit_value(config.value, name, item_type)))
        checks.finish()
        types = {name: pa.list_(value.type, config.length) for name, value in columns}
        return cls(
            columns=tuple(columns),
            length=config.length,
            kernels=wants_kernels(context),
            inputs=frozenset(types),
            outputs=frozenset(types),
            output_schema=replace_types(input_schema, types),
        )

    @property
    def way(self) -> str:
        return describe(self.kernels)

    def __call__(self, table: pa.Table) -> pa.Table:
        for name, value in self.columns:
            if name in table.schema.names:
                table = set_column(table, name, self._pad_column(table.column(name), value))
        return table

    def of_rows(self, table: pa.Table, places: Int64s) -> pa.Table | None:
        """Return the padded lists of the rows at `places`, which are copied once instead of twice.

        Without kernels it returns None: the rows must be picked first, and the result is the same.
        """
        padded = []
        for name, value in self.columns:
            kernels = select(self.kernels, len(places) * self.length)
            if kernels is None:
                return None
            padded.append(pad_rows(table.column(name), places, self.length, value, kernels))
        return pa.table(dict(zip((name for name, _ in self.columns), padded, strict=True)))

    def _pad_column(self, column: pa.ChunkedArray, value: pa.Scalar) -> pa.ChunkedArray:
        data_type = pa.list_(value.type, self.length)
        kernels = select(self.kernels, len(column) * self.length)
        return map_chunks(
            column, data_type, lambda chunk: pad_lists(chunk, self.length, value, kernels)
        )


def pad_lists(
    array: pa.Array, length: int, value: pa.Scalar, kernels: Kernels | None = None
) -> pa.FixedSizeListArray:
    """Return the lists with exactly `length` items each; uses `kernels` if they are given."""
    ragged = split_lists(array)
    items = _items_of(ragged, value)
    fill = np.array([value.as_py()], dtype=items.dtype)
    padded = np.empty(len(array) * length, dtype=items.dtype)
    if kernels is None:
        _pad_by_index(ragged, items, fill, padded.reshape(len(array), length))
    else:
        _pad_compiled(kernels, ragged, items, fill, padded, length)
    return pa.FixedSizeListArray.from_arrays(
        pa.array(padded, value.type), type=pa.list_(value.type, length)
    )


def pad_rows(
    column: pa.ChunkedArray, places: Int64s, length: int, value: pa.Scalar, kernels: Kernels
) -> pa.FixedSizeListArray:
    """`pad_lists` of the lists at these places, in their order."""
    padded = np.empty((len(places), length), dtype=value.type.to_pandas_dtype())
    fill = np.array([value.as_py()], dtype=padded.dtype)
    for chunk, inside, among in place_in_chunks(column, places):
        ragged = split_lists(chunk)
        picked = replace(
            ragged, starts=ragged.starts[inside], lengths=ragged.lengths[inside], null=None
        )
        items = _items_of(ragged, value)
        _pad_compiled(kernels, picked, items, fill, padded[among].reshape(-1), length)
    return pa.FixedSizeListArray.from_arrays(
        pa.array(padded.reshape(-1), value.type), type=pa.list_(value.type, length)
    )


def _items_of(ragged: Ragged, value: pa.Scalar) -> Numbers:
    """The items of all lists; Arrow copies them if it is to fill nulls, even if there is none."""
    items = pc.fill_null(ragged.items, value) if ragged.items.null_count else ragged.items
    numbers: Numbers = items.to_numpy(zero_copy_only=False)
    return numbers


def _pad_by_index(ragged: Ragged, items: Numbers, fill: Numbers, padded: Numbers) -> None:
    num_rows, length = padded.shape
    padded[:] = fill
    lengths = np.minimum(ragged.lengths, length)
    places = np.arange(length)
    rows_per_block = max(1, _BLOCK_ITEMS // length)
    for first in range(0, num_rows, rows_per_block):
        block = slice(first, first + rows_per_block)
        filled = places < lengths[block, None]
        padded[block][filled] = items[(ragged.starts[block, None] + places)[filled]]


def _pad_compiled(
    kernels: Kernels,
    ragged: Ragged,
    items: Numbers,
    fill: Numbers,
    padded: Numbers,
    length: int,
) -> None:
    word = np.dtype(f"u{items.dtype.itemsize}")  # bits are moved, whatever they mean
    kernels.pad(
        np.require(items, requirements="A").view(word),
        ragged.starts.view(np.uint64),
        ragged.lengths.view(np.uint64),
        np.uint64(length),
        fill.view(word)[0],
        padded.view(word),
    )


def _item_type(field: pa.Field) -> pa.DataType:
    if not (is_list(field.type) or pa.types.is_fixed_size_list(field.type)):
        raise broken(f"must be a column of lists, got {field.name!r} of type {field.type}")
    item_type = field.type.value_type
    if not (pa.types.is_integer(item_type) or pa.types.is_floating(item_type)):
        raise broken(
            f"must be a column of lists of numbers, got {field.name!r} of type {field.type}; "
            "cast it, or hash its items with hashBucket first"
        )
    return item_type


def _fit_value(value: int | str, name: str, item_type: pa.DataType) -> pa.Scalar:
    try:
        return fit_constant(value, item_type)
    except ManifestError as error:
        raise broken(f"value {error} (the items of {name!r})") from error
