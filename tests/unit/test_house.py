"""The house rules that no linter checks; see CONTRIBUTING.md."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE_FOLDERS = ("benchmarks", "operator", "pipeline_runtime", "tests", "tools")
PYTHON_FILES = sorted(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
LOCKS = ("requirements.lock", "requirements-torch.lock", "tools/go-requirements.lock")
MAX_FILE_LINES = 500  # style 7
MAX_BODY_LINES = 80  # style 7
AN_INDEX = re.compile(r"https?:|--(extra-)?index|--find-links|--trusted-host| @ ")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 0
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def long_functions(path: Path) -> Iterator[str]:
    """Yield the functions of a file that are too long, with their length."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = body_lines(node)
            if lines > MAX_BODY_LINES:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines"


def phony_targets() -> list[str]:
    """Return the targets that the Makefile declares."""
    lines = re.findall(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return sorted(" ".join(lines).split())


def test_the_operator_folder_is_not_a_package() -> None:
    # A package `operator` on the path hides the standard module: Python dies at start-up.
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_no_test_folder_is_a_package() -> None:
    # But for those whose fixtures end with their last test: pytest's scope `package` needs it.
    packages = ["contract", "e2e", "integration/cluster", "integration/run"]
    found = sorted((ROOT / "tests").rglob("__init__.py"))
    assert [path.parent.relative_to(ROOT / "tests").as_posix() for path in found] == packages
    for name in packages:
        assert 'scope="package"' in (ROOT / "tests" / name / "conftest.py").read_text()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index(lock: str) -> None:
    assert AN_INDEX.findall((ROOT / lock).read_text()) == []


def test_every_pin_has_a_hash() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_torch_is_pinned_without_hashes_and_without_its_gpu_libraries() -> None:
    # A CPU-only build of the same version has other files, and brings no GPU libraries along.
    lock = (ROOT / "requirements-torch.lock").read_text()
    assert re.search(r"^torch==[\d.]+$", lock, re.MULTILINE)
    assert not re.search(r"--hash|^(nvidia|cuda)-|^triton", lock, re.MULTILINE)


def test_torch_is_in_one_lock_only() -> None:
    assert not re.search(r"^torch==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


def test_every_make_target_is_phony_and_documented() -> None:
    makefile = (ROOT / "Makefile").read_text()
    documented = re.findall(r"^([a-z0-9-]+):.*## \S", makefile, re.MULTILINE)
    targets = re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE)
    assert phony_targets() == sorted(documented) == sorted(targets)


def test_make_help_lists_every_target() -> None:
    command = ["make", "--no-print-directory", "help"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  ([a-z0-9-]+) ", shown, re.MULTILINE)
    assert sorted(listed) == phony_targets()


def test_the_config_imports_no_heavy_library() -> None:
    # The operator imports it, and has none of them installed.
    program = (
        "import sys, pipeline_runtime.config;"
        "print(*sorted({'ray', 'torch', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    imported = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (imported.stderr, imported.stdout.split()) == ("", [])


def test_no_file_is_longer_than_500_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in PYTHON_FILES}
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_no_function_body_is_longer_than_80_lines() -> None:
    assert [found for path in PYTHON_FILES for found in long_functions(path)] == []


def test_every_module_says_what_it_owns() -> None:
    packages = [path for path in PYTHON_FILES if "tests" not in path.parts]
    without = [path for path in packages if ast.get_docstring(ast.parse(path.read_text())) is None]
    assert [str(path.relative_to(ROOT)) for path in without] == []
