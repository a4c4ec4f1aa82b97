"""Files of side tables' parts: read once per machine, and gone at the end."""

from __future__ import annotations

import fcntl
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline_runtime.plan import part_files
from pipeline_runtime.plan.part_files import share_files

TABLE = pa.concat_tables([pa.table({"key": [1, 2], "items": [[1], None]})] * 2)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(part_files, "_entered", {})
    return tmp_path


@pytest.fixture
def reads() -> list[int]:
    return []


@pytest.fixture
def read(reads: list[int]) -> Callable[[], pa.Table]:
    def read() -> pa.Table:
        reads.append(1)
        return TABLE

    return read


def test_a_part_is_read_once(
    folder: Path, read: Callable[[], pa.Table], reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = share_files("digest")
    first = files.load(3, read)
    [place] = folder.iterdir()
    (place / "4.unfinished").write_text("of a process that was killed")
    monkeypatch.setattr(part_files, "_entered", {})  # as in another process
    copy = pickle.loads(pickle.dumps(files))
    tables = [first, copy.load(3, read), copy.load(4, read), files.load(4, read)]
    assert all(table is not None and table.equals(TABLE) for table in tables)
    assert len(reads) == 2
    files.delete()
    assert list(folder.iterdir()) == []
    assert tables[1] is not None
    assert tables[1].equals(TABLE)
    assert copy.load(3, read).equals(TABLE)  # without a folder it is read again


@pytest.mark.parametrize("trouble", ["a full disk", "no folder", "a part that is too large"])
def test_without_files_each_process_reads(
    trouble: str,
    folder: Path,
    read: Callable[[], pa.Table],
    reads: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if trouble == "a full disk":
        monkeypatch.setattr(part_files, "_MIN_FREE_BYTES", 1 << 60)
    if trouble == "no folder":
        monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    files = share_files("digest")
    for _ in range(2):
        if trouble == "a part that is too large":
            assert files.load(0, lambda: reads.append(1)) is None
        else:
            assert files.load(0, read) is TABLE
    assert len(reads) == 2


def test_folders_of_killed_runs_are_deleted(folder: Path, read: Callable[[], pa.Table]) -> None:
    dead, alive = (folder / f"lastmile-side-{os.getuid()}-{name}" for name in ("dead", "alive"))
    for place in (dead, alive):
        place.mkdir()
        (place / "in-use").touch()
    with open(alive / "in-use") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        share_files("digest").load(0, read)
    assert not dead.exists()
    assert alive.exists()
