"""Footers on which pyarrow would abort the process: the error names file and column."""

import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from encrypted_files import write_encrypted
from facts import assert_told

from pipeline_runtime import Pipeline
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources import read_flat
from pipeline_runtime.sources.parquet import ParquetTable, open_parquet
from pipeline_runtime.sources.parquet.footers import Footer, read_footer
from pipeline_runtime.sources.parquet.thrift import (
    ThriftError,
    read_integer,
    read_struct,
    write_integer,
)

pytestmark = pytest.mark.usefixtures("decoded_here")

MOST = 2**40 + 12345
TABLE = pa.table({"x": [1, MOST] * 50, "text": ["a", "b"] * 50, "z": range(100)})


def write(path: Path, change: Callable[[bytes], bytes] = bytes, table: pa.Table = TABLE) -> Path:
    """Write a table in two row groups, then change its footer."""
    pq.write_table(table, path, row_group_size=50, compression="zstd", use_dictionary=False)
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = change(data[-8 - size : -8])
    path.write_bytes(data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def with_codec(name: str, number: int, *, which: int = 0) -> Callable[[bytes], bytes]:
    """Give one chunk of a column another codec."""
    before = b"\x19\x18" + bytes([len(name)]) + name.encode() + b"\x15"

    def change(footer: bytes) -> bytes:
        parts = footer.split(before)
        parts[which + 1] = write_integer(number) + parts[which + 1][1:]
        return before.join(parts)

    return change


def with_short_bound(footer: bytes) -> bytes:
    """Shorten the largest value of a column of 64-bit integers by a byte."""
    bound = struct.pack("<q", MOST)
    assert b"\x08" + bound in footer
    return footer.replace(b"\x08" + bound, b"\x07" + bound[:7])


def open_(path: Path) -> ParquetTable:
    return open_parquet(ParquetSource(uri=str(path)), "", decodes_pages=True)


def footer_of(path: Path) -> Footer:
    with pa.OSFile(str(path)) as stream:
        return read_footer(stream)


@pytest.mark.parametrize("number", [12, 63, 64, 2**31 - 1, -1])
@pytest.mark.parametrize("column", ["x", "text"])
def test_an_unknown_codec_is_an_error_that_names_the_column(
    tmp_path: Path, number: int, column: str
) -> None:
    path = write(tmp_path / "a.parquet", with_codec(column, number, which=1))
    table = Pipeline.read_parquet(str(path))
    with pytest.raises(SourceError) as caught:
        table.to_table("/")
    assert_told(str(caught.value), f"{path} … {column!r}")
    assert table.select("z").to_table("/").num_rows == 100
    assert "rows" in table.explain("/")


def test_the_codec_of_each_row_group_is_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", with_codec("x", 12))
    assert footer_of(path).codec(0, 0) == "UNKNOWN"
    assert footer_of(path).codec(1, 0) == "ZSTD"


@pytest.mark.parametrize("where", ["x > 5", "z > 5 and x is not null"])
def test_statistics_of_a_wrong_length_are_an_error(tmp_path: Path, where: str) -> None:
    """As in pyarrow, which aborts the process only when it prunes by them."""
    path = write(tmp_path / "a.parquet", with_short_bound)
    table = Pipeline.read_parquet(str(path))
    with pytest.raises(SourceError):
        table.filter(where).to_table("/")
    assert table.filter("z > 90").select("z").to_table("/").num_rows == 9


def test_a_column_name_of_invalid_utf8_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", lambda footer: footer.replace(b"\x04text", b"\x04t\xffxt"))
    with pytest.raises(SourceError, match=r"a\.parquet"):
        open_(path)


def test_the_path_of_a_chunk_may_be_invalid_utf8(tmp_path: Path) -> None:
    """As in pyarrow, which finds a chunk by its position."""
    good, bad = b"\x19\x18\x04text", b"\x19\x18\x04t\xffxt"
    table = open_(write(tmp_path / "a.parquet", lambda footer: footer.replace(good, bad)))
    units = table.scan(()).units
    assert table.sizes(units, ["text"])["text"].stored_bytes > 0
    assert table.sizes(units, ["text"])["text"].num_bytes > 0
    assert (
        sum(part.num_rows for unit in units for part in read_flat(table, unit, ["text"], 99)) == 100
    )


def test_an_encrypted_column_is_called_encrypted(tmp_path: Path) -> None:
    path = write_encrypted(tmp_path / "a.parquet", TABLE, "x")
    table = Pipeline.read_parquet(str(path))
    with pytest.raises(SourceError, match="'x' is encrypted"):
        table.select("x").to_table("/")
    with pytest.raises(SourceError, match="'x' is encrypted"):
        table.filter("x > 5").to_table("/")


def test_the_other_columns_of_an_encrypted_file_are_read(tmp_path: Path) -> None:
    path = write_encrypted(tmp_path / "a.parquet", TABLE, "x")
    table = Pipeline.read_parquet(str(path), columns=["text", "z"])
    assert table.to_table("/").equals(TABLE.select(["text", "z"]))
    assert "rows" in table.explain("/")
    assert len(open_(path).footer_digests([0])) == 1


def test_an_encrypted_footer_is_called_encrypted(tmp_path: Path) -> None:
    path = write_encrypted(tmp_path / "a.parquet", TABLE, "x", plaintext_footer=False)
    with pytest.raises(SourceError, match="encrypted"):
        open_(path)


def test_codecs_equal_those_of_pyarrow(tmp_path: Path) -> None:
    """Even if names are short, contain dots, or occur in statistics."""
    names = ["x", "a.x", "b", "x\x15"]
    table = pa.table({name: ["x\x15\x0c", f"{name}\x15"] * 20 for name in names})
    lists = {"l": [[1, 2]] * 40, "s": [{"x": 1, "b": [2]}] * 40}
    table = pa.Table.from_arrays([*table.columns, *map(pa.array, lists.values())], [*names, *lists])
    codecs = dict(zip(names, ["snappy", "zstd", "gzip", "none"], strict=True))
    for options in ({"compression": codecs}, {"compression": "lz4"}, {"compression": "brotli"}):
        pq.write_table(table, tmp_path / "a", row_group_size=7, write_page_index=True, **options)
        footer = footer_of(tmp_path / "a")
        groups = range(footer.metadata.num_row_groups)
        for leaf in range(footer.metadata.num_columns):
            told = {footer.metadata.row_group(group).column(leaf).compression for group in groups}
            assert {footer.codec(group, leaf) for group in groups} == told
        assert footer.has_sound_statistics(range(footer.metadata.num_columns))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x15", b"\x15" + b"\xff" * 20, b"\x1c" * 5000, b"\x19" * 5000, b"\x18\x05ab", b"\x1e"],
)
def test_a_broken_struct_is_an_error(data: bytes) -> None:
    with pytest.raises(ThriftError):
        read_struct(data, 0)


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, -64, -65, 2**31, 2**63 - 1, -(2**63)])
def test_integers_are_read_as_written(value: int) -> None:
    data = write_integer(value)
    assert read_integer(data, 0) == (value, len(data))
