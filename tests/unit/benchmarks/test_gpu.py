"""The benchmark on a GPU: idle gaps from a trace, the deadline, the page and the archive."""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from benchmark_environment import ENVIRONMENT

from benchmarks.dataloading.jobs import Tuning
from benchmarks.dataloading.workloads import FORMS
from benchmarks.gpu.asking import Ask, Busyness, Rate
from benchmarks.gpu.cells import ON_GPU, SIZES, WAYS, Cell
from benchmarks.gpu.command import BENCHMARK, describe
from benchmarks.gpu.host import parse_ask
from benchmarks.gpu.on_device import unpack_wheels
from benchmarks.gpu.pack import MAX_BYTES, write_archive
from benchmarks.gpu.schedule import Deadline, Measured, measure_all
from benchmarks.gpu.trace import list_intervals, measure_busyness
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.report import build_page, build_results

CARD = {"name": "NVIDIA H100 80GB HBM3", "type": "cuda", "memoryGiB": 79, "cuda": "13.0"}
NUM_CELLS = len(SIZES) * len(FORMS) * len(WAYS)


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
    assert found.busy_share == pytest.approx(busy_share)
    assert found.num_gaps == num_gaps
    assert found.longest_gap_seconds == pytest.approx(longest_gap)


def test_copies_do_not_count_as_kernels() -> None:
    events = [
        {"cat": "kernel", "ts": 0, "dur": 500_000},
        {"cat": "gpu_memcpy", "ts": 500_000, "dur": 500_000},
        {"ph": "M", "name": "process_name"},
    ]
    assert list_intervals(events, "kernel") == [(0.0, 0.5)]


class Machine:
    """Stands for the processes: each measurement takes its seconds, and some more, of a clock."""

    def __init__(self, overhead_seconds: float = 0.5, fails_at: int | None = None) -> None:
        self.now = 0.0
        self.num_asked = 0
        self._overhead_seconds = overhead_seconds
        self._fails_at = fails_at

    def clock(self) -> float:
        return self.now

    def run(self, ask: Ask, timeout_seconds: float) -> Rate | Busyness:
        assert timeout_seconds > 0
        self.num_asked += 1
        if self.num_asked == self._fails_at:
            raise BenchmarkError("a loader failed")
        self.now += ask.seconds + self._overhead_seconds
        if ask.trace_path is not None:
            return measure_busyness([(0.0, 0.5), (0.75, 1.0)], num_steps=40)
        speed = 1000 * (1 + ask.cell.tuning.workers)
        return Rate(
            samples=int(speed * ask.seconds), steps=10, seconds=ask.seconds, waited_seconds=0
        )


def measure(machine: Machine, seconds: float, folder: Path) -> Measured:
    return measure_all(machine.run, ON_GPU, Deadline(seconds, machine.clock), folder)


def test_all_cells_are_measured_in_the_time_of_a_lease(tmp_path: Path) -> None:
    machine = Machine()
    measured = measure(machine, 420, tmp_path)
    assert machine.now <= 420
    assert len(measured.rates) == len(measured.traces) == NUM_CELLS
    assert {len(rates) for rates in measured.rates.values()} == {ON_GPU.rounds}
    assert {measured.best_tuning(form).workers for form in FORMS} == {16}


@pytest.mark.parametrize("seconds", [0, 1, 30, 60, 100, 200])
def test_a_short_time_leaves_out_whole_comparisons(tmp_path: Path, seconds: float) -> None:
    machine = Machine()
    measured = measure(machine, seconds, tmp_path)
    assert machine.now <= seconds
    for cell in measured.rates:
        compared = [replace(cell, way=way) for way in WAYS]
        assert {len(measured.rates[each]) for each in compared} == {len(measured.rates[cell])}
    cells = [cell for cell in describe(ON_GPU, measured) if "tuning" in cell.facts]
    missing = sum(
        len(cell.facts["missing"].split(", ")) for cell in cells if "missing" in cell.facts
    )
    assert len(cells) == NUM_CELLS / len(WAYS)
    assert sum(len(cell.arms) for cell in cells) == len(measured.rates)
    assert bool(missing) == (len(measured.rates) < NUM_CELLS)


@pytest.mark.parametrize("fails_at", [1, 20, 50, 70])
def test_a_failure_costs_one_measurement(tmp_path: Path, fails_at: int) -> None:
    machine = Machine(fails_at=fails_at)
    measured = measure(machine, 420, tmp_path)
    assert measured.failures == ["a loader failed"]
    num_rates = sum(map(len, measured.rates.values()))
    assert len(measured.tuning) + num_rates + len(measured.traces) == machine.num_asked - 1


def test_the_page_names_the_card_and_every_way(tmp_path: Path) -> None:
    cells = list(describe(ON_GPU, measure(Machine(), 420, tmp_path)))
    results = build_results(BENCHMARK, ENVIRONMENT, {"device": CARD}, cells)
    page = build_page(BENCHMARK, json.loads(json.dumps(results)))
    assert CARD["name"] in page
    assert page.count(", small |") == len(FORMS) * len(WAYS)
    assert "| 0 workers, batches |" in page


def test_a_request_survives_its_way_to_the_process(tmp_path: Path) -> None:
    cell = Cell(size=None, form="expanded", way=WAYS[0], tuning=Tuning(workers=3))
    for path in (None, tmp_path):
        ask = Ask(cell=cell, seconds=2.0, trace_path=path, is_last=True)
        line = json.dumps(asdict(ask) | {"trace_path": path and str(path)})
        assert parse_ask(json.loads(line)) == ask


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


def test_the_best_setting_is_that_of_its_form() -> None:
    def cell(form: str, workers: int) -> Cell:
        return Cell(size=None, form=form, way="DataLoader", tuning=Tuning(workers=workers))

    def rate(samples: int) -> Rate:
        return Rate(samples=samples, steps=1, seconds=1.0, waited_seconds=0.0)

    measured = Measured(
        tuning={
            cell("expanded", 4): rate(9),
            cell("expanded", 8): rate(8),
            cell("deduplicated", 8): rate(7),
        }
    )
    assert measured.best_tuning("expanded").workers == 4
    assert measured.best_tuning("deduplicated").workers == 8
