"""Arrow to tensors: equal to a naive converter over every type, and a clear refusal of the rest."""

from __future__ import annotations

import math
from datetime import date
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from facts import assert_told
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.arrays.conversion import Arrays, check_tensor_schema, to_arrays
from pipeline_runtime.arrays.cuts import cut_arrays, join_arrays, num_rows_of, split_parts
from pipeline_runtime.arrays.packing import pack_arrays, unpack_arrays
from pipeline_runtime.batches import (
    ROW_WEIGHT,
    Batch,
    empty_batch,
    pad_batch,
    to_batch,
    to_device,
    to_tensors,
    unpack_tensors,
)
from pipeline_runtime.errors import TrainingError

INTEGERS = (
    (pa.int8(), torch.int8),
    (pa.int16(), torch.int16),
    (pa.int32(), torch.int32),
    (pa.int64(), torch.int64),
    (pa.uint8(), torch.uint8),
    (pa.uint16(), torch.int64),
    (pa.uint32(), torch.int64),
    (pa.uint64(), torch.int64),
)
FLOATS = (
    (pa.float16(), torch.float16),
    (pa.float32(), torch.float32),
    (pa.float64(), torch.float64),
)
TIMES = (
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("us"),
    pa.timestamp("ns", "UTC"),
    pa.duration("ms"),
)
# What holds the values, and how they are encoded in it.
Layout = tuple[str, str]
LAYOUTS: tuple[Layout, ...] = tuple(
    product(("flat", "list", "large", "fixed"), ("plain", "dictionary", "runs"))
)
SCALARS = (*INTEGERS, *FLOATS, (pa.bool_(), torch.bool), *((item, torch.int64) for item in TIMES))


def scalars_of(data_type: pa.DataType) -> st.SearchStrategy[Any]:
    """Python values of a type; of times the number of ticks."""
    if pa.types.is_boolean(data_type):
        return st.booleans()
    if pa.types.is_floating(data_type):
        return st.floats(width=data_type.bit_width)
    if pa.types.is_integer(data_type):
        info = np.iinfo(data_type.to_pandas_dtype())
        return st.integers(int(info.min), min(int(info.max), 2**63 - 1))
    return st.integers(0, 80_000)  # in range of every unit, time32's 86,400 seconds included


def flat_array(values: list[Any], data_type: pa.DataType) -> pa.Array:
    if not pa.types.is_temporal(data_type):
        cast = np.float16 if pa.types.is_float16(data_type) else lambda value: value
        return pa.array([None if v is None else cast(v) for v in values], data_type)
    if data_type == pa.date64():  # whole days only
        return pa.array(values, pa.int32()).cast(pa.date32()).cast(data_type)
    return pa.array(values, pa.int32() if data_type.bit_width == 32 else pa.int64()).cast(data_type)


@st.composite
def columns(draw: st.DrawFn, num_rows: int) -> pa.ChunkedArray:
    """A column of any type that becomes a tensor: chunked, sliced, maybe with nulls or encoded."""
    item, _ = draw(st.sampled_from(SCALARS))
    layout = draw(st.sampled_from(LAYOUTS))
    value = scalars_of(item)
    if pa.types.is_floating(item):
        value = st.none() | value
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    make = {"list": list_array, "large": list_array, "fixed": fixed_array}.get(layout[0], flat)
    chunks = []
    for num in split(num_rows, draw(st.integers(1, 3))):
        array = make(draw, before + num + after, value, item, layout)
        chunks.append(array.slice(before, num))
    return pa.chunked_array(chunks, chunks[0].type)


def split(num_rows: int, num_chunks: int) -> list[int]:
    return [
        num_rows * (i + 1) // num_chunks - num_rows * i // num_chunks for i in range(num_chunks)
    ]


def flat(draw: st.DrawFn, num: int, value: Any, item: pa.DataType, layout: Layout) -> pa.Array:
    array = flat_array(draw(st.lists(value, min_size=num, max_size=num)), item)
    if layout[1] == "dictionary":
        return array.dictionary_encode()
    return pc.run_end_encode(array) if layout[1] == "runs" else array


def list_array(
    draw: st.DrawFn, num: int, value: Any, item: pa.DataType, layout: Layout
) -> pa.Array:
    """Lists whose nulls may hide items, as other writers make them."""
    lengths = draw(st.lists(st.integers(0, 4), min_size=num, max_size=num))
    is_null = draw(st.lists(st.booleans(), min_size=num, max_size=num))
    items = flat(draw, sum(lengths), value, item, layout)
    offset_type = pa.int32() if layout[0] == "list" else pa.int64()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), offset_type)
    kind = pa.ListArray if layout[0] == "list" else pa.LargeListArray
    return kind.from_arrays(offsets, items, mask=pa.array(is_null, pa.bool_()))


def fixed_array(
    draw: st.DrawFn, num: int, value: Any, item: pa.DataType, layout: Layout
) -> pa.Array:
    size = 3
    items = flat(draw, num * size, value, item, layout)
    is_null = draw(st.lists(st.booleans(), min_size=num, max_size=num))
    mask = pa.array(is_null, pa.bool_()) if pa.types.is_floating(item) else None
    return pa.FixedSizeListArray.from_arrays(items, size, mask=mask)


@st.composite
def tables(draw: st.DrawFn, num_rows: int) -> pa.Table:
    drawn = draw(st.lists(columns(num_rows), min_size=1, max_size=3))
    return pa.table({f"c{i}": column for i, column in enumerate(drawn)})


def naive_batch(table: pa.Table) -> dict[str, list[Any]]:
    """Return what `to_batch` must give, value by value, through Python objects."""
    batch: dict[str, list[Any]] = {}
    for name in table.column_names:
        column = table.column(name)
        rows = [python_value(scalar) for scalar in column]
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            lists = [row or [] for row in rows]
            batch[f"{name}.values"] = [value for row in lists for value in row]
            batch[f"{name}.offsets"] = np.cumsum([0] + [len(row) for row in lists]).tolist()
        elif pa.types.is_fixed_size_list(column.type):
            empty = [math.nan] * column.type.list_size
            batch[name] = [empty if row is None else row for row in rows]
        else:
            batch[name] = rows
    return batch


def python_value(scalar: pa.Scalar) -> Any:
    if isinstance(scalar, (pa.DictionaryScalar, pa.RunEndEncodedScalar)):
        return python_value(scalar.value)
    if pa.types.is_nested(scalar.type):
        return [python_value(item) for item in scalar.values] if scalar.is_valid else None
    if not scalar.is_valid:
        return math.nan
    return scalar.value if pa.types.is_temporal(scalar.type) else scalar.as_py()


def equal(tensor: torch.Tensor, expected: list[Any]) -> bool:
    """Return whether all values are equal to the bit; any NaN equals any other."""
    return np.array_equal(
        tensor.numpy(),
        np.array(expected, dtype=tensor.numpy().dtype).reshape(tensor.shape),
        equal_nan=tensor.is_floating_point(),
    )


def convert(table: pa.Table, **options: Any) -> Batch:
    return to_batch(table, **{"weight_column": None, "label_column": None, **options})


@settings(max_examples=examples(50), deadline=None)
@given(data=st.data(), num_rows=st.integers(0, 9))
def test_every_type_equals_the_naive_converter(data: st.DataObject, num_rows: int) -> None:
    table = data.draw(tables(num_rows))
    batch = convert(table)
    expected = naive_batch(table)
    assert set(batch) == {*expected, ROW_WEIGHT}
    assert batch[ROW_WEIGHT].tolist() == [1.0] * num_rows
    for name, values in expected.items():
        assert equal(batch[name], values), name
    assert check_tensor_schema(table.schema) == []


@pytest.mark.parametrize(("arrow", "dtype"), SCALARS, ids=[str(item) for item, _ in SCALARS])
def test_each_type_has_its_dtype_whatever_the_layout(
    arrow: pa.DataType, dtype: torch.dtype
) -> None:
    schema = pa.schema({"a": arrow, "l": pa.list_(arrow), "f": pa.list_(arrow, 3)})
    batch = convert(schema.empty_table())
    assert {name: tensor.dtype for name, tensor in batch.items() if name != ROW_WEIGHT} == {
        "a": dtype,
        "l.values": dtype,
        "l.offsets": torch.int64,
        "f": dtype,
    }
    assert batch["f"].shape == (0, 3)


@pytest.mark.parametrize("item", [pa.float16(), pa.int64()], ids=str)
def test_chunks_with_dictionaries_of_their_own_keep_their_values(item: pa.DataType) -> None:
    chunks = [flat_array(values, item).dictionary_encode() for values in ([1, 2], [3, 1])]
    lists = [pa.ListArray.from_arrays([0, 2], chunk) for chunk in chunks]
    batch = convert(pa.table({"a": pa.chunked_array(chunks)}))
    nested = convert(pa.table({"l": pa.chunked_array(lists)}))
    assert batch["a"].tolist() == nested["l.values"].tolist() == [1, 2, 3, 1]


def same_bits(left: Arrays, right: Arrays) -> bool:
    """Return whether names, types, shapes and all bits are equal, in any order of names."""
    return left.keys() == right.keys() and all(
        array.dtype == right[name].dtype
        and array.shape == right[name].shape
        and array.tobytes() == right[name].tobytes()
        for name, array in left.items()
    )


def arrays_of(table: pa.Table) -> Arrays:
    return to_arrays(table, weight_column=None, label_column=None)


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_null_lists_of_half_floats_in_a_dictionary(make: Any) -> None:
    """pyarrow 26 cannot leave out all there is before the items are decoded."""
    items = pa.array(np.array([1, 2], np.float16)).dictionary_encode()
    lists = make(items.type)
    offsets = pa.py_buffer(np.array([0, 1, 2, 2], np.int32 if make is pa.list_ else np.int64))
    for valid, values, starts in ((0b101, [1.0], [0, 1, 1, 1]), (0, [], [0, 0, 0, 0])):
        buffers = [pa.py_buffer(np.array([valid], np.uint8)), offsets]
        column = pa.Array.from_buffers(lists, 3, buffers, children=[items])
        arrays = arrays_of(pa.table({"x": column}))
        assert arrays["x.values"].tolist() == values
        assert arrays["x.offsets"].tolist() == starts


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), num_rows=st.integers(1, 9), size=st.integers(1, 10))
def test_what_is_cut_is_that_of_the_slice_and_joined_is_what_it_was(
    data: st.DataObject, num_rows: int, size: int
) -> None:
    table = data.draw(tables(num_rows))
    whole = arrays_of(table)
    middle = data.draw(st.integers(0, num_rows))
    ends = [arrays_of(part) for part in (table.slice(0, middle), table.slice(middle))]
    parts = list(split_parts(data.draw(st.sampled_from([[whole], ends])), size))
    for index, part in enumerate(parts):
        assert same_bits(part, arrays_of(table.slice(index * size, size)))
    assert same_bits(join_arrays(parts), whole)
    assert sum(map(num_rows_of, parts)) == num_rows
    start = data.draw(st.integers(0, num_rows))
    rows = data.draw(st.integers(0, num_rows - start))
    assert same_bits(cut_arrays(whole, start, rows), arrays_of(table.slice(start, rows)))


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), num_rows=st.integers(0, 9), sparse=st.booleans())
def test_a_packed_batch_is_the_same_arrays_and_tensors(
    data: st.DataObject, num_rows: int, sparse: bool
) -> None:
    arrays = arrays_of(data.draw(tables(num_rows)))
    slots, buffer = pack_arrays(arrays, sparse=sparse)
    assert same_bits(unpack_arrays(slots, buffer), arrays)
    tensors = unpack_tensors(slots, torch.from_numpy(buffer))
    assert same_bits({name: tensor.numpy() for name, tensor in tensors.items()}, arrays)


def test_internal_columns_are_left_out() -> None:
    table = pa.table({"a": [1], "_lastmile_row_hash": pa.array([2**63], pa.uint64())})
    assert set(convert(table)) == {"a", ROW_WEIGHT}


def test_numbers_are_views_of_arrow_memory() -> None:
    table = pa.table({"a": np.arange(4), "l": [[1, 2], [3], [], [4]]})
    batch = convert(table)
    assert batch["a"].data_ptr() == table["a"].chunk(0).buffers()[1].address
    assert batch["l.values"].data_ptr() == table["l"].chunk(0).values.buffers()[1].address


def test_read_only_memory_stays_so_as_an_array_and_is_copied_for_a_tensor() -> None:
    frozen = pa.py_buffer(np.arange(4).tobytes())
    array = pa.Array.from_buffers(pa.int64(), 4, [None, frozen])
    arrays = to_arrays(pa.table({"a": array}), weight_column=None, label_column=None)
    assert arrays["a"].ctypes.data == frozen.address
    assert not arrays["a"].flags.writeable
    batch = to_tensors(arrays)
    batch["a"].zero_()
    assert arrays["a"].tolist() == [0, 1, 2, 3]


def test_extension_types_become_their_storage() -> None:
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))
    )
    table = pa.table({"t": tensors, "b": pa.array([1, 0]).cast(pa.int8()).slice(1)})
    assert convert(table)["t"].tolist() == [[1.0, 2.0]]


def test_dates_and_times_are_ticks_in_their_own_unit() -> None:
    table = pa.table(
        {"day": [date(1970, 1, 3)], "at": pa.array([5], pa.int64()).cast(pa.timestamp("ms"))}
    )
    batch = convert(table)
    assert (batch["day"].tolist(), batch["at"].tolist()) == ([2], [5])


REFUSALS: dict[str, tuple[pa.Array, dict[str, str], str]] = {
    "null integers": (
        pa.array([1, None, None]),
        {},
        "column 'x': … 2 … 3 … int64 … fillNull",
    ),
    "null booleans": (
        pa.array([True, None]),
        {},
        "column 'x': … 1 … 2 … bool … fillNull",
    ),
    "null integers within lists": (
        pa.array([[1, None], [2]]),
        {},
        "column 'x': … 1 … 3 … int64 … fillNull",
    ),
    "null fixed lists of integers": (
        pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
        {},
        "column 'x': … 2 … 4 … int64 … fillNull",
    ),
    "null in a dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([5, None])),
        {},
        "column 'x': … 1 … 2 … int64 … fillNull",
    ),
    "unsigned beyond int64": (
        pa.array([1, 2**63], pa.uint64()),  # 2**63 - 1 is the largest that fits
        {},
        "column 'x': … 2**63 … int64 … 9223372036854775808",
    ),
    "text": (
        pa.array(["a"]),
        {},
        "column 'x': … string … training.columns",
    ),
    "null and NaN labels": (
        pa.array([1.0, None, math.nan]),
        {"label_column": "x"},
        "label column 'x': … 2 … 3",
    ),
    "a list as label": (
        pa.array([[1]]),
        {"label_column": "x"},
        "label column 'x': … list<item: int64>",
    ),
    "unknown weights": (
        pa.array([1.0, None, math.inf, -2.0]),
        {"weight_column": "x"},
        "weight column 'x': … 3 … 4 … nan",
    ),
    "a list as weight": (
        pa.array([[1.0]]),
        {"weight_column": "x"},
        "weight column 'x': … list<item: double>",
    ),
}


@pytest.mark.parametrize(("array", "options", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_no_tensor_can_hold_is_refused(
    array: pa.Array, options: dict[str, str], message: str
) -> None:
    with pytest.raises(TrainingError) as caught:
        convert(pa.table({"x": array}), **options)
    assert_told(str(caught.value), message)


def test_weights_become_float32_and_stay_a_column() -> None:
    table = pa.table({"w": pa.array([0, 2], pa.uint32())})
    batch = convert(table, weight_column="w")
    assert batch[ROW_WEIGHT].dtype == torch.float32
    assert (batch[ROW_WEIGHT].tolist(), batch["w"].tolist()) == ([0.0, 2.0], [0, 2])


SCHEMAS: dict[str, tuple[pa.DataType, str]] = {
    "text": (pa.string(), "… string … training.columns"),
    "text in a dictionary": (
        pa.dictionary(pa.int8(), pa.string()),
        "… dictionary<values=string, indices=int8, ordered=0> … training.columns",
    ),
    "lists of text": (
        pa.list_(pa.string()),
        "… list<item: string> … training.columns",
    ),
    "lists of lists": (
        pa.list_(pa.list_(pa.int8())),
        "… list<item: list<item: int8>> … training.columns",
    ),
    "decimals": (
        pa.decimal128(9, 2),
        "… decimal128(9, 2) … training.columns",
    ),
    "structs": (
        pa.struct({"a": pa.int8()}),
        "… struct<a: int8> … training.columns",
    ),
    "nulls only": (pa.null(), "… null … training.columns"),
    "bytes": (pa.binary(), "… binary … training.columns"),
    "intervals": (
        pa.month_day_nano_interval(),
        "… month_day_nano_interval … training.columns",
    ),
}


@pytest.mark.parametrize(("data_type", "message"), SCHEMAS.values(), ids=SCHEMAS.keys())
def test_the_schema_check_names_what_cannot_become_a_tensor(
    data_type: pa.DataType, message: str
) -> None:
    schema = pa.schema({"good": pa.int64(), "bad": data_type, "_lastmile_x": pa.string()})
    [(column, told)] = check_tensor_schema(schema)
    assert column == "bad"
    assert_told(told, message)


def test_the_schema_check_finds_names_that_would_meet() -> None:
    schema = pa.schema(
        {"c": pa.list_(pa.int64()), "c.values": pa.int64(), "row_weight": pa.float32()}
    )
    [(column, told)] = check_tensor_schema(schema, weight_column="row_weight")
    assert column == "c.values"
    assert "'c'" in told
    column, told = check_tensor_schema(schema)[0]
    assert column == "row_weight"
    assert "training.weightColumn" in told


def test_columns_that_look_like_the_tensors_of_a_list_are_refused() -> None:
    schema = pa.schema({"ts.values": pa.float32(), "ts.offsets": pa.int64(), "a": pa.int64()})
    assert [column for column, _ in check_tensor_schema(schema)] == ["ts.offsets"]
    table = pa.table({"q": [[1], [2, 3]], "q.offsets.values": [7, 8]})
    assert check_tensor_schema(table.schema) == []
    parts = list(split_parts([arrays_of(table)], 1))
    assert [part["q.offsets.values"].tolist() for part in parts] == [[7], [8]]


def test_an_empty_batch_is_one_row_of_zeros_that_weighs_nothing() -> None:
    schema = pa.schema(
        {"a": pa.int8(), "b": pa.bool_(), "f": pa.list_(pa.float32(), 2), "l": pa.list_(pa.int64())}
    )
    assert {name: tensor.tolist() for name, tensor in empty_batch(schema).items()} == {
        "a": [0],
        "b": [False],
        "f": [[0.0, 0.0]],
        "l.values": [],
        "l.offsets": [0, 0],
        ROW_WEIGHT: [0.0],
    }


def test_padding_adds_rows_of_zeros_that_weigh_nothing() -> None:
    table = pa.table({"a": [5, 6], "b": [True, True], "l": [[1], [2, 3]]})
    batch = to_batch(table, weight_column=None, label_column=None)
    assert {name: tensor.tolist() for name, tensor in pad_batch(batch, 4).items()} == {
        "a": [5, 6, 0, 0],
        "b": [True, True, False, False],
        "l.values": [1, 2, 3],
        "l.offsets": [0, 1, 3, 3, 3],
        ROW_WEIGHT: [1.0, 1.0, 0.0, 0.0],
    }
    assert pad_batch(batch, 2) is batch


def test_a_batch_for_the_cpu_is_not_copied() -> None:
    batch = convert(pa.table({"a": [1, 2]}))
    assert to_device(batch, "cpu")["a"] is batch["a"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_batch_for_a_gpu_arrives_whole() -> None:
    batch = convert(pa.table({"a": [1, 2], "l": [[], [3]], "b": [True, False]}))
    moved = to_device(batch, "cuda")
    torch.cuda.synchronize()
    assert {name: tensor.device.type for name, tensor in moved.items()} == dict.fromkeys(
        batch, "cuda"
    )
    assert all(torch.equal(moved[name].cpu(), batch[name]) for name in batch)
