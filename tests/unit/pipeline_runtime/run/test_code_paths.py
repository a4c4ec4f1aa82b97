"""A process that runs two experiments takes each one's modules, as they are at that time."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from pipeline_runtime.run import code_paths
from pipeline_runtime.run.code_paths import add_code_paths

NAME = "code_paths_loop"


@pytest.fixture(autouse=True)
def imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore paths and modules after each test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(code_paths, "_callers", set())
    sys.modules.pop(NAME, None)


def write(folder: Path, value: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / f"{NAME}.py").write_text(f"VALUE = {value!r}\n")
    return str(folder)


def read() -> str:
    value: str = importlib.import_module(NAME).VALUE
    return value


def test_each_experiment_has_its_own_modules(tmp_path: Path) -> None:
    first, second = write(tmp_path / "first", "1"), write(tmp_path / "second", "2")
    found = []
    for folder in (first, second, first):
        add_code_paths([folder])
        found.append(read())
    assert found == ["1", "2", "1"]
    assert os.environ["PYTHONPATH"].split(os.pathsep)[:2] == [first, second]


def test_a_module_that_was_edited_is_imported_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "loop", "before")
    add_code_paths([folder])
    assert read() == "before"
    write(tmp_path / "loop", "after that")
    add_code_paths([folder])
    assert read() == "after that"


def test_installed_modules_stay(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    (tmp_path / "pytest").mkdir()
    json, ours = sys.modules["json"], sys.modules["pytest"]
    add_code_paths([str(tmp_path)])
    assert sys.modules["json"] is json
    assert sys.modules["pytest"] is ours


def test_modules_of_the_caller_stay_as_long_as_they_are_not_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "loop", "1")
    (tmp_path / "loop" / "code_paths_run.py").write_text("")
    written = (tmp_path / "loop" / f"{NAME}.py").stat().st_ctime
    monkeypatch.setattr(code_paths, "find_process_start", lambda: written + 10)
    monkeypatch.setattr(code_paths, "_is_caller_known", False)
    monkeypatch.syspath_prepend(folder)
    before = importlib.import_module(NAME)
    of_runs = []
    for _ in range(2):
        add_code_paths([folder])
        assert importlib.import_module(NAME) is before
        of_runs.append(importlib.import_module("code_paths_run"))
    assert of_runs[0] is not of_runs[1]
    write(tmp_path / "loop", "edited")
    add_code_paths([folder])
    assert read() == "edited"


def test_one_edited_module_renews_those_that_may_use_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "loop", "before")
    (tmp_path / "loop" / "code_paths_user.py").write_text(f"from {NAME} import VALUE\n")
    found = []
    for value in ("before", "after that", "after that"):
        write(tmp_path / "loop", value)
        add_code_paths([folder])
        found.append(importlib.import_module("code_paths_user"))
    assert [module.VALUE for module in found] == ["before", "after that", "after that"]


def test_a_module_may_run_while_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "code_paths_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    code = "from pipeline_runtime.run.code_paths import add_code_paths as add"
    (package / "program.py").write_text(f"{code}\nadd([{str(tmp_path)!r}])\nVALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.import_module("code_paths_package.program").VALUE == 1
