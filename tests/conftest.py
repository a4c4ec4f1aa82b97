"""Runs the tests in two processes, skips what this machine lacks, and reports what was left out.

`make test` runs two processes (pytest-xdist). Tests that share something of the machine are one
group, whose tests run one after another in one process. A process takes the next group in this
order: the groups with slow tests, the longest first (slow_durations.json); the other groups in the
order of `GROUPS`, again the longest first; the other files, which take seconds and fill the gaps,
so that both processes end together. While `make test` still builds tools, a process prefers a group
whose tools are ready, and a test waits for those that it needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Tests are no package: this makes `facts` and its neighbours importable for all of them.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from property_tests import examples

from benchmarks.gpu.on_device import has_gpu

if TYPE_CHECKING:
    from spark_tables import SparkTables

settings.register_profile("lastmile", deadline=None, max_examples=examples(40))
settings.load_profile("lastmile")

TESTS = Path(__file__).parent
SUPPORT_FOLDERS = ("programs", "servers", "specs", "tables", "training")
sys.path[1:1] = (str(TESTS / "support" / folder) for folder in SUPPORT_FOLDERS)
GPU_TESTS = TESTS / "gpu"
NOT_SLOW = "not slow"  # what `make test` selects
READY_VARIABLE = "LASTMILE_TOOLS_READY"  # of tools/build_tools.py
# Limits of a test's duration on two cores that other tests use too, as in CONTRIBUTING.md. A test
# that takes longer is reported at the end of a run, and does not fail.
LIMITS_SECONDS = {"unit": 5, "contract": 60, "integration": 60, "e2e": 300}
SLOW_LIMIT_SECONDS = 600
# Seconds of each slow test on two busy cores, with its set-up, by its id.
SLOW_SECONDS: dict[str, float] = json.loads((TESTS / "slow_durations.json").read_text())
CONTROL_PLANE = ("programs", "control-plane")
NODE = (*CONTROL_PLANE, "node", "images")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tests that run one after another.

    Attributes:
        name: names the thing that they share.
        paths: folders and files below tests/; the longest that fits a test decides.
        needs: stages of tools/build_tools.py that must have ended before.
    """

    name: str
    paths: tuple[str, ...]
    needs: tuple[str, ...] = ()


GROUPS = (
    Group(name="cluster", paths=("integration/cluster",), needs=CONTROL_PLANE),
    # containerd's images belong to one node at a time
    Group(name="node", paths=("e2e", "integration/images", "integration/node"), needs=NODE),
    Group(name="Ray", paths=("contract", "gpu", "integration/run")),
    Group(
        name="operator benchmark",
        paths=("integration/benchmarks/test_benchmark_operator.py",),
        needs=CONTROL_PLANE,
    ),
    Group(
        name="Argo CD", paths=("integration/argocd",), needs=("programs", "control-plane", "argocd")
    ),
    Group(name="charts", paths=("integration/charts",), needs=CONTROL_PLANE),
    Group(name="Iceberg", paths=("integration/iceberg",), needs=("iceberg",)),
    Group(name="Prometheus", paths=("integration/metrics",), needs=("programs",)),
    Group(
        name="own Ray",
        paths=(
            "integration/run/test_readme.py",
            "integration/run/test_run_end_to_end.py",
            "integration/run/test_run_on_s3.py",
            "integration/benchmarks/test_benchmark_dataloading.py",
            "integration/benchmarks/test_benchmarks.py",
            "integration/test_notebook_sample.py",
        ),
        needs=("programs",),
    ),
    Group(
        name="kernels",
        paths=(
            "unit/pipeline_runtime/kernels",
            "unit/pipeline_runtime/sources",
            "unit/pipeline_runtime/steps/test_step_lists.py",
            "unit/pipeline_runtime/feed/test_feed_requests.py",
            "unit/pipeline_runtime/feed/test_first_look.py",
            "unit/pipeline_runtime/feed/test_trial.py",
        ),
        needs=("kernels",),
    ),
)
_ORDER = {group.name: place for place, group in enumerate(GROUPS)}
_GROUP_OF = {path: group for group in GROUPS for path in group.paths}


def pytest_configure(config: pytest.Config) -> None:
    """Give each process of tests its own folder of Ray, where Ray records the machine's cluster.

    Ray's workers keep the usual priority: at Ray's own niceness, 15, they starve while other tests
    use the cores, and Ray restarts a worker that has not joined its node in a minute, for ever.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    folder = tempfile.mkdtemp(prefix="ray-")
    os.environ["RAY_TMPDIR"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(scope="session")
def skip_unless_ci() -> Callable[[str], NoReturn]:
    """Return a function that skips a test for what this machine lacks; in CI it fails it."""

    def skip(reason: str) -> NoReturn:
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)

    return skip


@pytest.fixture(scope="session")
def spark_tables(tmp_path_factory: pytest.TempPathFactory) -> SparkTables:
    """Iceberg tables that Spark wrote, in a SQL catalog, to be read only."""
    from spark_tables import SparkTables  # pyarrow: not for each process of tests

    return SparkTables(tmp_path_factory.mktemp("spark-tables"))


def find_group(nodeid: str) -> Group:
    """Return the group of a test; a file that no group names is one of its own."""
    file = nodeid.partition("::")[0]
    path = Path(file.removeprefix(f"{TESTS.name}/"))
    for place in (path, *path.parents):
        if group := _GROUP_OF.get(place.as_posix()):
            return group
    needs = ("programs",) if path.parts[0] == "integration" else ()
    return Group(name=file, paths=(path.as_posix(),), needs=needs)


class GroupScheduling(LoadScopeScheduling):
    """Gives a process a group of tests at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return find_group(nodeid).name

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Assign the first group whose tools are ready, or the first if there is none."""
        seconds = {
            find_group(next(iter(tests))): sum(SLOW_SECONDS.get(test, 0) for test in tests)
            for tests in self.workqueue.values()
        }
        waiting = sorted(
            seconds, key=lambda group: (-seconds[group], _ORDER.get(group.name, len(_ORDER)))
        )
        chosen = next(filter(is_ready, waiting), waiting[0])
        self.workqueue.move_to_end(chosen.name, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    return GroupScheduling(config, log)


def is_ready(group: Group) -> bool:
    """Return whether the tools that a group needs are built, as far as they can be."""
    try:
        await_tools(group, fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def await_tools(group: Group, flags: int = 0) -> None:
    """Wait for the builds of the tools that a group needs, if `make test` runs them."""
    if folder := os.environ.get(READY_VARIABLE):
        for stage in group.needs:
            with (
                contextlib.suppress(FileNotFoundError),  # the builds were interrupted
                Path(folder, stage).open() as lock,
            ):
                fcntl.flock(lock, fcntl.LOCK_SH | flags)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the time limit of the test begins
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    await_tools(find_group(item.nodeid))
    return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/gpu as `gpu`; skip what is so marked on a machine without one.

    LASTMILE_TEST_ORDER is a seed that shuffles the files, and the tests of each file: tests that
    depend on the leftovers of others fail then.
    """
    if seed := os.environ.get("LASTMILE_TEST_ORDER"):
        shuffle(items, Random(seed))
    for item in items:
        if item.path.is_relative_to(GPU_TESTS):
            item.add_marker(pytest.mark.gpu)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no GPU: nvidia-smi lists none"))


def shuffle(items: list[pytest.Item], random: Random) -> None:
    """Put files, and the tests of each file, in a random order."""
    files: defaultdict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    shuffled = [random.sample(tests, len(tests)) for tests in files.values()]
    random.shuffle(shuffled)
    items[:] = [item for tests in shuffled for item in tests]


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after the terminal's own: the last is read
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None]:
    """Report the tests that were left out (green does not mean all), and those that took too long.

    The reasons of skipped tests are one line for each folder and reason.
    """
    yield
    left_out = [*describe_skipped(terminalreporter)]
    if config.option.markexpr == NOT_SLOW:
        left_out.append("tests marked slow: make test-slow runs them")
    too_long = [*describe_too_long(terminalreporter)]
    for title, lines in (("longer than their tier allows", too_long), ("left out", left_out)):
        if lines:
            terminalreporter.section(title, yellow=True, bold=True)
            for line in lines:
                terminalreporter.write_line(line, yellow=True)


def find_reports(reporter: pytest.TerminalReporter) -> Iterator[tuple[str, pytest.TestReport]]:
    """Yield the outcome and the report of each part of a test: set-up, call, and teardown."""
    for outcome, reports in reporter.stats.items():
        for report in reports:
            # Others are warnings, and modules that could not be collected.
            if isinstance(report, pytest.TestReport):
                yield outcome, report


def describe_skipped(reporter: pytest.TerminalReporter) -> Iterator[str]:
    """Yield `tests/e2e: 3 of 3 tests: it needs root`, for each folder and reason."""
    tests: defaultdict[str, set[str]] = defaultdict(set)
    skipped: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for outcome, report in find_reports(reporter):
        folder = Path(report.nodeid.partition("::")[0]).parent.as_posix()
        tests[folder].add(report.nodeid)
        if outcome == "skipped" and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            skipped[folder, reason].add(report.nodeid)
    for (folder, reason), left_out in sorted(skipped.items()):
        yield f"{folder}: {len(left_out)} of {len(tests[folder])} tests: {reason}"


def describe_too_long(reporter: pytest.TerminalReporter) -> Iterator[str]:
    """Yield the tests whose call took longer than LIMITS_SECONDS, the longest first.

    What fixtures take is not counted: other tests share most of them.
    """
    calls = [report for _, report in find_reports(reporter) if report.when == "call"]
    for report in sorted(calls, key=lambda report: -report.duration):
        if (limit := find_limit_seconds(report)) and report.duration > limit:
            yield f"{report.nodeid}: {report.duration:.0f} s, its tier allows {limit} s"


def find_limit_seconds(report: pytest.TestReport) -> int:
    """Return how long a test may take by its tier: `slow`, or its folder's; 0 for no limit."""
    if "alone" in report.keywords:
        return 0
    if "slow" in report.keywords:
        return SLOW_LIMIT_SECONDS
    folder = report.nodeid.removeprefix(f"{TESTS.name}/").partition("/")[0]
    return LIMITS_SECONDS.get(folder, max(LIMITS_SECONDS.values()))
