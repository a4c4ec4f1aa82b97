"""Lists decoded page by page are those that pyarrow gives, however a file was written."""

from __future__ import annotations

import base64
import contextlib
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_runtime import kernels
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources import list_chunks, open_parquet, pages
from pipeline_runtime.sources.list_chunks import Stored
from pipeline_runtime.sources.page_headers import PageError
from pipeline_runtime.sources.pages import OpenFile, find_leaves

NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.bool_(), pa.date32()),
    pa.timestamp("s"),  # which Parquet keeps as milliseconds
    *(pa.timestamp("ms"), pa.timestamp("us", tz="UTC"), pa.timestamp("ns")),
]
OTHERS = {
    "strings": pa.list_(pa.string()),
    "lists of lists": pa.list_(pa.list_(pa.int64())),
    "structs": pa.list_(pa.struct([("x", pa.int64())])),
    "a fixed size": pa.list_(pa.int64(), 2),
    "decimals": pa.list_(pa.decimal128(9, 2)),
    "half floats": pa.list_(pa.float16()),
    "a dictionary of strings": pa.list_(pa.dictionary(pa.int32(), pa.string())),
}


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> Iterator[None]:
    """With kernels, and for the smallest chunk: what is decoded here must not be pyarrow's."""
    assert kernels.warm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "_MIN_VALUES", 0)
        yield


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
    """Lists with long runs and without, with nulls wherever the field allows them."""
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
    file = pq.ParquetFile(pa.BufferReader(data))
    leaves = find_leaves(file.metadata, file.schema_arrow)
    return OpenFile(file=file, stream=pa.BufferReader(data), is_local=True, leaves=leaves)


def assert_decoded(data: bytes) -> None:
    """Here, and not by pyarrow after all, which gives the same."""
    file = opened(data)
    assert set(file.leaves) == {"x"}
    for index in range(file.file.num_row_groups):
        compiled = kernels.select(True, 0)
        assert compiled is not None
        made = list_chunks.decode_chunk(file.leaves["x"], stored(file, index), compiled)
        assert made is not None
        made.validate(full=True)
        expected = file.file.read_row_group(index).column("x").combine_chunks()
        assert made.type == expected.type
        assert _same(made, expected)
        assert _same(file.read_row_group(index, ["x"]).column("x").combine_chunks(), expected)


def stored(file: OpenFile, row_group: int = 0) -> Stored:
    [chunk] = file._fetch(file._chunks(row_group, ["x"])).values()
    return chunk


def _same(mine: pa.Array, theirs: pa.Array) -> bool:
    """Equal, NaN to itself and -0.0 not to 0.0: floats by their bits."""
    items = theirs.type.value_type
    if pa.types.is_floating(items):
        make = pa.large_list if pa.types.is_large_list(theirs.type) else pa.list_
        bits = make(pa.field("element", pa.uint32() if items.bit_width == 32 else pa.uint64()))
        mine, theirs = (_as_bits(array, bits) for array in (mine, theirs))
    return bool(mine.equals(theirs))


def _as_bits(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    values = array.values
    items = pa.Array.from_buffers(
        data_type.value_type, len(values), values.buffers(), -1, values.offset
    )
    return pa.Array.from_buffers(
        data_type, len(array), array.buffers()[:2], -1, array.offset, [items]
    )


@settings(deadline=None, max_examples=150)
@given(
    column=columns(),
    compression=st.sampled_from(["none", "snappy", "zstd", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    page_size=st.sampled_from([64, 512, 1 << 20]),  # of 1 byte pyarrow loses an empty list
    group_rows=st.sampled_from([1, 7, 10_000]),
)
def test_lists_are_those_of_pyarrow(
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
        # Version 2 writes booleans as runs, which are left to pyarrow.
        use_dictionary=dictionary,
        data_page_size=page_size,
        write_batch_size=8 if page_size < 1 << 20 else 1024,
        row_group_size=min(group_rows, max(1, len(array))),
    )
    if is_second and pa.types.is_boolean(field.type.value_type):
        file = opened(data)
        expected = file.file.read_row_group(0).column("x")
        assert file.read_row_group(0, ["x"]).column("x").equals(expected)
        return
    assert_decoded(data)


def long_lists(num_rows: int, length: int, **options: Any) -> bytes:
    """Of more pages than one."""
    rng = np.random.default_rng(1)
    lists = [rng.integers(0, 1 << 40, rng.integers(0, length)) for _ in range(num_rows)]
    return written(pa.table({"x": pa.array(lists, pa.list_(pa.int64()))}), **options)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_lists_that_run_over_many_pages(version: str, dictionary: bool) -> None:
    """One in which dictionary pages give way to plain ones, as writers do when it grows."""
    options = {"data_page_version": version, "use_dictionary": dictionary}
    data = long_lists(3000, 60, data_page_size=4096, dictionary_pagesize_limit=8192, **options)
    assert_decoded(data)


def test_a_list_longer_than_a_page() -> None:
    lists = [list(range(5000)), [], None, list(range(70_000)), [1]]
    for batch in (1, 100, 1 << 20):
        table = pa.table({"x": pa.array(lists, pa.list_(pa.int32()))})
        assert_decoded(written(table, data_page_size=512, write_batch_size=batch))


@pytest.mark.parametrize("data_type", OTHERS.values(), ids=OTHERS)
def test_other_lists_are_left_to_pyarrow(data_type: pa.DataType) -> None:
    empty = pa.table({"x": pa.array([None], data_type)})
    file = opened(written(empty))
    assert not file.leaves
    assert file.read_row_group(0, ["x"]).equals(file.file.read_row_group(0, ["x"]))


def test_columns_stand_in_the_order_asked_for() -> None:
    table = pa.table({"a": [1], "x": [[1.5]], "b": ["t"], "y": [[2]]})
    file = opened(written(table))
    assert set(file.leaves) == {"x", "y"}
    names = ["y", "b", "x", "a"]
    assert file.read_row_group(0, names).column_names == names
    assert file.read_row_group(0, names).to_pylist() == table.select(names).to_pylist()


def test_a_name_with_a_dot_is_not_taken_for_a_path() -> None:
    table = pa.table({"x": [[1]], "x.list": [2], "x.list.element": [[3]]})
    file = opened(written(table))
    assert "x" not in file.leaves
    assert file.read_row_group(0, table.column_names).to_pylist() == table.to_pylist()


BREAKS: dict[str, Callable[[bytearray, int, int], None]] = {
    "a byte is another": lambda data, at, value: data.__setitem__(at, value),
    "bytes are gone": lambda data, at, value: data.__setitem__(
        slice(at, at + value), bytes(len(data[at : at + value]))
    ),
}


@settings(deadline=None, max_examples=300)
@given(
    data=st.data(), kind=st.sampled_from(sorted(BREAKS)), version=st.sampled_from(["1.0", "2.0"])
)
def test_a_broken_chunk_harms_nobody(data: st.DataObject, kind: str, version: str) -> None:
    """It is left to pyarrow, or gives lists that hold together; nothing outside is touched."""
    lists = [[1, 2, None], [], None, [7] * 30] * 20
    source = written(
        pa.table({"x": pa.array(lists, pa.list_(pa.int64()))}),
        compression="none",
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
    compiled = kernels.select(True, 0)
    assert compiled is not None
    broken = replace(whole, data=memoryview(bytes(chunk)))
    made = list_chunks.decode_chunk(file.leaves["x"], broken, compiled)
    if made is not None:
        made.validate(full=True)
        assert len(made) == whole.num_rows
    with contextlib.suppress(PageError, pa.ArrowException):
        for window in list_chunks.decode_windows(file.leaves["x"], broken, compiled, 7):
            window.validate(full=True)


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 128:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


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
def test_headers_that_cannot_be_are_refused_at_once(data: bytes) -> None:
    file = opened(WHOLE)
    compiled = kernels.select(True, 0)
    assert compiled is not None
    chunk = Stored(data=memoryview(data), codec="UNCOMPRESSED", num_rows=100, num_values=200)
    assert list_chunks.decode_chunk(file.leaves["x"], chunk, compiled) is None
    with pytest.raises(PageError):
        list(list_chunks.decode_windows(file.leaves["x"], chunk, compiled, 10))


@pytest.mark.parametrize("place", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x0a\x00\x00\x00"])
def test_a_place_that_a_dictionary_has_not_is_refused(place: bytes) -> None:
    """A run's value may have bits above its width, or be negative where it is put."""
    compiled = kernels.select(True, 0)
    assert compiled is not None
    dictionary, out = np.arange(10, dtype=np.uint64), np.zeros(5, np.uint64)
    data = np.frombuffer(varint(10) + place, np.uint8)
    every = np.zeros(0, np.uint8)
    assert compiled.parquet.pick(data, 0, 31, 5, dictionary, every, out) == -1


@pytest.mark.parametrize(("at", "value"), [(5, 2), (11, 7), (11, 255)])
def test_levels_above_the_highest_are_left_to_pyarrow(at: int, value: int) -> None:
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    source = bytearray(written(pa.table({"x": [[1]] * 8}), **options))
    file = opened(bytes(source))
    start = file._chunks(0, ["x"])["x"].start
    [page] = list_chunks.read_pages(stored(file).data)
    source[start + page.start + at] = value
    with pytest.raises(OSError, match="levels"):
        opened(bytes(source)).read_row_group(0, ["x"])


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_a_page_that_decompresses_short_is_left_to_pyarrow(codec: str) -> None:
    """pyarrow's codec gives as many bytes as it is asked for, whatever came out."""
    options = {"compression": codec, "use_dictionary": False, "write_statistics": False}
    source = written(pa.table({"x": [list(range(100))] * 8}), **options)
    file = opened(source)
    whole = stored(file)
    [page] = list_chunks.read_pages(whole.data)
    packer = pa.Codec("lz4_raw" if codec == "lz4" else codec)
    body = packer.decompress(whole.data[page.start : page.stop], page.num_bytes).to_pybytes()
    short = packer.compress(body[:-60], asbytes=True)
    sizes = (varint(2 * size) for size in (page.stop - page.start, len(short)))
    header = bytes(whole.data[: page.start]).replace(*sizes, 1)
    broken = replace(whole, data=memoryview(header + short))
    [found] = list_chunks.read_pages(broken.data)
    assert (found.stop - found.start, found.num_bytes) == (len(short), page.num_bytes)
    compiled = kernels.select(True, 0)
    assert compiled is not None
    assert list_chunks.decode_chunk(file.leaves["x"], broken, compiled) is None


def test_a_file_with_an_encrypted_column_is_left_to_pyarrow(tmp_path: Path) -> None:
    """It ends the process if it is asked where such a chunk lies."""
    path = tmp_path / "a.parquet"
    table = pa.table({"x": [[1, 2]] * 100, "z": range(100)})
    config = pe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["x.list.element"]}, plaintext_footer=True
    )
    factory = pe.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    read = open_parquet(ParquetSource(uri=str(path)), "", decodes_pages=True)
    [unit] = read.scan(()).units
    [part] = read.read(unit, ["z"], 1000)
    assert part.column("z").to_pylist() == list(range(100))
    with pytest.raises(SourceError):
        list(read.read(unit, ["x"], 1000))


class Keys(pe.KmsClient):  # type: ignore[misc]
    """Keys that are no secret."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


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


def test_what_pyarrow_cannot_read_is_its_to_say(tmp_path: Path) -> None:
    source = bytearray(long_lists(200, 20, compression="zstd"))
    file = opened(bytes(source))
    chunk = file._chunks(0, ["x"])["x"]
    source[chunk.start + 40 : chunk.stop] = bytes(chunk.stop - chunk.start - 40)
    with pytest.raises((OSError, pa.ArrowException)):
        opened(bytes(source)).read_row_group(0, ["x"])


class Counting:
    """A stream that counts how often it is asked."""

    def __init__(self, data: bytes) -> None:
        self._stream = pa.BufferReader(data)
        self.num_reads = 0

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        self.num_reads += 1
        read: bytes = self._stream.read_at(num_bytes, offset)
        return read


@pytest.mark.parametrize("is_local", [True, False])
def test_chunks_that_lie_together_are_read_at_once(is_local: bool) -> None:
    table = pa.table({name: pa.array([[1, 2], [3]] * 50) for name in "abcdef"})
    data = written(table)
    file, stream = opened(data), Counting(data)
    file = OpenFile(file=file.file, stream=stream, is_local=is_local, leaves=file.leaves)
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
            for part in table.read(unit, ["x"], size)
        ]
        for table in tables
        for size in (1000, 90)
    ]
    assert rows[0] == rows[2]
    assert rows[1] == rows[3]


def test_a_table_that_was_sent_decodes_as_before(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(long_lists(5, 3))
    table = open_parquet(ParquetSource(uri=str(tmp_path)), "", decodes_pages=True)
    assert pickle.loads(pickle.dumps(table)).opener.decodes_pages


def test_explain_says_how_lists_are_decoded(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1]], "y": [2], "z": [["t"]]}), tmp_path / "a.parquet")
    source = ParquetSource(uri=str(tmp_path))
    fast, plain = (open_parquet(source, "", decodes_pages=on) for on in (True, False))
    assert "page by page, by compiled kernels" in fast.describe_decoding(["x", "y", "z"])
    assert fast.describe_decoding(["x", "y", "z"]).endswith(": x")
    assert "by pyarrow" in plain.describe_decoding(["x"])
    assert fast.describe_decoding(["y", "z"]) == ""


def assert_windows(data: bytes, max_rows: int) -> None:
    """Row group by row group, those of pyarrow, decoded here."""
    file = opened(data)
    for index in range(file.file.num_row_groups):
        compiled = kernels.select(True, 0)
        assert compiled is not None
        chunk = stored(file, index)
        windows = list(list_chunks.decode_windows(file.leaves["x"], chunk, compiled, max_rows))
        expected = file.file.iter_batches(batch_size=max_rows, row_groups=[index], columns=["x"])
        for mine, theirs in zip(windows, expected, strict=True):
            mine.validate(full=True)
            assert _same(mine, theirs.column(0))
        read = file.iter_row_group(index, ["x"], max_rows)
        assert [len(part) for part in read] == [len(window) for window in windows]


@settings(deadline=None, max_examples=150)
@given(
    column=columns(),
    page_size=st.sampled_from([64, 512, 1 << 20]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    max_rows=st.sampled_from([1, 3, 20, 1000]),
)
def test_windows_are_those_of_pyarrow(
    column: tuple[pa.Field, pa.Array], page_size: int, version: str, dictionary: bool, max_rows: int
) -> None:
    field, array = column
    if version == "2.0" and pa.types.is_boolean(field.type.value_type):
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


def test_what_is_broken_further_on_is_read_by_pyarrow_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = long_lists(2000, 30, data_page_size=2048, use_dictionary=False)
    plain = opened(data).file.read_row_group(0).column("x")
    file, seen = opened(data), 0
    add = list_chunks._Chunk.add

    def breaking(self: Any, page: Any, chunk: memoryview) -> None:
        nonlocal seen
        seen += 1
        if seen > 20:
            raise PageError("as if")
        add(self, page, chunk)

    monkeypatch.setattr(list_chunks._Chunk, "add", breaking)
    parts = [part.column("x") for part in file.iter_row_group(0, ["x"], 70)]
    assert seen > 20
    assert pa.chunked_array([c for part in parts for c in part.chunks]).equals(plain)


def fold(data: bytes) -> tuple[pa.Array, pa.Array]:
    """The lists of the first row group as they are, and with equal neighbours once."""
    file = opened(data)
    [plain] = file.read_row_group(0, ["x"]).column("x").chunks
    [folded] = file.read_row_group(0, ["x"], folded=["x"]).column("x").chunks
    return plain, folded


@settings(deadline=None, max_examples=200)
@given(
    column=columns(),
    repeats=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    page_size=st.sampled_from([64, 512, 1 << 20]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
)
def test_folded_lists_are_the_same_lists(
    column: tuple[pa.Field, pa.Array],
    repeats: list[int],
    page_size: int,
    version: str,
    dictionary: bool,
) -> None:
    field, array = column
    counts = np.resize(repeats, len(array))
    table = pa.table([array.take(np.repeat(np.arange(len(array)), counts))], pa.schema([field]))
    options = {"data_page_version": version, "use_dictionary": dictionary}
    plain, folded = fold(written(table, data_page_size=page_size, write_batch_size=8, **options))
    folded.validate(full=True)
    if pa.types.is_dictionary(folded.type):
        codes = folded.indices.to_numpy()
        assert set(np.diff(codes)) <= {0, 1}
        folded = folded.dictionary.take(folded.indices)
    assert _same(folded.cast(plain.type), plain)


def test_lists_that_repeat_stand_once() -> None:
    """But for the first and the last of a page, which may be parts of longer ones."""
    lists = [[request, *range(100)] for request in range(200) for _ in range(20)]
    table = pa.table({"x": pa.array(lists, pa.list_(pa.int64()))})
    data = written(table, use_dictionary=False, data_page_size=1 << 16)
    plain, folded = fold(data)
    num_pages = plain.values.nbytes / (1 << 16) + 1
    assert 200 <= len(folded.dictionary) <= 200 + 2 * num_pages
    assert folded.dictionary.take(folded.indices).equals(plain)


@pytest.mark.parametrize("lists", [[[1, None], [1, None], [2, 3]], [[True], [True]]])
def test_what_cannot_be_folded_comes_as_it_is(lists: list[Any]) -> None:
    plain, folded = fold(written(pa.table({"x": lists})))
    assert folded.equals(plain)
