"""The files of a run are fetched from the artifacts store."""

from pathlib import Path

import pytest

from pipeline_runtime.cli.fetch import fetch_run
from pipeline_runtime.errors import SourceError


def leave(store: Path, run: str, text: str) -> None:
    (store / run / "checkpoints").mkdir(parents=True)
    (store / run / "checkpoints" / "large").write_text("")
    (store / run / "report.html").write_text(text)


def test_the_newest_report_of_the_run_is_fetched_without_checkpoints(tmp_path: Path) -> None:
    store, folder = tmp_path / "clicks", tmp_path / "new" / "folder"
    leave(store, "20260101T000000Z-abc-0f3c6c1e-1", "older")
    leave(store, "20260102T000000Z-abc-0f3c6c1e-1", "newer")
    leave(store, "20260103T000000Z-abc-0f3c6c1e-2", "another run's")
    leave(store, "20260104T000000Z-abc", "a person's")

    files = fetch_run(f"{store}/", "0f3c6c1e-1", folder)

    assert files == [folder / "report.html"]
    assert files[0].read_text() == "newer"
    assert [path.name for path in folder.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("there", "message"),
    [(True, "0f3c6c1e-1"), (False, "folder")],
)
def test_what_is_not_there_is_told(tmp_path: Path, there: bool, message: str) -> None:
    store = tmp_path / "clicks"
    if there:
        leave(store, "20260101T000000Z-abc-0f3c6c1e-11", "another run's")
    with pytest.raises(SourceError, match=message):
        fetch_run(str(store), "0f3c6c1e-1", tmp_path / "out")
