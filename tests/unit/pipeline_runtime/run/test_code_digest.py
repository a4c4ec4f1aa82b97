"""The digest of the user's code changes with its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_runtime.config import Training
from pipeline_runtime.run.training.code_digest import digest_code


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for modules."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("training", "file"),
    [
        pytest.param({"model": "digested_model:build"}, "digested_model.py", id="model"),
        pytest.param({"entrypoint": "digested_loop:loop"}, "digested_loop.py", id="entrypoint"),
        pytest.param({"script": "digested.py"}, "digested.py", id="script"),
    ],
)
def test_another_file_has_another_digest(folder: Path, training: dict[str, str], file: str) -> None:
    spec = Training(labelColumn="label", **training)
    digests = []
    for content in ("x = 1", "x = 2", "x = 1"):
        (folder / file).write_text(content)
        digests.append(digest_code(spec))
    assert digests[0] == digests[2] != digests[1]
    assert all(digests)


@pytest.mark.parametrize(
    "training",
    [
        pytest.param({}, id="built-in"),
        pytest.param({"model": "nobody.has_this:build"}, id="no-module"),
        pytest.param({"model": "sys:exit"}, id="no-file"),
        pytest.param({"script": "nowhere.py"}, id="no-script"),
    ],
)
def test_other_code_has_no_digest(training: dict[str, str]) -> None:
    assert digest_code(Training(labelColumn="label", **training)) is None
