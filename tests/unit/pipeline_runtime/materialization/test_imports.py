"""The description of the code behind a function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline_runtime.materialization.imports import MISSING, describe_imports


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules: `features.main` uses `features.clean`, `helper` and numpy."""
    package = tmp_path / "features"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text(
        "import json\nimport numpy as np\nfrom . import clean\n"
        "def run(batch):\n    import helper\n    return batch\n"
    )
    (package / "clean.py").write_text("from .words import WORDS\n")
    (package / "words.py").write_text("WORDS = ()\n")
    (package / "unused.py").write_text("X = 1\n")
    (tmp_path / "helper.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("features", "helper"):
            del sys.modules[name]


def test_modules_are_found_transitively_without_import(folder: Path) -> None:
    found = describe_imports(["features.main"])
    assert sorted(found.modules) == [
        "features",
        "features.clean",
        "features.main",
        "features.words",
        "helper",
        "no_such_module_at_all",
    ]
    assert found.modules["no_such_module_at_all"] == MISSING
    assert "features.main" not in sys.modules


def test_packages_count_by_version_and_requirements() -> None:
    import numpy as np
    import pyarrow as pa

    found = describe_imports(["numpy", "rich.table", "pyarrow", "json"])
    assert found.modules == {}
    assert found.packages["numpy"] == np.__version__
    assert found.packages["pyarrow"] == pa.__version__
    assert "pygments" in found.packages  # which rich requires


@pytest.mark.parametrize(
    ("file", "is_part"),
    [
        pytest.param("features/words.py", True, id="imported-by-imported"),
        pytest.param("helper.py", True, id="imported-in-function"),
        pytest.param("features/unused.py", False, id="not-imported"),
    ],
)
def test_edits_count_in_imported_modules_only(folder: Path, file: str, is_part: bool) -> None:
    before = describe_imports(["features.main"])
    (folder / file).write_text("CHANGED = True\n")
    assert (describe_imports(["features.main"]) != before) is is_part
