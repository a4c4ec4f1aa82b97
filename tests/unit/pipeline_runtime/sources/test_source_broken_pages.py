"""Broken chunks, and chunks of an unsupported kind, are left to pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from encrypted_files import write_encrypted
from hypothesis import given, settings
from hypothesis import strategies as st
from list_files import decoded, long_lists, opened, ready_kernels, stored, written
from property_tests import examples

from pipeline_runtime.config import ParquetSource
from pipeline_runtime.errors import SourceError
from pipeline_runtime.kernels import parquet
from pipeline_runtime.sources import read_flat
from pipeline_runtime.sources.parquet import open_parquet
from pipeline_runtime.sources.parquet.decoding.chunk_pages import Page, PageError, read_pages
from pipeline_runtime.sources.parquet.decoding.chunk_windows import decode_windows
from pipeline_runtime.sources.parquet.decoding.leaves import Stored

pytestmark = pytest.mark.usefixtures("decoded_here")


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 128:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def pages_of(chunk: pa.Buffer) -> list[Page]:
    return list(read_pages(np.frombuffer(chunk, np.uint8), ready_kernels()))


BREAKS: dict[str, Callable[[bytearray, int, int], None]] = {
    "a byte is changed": lambda data, at, value: data.__setitem__(at, value),
    "bytes are zero": lambda data, at, value: data.__setitem__(
        slice(at, at + value), bytes(len(data[at : at + value]))
    ),
}


@settings(deadline=None, max_examples=examples(100))
@given(
    data=st.data(),
    kind=st.sampled_from(sorted(BREAKS)),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "none", "snappy", "lz4", "zstd"]),
    is_list=st.booleans(),
)
def test_a_broken_chunk_touches_no_other_memory(
    data: st.DataObject, kind: str, version: str, codec: str, is_list: bool
) -> None:
    """It is left to pyarrow, or gives consistent values; no other memory is touched."""
    lists = pa.array([[1, 2, None], [], None, [7] * 30] * 20, pa.list_(pa.int64()))
    numbers = pa.array([1, 2, None, 2**50, 7] * 100, pa.int64())
    source = written(
        pa.table({"x": lists if is_list else numbers}),
        compression=codec,
        data_page_version=version,
        data_page_size=128,
        write_batch_size=8,
        use_dictionary=data.draw(st.booleans()),
    )
    file = opened(source)
    whole = stored(file)
    chunk = bytearray(whole.data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(chunk) - 1))
        BREAKS[kind](chunk, at, data.draw(st.integers(0, 255)))
    compiled = ready_kernels()
    broken = replace(whole, data=pa.py_buffer(bytes(chunk)))
    wanted = np.arange(whole.num_rows) % 40 == data.draw(st.integers(0, 40))
    for some in (None, wanted):
        made = decoded(file, broken, wanted=some)
        if made is not None:
            made.validate(full=True)
            assert len(made) == whole.num_rows
    with contextlib.suppress(PageError, pa.ArrowException, OSError):
        for window in decode_windows(file.leaves["x"], broken, compiled, 7):
            window.validate(full=True)


WHOLE = written(pa.table({"x": [[1, 2]] * 100}), compression="none")
BROKEN: dict[str, bytes] = {
    "a list of more items than bytes": b"\x19\xf1" + varint(2**60) + bytes(100),
    "a number without an end": b"\x15" + b"\xff" * 100_000,
    "structs without an end": b"\x1c" * 5000,
    "lists without an end": b"\x19" + b"\x19" * 5000,
    "a size of 2**40": b"\x15\x00\x15" + varint(2**41) + bytes(50),
    "nothing": b"",
    "zeros": bytes(200),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_impossible_headers_are_refused(data: bytes) -> None:
    file = opened(WHOLE)
    compiled = ready_kernels()
    chunk = Stored(
        data=pa.py_buffer(data),
        codec="UNCOMPRESSED",
        num_rows=100,
        num_values=200,
        uncompressed_bytes=10_000,
    )
    assert decoded(file, chunk) is None
    with pytest.raises(PageError):
        list(decode_windows(file.leaves["x"], chunk, compiled, 10))


PLAIN_OF_TWO = (
    b"\x15" + varint(2 * 200) + b"\x15\x00"
)  # a data page of 200 levels, and its encoding
LIES = {
    "an encoding that is a byte": b"\x15" + varint(2 * 200) + b"\x13\x00",
    "more levels than the footer says": b"\x15" + varint(2 * 8000) + b"\x15\x00",
    "fewer levels than the footer says": b"\x15" + varint(2 * 100) + b"\x15\x00",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_wrong_header_is_refused(lie: bytes) -> None:
    table = pa.table({"x": [[1, 2]] * 100})
    file = opened(written(table, compression="none", use_dictionary=False, write_statistics=False))
    whole, compiled = stored(file), ready_kernels()
    assert bytes(whole.data).count(PLAIN_OF_TWO) == 1
    broken = replace(whole, data=pa.py_buffer(bytes(whole.data).replace(PLAIN_OF_TWO, lie)))
    assert decoded(file, broken) is None
    with pytest.raises(PageError):
        list(decode_windows(file.leaves["x"], broken, compiled, 10))


@pytest.mark.parametrize("place", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x0a\x00\x00\x00"])
def test_an_index_outside_a_dictionary_is_refused(place: bytes) -> None:
    """A run's value may have bits above its width, or be negative once stored."""
    dictionary, out = np.arange(10, dtype=np.uint64), np.zeros(5, np.uint64)
    data = np.frombuffer(bytes([31]) + varint(10) + place, np.uint8)
    values = dictionary.view(np.uint8), out.view(np.uint8)
    assert parquet.read_values(data, 0, False, 8, 8, *values) == -1


@pytest.mark.parametrize(("at", "value"), [(5, 2), (11, 7), (11, 255)])
def test_levels_above_the_highest_are_left_to_pyarrow(at: int, value: int) -> None:
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    source = bytearray(written(pa.table({"x": [[1]] * 8}), **options))
    file = opened(bytes(source))
    start = file._chunks(0, ["x"])["x"].start
    [page] = pages_of(stored(file).data)
    source[start + page.start + at] = value
    with pytest.raises(OSError, match="levels"):
        opened(bytes(source)).read_row_group(0, ["x"])


NULLS, ONE = [1, None] * 4, [7] * 8
HYBRIDS = {
    # Values, bytes of their page, and the bytes that replace them.
    "packed values past the levels' end": (NULLS, b"\x02\0\0\0\x03", b"\x02\0\0\0\x05"),
    "no packed values": (NULLS, b"\x02\0\0\0\x03", b"\x02\0\0\0\x01"),
    "a run of nothing": (NULLS, b"\x02\0\0\0\x03", b"\x02\0\0\0\x00"),
    "levels past the page": (NULLS, b"\x02\0\0\0\x03", b"\x02\0\1\0\x03"),
    "a dictionary's place without bits or runs": (ONE, b"\1\x10\0", b"\0\0\0"),
    "a dictionary's places of too many bits": (ONE, b"\1\x10\0", b"\x28\x10\0"),
}


@pytest.mark.parametrize(("values", "before", "after"), HYBRIDS.values(), ids=HYBRIDS)
def test_an_invalid_hybrid_is_left_to_pyarrow(
    values: list[int | None], before: bytes, after: bytes
) -> None:
    options = {"compression": "none", "write_statistics": False, "use_dictionary": values == ONE}
    file = opened(written(pa.table({"x": pa.array(values, pa.int64())}), **options))
    whole = stored(file)
    page, data = pages_of(whole.data)[-1], bytes(whole.data)
    body = data[page.start : page.stop]
    assert before in body, body
    changed = body.replace(before, after, 1)[: len(body)]
    assert decoded(file, replace(whole, data=pa.py_buffer(data[: page.start] + changed))) is None


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd"])
def test_a_page_that_decompresses_short_is_left_to_pyarrow(codec: str) -> None:
    """pyarrow's codec returns as many bytes as requested, even if the data has fewer."""
    options = {"compression": codec, "use_dictionary": False, "write_statistics": False}
    source = written(pa.table({"x": [list(range(100))] * 8}), **options)
    file = opened(source)
    whole = stored(file)
    [page] = pages_of(whole.data)
    packer = pa.Codec("lz4_raw" if codec == "lz4" else codec)
    body = packer.decompress(whole.data[page.start : page.stop], page.num_bytes).to_pybytes()
    short = packer.compress(body[:-60], asbytes=True)
    sizes = (varint(2 * size) for size in (page.stop - page.start, len(short)))
    header = bytes(whole.data[: page.start]).replace(*sizes, 1)
    broken = replace(whole, data=pa.py_buffer(header + short))
    [found] = pages_of(broken.data)
    assert (found.stop - found.start, found.num_bytes) == (len(short), page.num_bytes)
    assert decoded(file, broken) is None


@pytest.mark.parametrize(
    ("num_rows", "num_values"),
    [(-90_000, 100_000), (2**60, 2**60), (200, 100), (100, -1), (3, 200)],
)
def test_a_wrong_footer_is_left_to_pyarrow(num_rows: int, num_values: int) -> None:
    """The kernel fills as much memory as the header declares."""
    table = pa.table({"x": [[1, 2]] * 100})
    file = opened(written(table, compression="none", use_dictionary=False))
    broken = replace(stored(file), num_rows=num_rows, num_values=num_values)
    assert decoded(file, broken) is None


def test_a_chunk_past_the_end_of_the_file_is_left_to_pyarrow() -> None:
    file = opened(written(pa.table({"x": range(100)}), compression="none"))
    [chunk] = file._chunks(0, ["x"]).values()
    [found] = file._fetch({"x": replace(chunk, stop=chunk.stop + 10**6)}).values()
    assert decoded(file, found) is None


def test_an_item_outside_a_list_is_left_to_pyarrow() -> None:
    """An empty list must not continue the list before it."""
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    file = opened(written(pa.table({"x": [[1], [], [2]]}), **options))
    whole = stored(file)
    [page] = pages_of(whole.data)
    data = bytearray(whole.data)
    levels = data.index(b"\x03\x00", page.start)  # eight levels of one bit, none of them set
    data[levels + 1] = 2
    assert decoded(file, replace(whole, data=pa.py_buffer(bytes(data)))) is None


def test_a_file_with_an_encrypted_column_is_left_to_pyarrow(tmp_path: Path) -> None:
    """pyarrow aborts the process if it is asked for the position of such a chunk."""
    table = pa.table({"x": [[1, 2]] * 100, "z": range(100)})
    path = write_encrypted(tmp_path / "a.parquet", table, "x.list.element")
    read = open_parquet(ParquetSource(uri=str(path)), "", decodes_pages=True)
    [unit] = read.scan(()).units
    [part] = read_flat(read, unit, ["z"], 1000)
    assert part.column("z").to_pylist() == list(range(100))
    with pytest.raises(SourceError):
        list(read_flat(read, unit, ["x"], 1000))


@pytest.mark.parametrize("codec", ["gzip", "brotli"])
def test_other_codecs_are_left_to_pyarrow(codec: str) -> None:
    file = opened(written(pa.table({"x": [[1, 2]] * 100}), compression=codec))
    assert not file._chunks(0, ["x"])
    assert file.read_row_group(0, ["x"]).to_pylist() == [{"x": [1, 2]}] * 100


def test_other_encodings_are_left_to_pyarrow() -> None:
    table = pa.table({"x": [[1, 2]] * 100})
    options = {
        "use_dictionary": False,
        "column_encoding": {"x.list.element": "DELTA_BINARY_PACKED"},
    }
    file = opened(written(table, **options))
    assert file.leaves
    assert not file._chunks(0, ["x"])
    assert file.read_row_group(0, ["x"]).to_pylist() == table.to_pylist()


def test_pyarrow_reports_an_unreadable_chunk(tmp_path: Path) -> None:
    source = bytearray(long_lists(200, 20, compression="zstd"))
    file = opened(bytes(source))
    chunk = file._chunks(0, ["x"])["x"]
    source[chunk.start + 40 : chunk.stop] = bytes(chunk.stop - chunk.start - 40)
    with pytest.raises((OSError, pa.ArrowException)):
        opened(bytes(source)).read_row_group(0, ["x"])
