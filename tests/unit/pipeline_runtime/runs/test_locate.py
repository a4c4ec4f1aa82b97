"""The ways to name a run, and the folders that they lead to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline_runtime.errors import SourceError
from pipeline_runtime.runs.locate import is_run_name, locate_run

OLD = "20260101T000000Z-0123456789abcdef"
NEW = "20260102T000000Z-0123456789abcdef-9f3c-2"


def write_run(folder: Path, **run: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"run": run}))
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with two runs of `clicks`, the older of which `latest` names, and one stored run."""
    monkeypatch.chdir(tmp_path)
    build = tmp_path / "build"
    write_run(build / "clicks" / OLD)
    write_run(build / "clicks" / NEW)
    (build / "clicks" / "latest").symlink_to(OLD)
    write_run(build / "experiments" / "stored" / OLD)
    write_run(build / "experiments" / "stored" / NEW)
    (build / "experiments" / "stored" / "history").mkdir()
    write_run(build / "given")
    return build


@pytest.mark.parametrize(
    ("run", "folder"),
    [
        pytest.param(f"build/clicks/{NEW}", f"clicks/{NEW}", id="folder"),
        pytest.param("build/clicks/latest", f"clicks/{OLD}", id="link"),
        pytest.param("build/clicks/", f"clicks/{OLD}", id="experiment-with-link"),
        pytest.param("build/experiments/stored", f"experiments/stored/{NEW}", id="newest"),
        pytest.param("clicks", f"clicks/{OLD}", id="name"),
        pytest.param(f"clicks/{NEW}", f"clicks/{NEW}", id="name-and-run"),
        pytest.param("stored", f"experiments/stored/{NEW}", id="name-in-artifacts"),
        pytest.param("build/given", "given", id="folder-of-any-name"),
    ],
)
def test_each_name_leads_to_its_run(root: Path, run: str, folder: str) -> None:
    assert locate_run(run).folder.path == str(root / folder)


def test_uri_leads_to_its_run(root: Path) -> None:
    place = locate_run(f"file://{root}/experiments/stored")
    assert place.folder.path == f"{root}/experiments/stored/{NEW}"
    assert place.name == NEW


@pytest.mark.parametrize("run", ["nothing", "build", "build/clicks/20270101T000000Z", "./clicks"])
def test_missing_run_is_refused(root: Path, run: str) -> None:
    with pytest.raises(SourceError, match="must be the folder"):
        locate_run(run)


@pytest.mark.parametrize(
    ("uri", "artifacts"),
    [
        pytest.param("{root}/experiments/stored/" + OLD, "experiments/stored/" + OLD, id="there"),
        pytest.param("{root}/gone", "local", id="gone"),
        pytest.param(None, "local", id="null"),
        pytest.param(3, "local", id="no-text"),
    ],
)
def test_summary_names_the_artifacts(root: Path, uri: object, artifacts: str) -> None:
    shown = uri.format(root=root) if isinstance(uri, str) else uri
    write_run(root / "local", artifactsUri=shown)
    place = locate_run("build/local")
    assert place.folder.path == str(root / "local")
    assert place.artifacts.path == str(root / artifacts)


@pytest.mark.parametrize(
    ("name", "is_run"),
    [
        (OLD, True),
        (NEW, True),
        ("latest", False),
        ("history", False),
        (OLD[:-1], False),
        (f"{OLD}.tmp", False),
    ],
)
def test_run_names_are_told_from_others(name: str, is_run: bool) -> None:
    assert is_run_name(name) is is_run
