"""The house rules that no linter checks; see CONTRIBUTING.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE_FOLDERS = ("benchmarks", "operator", "pipeline_runtime", "tests", "tools")
PYTHON_FILES = sorted(path for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
AN_INDEX = re.compile(r"https?:|--(extra-)?index|--find-links|--trusted-host| @ ")

# "Return whether …", not "Whether …".
NO_FIRST_WORD = re.compile(
    r'^ *"""(How|Of|That|These|Those|What|When|Where|Whether|Which|Who|Why)\b.*', re.MULTILINE
)


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
    paths = (p.parent.relative_to(ROOT / "tests") for p in (ROOT / "tests").rglob("__init__.py"))
    # The packages in support are no tests: steps and sources that stand outside of Lastmile.
    assert sorted(p.as_posix() for p in paths if p.parts[0] != "support") == packages
    for name in packages:
        assert 'scope="package"' in (ROOT / "tests" / name / "conftest.py").read_text()


def test_the_lock_names_no_index() -> None:
    assert AN_INDEX.findall((ROOT / "requirements.lock").read_text()) == []


def test_the_lock_is_the_only_one_of_python_packages() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    pins = [name for name in tracked.stdout.split() if name.endswith((".lock", "requirements.txt"))]
    assert pins == ["requirements.lock"]


def test_every_pin_has_a_hash() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_lock_has_torch_without_its_gpu_libraries() -> None:
    # A CPU-only build of the same version brings none along.
    lock = (ROOT / "requirements.lock").read_text()
    assert re.search(r"^torch==[\d.]+ ", lock, re.MULTILINE)
    assert not re.search(r"^(nvidia|cuda)-|^triton", lock, re.MULTILINE)


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


def test_every_module_says_what_it_owns() -> None:
    packages = [path for path in PYTHON_FILES if "tests" not in path.parts]
    without = [path for path in packages if ast.get_docstring(ast.parse(path.read_text())) is None]
    assert [str(path.relative_to(ROOT)) for path in without] == []


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line[0].strip()}"
        for path in PYTHON_FILES
        for line in NO_FIRST_WORD.finditer(path.read_text())
    ]
    assert found == []
