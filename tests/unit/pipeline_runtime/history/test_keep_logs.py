"""Logs of a pod's Ray processes reach the store while they grow, long ones in part."""

import io
import os
import threading
from pathlib import Path

from facts import assert_told
from pyarrow import fs as pafs

from pipeline_runtime.history.pod_logs import (
    HEAD_BYTES,
    TAIL_BYTES,
    LogCopier,
    find_logs,
    read_ends,
)
from pipeline_runtime.sources.filesystem import Location, open_location


def build_copier(tmp_path: Path, target: Location | None = None, every: float = 10.0) -> LogCopier:
    logs = tmp_path / "ray" / "session_1" / "logs"
    logs.mkdir(parents=True)
    clock = iter(range(0, 10_000, 15))
    return LogCopier(
        source=tmp_path / "ray",
        target=target or open_location(str(tmp_path / "store" / "head")),
        every=every,
        clock=lambda: float(next(clock)),
    )


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / "ray" / "session_1" / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def kept(tmp_path: Path) -> dict[str, str]:
    root = tmp_path / "store" / "head"
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_text() for path in files}


def test_what_grew_is_copied_again_and_nothing_else(tmp_path: Path) -> None:
    copier = build_copier(tmp_path)
    grows, _ = write(tmp_path, "raylet.out", "one\n"), write(tmp_path, "old/gcs.out", "still\n")
    write(tmp_path, "empty.err", "")
    assert copier.copy() == 2
    assert copier.copy() == 0
    grows.write_text("one\ntwo\n")
    assert copier.copy() == 1
    assert kept(tmp_path) == {
        "session_1/raylet.out": "one\ntwo\n",
        "session_1/old/gcs.out": "still\n",
    }


def test_a_long_file_is_copied_more_seldom_but_at_the_end_at_once(tmp_path: Path) -> None:
    copier = build_copier(tmp_path)
    path = write(tmp_path, "raylet.out", "x" * (4 << 20))  # 41 s at 100 KiB/s; looks are 15 s apart
    copied = []
    for _ in range(5):
        copied.append(copier.copy())
        with path.open("a") as file:
            file.write("more\n")
    assert copied == [1, 0, 0, 1, 0]
    assert copier.copy(last=True) == 1


def test_a_pod_that_is_told_to_end_leaves_its_last_words(tmp_path: Path) -> None:
    copier = build_copier(tmp_path, every=3600.0)
    stop = threading.Event()
    thread = threading.Thread(target=copier.run, args=(stop,))
    thread.start()
    write(tmp_path, "worker.err", "Killed\n")
    stop.set()
    thread.join()
    assert kept(tmp_path) == {"session_1/worker.err": "Killed\n"}


def test_only_files_of_sessions_are_copied_and_each_once(tmp_path: Path) -> None:
    build_copier(tmp_path)
    write(tmp_path, "raylet.out", "x")
    write(tmp_path, "job-driver-clicks-1.log", "x")
    (tmp_path / "ray" / "session_1" / "spilled").write_text("rows")
    (tmp_path / "ray" / "session_latest").symlink_to(tmp_path / "ray" / "session_1")
    os.mkfifo(tmp_path / "ray" / "session_1" / "logs" / "pipe")
    names = [path.name for path in find_logs(tmp_path / "ray")]
    assert names == ["job-driver-clicks-1.log", "raylet.out"]  # the driver's comes first


def test_of_a_long_file_both_ends_are_kept_and_the_gap_is_told() -> None:
    size = HEAD_BYTES + TAIL_BYTES + 1000
    content = b"a" * HEAD_BYTES + b"b" * 1000 + b"c" * TAIL_BYTES
    found = b"".join(read_ends(io.BytesIO(content), size))
    assert found.startswith(b"a" * HEAD_BYTES + b"\n")
    assert found.endswith(b"\n" + b"c" * TAIL_BYTES)
    note = found[HEAD_BYTES:-TAIL_BYTES].decode()
    assert_told(note, f"… 1,000 bytes … {size:,}")
    assert len(note.splitlines()) == 2  # a line of its own


def test_a_store_that_refuses_costs_no_more_than_the_logs_and_is_tried_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "store").write_text("a file where a folder should be")
    copier = build_copier(tmp_path)
    said: list[str] = []
    copier.say = said.append
    write(tmp_path, "raylet.out", "one\n")
    assert copier.copy() == 0
    assert "logs" in said[0]
    (tmp_path / "store").unlink()
    assert copier.copy() == 1
    assert (
        copier.target.filesystem.get_file_info(copier.target.path).type == pafs.FileType.Directory
    )
