"""The benchmark of the simulator: its figures of runs, and its targets."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from benchmark_environment import ENVIRONMENT

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.report import build_results, judge, write_results
from benchmarks.simulator import watching
from benchmarks.simulator.comparison import BENCHMARK, build_cell
from benchmarks.simulator.profiles import BATCH_ROWS, PROFILES, Profile
from benchmarks.simulator.simulating import Costs, fit, predict
from benchmarks.simulator.watching import Figures, Look, RealRun, watch
from dataset_operator.autoscaling.signals import (
    Counters,
    Pods,
    Sample,
    TrainerCounters,
    WorkerCounters,
)
from dataset_operator.simulation.setting import Phase
from pipeline_runtime.config import HEADROOM

NO_COSTS = Costs(step_seconds=0.0, row_seconds=0.0, read_share=0.01, start_seconds=10.0)
TWO_PACES = Profile(
    name="two paces",
    first_workers=2,
    rows=3000,
    phases=(
        Phase(step_seconds=0.5, row_seconds=1 / 500),
        Phase(from_row=2000, step_seconds=0.25, row_seconds=1 / 500),
    ),
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


def test_costs_beside_the_sleeps_are_found() -> None:
    run = RealRun(profile=TWO_PACES, starts=[8.0, 12.0, 30.0])
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
    with pytest.raises(BenchmarkError, match="no run started a worker"):
        fit([RealRun(profile=TWO_PACES)])


def real_run() -> RealRun:
    """Return a run of 60 rows per second, with 20 idle seconds and two workers, then three."""
    run = RealRun(profile=TWO_PACES, waited=1.0)
    for place, at, desired in ((0, 20.0, 1), (0, 30.0, 2), (1, 50.0, 3)):
        now = sample(at, steps=6.0, step_cost=0.0, row_cost=0.0)
        assert now.trainer is not None
        trainer = replace(now.trainer, production_seconds=21.0)
        run.samples.append((place, replace(now, desired=desired, trainer=trainer)))
    return run


def test_figures_are_of_the_whole_run_and_of_each_phase() -> None:
    assert real_run().figures == Figures(rows_per_second=60.0, idle_seconds=20.0, workers=[2, 3])


@pytest.mark.parametrize(
    ("rate", "workers", "idle", "missed"),
    [
        pytest.param(60.0, 3, 20.0, [], id="the same"),
        pytest.param(65.0, 4, 22.9, [], id="within all three"),
        pytest.param(68.0, 3, 20.0, ["rows per second"], id="an eighth faster"),
        pytest.param(60.0, 5, 20.0, ["workers at the"], id="two workers more"),
        pytest.param(60.0, 3, 16.0, ["idle seconds of"], id="a fifth less idle"),
    ],
)
def test_targets_cover_rate_workers_and_idle_time(
    rate: float, workers: int, idle: float, missed: list[str]
) -> None:
    simulated = Figures(rows_per_second=rate, idle_seconds=idle, workers=[2, workers])
    cell = build_cell(real_run(), [simulated] * 3, NO_COSTS)
    judged = judge(BENCHMARK, build_results(BENCHMARK, ENVIRONMENT, {}, [cell]))
    assert all(row["met"] is not None for row in judged)
    assert [row["target"][:15].strip() for row in judged if not row["met"]] == missed


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_the_simulator_settles_at_the_required_workers(profile: Profile) -> None:
    found = predict(profile, NO_COSTS, seed=1).workers
    assert found == [-(-need * (1.0 + HEADROOM) // 1) for need in profile.required()]


def counters(rows: float, *, workers: float = 1.0) -> Counters:
    trainer = TrainerCounters(
        rows=rows, steps=rows / BATCH_ROWS, loop_seconds=5.0, production_seconds=4.0
    )
    return Counters(trainer=trainer, data_workers=workers)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Return a clock that only sleeping moves."""
    now = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watching.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    return lambda: now[0]


def test_a_run_is_watched_to_its_last_row(tmp_path: Path, clock: Callable[[], float]) -> None:
    paces = tmp_path / "pace.json"

    def look() -> Look:
        at = clock() - 98.0  # the first worker began a chunk of 2 s earlier
        requested = 3 if at > 15.0 else 2
        if 17.0 <= at < 18.0:  # no worker leaves or starts while the driver does not answer
            return Look(desired=requested, ready=0, counters=None)
        workers = 3 if at >= 21.0 else 2  # the requested one is there
        return Look(desired=requested, ready=workers, counters=counters(100 * at))

    slow = replace(TWO_PACES.phases[0], step_seconds=2.0)
    run = watch(replace(TWO_PACES, phases=(slow, TWO_PACES.phases[1])), paces, look)
    assert [sample.at for _, sample in run.samples] == pytest.approx([15.0, 30.0])
    assert [place for place, _ in run.samples] == [0, 1]
    assert run.starts == pytest.approx([5.5])  # from the first look at the request
    assert '"stepSeconds": 0.25' in paces.read_text()
    assert run.figures == Figures(rows_per_second=100.0, idle_seconds=1.0, workers=[2, 3])


def test_a_run_that_does_not_end_is_given_up(tmp_path: Path, clock: Callable[[], float]) -> None:
    with pytest.raises(BenchmarkError, match="two paces: not over after"):
        watch(TWO_PACES, tmp_path / "p", lambda: Look(desired=2, ready=2, counters=counters(1.0)))
    with pytest.raises(BenchmarkError, match="two paces: no chunk"):
        watch(TWO_PACES, tmp_path / "p", lambda: Look(desired=2, ready=0, counters=None))


def test_equal_results_give_equal_files(tmp_path: Path) -> None:
    simulated = Figures(rows_per_second=60.0, idle_seconds=15.0, workers=[2, 2])
    real = replace(real_run(), profile=replace(TWO_PACES, is_predicted=True))
    cell = build_cell(real, [simulated], NO_COSTS)
    results = build_results(BENCHMARK, ENVIRONMENT, {}, [cell])
    texts = [write_results(BENCHMARK, results, tmp_path / name) for name in ("a", "b")]
    for name in ("simulator.json", "simulator.md", "simulator.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (
        "simulated | 60 | 1 | 15 | 0.750 | 1 | 2/3 | 2/2 | none | 0.0/0.0/0.01/10.0 |" in texts[0]
    )
