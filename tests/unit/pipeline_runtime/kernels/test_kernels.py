"""Compiled kernels give the bits of the plain path, whatever the type, the nulls and the slice."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_runtime import Pipeline, kernels
from pipeline_runtime.hashing import bucket_of, hash_columns, hash_values
from pipeline_runtime.kernels import compiled as compiled_kernels
from pipeline_runtime.kernels import loading
from pipeline_runtime.plan import explain
from pipeline_runtime.sources.gather import take_rows
from pipeline_runtime.steps.pad_sequence.transform import pad_lists
from pipeline_runtime.steps.side_tables import RowKeys, build_index
from pipeline_runtime.steps.truncate.transform import Truncate

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTEGERS += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()]
MAKE_LIST = [pa.list_, pa.large_list]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> kernels.Kernels:
    assert kernels.warm()
    found = kernels.select(True, 0)
    assert found is not None
    return found


def items(data_type: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of the type, its extremes among them."""
    if pa.types.is_integer(data_type):
        limits = np.iinfo(data_type.to_pandas_dtype())
        return st.integers(int(limits.min), int(limits.max))
    if pa.types.is_floating(data_type):
        return st.floats(width=data_type.bit_width)
    texts = st.text(max_size=20)
    return texts if "string" in str(data_type) else texts.map(str.encode)


@st.composite
def arrays(draw: st.DrawFn, data_type: pa.DataType, with_nulls: bool = True) -> pa.Array:
    """An array of the type that is a slice of a longer one."""
    nulls = st.none() if with_nulls else st.nothing()
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        item = items(data_type.value_type)
        values = st.none() | st.lists(nulls | item, max_size=5)
    else:
        values = nulls | items(data_type)
    array = pa.array(draw(st.lists(values, max_size=12)), data_type)
    return array.slice(draw(st.integers(0, 3)), draw(st.integers(0, 12)))


@st.composite
def list_arrays(draw: st.DrawFn) -> pa.Array:
    make = draw(st.sampled_from(MAKE_LIST))
    return draw(arrays(make(draw(st.sampled_from(INTEGERS + FLOATS))), draw(st.booleans())))


@settings(deadline=None)
@given(array=list_arrays(), length=st.integers(1, 7), fill=st.integers(0, 3))
def test_padding_is_that_of_numpy(array: pa.Array, length: int, fill: int) -> None:
    value = pa.scalar(fill).cast(array.type.value_type)
    plain = pad_lists(array, length, value)
    assert bits(pad_lists(array, length, value, kernels.select(True, 0))) == bits(plain)


@settings(deadline=None)
@given(data=st.data(), size=st.integers(1, 3), length=st.integers(1, 4))
def test_padding_of_lists_of_a_fixed_size_is_that_of_numpy(
    data: st.DataObject, size: int, length: int
) -> None:
    rows = st.none() | st.lists(st.none() | st.integers(0, 9), min_size=size, max_size=size)
    array = pa.array(data.draw(st.lists(rows, max_size=8)), pa.list_(pa.int32(), size)).slice(1)
    value = pa.scalar(7, pa.int32())
    plain = pad_lists(array, length, value)
    assert bits(pad_lists(array, length, value, kernels.select(True, 0))) == bits(plain)


@settings(deadline=None)
@given(data=st.data(), data_type=st.sampled_from(INTEGERS + TEXTS), seed=st.integers(-3, 2**70))
def test_hashes_and_buckets_are_those_of_numpy(
    data: st.DataObject, data_type: pa.DataType, seed: int
) -> None:
    array = data.draw(arrays(data_type))
    found, buckets = kernels.select(True, 0), data.draw(st.integers(1, 2**32 - 1))
    assert hash_values(array, found).tolist() == hash_values(array).tolist()
    assert (
        bucket_of(array, seed, buckets, found).tolist() == bucket_of(array, seed, buckets).tolist()
    )
    if data_type in (pa.string(), pa.int64()):
        encoded = array.dictionary_encode()
        assert hash_values(encoded, found).tolist() == hash_values(array).tolist()


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(pa.array([b"ab", None, b"cd"], pa.binary(2)).slice(1), id="fixed-size bytes"),
        pytest.param(pa.array([True, None, False]), id="booleans, which have no kernel"),
        pytest.param(pa.array([1, 2], pa.date32()), id="dates, which have none either"),
        pytest.param(pa.nulls(2), id="nothing but nulls"),
        pytest.param(pa.RunEndEncodedArray.from_arrays([2], ["a"]), id="runs"),
        pytest.param(pa.array(["x" * 8, "x" * 9, "x" * 7, "", "\0" * 8]), id="around a whole word"),
    ],
)
def test_hashes_of_other_values_are_those_of_numpy(array: pa.Array) -> None:
    assert hash_values(array, kernels.select(True, 0)).tolist() == hash_values(array).tolist()


def test_golden_hashes_hold_for_kernels(compiled: kernels.Kernels) -> None:
    # The same as in test_hashing.py, of values that kernels hash.
    assert bucket_of(pa.array(["a", "b", "c", "d", None, ""]), 1, 1000, compiled).tolist() == [
        *(709, 199, 326, 69, 896, 273)
    ]
    minus_one = hash_values(pa.array([-1], pa.int8()), compiled)
    assert minus_one.tolist() == hash_values(pa.array([2**64 - 1], pa.uint64()), compiled).tolist()
    assert hash_columns([pa.array([-1])], 0).tolist() == [5645663912331892493]


@settings(deadline=None)
@given(array=list_arrays(), length=st.integers(0, 6), keep=st.sampled_from(["Head", "Tail"]))
def test_lists_cut_whole_are_those_cut_item_by_item(
    array: pa.Array, length: int, keep: Any
) -> None:
    table = pa.table({"v": array})
    fast, plain = (
        Truncate(columns=("v",), length=length, keep=keep, output_schema=table.schema, kernels=on)
        for on in (True, False)
    )
    cut = fast(table)
    cut.validate(full=True)
    assert bits(cut["v"]) == bits(plain(table)["v"])


@settings(deadline=None)
@given(data=st.data(), first=list_arrays())
def test_lists_picked_whole_are_those_of_arrow(data: st.DataObject, first: pa.Array) -> None:
    second = data.draw(arrays(first.type, with_nulls=data.draw(st.booleans())))
    column = pa.chunked_array([first, second], type=first.type)
    places = st.lists(st.integers(0, len(column) - 1), max_size=12) if len(column) else st.just([])
    drawn = data.draw(places)
    indices = np.array(sorted(drawn) if data.draw(st.booleans()) else drawn, dtype=np.int64)
    taken = take_rows(column, indices)
    taken.validate(full=True)
    assert taken.type == column.type
    assert bits(taken) == bits(take_rows(column, indices, kernels=False))


def bits(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Rows of items in which NaN is equal to itself, and the two zeros are not."""

    def exact(item: Any) -> Any:
        return np.float64(item).tobytes() if isinstance(item, float) else item

    return [None if row is None else [exact(item) for item in row] for row in column.to_pylist()]


@pytest.fixture
def table(tmp_path: Path) -> Pipeline:
    rows = 2_000
    values = {
        "id": range(rows),
        "history": [list(range(row % 60)) for row in range(rows)],
        "country": [f"country-{row % 7}" for row in range(rows)],
    }
    pq.write_table(pa.table(values), tmp_path / "t.parquet", row_group_size=700)
    return (
        Pipeline.read_parquet(f"{tmp_path}/t.parquet", row_key="id")
        .filter("id % 3 > 0")
        .truncate("history", length=50, keep="tail")
        .pad_sequence("history", length=40, value=-1)
        .hash_bucket("id", "country", "history", buckets=1000)
    )


def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "pipeline_runtime.kernels.compiled")
    monkeypatch.setattr(loading, "_LOADER", loading._Loader())


@settings(deadline=None)
@given(left=st.lists(st.none() | st.integers(0, 9)), right=st.lists(st.none() | st.integers(0, 9)))
def test_joins_find_the_rows_of_numpy(left: list[int | None], right: list[int | None]) -> None:
    keys = [pa.chunked_array([pa.array(left, pa.int32())])]
    index = build_index(pa.table({"key": pa.array(right, pa.int64())}), ["key"])
    for ours, theirs in zip(index.find(keys), index.find(keys, kernels=False), strict=True):
        assert ours.tolist() == theirs.tolist()
    rows = RowKeys.of(keys)
    found = index.contains(rows, kernels=False).tolist()
    assert index.contains(rows).tolist() == found == [v is not None and v in right for v in left]


def test_a_run_without_numba_or_with_kernels_off_gives_the_same(
    table: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = table.to_table()
    assert table.with_options(kernels=False).to_table().equals(expected)
    without_numba(monkeypatch)
    assert table.to_table().equals(expected)
    assert not kernels.warm()
    assert kernels.select(True, loading.MIN_ITEMS) is None


def test_explain_says_which_way_steps_go_and_why(
    table: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "pipelineOptions.debug.kernels" not in explain(table.plan())
    off = explain(table.with_options(kernels=False).plan())
    # Why hashing and the copying of lists go another way, among what else is decided by it.
    assert off.count("pipelineOptions.debug.kernels") >= 2
    assert "numba" not in off
    without_numba(monkeypatch)
    assert "numba" in explain(table.plan())


def test_small_tables_do_not_load_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_LOADER", loading._Loader())
    assert kernels.select(True, loading.MIN_ITEMS - 1) is None
    assert kernels.select(False, loading.MIN_ITEMS) is None
    assert loading._LOADER._thread is None


def test_loading_begins_with_a_later_large_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_LOADER", loading._Loader())
    assert kernels.select(True, loading.MIN_ITEMS) is None
    assert loading._LOADER._thread is None
    monkeypatch.setattr(loading, "_PAUSE_SECONDS", 0.0)
    kernels.select(True, loading.MIN_ITEMS)
    assert kernels.warm()


def test_work_that_ends_stops_the_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_LOADER", loading._Loader())
    is_loading, may_go_on = threading.Event(), threading.Event()
    wanted = []

    def compile_kernels(is_wanted: Callable[[], bool]) -> None:
        is_loading.set()
        may_go_on.wait()
        wanted.append(is_wanted())

    with monkeypatch.context() as patch:
        patch.setattr(compiled_kernels, "compile_kernels", compile_kernels)
        thread = loading._LOADER.start()
        is_loading.wait()
        kernels.stop_loading()
        may_go_on.set()
        thread.join()
    assert wanted == [False]
    assert kernels.loading_seconds() == 0.0
    assert kernels.warm()  # other work loads them again
    kernels.stop_loading()
    assert kernels.select(True, 0) is not None


def test_a_compilation_ends_between_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    begun = []
    compile_one = compiled_kernels._compile

    def record(function: Callable[..., Any], signatures: Sequence[Any]) -> Any:
        begun.append(function)
        return compile_one(function, signatures)

    monkeypatch.setattr(compiled_kernels, "_compile", record)
    answers = iter([True] * 10)
    assert compiled_kernels.compile_kernels(lambda: next(answers, False)) is None
    assert len(begun) == 1
