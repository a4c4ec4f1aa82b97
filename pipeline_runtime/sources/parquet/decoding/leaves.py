"""Columns of a Parquet file whose pages are decoded here: numbers, and lists of numbers.

The schema alone tells how to read their pages: the stored type, the number of its bytes that Arrow
uses, and the definition levels of a null list, an empty list and a null item.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_SMALL = (pa.int8(), pa.int16(), pa.uint8(), pa.uint16())
# By Parquet's type: the type in a page, and Arrow's types that equal its bits or its lowest bits.
STORED: Mapping[str, tuple[np.dtype[Any], tuple[pa.DataType, ...]]] = {
    "BOOLEAN": (np.dtype(np.uint8), (pa.bool_(),)),  # after its bits are unpacked
    "INT32": (np.dtype(np.uint32), (*_SMALL, pa.int32(), pa.uint32(), pa.date32())),
    "INT64": (np.dtype(np.uint64), (pa.int64(), pa.uint64())),
    "FLOAT": (np.dtype(np.uint32), (pa.float32(),)),
    "DOUBLE": (np.dtype(np.uint64), (pa.float64(),)),
}
_TIME_UNITS = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A column of numbers, or of lists of numbers: one leaf of the file's schema."""

    index: int  # of the leaf
    type: pa.DataType  # of the column
    stored: np.dtype[Any]  # unsigned, also for signed numbers and floats
    max_level: int  # definition level of an item that is not null

    @cached_property
    def is_list(self) -> bool:
        """True for a column of lists, whose items are the numbers."""
        return _is_list(self.type)

    @cached_property
    def empty_level(self) -> int:
        """Definition level of an empty list; a null list has a lower one, an item a higher one."""
        return self.max_level - 1 - int(self.type.value_field.nullable) if self.is_list else 0

    @cached_property
    def items(self) -> pa.DataType:
        """The type of an item, or of a number."""
        return self.type.value_type if self.is_list else self.type

    @cached_property
    def is_boolean(self) -> bool:
        """True if an item is one bit."""
        return bool(pa.types.is_boolean(self.items))

    @cached_property
    def is_large(self) -> bool:
        """True if the lists' offsets have 64 bits."""
        return bool(pa.types.is_large_list(self.type))

    @cached_property
    def size(self) -> int:
        """Bytes of a plain item in a page; 0 for an item of one bit."""
        return 0 if self.is_boolean else self.stored.itemsize

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Unsigned integers as wide as an item in Arrow's memory; a boolean before it is packed."""
        return np.dtype(np.uint8 if self.is_boolean else f"u{self.items.bit_width // 8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A leaf's chunk of a row group as stored in the file, or a part of its pages.

    Args:
        dictionary: the page of the chunk's dictionary, if the part does not have it.
        is_part: `num_rows` is an upper bound, and list 0 continues the last one of the part before.
    """

    data: pa.Buffer
    dictionary: pa.Buffer | None = None
    is_part: bool = False
    codec: str  # by pyarrow's name
    num_rows: int  # of the row group, each a number or a list
    num_values: int  # levels by the footer: items, null lists and empty lists
    uncompressed_bytes: int


def find_leaves(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Leaf]:
    """Return the columns of a file that can be decoded here, by name.

    Args:
        schema: the Arrow schema with which pyarrow reads the file.
    """
    below, paths = _leaves_below(metadata)
    found = {}
    for column in schema:
        leaves = (below if _is_list(column.type) else paths)[column.name]
        leaf = _find_leaf(metadata, leaves[0], column) if len(leaves) == 1 else None
        if leaf is not None:
            found[column.name] = leaf
    return found


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _leaves_below(
    metadata: pq.FileMetaData,
) -> tuple[Mapping[str, list[int]], Mapping[str, list[int]]]:
    """Return the leaves below each name, and the leaves of exactly that name.

    Names may contain dots themselves.
    """
    below, paths = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for index in range(metadata.num_columns):
        path = metadata.schema.column(index).path
        paths[path].append(index)
        parts = path.split(".")
        for end in range(1, len(parts)):
            below[".".join(parts[:end])].append(index)
    return below, paths


def _find_leaf(metadata: pq.FileMetaData, index: int, column: pa.Field) -> Leaf | None:
    described, is_list = metadata.schema.column(index), _is_list(column.type)
    items = column.type.value_field if is_list else column
    stored, types = STORED.get(described.physical_type, (None, ()))
    levels = int(column.nullable) + (1 + int(items.nullable) if is_list else 0)
    if stored is None or described.max_repetition_level != int(is_list):
        return None
    if described.max_definition_level != levels:
        return None
    if items.type not in types and not _is_time(items.type, described):
        return None
    return Leaf(index=index, type=column.type, stored=stored, max_level=levels)


def _is_time(data_type: pa.DataType, described: Any) -> bool:
    """Return whether a timestamp is stored in the unit of its Arrow type."""
    if not pa.types.is_timestamp(data_type) or described.physical_type != "INT64":
        return False
    unit = _TIME_UNITS.get(data_type.unit)
    return unit is not None and f"timeUnit={unit}" in str(described.logical_type)
