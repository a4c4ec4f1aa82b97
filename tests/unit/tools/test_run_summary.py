"""The end of a run reports the tests that were left out or took too long; in CI the former fail."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from tests import conftest

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


def test_skipped_tests_are_reported_last_with_their_reason(folder: Path) -> None:
    *_, title, skipped, slow = run_tests(folder, "-n", "1", "-m", "not slow")

    assert title.strip("= ") == "left out"
    assert skipped == "tests/tier: 2 of 3 tests: it needs root"
    assert slow == "tests marked slow: make test-slow runs them"


def test_skipped_tests_fail_in_ci(folder: Path) -> None:
    *_, first, second = run_tests(folder, CI="true")

    assert first == "FAILED tests/tier/test_it.py::test_of_a_node[1] - Failed: it needs root"
    assert second.startswith("FAILED tests/tier/test_it.py::test_of_a_node[2]")


def test_tests_that_take_longer_than_their_tier_allows_are_reported() -> None:
    reports = [
        build_report("tests/unit/test_a.py::test_it", 6.0),
        build_report("tests/integration/test_b.py::test_it", 59.0),
        build_report("tests/integration/test_c.py::test_it", 61.0),
        build_report("tests/integration/test_d.py::test_it", 599.0, mark="slow"),
        build_report("tests/e2e/test_e.py::test_it", 299.0),
        build_report("tests/unit/test_f.py::test_it", 6.0, when="setup"),
    ]
    reporter: Any = SimpleNamespace(stats={"passed": reports, "": ["a warning"]})

    assert [*conftest.describe_too_long(reporter)] == [
        "tests/integration/test_c.py::test_it: 61 s, its tier allows 60 s",
        "tests/unit/test_a.py::test_it: 6 s, its tier allows 5 s",
    ]


def build_report(
    nodeid: str, seconds: float, *, when: Literal["setup", "call"] = "call", mark: str = "gpu"
) -> pytest.TestReport:
    location = (nodeid, None, "")
    return pytest.TestReport(nodeid, location, {mark: 1}, "passed", None, when, duration=seconds)


def test_a_seed_shuffles_files_and_their_tests() -> None:
    ordered: list[Any] = [
        SimpleNamespace(path=Path(file), name=name) for file in "abcd" for name in "12345"
    ]

    def shuffled(seed: int) -> list[Any]:
        items = list(ordered)
        conftest.shuffle(items, Random(seed))
        return items

    found = shuffled(1)
    assert found == shuffled(1)
    assert found not in (ordered, shuffled(2))
    assert sorted(map(id, found)) == sorted(map(id, ordered))
    files = [path for path, _ in itertools.groupby(item.path for item in found)]
    assert len(files) == 4  # the tests of a file stay together, which shares fixtures
