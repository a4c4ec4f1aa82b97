"""Skips what needs a GPU where there is none, tells what was left out, and what may run together.

`make test` runs two processes of them (pytest-xdist): they wait for others most of their time. What
shares something of the machine is one group, whose tests run one after another.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("lastmile", deadline=None)
settings.load_profile("lastmile")

TESTS = Path(__file__).parent
# Tests are no package: this makes `loopback` and its neighbours importable for all of them.
sys.path.insert(0, str(TESTS / "support"))
GPU_TESTS = TESTS / "gpu"
NOT_SLOW = "not slow"  # what `make test` selects
# Tests of a folder or file → what of the machine they share.
GROUPS = {
    "contract": "ray",  # one Ray for most of them
    "gpu": "ray",
    "integration/run": "ray",
    "integration/run/test_readme.py": "own ray",  # each starts its own
    "integration/run/test_run_end_to_end.py": "own ray",
    "integration/run/test_run_on_s3.py": "own ray",
    "integration/test_benchmark_dataloading.py": "own ray",
    "integration/test_benchmark_table_size.py": "own ray",
    "integration/test_notebook_sample.py": "own ray",
    "e2e": "node",  # containerd's images are one node's at a time
    "integration/images": "node",
    "integration/node": "node",
    "integration/cluster": "cluster",  # one control plane for all of them
}


def pytest_configure(config: pytest.Config) -> None:
    """Give each process of tests a folder of Ray's: there it notes the cluster of the machine.

    Ray's workers keep the priority of others: at Ray's own, 15, they stand still while tests beside
    them use the cores, and one that has not joined its node in a minute is started anew, for ever.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    folder = tempfile.mkdtemp(prefix="ray-")
    os.environ["RAY_TMPDIR"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def has_gpu() -> bool:
    """Ask the driver, not torch: importing torch takes seconds."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return listed.returncode == 0 and b"GPU " in listed.stdout


@pytest.fixture(scope="session")
def skip_unless_ci() -> Callable[[str], NoReturn]:
    """Skips where this machine lacks what a test needs; in CI, which is to have it, fails."""

    def skip(reason: str) -> NoReturn:
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)

    return skip


def find_group(path: Path) -> str:
    """What the tests of a file are run one after another with; the file's own, if nothing else."""
    for place in (path, *path.parents):
        if group := GROUPS.get(place.as_posix()):
            return group
    return path.as_posix()


class GroupScheduling(LoadScopeScheduling):
    """Gives a process a group of tests at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return find_group(Path(nodeid.partition("::")[0]).relative_to(TESTS.name))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/gpu as `gpu`; skip what is so marked on a machine without one."""
    for item in items:
        if item.path.is_relative_to(GPU_TESTS):
            item.add_marker(pytest.mark.gpu)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU: nvidia-smi lists none"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after the terminal's own: the last is read
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None]:
    """Name what was left out, a line for each folder and reason: green does not mean all."""
    yield
    lines = [*tell_skipped(terminalreporter)]
    if config.option.markexpr == NOT_SLOW:
        lines.append("tests marked slow: make test-slow runs them")
    if lines:
        terminalreporter.section("left out", yellow=True, bold=True)
        for line in lines:
            terminalreporter.write_line(line, yellow=True)


def tell_skipped(reporter: pytest.TerminalReporter) -> Iterator[str]:
    """`tests/e2e: 3 of 3 tests: it needs root`, for each folder and reason."""
    tests: defaultdict[str, set[str]] = defaultdict(set)
    skipped: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for outcome, reports in reporter.stats.items():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue  # a warning, or a module that could not be collected
            folder = Path(report.nodeid.partition("::")[0]).parent.as_posix()
            tests[folder].add(report.nodeid)
            if outcome == "skipped" and isinstance(report.longrepr, tuple):
                reason = report.longrepr[2].removeprefix("Skipped: ")
                skipped[folder, reason].add(report.nodeid)
    for (folder, reason), left_out in sorted(skipped.items()):
        yield f"{folder}: {len(left_out)} of {len(tests[folder])} tests: {reason}"
