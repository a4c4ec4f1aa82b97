"""Parquet files of numbers and lists of numbers, for the tests of the decoder."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from pipeline_runtime import kernels
from pipeline_runtime.kernels import Kernels
from pipeline_runtime.sources.parquet.decoding.leaves import Stored, find_leaves
from pipeline_runtime.sources.parquet.decoding.pages import OpenFile
from pipeline_runtime.sources.parquet.decoding.row_group import Marks, decode_columns
from pipeline_runtime.sources.parquet.footers import read_footer

NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.bool_(), pa.date32()),
    pa.timestamp("s"),  # which Parquet stores as milliseconds
    *(pa.timestamp("ms"), pa.timestamp("us", tz="UTC"), pa.timestamp("ns")),
]


def items_of(data_type: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_boolean(data_type):
        return st.booleans()
    if pa.types.is_floating(data_type):
        return st.floats(width=data_type.bit_width)
    width = 16 if pa.types.is_temporal(data_type) else data_type.bit_width
    is_signed = not pa.types.is_unsigned_integer(data_type)
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if is_signed else (0, 2**width - 1)
    return st.sampled_from([low, high, 0, 1, 2, 3]) | st.integers(low, high)


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Field, pa.Array]:
    """Draw lists with and without long runs, with nulls wherever the field allows them."""
    item_type = draw(st.sampled_from(NUMBERS))
    items = pa.field("element", item_type, draw(st.booleans()))
    make = draw(st.sampled_from([pa.list_, pa.large_list]))
    field = pa.field("x", make(items), draw(st.booleans()))
    item = items_of(item_type) | (st.none() if items.nullable else st.nothing())
    size = st.sampled_from([0, 1, 2, 9, 40]) if draw(st.booleans()) else st.just(3)
    lists = size.flatmap(lambda n: st.lists(item, min_size=n, max_size=n))
    lists |= st.none() if field.nullable else st.nothing()
    rows = draw(st.lists(lists, min_size=1, max_size=30)) * draw(st.sampled_from([1, 1, 50]))
    storage = _cast_from_numbers(rows, item_type, make)
    return field, storage.cast(field.type)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[pa.Field, pa.Array]:
    """Draw numbers with and without long runs, with nulls where the field allows them."""
    field = pa.field("x", draw(st.sampled_from(NUMBERS)), draw(st.booleans()))
    item = items_of(field.type) | (st.none() if field.nullable else st.nothing())
    rows = draw(st.lists(item, min_size=1, max_size=60)) * draw(st.sampled_from([1, 1, 50]))
    return field, _cast_from_numbers(rows, field.type, lambda data_type: data_type)


def _cast_from_numbers(rows: list[Any], item_type: pa.DataType, make: Any) -> pa.Array:
    if not pa.types.is_temporal(item_type):
        return pa.array(rows, make(item_type))
    ticks = pa.int32() if pa.types.is_date32(item_type) else pa.int64()
    return pa.array(rows, make(ticks)).cast(make(item_type))


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=True, **options)
    return sink.getvalue()


def opened(data: bytes) -> OpenFile:
    stream = pa.BufferReader(data)
    file, footer = pq.ParquetFile(stream), read_footer(stream)
    leaves = find_leaves(file.metadata, file.schema_arrow)
    return OpenFile(
        file=file,
        stream=stream,
        is_local=True,
        footer=footer,
        schema=file.schema_arrow,
        leaves=leaves,
    )


def stored(file: OpenFile, row_group: int = 0) -> Stored:
    [chunk] = file._fetch(file._chunks(row_group, ["x"])).values()
    return chunk


def decoded(file: OpenFile, chunk: Stored, *, wanted: Marks | None = None) -> pa.Array | None:
    """Decode the column `x` of a chunk; None if it is left to pyarrow."""
    return decode_columns(file.leaves, {"x": chunk}, ready_kernels(), wanted).get("x")


def is_same(mine: pa.Array, theirs: pa.Array) -> bool:
    """Return whether arrays are equal, with floats compared by their bits."""
    is_list = pa.types.is_list(theirs.type) or pa.types.is_large_list(theirs.type)
    items = theirs.type.value_type if is_list else theirs.type
    if pa.types.is_floating(items):
        bits = pa.uint32() if items.bit_width == 32 else pa.uint64()
        if is_list:
            make = pa.large_list if pa.types.is_large_list(theirs.type) else pa.list_
            bits = make(pa.field("element", bits))
        mine, theirs = (_as_bits(array, bits) for array in (mine, theirs))
    return bool(mine.equals(theirs))


def _as_bits(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    if not hasattr(array, "values"):
        return pa.Array.from_buffers(data_type, len(array), array.buffers(), -1, array.offset)
    values = array.values
    items = pa.Array.from_buffers(
        data_type.value_type, len(values), values.buffers(), -1, values.offset
    )
    return pa.Array.from_buffers(
        data_type, len(array), array.buffers()[:2], -1, array.offset, [items]
    )


def long_lists(num_rows: int, length: int, **options: Any) -> bytes:
    """Write lists that fill more than one page."""
    rng = np.random.default_rng(1)
    lists = [rng.integers(0, 1 << 40, rng.integers(0, length)) for _ in range(num_rows)]
    return written(pa.table({"x": pa.array(lists, pa.list_(pa.int64()))}), **options)


def ready_kernels() -> Kernels:
    found = kernels.select(True, 0)
    assert found is not None
    return found
