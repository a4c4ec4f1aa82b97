"""Columns decoded page by page equal those of pyarrow, for files of all kinds."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from list_files import (
    columns,
    decoded,
    is_same,
    long_lists,
    numbers,
    opened,
    ready_kernels,
    stored,
    written,
)
from property_tests import examples

from pipeline_runtime.config import ParquetSource
from pipeline_runtime.sources import read_flat
from pipeline_runtime.sources.parquet import open_parquet
from pipeline_runtime.sources.parquet.decoding import chunk_windows
from pipeline_runtime.sources.parquet.decoding.chunk_pages import read_pages

OTHERS = {
    "strings": pa.list_(pa.string()),
    "lists of lists": pa.list_(pa.list_(pa.int64())),
    "structs": pa.list_(pa.struct([("x", pa.int64())])),
    "a fixed size": pa.list_(pa.int64(), 2),
    "decimals": pa.list_(pa.decimal128(9, 2)),
    "half floats": pa.list_(pa.float16()),
    "a dictionary of strings": pa.list_(pa.dictionary(pa.int32(), pa.string())),
}


pytestmark = pytest.mark.usefixtures("decoded_here")


def assert_decoded(data: bytes) -> None:
    """Check that the kernels decode every row group, and that pyarrow returns the same."""
    file = opened(data)
    assert set(file.leaves) == {"x"}
    for index in range(file.file.num_row_groups):
        made = decoded(file, stored(file, index))
        assert made is not None
        made.validate(full=True)
        expected = file.file.read_row_group(index).column("x").combine_chunks()
        assert made.type == expected.type
        assert is_same(made, expected)
        assert is_same(file.read_row_group(index, ["x"]).column("x").combine_chunks(), expected)


@settings(deadline=None, max_examples=examples(50))
@given(
    column=columns() | numbers(),
    compression=st.sampled_from(["none", "snappy", "zstd", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    page_size=st.sampled_from(
        [64, 512, 1 << 20]
    ),  # with pages of 1 byte, pyarrow loses an empty list
    group_rows=st.sampled_from([1, 7, 10_000]),
)
def test_decoded_columns_equal_pyarrows(
    column: tuple[pa.Field, pa.Array],
    compression: str,
    version: str,
    dictionary: bool,
    page_size: int,
    group_rows: int,
) -> None:
    field, array = column
    is_second = version == "2.0"
    data = written(
        pa.table([array], schema=pa.schema([field])),
        compression=compression,
        data_page_version=version,
        # Version 2 writes booleans as runs, which the kernels leave to pyarrow.
        use_dictionary=dictionary,
        data_page_size=page_size,
        write_batch_size=8 if page_size < 1 << 20 else 1024,
        row_group_size=min(group_rows, max(1, len(array))),
    )
    if is_second and pa.types.is_boolean(items_type(field.type)):
        file = opened(data)
        expected = file.file.read_row_group(0).column("x")
        assert file.read_row_group(0, ["x"]).column("x").equals(expected)
        return
    assert_decoded(data)


def items_type(data_type: pa.DataType) -> pa.DataType:
    return getattr(data_type, "value_type", data_type)


@settings(deadline=None, max_examples=examples(100))
@given(
    column=columns() | numbers(),
    compression=st.sampled_from(["none", "snappy", "zstd", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    page_size=st.sampled_from([64, 512, 1 << 20]),
    runs=st.lists(st.tuples(st.booleans(), st.integers(1, 40)), min_size=1, max_size=9),
)
def test_selected_rows_equal_pyarrows(
    column: tuple[pa.Field, pa.Array],
    compression: str,
    version: str,
    dictionary: bool,
    page_size: int,
    runs: list[tuple[bool, int]],
) -> None:
    """The other rows may be skipped."""
    field, array = column
    if version == "2.0" and pa.types.is_boolean(items_type(field.type)):
        return  # runs, which are left to pyarrow
    data = written(
        pa.table([array], schema=pa.schema([field])),
        compression=compression,
        data_page_version=version,
        use_dictionary=dictionary,
        data_page_size=page_size,
        write_batch_size=8,
    )
    file = opened(data)
    wanted = np.resize(np.concatenate([np.full(n, value) for value, n in runs]), len(array))
    made = decoded(file, stored(file), wanted=wanted)
    assert made is not None
    made.validate(full=True)
    rows = pa.array(np.flatnonzero(wanted))
    expected = file.file.read_row_group(0).column("x").combine_chunks()
    assert is_same(made.take(rows), expected.take(rows))
    read = file.read_rows(0, ["x"], np.flatnonzero(wanted))
    assert is_same(read.column("x").combine_chunks(), expected.take(rows))


NUMBERS_AND_LISTS = {
    "numbers": (pa.array(np.random.default_rng(3).random(20_000)), "1.0"),
    "numbers of version 2": (pa.array(np.random.default_rng(3).random(20_000)), "2.0"),
    "lists of version 2": (pa.array([[i, -i, 3 * i] for i in range(20_000)]), "2.0"),
}


@pytest.mark.parametrize("case", NUMBERS_AND_LISTS.values(), ids=NUMBERS_AND_LISTS)
def test_a_page_without_a_wanted_row_is_not_decoded(case: tuple[pa.Array, str]) -> None:
    """Damage in it is not noticed, which shows that it was skipped."""
    array, version = case
    table = pa.table({"x": array})
    data = bytearray(
        written(
            table,
            compression="zstd",
            data_page_version=version,
            use_dictionary=False,
            data_page_size=8192,
        )
    )
    chunk = opened(bytes(data)).file.metadata.row_group(0).column(0)
    first, num_bytes = chunk.data_page_offset, chunk.total_compressed_size
    own = np.frombuffer(data, np.uint8)[first : first + num_bytes]
    pages = list(read_pages(own, ready_kernels()))
    assert len(pages) > 10
    page = pages[len(pages) // 2]
    own[page.stop - 64 : page.stop] = 255
    own[page.start + page.repetition_bytes + page.definition_bytes :][:8] = 255
    file = opened(bytes(data))
    rows = np.array([*range(100), *range(19_900, 20_000)])
    assert file.read_rows(0, ["x"], rows).equals(table.take(pa.array(rows)))
    with pytest.raises(OSError, match=r"(?i)zstd"):
        file.read_rows(0, ["x"], np.arange(20_000))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_lists_that_run_over_many_pages(version: str, dictionary: bool) -> None:
    """Writers switch from dictionary pages to plain ones when the dictionary grows."""
    options = {"data_page_version": version, "use_dictionary": dictionary}
    data = long_lists(3000, 60, data_page_size=4096, dictionary_pagesize_limit=8192, **options)
    assert_decoded(data)


def test_a_list_longer_than_a_page() -> None:
    lists = [list(range(5000)), [], None, list(range(70_000)), [1]]
    for batch in (1, 100, 1 << 20):
        table = pa.table({"x": pa.array(lists, pa.list_(pa.int32()))})
        assert_decoded(written(table, data_page_size=512, write_batch_size=batch))


def test_columns_of_all_codecs_and_widths_together() -> None:
    """One call decodes values of 1 to 8 bytes, with and without nulls; pyarrow reads the rest."""
    rng = np.random.default_rng(2)
    sizes = rng.integers(0, 9, 3000)
    many = pa.ListArray.from_arrays(np.append(0, np.cumsum(sizes)), rng.random(sizes.sum()))
    table = pa.table(
        {
            "zstd": rng.integers(0, 100, 3000).astype(np.int8),
            "snappy": pa.array(rng.random(3000), mask=rng.random(3000) < 0.1),
            "lz4": many,
            "none": rng.integers(0, 2**60, 3000),
            "gzip": rng.integers(0, 9, 3000).astype(np.int16),
            "text": [str(i) for i in range(3000)],
        }
    )
    codecs = {name: name for name in ("zstd", "snappy", "lz4", "none", "gzip")}
    codecs["lz4.list.element"] = codecs.pop("lz4")
    file = opened(written(table, compression={**codecs, "text": "zstd"}, data_page_size=512))
    chunks = file._chunks(0, table.column_names)
    assert set(chunks) == {"zstd", "snappy", "lz4", "none"}
    assert file.read_row_group(0, table.column_names).equals(table)


def test_decoded_memory_is_writable() -> None:
    """Otherwise every tensor must be a copy, since torch warns about read-only memory."""
    table = pa.table({"x": range(2000), "y": [[1, 2]] * 2000})
    read = opened(written(table)).read_row_group(0, ["x", "y"])
    for array in (read["x"].chunk(0), read["y"].chunk(0).values):
        assert array.buffers()[1].is_mutable


@pytest.mark.parametrize("data_type", OTHERS.values(), ids=OTHERS)
def test_other_lists_are_left_to_pyarrow(data_type: pa.DataType) -> None:
    empty = pa.table({"x": pa.array([None], data_type)})
    file = opened(written(empty))
    assert not file.leaves
    assert file.read_row_group(0, ["x"]).equals(file.file.read_row_group(0, ["x"]))


def test_columns_have_the_requested_order() -> None:
    table = pa.table({"a": [1], "x": [[1.5]], "b": ["t"], "y": [[2]]})
    file = opened(written(table))
    assert set(file.leaves) == {"a", "x", "y"}
    names = ["y", "b", "x", "a"]
    assert file.read_row_group(0, names).column_names == names
    assert file.read_row_group(0, names).to_pylist() == table.select(names).to_pylist()


def test_a_name_with_a_dot_is_not_taken_for_a_path() -> None:
    table = pa.table({"x": [[1]], "x.list": [2], "x.list.element": [[3]]})
    file = opened(written(table))
    assert "x" not in file.leaves
    assert file.read_row_group(0, table.column_names).to_pylist() == table.to_pylist()


class Counting:
    """A stream that counts its reads."""

    def __init__(self, data: bytes, *, is_local: bool) -> None:
        self._stream = pa.BufferReader(data)
        self._is_local = is_local
        self.num_reads = 0

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        self.num_reads += 1
        read: bytes = self._stream.read_at(num_bytes, offset)
        return read

    def seek(self, place: int) -> None:
        assert self._is_local  # pyarrow reads other columns from it meanwhile
        self._stream.seek(place)

    def read_buffer(self, num_bytes: int) -> pa.Buffer:
        self.num_reads += 1
        return self._stream.read_buffer(num_bytes)


@pytest.mark.parametrize("is_local", [True, False])
def test_adjacent_chunks_are_read_at_once(is_local: bool) -> None:
    table = pa.table({name: pa.array([[1, 2], [3]] * 50) for name in "abcdef"})
    data = written(table)
    file, stream = opened(data), Counting(data, is_local=is_local)
    file = replace(file, stream=stream, is_local=is_local)
    assert file.read_row_group(0, list("fa")).to_pylist() == table.select(list("fa")).to_pylist()
    assert stream.num_reads == 1


def test_tables_give_the_same_rows_with_and_without(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(long_lists(500, 12, row_group_size=200))
    source = ParquetSource(uri=str(tmp_path))
    tables = [open_parquet(source, "", decodes_pages=wanted) for wanted in (True, False)]
    rows = [
        [
            part.to_pylist()
            for unit in table.scan(()).units
            for part in read_flat(table, unit, ["x"], size)
        ]
        for table in tables
        for size in (1000, 90)
    ]
    assert rows[0] == rows[2]
    assert rows[1] == rows[3]


def test_a_pickled_table_keeps_its_decoding(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(long_lists(5, 3))
    table = open_parquet(ParquetSource(uri=str(tmp_path)), "", decodes_pages=True)
    assert pickle.loads(pickle.dumps(table)).opener.decodes_pages


def test_explain_describes_how_lists_are_decoded(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1]], "y": [2], "z": [["t"]]}), tmp_path / "a.parquet")
    source = ParquetSource(uri=str(tmp_path))
    fast, plain = (open_parquet(source, "", decodes_pages=on) for on in (True, False))
    assert fast.describe_decoding(["x", "y", "z"]).endswith(": x, y")
    assert "pyarrow" not in fast.describe_decoding(["x"])
    assert "pyarrow" in plain.describe_decoding(["x"])
    assert fast.describe_decoding(["z"]) == ""


def assert_windows(data: bytes, max_rows: int) -> None:
    """Check that the windows of each row group equal pyarrow's."""
    file = opened(data)
    for index in range(file.file.num_row_groups):
        compiled = ready_kernels()
        chunk = stored(file, index)
        made = list(chunk_windows.decode_windows(file.leaves["x"], chunk, compiled, max_rows))
        expected = file.file.iter_batches(batch_size=max_rows, row_groups=[index], columns=["x"])
        for mine, theirs in zip(made, expected, strict=True):
            mine.validate(full=True)
            assert is_same(mine, theirs.column(0))
        read = file.iter_row_group(index, ["x"], max_rows)
        assert [len(part) for part in read] == [len(window) for window in made]


@settings(deadline=None, max_examples=examples(50))
@given(
    column=columns() | numbers(),
    page_size=st.sampled_from([64, 512, 1 << 20]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    max_rows=st.sampled_from([1, 3, 20, 1000]),
)
def test_windows_equal_pyarrows(
    column: tuple[pa.Field, pa.Array], page_size: int, version: str, dictionary: bool, max_rows: int
) -> None:
    field, array = column
    if version == "2.0" and pa.types.is_boolean(items_type(field.type)):
        return  # runs, which are left to pyarrow
    table = pa.table([array], schema=pa.schema([field]))
    options = {"data_page_version": version, "use_dictionary": dictionary}
    assert_windows(
        written(table, data_page_size=page_size, write_batch_size=8, **options), max_rows
    )


@pytest.mark.parametrize("max_rows", [1, 2, 5])
def test_windows_of_lists_longer_than_a_page(max_rows: int) -> None:
    lists = [list(range(5000)), [], None, list(range(70_000)), [1]]
    table = pa.table({"x": pa.array(lists, pa.list_(pa.int32()))})
    for batch in (100, 1 << 20):
        assert_windows(written(table, data_page_size=512, write_batch_size=batch), max_rows)


def test_windows_hold_little_more_than_a_window() -> None:
    data = long_lists(20_000, 60, data_page_size=4096, use_dictionary=False)
    file = opened(data)
    whole = file.file.read_row_group(0).nbytes
    largest = max(
        part.column("x").chunk(0).values.nbytes for part in file.iter_row_group(0, ["x"], 500)
    )
    assert largest < whole / 10


def test_pyarrow_reads_on_from_a_broken_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = long_lists(2000, 30, data_page_size=2048, use_dictionary=False)
    plain = opened(data).file.read_row_group(0).column("x")
    file, seen = opened(data), 0
    decode = chunk_windows.decode_columns

    def breaking(*arguments: Any) -> dict[str, pa.Array]:
        nonlocal seen
        seen += 1
        return decode(*arguments) if seen <= 20 else {}

    monkeypatch.setattr(chunk_windows, "decode_columns", breaking)
    parts = [part.column("x") for part in file.iter_row_group(0, ["x"], 70)]
    assert seen > 20
    assert pa.chunked_array([c for part in parts for c in part.chunks]).equals(plain)
