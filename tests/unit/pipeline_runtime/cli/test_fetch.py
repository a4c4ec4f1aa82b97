"""Fetching the files of a run from an artifacts store that others can write to."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline_runtime.cli.for_clusters import fetch
from pipeline_runtime.cli.for_clusters.fetch import fetch_run
from pipeline_runtime.errors import SourceError, StoreError


def leave(store: Path, run: str, text: str) -> None:
    (store / run / "checkpoints").mkdir(parents=True)
    (store / run / "checkpoints" / "large").write_text("")
    (store / run / "report.html").write_text(text)


def test_the_newest_report_is_fetched_without_checkpoints(tmp_path: Path) -> None:
    store, folder = tmp_path / "clicks", tmp_path / "new" / "folder"
    leave(store, "20260101T000000Z-abc-0f3c6c1e-1", "older")
    leave(store, "20260102T000000Z-abc-0f3c6c1e-1", "newer")
    leave(store, "20260103T000000Z-abc-0f3c6c1e-2", "another run's")
    leave(store, "20260104T000000Z-abc", "a person's")

    files = fetch_run(f"{store}/", "0f3c6c1e-1", folder, pytest.fail)

    assert files == [folder / "report.html"]
    assert files[0].read_text() == "newer"
    assert [path.name for path in folder.iterdir()] == ["report.html"]


@pytest.mark.parametrize("there", [True, False])
def test_a_missing_run_is_an_error(tmp_path: Path, there: bool) -> None:
    store = tmp_path / "clicks"
    if there:
        leave(store, "20260101T000000Z-abc-0f3c6c1e-11", "another run's")
    with pytest.raises(SourceError, match="0f3c6c1e-1"):
        fetch_run(str(store), "0f3c6c1e-1", tmp_path / "out", pytest.fail)


RUN = "20260101T000000Z-abc-0f3c6c1e-1"
DECISION = "20260101T000000Z-1-2.json"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    leave(tmp_path / "clicks", RUN, "the report")
    return tmp_path / "clicks"


def put(store: Path, name: str, content: str = "forged") -> None:
    path = store / RUN / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)


def download(store: Path, folder: Path) -> tuple[set[str], list[str]]:
    """Download the run; return the copied names below the folder, and the lines told."""
    lines: list[str] = []
    files = fetch_run(str(store), "0f3c6c1e-1", folder, lines.append)
    copied = {str(path.relative_to(folder)) for path in files}
    assert copied == {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return copied, lines


FORGED = [
    ".bashrc",
    "-rf",
    "evil.sh",
    "report.html.exe",
    "checkpoint.pt",
    "logs/.netrc",
    "logs/report.html",
    "logs/summary.json",
    "logs/\x1b]0;owned\x07.log",
    "logs/a\nb.log",
    "logs/\u202egol.log",
    "decisions/.x.json",
    "decisions/summary.json",
]


@pytest.mark.parametrize("name", FORGED)
def test_only_the_files_of_a_report_are_copied(store: Path, tmp_path: Path, name: str) -> None:
    put(store, name)
    put(store, "logs/job-driver-x-1.log", "log")
    put(store, f"decisions/{DECISION}", "{}")
    copied, [line] = download(store, tmp_path / "out")
    assert copied == {"report.html", "logs/job-driver-x-1.log", f"decisions/{DECISION}"}
    assert (tmp_path / "out" / "report.html").read_text() == "the report"
    assert line.isprintable()


@pytest.mark.parametrize("name", ["report.html", "logs/driver.log", f"decisions/{DECISION}"])
def test_a_link_in_place_of_a_file_is_replaced(store: Path, tmp_path: Path, name: str) -> None:
    put(store, name, "new")
    victim, link = tmp_path / "victim", tmp_path / "out" / name
    victim.write_text("precious")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    copied, lines = download(store, tmp_path / "out")
    assert (name in copied, lines) == (True, [])
    assert (victim.read_text(), link.read_text(), link.is_symlink()) == ("precious", "new", False)


@pytest.mark.parametrize("name", ["logs/driver.log", f"decisions/{DECISION}"])
def test_a_link_in_place_of_a_folder_is_not_followed(
    store: Path, tmp_path: Path, name: str
) -> None:
    put(store, name)
    victim, link = tmp_path / "victim", tmp_path / "out" / name.split("/")[0]
    victim.mkdir()
    link.parent.mkdir()
    link.symlink_to(victim)
    lines: list[str] = []
    files = fetch_run(str(store), "0f3c6c1e-1", tmp_path / "out", lines.append)
    assert [path.name for path in files] == ["report.html"]
    assert len(lines) == 1
    assert list(victim.iterdir()) == []


def test_an_unusable_target_is_not_blamed_on_the_store(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        download(store, tmp_path / "file" / "out")


def test_a_folder_in_place_of_a_file_is_reported(store: Path, tmp_path: Path) -> None:
    put(store, "summary.json", "{}")
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    copied, [line] = download(store, tmp_path / "out")
    assert copied == {"summary.json"}
    assert "report.html" in line


def test_a_download_has_bounds(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MAX_FILE_BYTES", 100)
    monkeypatch.setattr(fetch, "MAX_BYTES", 150)
    for index in range(3):
        put(store, f"logs/{index}.log", "x" * 60)
    put(store, "logs/large.log", "x" * 101)
    copied, lines = download(store, tmp_path / "out")
    assert copied == {"report.html", "logs/0.log", "logs/1.log"}
    assert len(lines) == 2


def list_report(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let the store list a report of one byte at a path."""
    info = SimpleNamespace(base_name="report.html", path=str(path), size=1)
    monkeypatch.setattr(fetch, "_list_files", lambda *_: [("", info)])


def test_a_store_that_fails_during_a_download_is_an_error(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_report(monkeypatch, store / "gone")
    with pytest.raises(StoreError):
        download(store, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


def test_an_understated_size_is_noticed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MAX_FILE_BYTES", 5)
    list_report(monkeypatch, store / RUN / "report.html")
    copied, lines = download(store, tmp_path / "out")
    assert (copied, len(lines)) == (set(), 1)
    assert os.listdir(tmp_path / "out") == []


def test_lines_about_skipped_files_have_a_bound(store: Path, tmp_path: Path) -> None:
    for index in range(300):
        put(store, f"logs/.{index}")
    copied, lines = download(store, tmp_path / "out")
    assert copied == {"report.html"}
    assert len(lines) == 101
