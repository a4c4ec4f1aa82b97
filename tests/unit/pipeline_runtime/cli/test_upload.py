"""A folder of code becomes a zip named by its content, below the storage root."""

import io
import os
import zipfile
from pathlib import Path

import pytest

from pipeline_runtime.cli.for_clusters import upload
from pipeline_runtime.cli.for_clusters.upload import pack, upload_code
from pipeline_runtime.errors import SourceError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package, and what a checkout has beside it."""
    code = tmp_path / "mine"
    (code / "team" / "__pycache__").mkdir(parents=True)
    (code / ".git").mkdir()
    (code / "team" / "loop.py").write_text("x = 1")
    (code / "team" / "__pycache__" / "loop.pyc").write_text("")
    (code / ".git" / "HEAD").write_text("")
    return code


def test_the_same_files_are_the_same_bytes_whatever_their_times(folder: Path) -> None:
    before = pack(folder)
    os.utime(folder / "team" / "loop.py", (0, 0))
    assert pack(folder) == before
    (folder / "team" / "loop.py").write_text("x = 2")
    assert pack(folder) != before


def test_one_folder_is_on_top_and_caches_stay_here(folder: Path) -> None:
    assert zipfile.ZipFile(io.BytesIO(pack(folder))).namelist() == ["code/team/loop.py"]


def test_code_is_uploaded_once(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    uri = upload_code(folder, str(root))
    [uploaded] = (root / "code").iterdir()
    assert uri == f"file://{uploaded}"
    os.utime(uploaded, (0, 0))
    assert upload_code(folder, str(root)) == uri
    assert uploaded.stat().st_mtime == 0


def test_large_code_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "MAX_CODE_BYTES", 4)
    with pytest.raises(SourceError, match=r"4 .*5"):
        pack(folder)
