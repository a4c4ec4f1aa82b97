"""The metrics of a run that writes a table, as the autoscaler and people read them."""

import pytest

from pipeline_runtime.feed.chunk import StepCount
from pipeline_runtime.output.job import Phase, Progress
from pipeline_runtime.run.writing.writing_metrics import WritingCollector


def read(collector: WritingCollector) -> dict[str, float]:
    return {
        f"{sample.name}{'/'.join(sample.labels.values())}": sample.value
        for metric in collector.collect()
        for sample in metric.samples
    }


def progress_of(phase: Phase, rows: int, seconds: float, **values: float) -> Progress:
    counts = (StepCount(rows=2 * rows, num_bytes=0, seconds=0.0),)
    made = Progress(phase=phase, counts=counts, rows=rows, spooling_seconds=seconds)
    for name, value in values.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def collector(now: list[float]) -> WritingCollector:
    return WritingCollector([(0, "read")], planned_rows=2000, clock=lambda: now[0])


def test_waits_are_the_time_without_records(collector: WritingCollector) -> None:
    collector.update(
        progress_of("Spooling", 400, 20.0, recording_seconds=5.0, chunks=4, resumed_rows=100)
    )
    found = read(collector)
    assert found["lastmile_run_loop_seconds_total"] == 20.0
    assert found["lastmile_run_wait_seconds_totalproduction"] == 15.0
    assert found["lastmile_run_wait_seconds_totaltransfer"] == 0.0
    assert found["lastmile_run_rows_total"] == 300.0
    assert found["lastmile_output_rows"] == 400.0
    assert found["lastmile_run_steps_total"] == 4.0


def test_rates_are_of_the_last_half_minute(collector: WritingCollector, now: list[float]) -> None:
    for second in range(0, 100, 10):
        now[0] = float(second)
        rows = 10 * second if second < 50 else 500 + 2 * (second - 50)
        collector.update(progress_of("Spooling", rows, now[0]))
    found = read(collector)
    assert found["lastmile_output_rows_per_second"] == pytest.approx(2.0)
    ratio = found["lastmile_progress_ratio"]
    per_second = 0.75 * 2 * 2 / 2000
    assert found["lastmile_estimated_remaining_seconds"] == pytest.approx((1 - ratio) / per_second)


def test_progress_covers_the_merge(collector: WritingCollector, now: list[float]) -> None:
    seen, read_ratios = [], []
    for phase, merged in (("Spooling", 0), ("Merging", 0), ("Merging", 500), ("Committed", 500)):
        now[0] += 10.0
        rows = 250 if phase == "Spooling" else 500
        collector.update(
            progress_of(phase, rows, 10.0, merged_rows=merged)  # type: ignore[arg-type]
        )
        found = read(collector)
        assert ("lastmile_output_rows_per_second" in found) is False
        seen.append(found["lastmile_progress_ratio"])
        read_ratios.append(found["lastmile_read_ratio"])
    assert seen == sorted(seen)
    assert seen[0] < 0.5 < seen[1] < seen[2] < seen[3] == 1.0
    assert read_ratios == [0.25, 0.5, 0.5, 0.5]
