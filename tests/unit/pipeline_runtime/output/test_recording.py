"""Records of chunks are stored one by one on a disk, and several at a time on an object store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from failing_store import store_in_memory

from pipeline_runtime.errors import OutputError
from pipeline_runtime.output import recording as module
from pipeline_runtime.output.recording import recording
from pipeline_runtime.output.records import ChunkRecord, RunRecord, read_record
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.sources import open_location


def record(group: int) -> ChunkRecord:
    return ChunkRecord(
        group=group, chunk=0, is_last=True, num_rows=0, counts=(), file="", sections=()
    )


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    monkeypatch.setenv("LASTMILE_STORAGE_SCHEMES", "away")
    with store_in_memory():
        yield Storage(open_location("away://lake/run"))


def test_a_disk_stores_each_record_at_once(tmp_path: Path) -> None:
    checks: list[int] = []
    staged = Storage(open_location(str(tmp_path)))
    with recording(staged, lambda: checks.append(1)) as recorder:
        assert [each.group for each in recorder.put(record(3))] == [3]
        assert recorder.drain() == []
    assert list(staged.sizes("pieces")) == ["000003-0000.json"]
    assert len(checks) == 1


@pytest.mark.parametrize(
    ("kind", "text", "name", "value"),
    [
        pytest.param(
            ChunkRecord,
            '{"version": 1, "group": 3, "piece": 2, "isLast": true, "numRows": 0, "counts": [],'
            ' "file": "", "sections": []}',
            "place",
            (3, 2),
            id="a chunk",
        ),
        pytest.param(
            RunRecord,
            '{"version": 1, "id": "a", "runHash": "b", "runConfig": {}, "dataDigest": "c",'
            ' "pieceRows": 7}',
            "chunk_rows",
            7,
            id="a run",
        ),
    ],
)
def test_records_are_read_by_the_names_of_their_fields(
    tmp_path: Path, kind: type[ChunkRecord | RunRecord], text: str, name: str, value: object
) -> None:
    staged = Storage(open_location(str(tmp_path)))
    staged.write("record.json", text.encode())
    assert getattr(read_record(staged, "record.json", kind), name) == value


def test_a_store_has_bounded_requests(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    running: list[str] = []
    write = module.write_record

    def wait(storage: Storage, name: str, each: ChunkRecord) -> None:
        running.append(name)
        go_on.wait()
        write(storage, name, each)

    monkeypatch.setattr(module, "write_record", wait)
    checks: list[int] = []
    with recording(store, lambda: checks.append(1)) as recorder:
        stored = [found for group in range(16) for found in recorder.put(record(group))]
        assert stored == []
        threading.Timer(0.1, go_on.set).start()
        stored += recorder.put(record(16))  # waits for the first
        assert stored[0].group == 0
        stored += recorder.drain()
    assert [each.group for each in stored] == list(range(17))
    assert len(store.sizes("pieces")) == 17
    assert len(running) == 17


def test_a_record_that_cannot_be_stored_ends_the_run(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(storage: Storage, name: str, each: ChunkRecord) -> None:
        raise OutputError(name)

    monkeypatch.setattr(module, "write_record", refuse)

    def record_one() -> None:  # `put` raises if the record was refused so soon
        with recording(store, lambda: None) as recorder:
            recorder.put(record(1))
            recorder.drain()

    with pytest.raises(OutputError, match="000001"):
        record_one()
