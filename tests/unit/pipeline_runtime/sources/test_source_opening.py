"""Files opened repeatedly: footers are parsed once, and never used for another file."""

import io
import os
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

from pipeline_runtime.sources.parquet import opening
from pipeline_runtime.sources.parquet.opening import Opener

LOCAL = pafs.LocalFileSystem()


def put(path: Path, *values: int) -> str:
    pq.write_table(pa.table({"x": values}), path, row_group_size=2)
    return str(path)


def read(opener: Opener, path: str, filesystem: pafs.FileSystem | None = None) -> list[int]:
    with opener.open(filesystem or pafs.LocalFileSystem(), path) as file:
        parts = [file.read_row_group(i, ["x"]) for i in range(file.file.num_row_groups)]
    values: list[int] = pa.concat_tables(parts).column("x").to_pylist()
    return values


def leaves(opener: Opener, path: str, filesystem: Any = LOCAL) -> object:
    """Return the leaves that the opener found; the same object if the footer was cached."""
    with opener.open(filesystem, path) as file:
        return file.leaves


def test_a_footer_is_parsed_once(tmp_path: Path) -> None:
    opener, path = Opener(decodes_pages=True), put(tmp_path / "a", 1, 2, 3)
    assert leaves(opener, path) is leaves(opener, path)


def test_a_rewritten_file_of_equal_size_and_time_is_noticed(tmp_path: Path) -> None:
    opener, path = Opener(), put(tmp_path / "a", 1, 2, 3)
    assert read(opener, path) == [1, 2, 3]
    changed = os.stat(path).st_mtime_ns
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"unusable")
    os.utime(path, ns=(changed, changed))
    with pytest.raises(pa.ArrowInvalid):
        read(opener, path)


class Object(pa.PythonFile):  # type: ignore[misc]
    """An object whose store reports metadata."""

    told: ClassVar[dict[bytes, bytes]] = {}

    def metadata(self) -> dict[bytes, bytes]:
        return self.told


class Store:
    """The part of a remote file system that an opener uses."""

    def __init__(self, **told: str) -> None:
        self.told = told

    def open_input_file(self, path: str) -> Object:
        stream = Object(io.BytesIO(Path(path).read_bytes()), "r")
        stream.told = {key.encode(): value.encode() for key, value in self.told.items()}
        return stream


def test_an_object_with_another_etag_is_read_anew(tmp_path: Path) -> None:
    opener, path, store = Opener(decodes_pages=True), put(tmp_path / "a", 1, 2, 3), Store(ETag="1")
    assert leaves(opener, path, store) is leaves(opener, path, store)
    before = leaves(opener, path, store)
    assert leaves(opener, path, Store(ETag="2")) is not before


def test_a_footer_is_not_cached_without_a_version(tmp_path: Path) -> None:
    opener, path = Opener(decodes_pages=True), put(tmp_path / "a", 1, 2, 3)
    assert leaves(opener, path, Store()) is not leaves(opener, path, Store())
    assert leaves(opener, path, Store(Expires="x")) is not leaves(opener, path, Store(Expires="x"))


def test_a_rewritten_file_is_read_anew(tmp_path: Path) -> None:
    opener, path = Opener(), put(tmp_path / "a", 1, 2, 3)
    assert read(opener, path) == [1, 2, 3]
    put(tmp_path / "a", 4, 5, 6, 7, 8)
    assert read(opener, path) == [4, 5, 6, 7, 8]


def test_a_rewritten_file_of_equal_size_is_read_anew(tmp_path: Path) -> None:
    opener, path = Opener(), put(tmp_path / "a", 1, 2, 3)
    assert read(opener, path) == [1, 2, 3]
    size = os.stat(path).st_size
    Path(path).write_bytes(b"x" * size)
    with pytest.raises(pa.ArrowInvalid):
        read(opener, path)


def test_the_footer_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [put(tmp_path / str(index), index) for index in range(4)]
    size = pq.read_metadata(paths[0]).serialized_size
    monkeypatch.setattr(opening, "_MAX_FOOTER_BYTES", 2 * size)
    opener = Opener()
    for path in paths * 2:
        assert read(opener, path) == [int(Path(path).name)]
        assert opener.num_footers <= 2


def test_another_file_system_gives_the_same_rows(tmp_path: Path) -> None:
    path = put(tmp_path / "a", *range(9))
    other = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    assert read(Opener(), "a", other) == read(Opener(), path)
