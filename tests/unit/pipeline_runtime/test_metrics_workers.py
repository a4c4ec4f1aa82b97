"""Metrics of readers, and totals of all ranks for the autoscaler."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from rank_snapshots import build_snapshot

from pipeline_runtime.feed.base import WorkerUsage
from pipeline_runtime.feed.chunk import StepCount
from pipeline_runtime.metrics import Pace, RunCollector
from pipeline_runtime.monitor import RankSnapshot


def serve(
    *snapshots: RankSnapshot, steps: Iterable[tuple[int, str]] = (), pace: Pace | None = None
) -> CollectorRegistry:
    """Register a collector that has these snapshots."""
    collector, registry = RunCollector(steps), CollectorRegistry()
    collector.update({each.rank: each for each in snapshots}, pace)
    registry.register(collector)
    return registry


@pytest.mark.parametrize(
    ("usage", "ready", "read"),
    [
        pytest.param(WorkerUsage(), None, None, id="an engine that reports none"),
        pytest.param(WorkerUsage(ready=2, read=1.5), 2, 1.5, id="two readers"),
        pytest.param(WorkerUsage(ready=0, read=1.5), 0, 1.5, id="all lost"),
    ],
)
def test_readers_are_reported_once_known(
    usage: WorkerUsage, ready: float | None, read: float | None
) -> None:
    registry = serve(build_snapshot(usage=usage))
    assert registry.get_sample_value("lastmile_ready_readers", {"rank": "0"}) == ready
    labels = {"rank": "0", "state": "read"}
    assert registry.get_sample_value("lastmile_worker_seconds_total", labels) == read


def test_totals_cover_all_ranks_of_the_attempt() -> None:
    usage = WorkerUsage(
        *(9.0, 6.0, 2.0, 1.0),
        inference=8.0,
        warming_read=3.0,
        warming_compute=2.0,
        warming_inference=7.0,
        warming_rows=20,
        rows=100,
    )
    waits = {"production": 4.0, "collate": 0.5}
    ranks = (
        build_snapshot(
            rank,
            replace(usage, workers=2 + rank, workers_readers=5 + rank),
            attempt_samples=50,
            step=1007,
            resumed_step=1000,
            counts=(StepCount(rows=1060, num_bytes=530, seconds=3.5),),
            resumed_counts=(StepCount(rows=1000, num_bytes=500, seconds=3.0),),
            loop_seconds=12.5,
            finished=(6, 43, 8.0),
            longest=waits,
        )
        for rank in (1, 0)
    )
    found = serve(*ranks, steps=[(0, "read")]).get_sample_value
    assert found("lastmile_run_rows_total") == 100
    assert found("lastmile_run_steps_total") == 7
    assert found("lastmile_trainer_steps_total", {"rank": "0"}) == 7
    read = {"step": "0-read"}
    assert found("lastmile_step_output_rows_total", read) == 120
    assert found("lastmile_step_output_bytes_total", read) == 60
    assert found("lastmile_step_busy_seconds_total", read) == 1.0
    assert found("lastmile_run_loop_seconds_total") == 12.5
    assert found("lastmile_run_finished_steps_total") == 6
    assert found("lastmile_run_finished_rows_total") == 86
    assert found("lastmile_run_finished_seconds_total") == 8.0
    assert found("lastmile_run_wait_seconds_total", {"stage": "production"}) == 4.0
    seconds = {
        state: found("lastmile_run_worker_seconds_total", {"state": state})
        for state in ("read", "compute", "inference", "warming", "blocked_output", "idle")
    }
    assert seconds == {
        "read": 12.0,
        "compute": 8.0,
        "inference": 2.0,
        "warming": 24.0,
        "blocked_output": 4.0,
        "idle": 2.0,
    }
    assert found("lastmile_run_worker_rows_total") == 160
    assert found("lastmile_run_data_workers") == 3
    assert found("lastmile_run_readers") == 6


def test_totals_precede_metrics_of_single_ranks() -> None:
    registry = serve(*(build_snapshot(rank, WorkerUsage(ready=1)) for rank in range(64)))
    page = generate_latest(registry).decode()
    assert max(page.rindex(f"\nlastmile_run_{name}") for name in ("rows", "readers")) < 4096
    assert page.index('rank="63"') > page.rindex("\nlastmile_run_")


def test_gpu_memory_is_reported_only_for_gpus() -> None:
    on_cpu = build_snapshot(0, resident_bytes=3)
    on_gpu = build_snapshot(1, resident_bytes=5, gpu_bytes=0)  # nothing yet
    lines = generate_latest(serve(on_cpu, on_gpu)).decode().splitlines()
    assert [line for line in lines if line.startswith("lastmile_trainer_gpu")] == [
        'lastmile_trainer_gpu_memory_bytes{rank="1"} 0.0'
    ]
    assert 'lastmile_trainer_resident_bytes{rank="0"} 3.0' in lines
    assert 'lastmile_trainer_resident_bytes{rank="1"} 5.0' in lines


def test_the_saving_rank_reports_the_kept_time() -> None:
    saves = build_snapshot(0, kept_until=1_700_000_100.0)
    other = build_snapshot(1, kept_until=1_700_000_000.0)
    registry = serve(other, saves)
    assert registry.get_sample_value("lastmile_run_kept_timestamp_seconds") == 1_700_000_100.0


@pytest.mark.parametrize("ranks", [1, 2, 9])
@pytest.mark.parametrize("steps", [1, 3])
def test_series_grow_with_ranks_and_steps_alone(steps: int, ranks: int) -> None:
    # docs/operating/observe.md, «How many series»: 27 + 23 per rank + 3 per step + the metrics.
    longest = dict.fromkeys(("production", "transfer", "batching", "collate"), 1.0)
    usage = WorkerUsage(ready=2, read=1.5)
    known = [
        build_snapshot(rank, usage, gpu_bytes=1, kept_until=1.0, longest=longest)
        for rank in range(ranks)
    ]
    metrics = {f"metric {index}": 1.0 for index in range(20)}
    pace = Pace(
        progress_ratio=0.5,
        remaining_seconds=1.0,
        samples_per_second=1.0,
        production_wait_ratio=0.5,
        busy_ratio=0.5,
        metrics=metrics,
    )
    registry = serve(*known, steps=[(index, "map") for index in range(steps)], pace=pace)
    lines = generate_latest(registry).decode().splitlines()
    series = [line for line in lines if not line.startswith("#")]
    assert len(series) == 27 + 23 * ranks + 3 * steps + 16
