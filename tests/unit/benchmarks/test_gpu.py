"""The benchmark on a GPU: idle gaps from a trace, the deadline, the page and the archive."""

import math
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu.cells import ON_GPU, WAYS
from benchmarks.gpu.command import OVERHEAD_SECONDS, plan_rounds
from benchmarks.gpu.on_device import unpack_wheels
from benchmarks.gpu.pack import MAX_BYTES, write_archive
from benchmarks.gpu.trace import list_intervals, measure_busyness


@pytest.mark.parametrize(
    ("intervals", "busy_share", "num_gaps", "longest_gap"),
    [
        pytest.param([(0.0, 1.0)], 1.0, 0, 0.0, id="one kernel"),
        pytest.param([(0.0, 0.25), (0.75, 1.0)], 0.5, 1, 0.5, id="a gap"),
        pytest.param([(0.0, 0.6), (0.4, 1.0)], 1.0, 0, 0.0, id="two streams"),
        pytest.param([(0.0, 1.0), (0.1, 0.2)], 1.0, 0, 0.0, id="one within another"),
        pytest.param([(0.5, 1.0), (0.0, 0.25)], 0.75, 1, 0.25, id="out of order"),
        # below GAP_SECONDS: it counts as idle time, not as a gap
        pytest.param([(0.0, 0.5), (0.50005, 1.0)], 0.99995, 0, 0.00005, id="a launch"),
    ],
)
def test_idle_time_is_time_without_a_kernel(
    intervals: list[tuple[float, float]], busy_share: float, num_gaps: int, longest_gap: float
) -> None:
    found = measure_busyness(intervals, num_steps=2)
    assert found["busyShare"] == pytest.approx(busy_share)
    assert found["gapsPerStep"] == num_gaps / 2
    assert found["longestGapMilliseconds"] == pytest.approx(1e3 * longest_gap)


def test_copies_do_not_count_as_kernels() -> None:
    events = [
        {"cat": "kernel", "ts": 0, "dur": 500_000},
        {"cat": "gpu_memcpy", "ts": 500_000, "dur": 500_000},
        {"ph": "M", "name": "process_name"},
    ]
    assert list_intervals(events, "kernel") == [(0.0, 0.5)]


@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [
        pytest.param(math.inf, 3, id="no deadline"),
        pytest.param(60.0, 3, id="shorter measurements"),
        pytest.param(30.0, 2, id="fewer rounds"),
        pytest.param(20.0, 1, id="one round"),
        pytest.param(15.0, 0, id="no time"),
    ],
)
def test_a_short_time_has_shorter_and_fewer_rounds(seconds: float, rounds: int) -> None:
    found, length = plan_rounds(seconds, ON_GPU)
    assert found == rounds
    assert length <= ON_GPU.max_seconds
    assert found * len(WAYS) * (length + ON_GPU.warm_seconds + OVERHEAD_SECONDS) <= seconds


def test_a_trace_needs_kernels() -> None:
    with pytest.raises(ValueError, match="kernels"):
        measure_busyness(iter(()), num_steps=1)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[tarfile.TarFile]:
    path = tmp_path / "lastmile-gpu.tar"
    write_archive(path, [])
    assert path.stat().st_size < MAX_BYTES / 8  # the rest is left to wheels
    with tarfile.open(path) as opened:
        yield opened


def test_the_archive_has_code_and_tests(archive: tarfile.TarFile) -> None:
    names = set(archive.getnames())
    for path in ("run.py", "COMMIT", "pipeline_runtime/loader/loader.py", "benchmarks/gpu/host.py"):
        assert f"lastmile-gpu/{path}" in names
    assert "lastmile-gpu/tests/gpu/test_gpu_loader.py" in names


def test_a_wheel_of_another_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyarrow-26.0.1-cp27-cp27m-manylinux_2_28_x86_64.whl").touch()
    with pytest.raises(SystemExit, match="cp27"):
        unpack_wheels(tmp_path, tmp_path / "site")
