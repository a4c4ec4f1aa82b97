"""What a run of the tests leaves out is said at its end; in CI it fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEEDS_ROOT = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_of_a_node(number, skip_unless_ci):
    skip_unless_ci("it needs root")

def test_of_nothing(): pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tier with two tests that this machine cannot run, and one that it can."""
    tier = tmp_path / "tests" / "tier"
    tier.mkdir(parents=True)
    (tier / "test_it.py").write_text(NEEDS_ROOT)
    return tmp_path


def run_tests(folder: Path, *options: str, **variables: str) -> list[str]:
    """Lines that pytest with our conftest prints, but for the one that tells the time."""
    env = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, "-ra"]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", *options, folder / "tests"],
        env={**env, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in done.stdout.splitlines() if line][:-1]


def test_what_is_left_out_is_said_last_with_its_reason(folder: Path) -> None:
    *_, title, skipped, slow = run_tests(folder, "-n", "1", "-m", "not slow")

    assert title.strip("= ") == "left out"
    assert skipped == "tests/tier: 2 of 3 tests: it needs root"
    assert slow == "tests marked slow: make test-slow runs them"


def test_in_ci_what_would_be_left_out_fails(folder: Path) -> None:
    *_, first, second = run_tests(folder, CI="true")

    assert first == "FAILED tests/tier/test_it.py::test_of_a_node[1] - Failed: it needs root"
    assert second.startswith("FAILED tests/tier/test_it.py::test_of_a_node[2]")
