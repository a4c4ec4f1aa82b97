"""Files opened again and again: footers are parsed once, and never taken for another file's."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

from pipeline_runtime.sources import opening
from pipeline_runtime.sources.opening import Opener


def put(path: Path, *values: int) -> str:
    pq.write_table(pa.table({"x": values}), path, row_group_size=2)
    return str(path)


def read(opener: Opener, path: str, filesystem: pafs.FileSystem | None = None) -> list[int]:
    with opener.open(filesystem or pafs.LocalFileSystem(), path) as file:
        parts = [file.read_row_group(i, ["x"]) for i in range(file.file.num_row_groups)]
    values: list[int] = pa.concat_tables(parts).column("x").to_pylist()
    return values


def test_a_footer_is_parsed_once(tmp_path: Path) -> None:
    opener, path = Opener(), put(tmp_path / "a", 1, 2, 3)
    assert read(opener, path) == [1, 2, 3]
    changed = os.stat(path).st_mtime_ns
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"unusable")
    os.utime(path, ns=(changed, changed))
    with pytest.raises(pa.ArrowInvalid):
        read(Opener(), path)
    assert read(opener, path) == [1, 2, 3]


def test_a_file_that_was_rewritten_is_read_by_its_own_footer(tmp_path: Path) -> None:
    opener, path = Opener(), put(tmp_path / "a", 1, 2, 3)
    assert read(opener, path) == [1, 2, 3]
    put(tmp_path / "a", 4, 5, 6, 7, 8)
    assert read(opener, path) == [4, 5, 6, 7, 8]


def test_another_file_of_the_same_size_is_read_by_its_own_footer(tmp_path: Path) -> None:
    opener, path = Opener(), put(tmp_path / "a", 1, 2, 3)
    assert read(opener, path) == [1, 2, 3]
    size = os.stat(path).st_size
    Path(path).write_bytes(b"x" * size)
    with pytest.raises(pa.ArrowInvalid):
        read(opener, path)


def test_there_are_never_too_many_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
