"""The benchmark of the simulator: its figures of runs, and its targets."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from benchmark_environment import ENVIRONMENT

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.report import write_files
from benchmarks.simulator.command import parse_options
from benchmarks.simulator.courses import Course, Point
from benchmarks.simulator.figure import draw
from benchmarks.simulator.observing import Observed
from benchmarks.simulator.profiles import BATCH_ROWS, PROFILES, Profile
from benchmarks.simulator.report import build_markdown
from benchmarks.simulator.results import Compared, Document, build_results
from benchmarks.simulator.simulating import Costs, fit, predict
from benchmarks.simulator.workers import Workers
from dataset_operator.autoscaling.signals import Pods, Sample, TrainerCounters, WorkerCounters
from dataset_operator.simulation.setting import Phase
from pipeline_runtime.config import HEADROOM

NO_COSTS = Costs(step_seconds=0.0, row_seconds=0.0, read_share=0.01, start_seconds=10.0)
TWO_PACES = Profile(
    name="two paces",
    is_predicted=False,
    first_workers=2,
    rows=3000,
    phases=(
        Phase(step_seconds=0.5, row_seconds=1 / 500),
        Phase(from_row=2000, step_seconds=0.25, row_seconds=1 / 500),
    ),
)


def point(at: float, rows: float, *, desired: int = 2, ready: int = 2, idle: float = 0.0) -> Point:
    return Point(at=at, desired=desired, ready=ready, rows=rows, idle_seconds=idle)


def observed(points: Sequence[Point], *, starts: Sequence[float] = (9.0,)) -> Observed:
    return Observed(
        profile=TWO_PACES,
        course=Course(points=tuple(points)),
        samples=[],
        starts=list(starts),
    )


def sample(at: float, *, steps: float, step_cost: float, row_cost: float) -> Sample:
    """Return samples of steps that slept 0.5 s, and of rows that slept 1/500 s."""
    made = steps * BATCH_ROWS
    return Sample(
        at=at,
        attempt=1,
        desired=2,
        pods=Pods(ready=2),
        trainer=TrainerCounters(
            rows=made,
            steps=steps,
            loop_seconds=steps * (0.5 + step_cost) + 3.0,
            production_seconds=3.0,
        ),
        workers=WorkerCounters(
            rows=made,
            read_seconds=0.1 * made * (1 / 500 + row_cost),
            compute_seconds=0.9 * made * (1 / 500 + row_cost),
            blocked_seconds=1.0,
            idle_seconds=2.0,
        ),
    )


def results_of(run: Observed, simulated: Course) -> Document:
    compared = Compared(observed=run, simulated=[simulated])
    return build_results([compared], NO_COSTS, 1.0, ENVIRONMENT)


def test_costs_beside_the_sleeps_are_found() -> None:
    run = observed([point(15.0, 1000)], starts=(8.0, 12.0, 30.0))
    early, late = (sample(15.0 * i, steps=20.0 * i, step_cost=0.01, row_cost=1e-4) for i in (1, 2))
    later = sample(45.0, steps=9000.0, step_cost=5.0, row_cost=1.0)
    # The pace changed between the last two: what lies there is of neither.
    run.samples += [(0, early), (0, late), (1, later)]
    costs = fit([run])
    assert costs.step_seconds == pytest.approx(0.01)
    assert costs.row_seconds == pytest.approx(1e-4)
    assert costs.read_share == pytest.approx(0.1)
    assert costs.start_seconds == 12.0


def test_a_run_without_a_started_worker_fits_nothing() -> None:
    with pytest.raises(BenchmarkError, match="--share"):
        fit([observed([point(15.0, 1000)], starts=())])


def test_workers_are_reported_for_each_phase() -> None:
    points = [
        point(15.0, 1000, desired=2),
        point(30.0, 1999, desired=3),
        point(45.0, 2000, desired=4),  # boundary: the first row of the second phase
        point(50.0, 3000, desired=5),
    ]
    assert Course(points=points).settled(TWO_PACES) == [3, 5]


def test_ready_workers_are_weighted_by_time() -> None:
    points = [point(0.0, 0, ready=1), point(30.0, 9, ready=4), point(40.0, 9, ready=9)]
    assert Course(points=points).mean_ready == pytest.approx((30 * 1 + 10 * 4) / 40)


@pytest.mark.parametrize(
    ("seconds", "desired", "idle", "met"),
    [
        pytest.param(100.0, 3, 20.0, (True, True, True), id="the same"),
        pytest.param(92.0, 4, 22.9, (True, True, True), id="within all three"),
        pytest.param(88.0, 3, 20.0, (False, True, True), id="an eighth faster"),
        pytest.param(100.0, 5, 20.0, (True, False, True), id="two workers more"),
        pytest.param(100.0, 3, 16.0, (True, True, False), id="a fifth less idle"),
    ],
)
def test_targets_cover_rate_workers_and_idle_time(
    seconds: float, desired: int, idle: float, met: tuple[bool, bool, bool]
) -> None:
    run = observed([point(50.0, 1500), point(100.0, 3000, desired=3, idle=20.0)])
    simulated = Course(points=[point(50.0, 1500), point(seconds, 3000, desired=desired, idle=idle)])
    [row] = results_of(run, simulated)["profiles"]
    assert (row["rowsPerSecond"]["met"], row["workers"]["met"], row["idleSeconds"]["met"]) == met


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_the_simulator_settles_at_the_required_workers(profile: Profile) -> None:
    found = predict(profile, NO_COSTS, seed=1).settled(profile)
    assert found == [-(-need * (1.0 + HEADROOM) // 1) for need in profile.required()]


def test_a_shortened_profile_requires_the_same() -> None:
    short = TWO_PACES.shortened(0.5)
    assert short.required() == TWO_PACES.required()
    assert (short.rows, short.phase_at(999), short.phase_at(1000)) == (1500, 0, 1)


@dataclass
class Nodes:
    """A fake cluster whose nodes are up at once."""

    nodes: list["Node"] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    down: set[str] = field(default_factory=set)

    def add(self, count: int) -> None:
        first = len(self.nodes)
        self.nodes += [Node(str(first + i)) for i in range(count)]

    def find_up(self) -> set[str]:
        return {node.serial for node in self.nodes} - self.down

    def drain(self, node: "Node") -> None:
        self.nodes.remove(node)
        self.drained.append(node.serial)

    def end(self, node: "Node") -> None:
        self.nodes.remove(node)
        self.ended.append(node.serial)


@dataclass
class Node:
    serial: str


def test_starts_are_timed_to_the_first_chunk() -> None:
    nodes = Nodes()
    nodes.add(1)
    workers = Workers(nodes)
    assert workers.count_ready(1, now=5.0) == 1
    workers.request(3, now=10.0)
    assert workers.count_ready(1, now=15.0) == 1
    assert workers.count_ready(2, now=22.0) == 2
    assert workers.count_ready(3, now=26.0) == 3
    assert workers.starts == [12.0, 16.0]
    assert workers.start_seconds == 14.0


def test_the_youngest_leave_and_pending_nodes_are_not_drained() -> None:
    nodes = Nodes()
    nodes.add(2)
    workers = Workers(nodes)
    workers.request(4, now=10.0)
    workers.count_ready(3, now=20.0)
    nodes.down.add("3")
    workers.request(1, now=30.0)
    assert (nodes.ended, nodes.drained) == (["3"], ["2", "1"])
    assert workers.desired == 1
    assert workers.count_ready(1, now=40.0) == 1
    assert workers.starts == [10.0]


@pytest.mark.parametrize("options", [["--share", "0"], ["--share", "1.5"], ["--seeds", "0"]])
def test_impossible_options_are_refused(options: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(options)


def test_equal_results_give_equal_files(tmp_path: Path) -> None:
    run = observed([point(50.0, 1500), point(100.0, 3000, desired=3, idle=20.0)])
    results = results_of(run, Course(points=[point(50.0, 1500), point(100.0, 3000, idle=15.0)]))
    for name in ("a", "b"):
        text = write_files(
            "simulator", results, tmp_path / name, build_page=build_markdown, draw=draw
        )
    for name in ("simulator.json", "simulator.md", "simulator.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert " | 20 | 15 [15–15] | -25.0% | ± 15% | **no** |" in text
    assert " | 2 → 3 | 2 → 2 | 1 | ± 1 | yes |" in text
