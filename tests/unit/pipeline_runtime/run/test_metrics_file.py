"""A run's metrics over time, as one table of Parquet files."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline_runtime.metrics import Pace, RunCollector
from pipeline_runtime.run.metrics_file import (
    FIRST_FILE_SECONDS,
    MetricsKeeper,
    Samples,
    file_seconds,
    keeping_metrics,
)
from pipeline_runtime.sources.filesystem import open_location


def build_collector(progress: float = 0.25) -> RunCollector:
    collector = RunCollector([])
    collector.update({}, Pace(progress_ratio=progress, metrics={"loss": 0.5}))
    return collector


def build_keeper(folder: Path, collector: RunCollector) -> MetricsKeeper:
    times = iter(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=10 * n) for n in range(100))
    location = open_location(str(folder))
    return MetricsKeeper(collector=collector, location=location, now=lambda: next(times))


def test_samples_are_read_back_as_one_table_with_their_labels(tmp_path: Path) -> None:
    collector = build_collector(0.25)
    keeper = build_keeper(tmp_path, collector)
    keeper.sample()
    collector.update({}, Pace(progress_ratio=0.5, metrics={"loss": 0.25}))
    keeper.sample()
    keeper.write()
    collector.update({}, Pace(progress_ratio=0.75, metrics={}))
    keeper.sample()
    keeper.write()
    keeper.write()  # nothing is new
    assert len(list((tmp_path / "metrics").iterdir())) == 2
    rows = pq.read_table(tmp_path / "metrics").to_pylist()
    progress = [row for row in rows if row["name"] == "lastmile_progress_ratio"]
    assert [row["value"] for row in progress] == [0.25, 0.5, 0.75]
    assert progress[1]["time"] == datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)
    losses = [row for row in rows if row["name"] == "lastmile_training_metric"]
    assert [(row["labels"], row["value"]) for row in losses] == [
        ('{"name": "loss"}', 0.5),
        ('{"name": "loss"}', 0.25),
    ]


def test_a_run_of_a_week_has_few_files() -> None:
    elapsed, files = 0.0, 0
    while elapsed < 7 * 86_400:
        elapsed += file_seconds(elapsed)
        files += 1
    assert 200 < files < 400
    assert file_seconds(0.0) == FIRST_FILE_SECONDS


def test_in_a_pod_what_was_last_is_kept_when_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = open_location(str(tmp_path))
    monkeypatch.delenv("LASTMILE_ROLE", raising=False)
    with keeping_metrics(build_collector(), location, []):
        pass
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("LASTMILE_ROLE", "head")
    with keeping_metrics(build_collector(), location, []):
        pass
    assert pq.read_table(tmp_path / "metrics").num_rows > 0
    assert "lastmile-metrics" not in {thread.name for thread in threading.enumerate()}


def test_samples_from_before_the_run_has_a_folder_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASTMILE_ROLE", "head")
    samples: Samples = []
    with keeping_metrics(build_collector(0.25), None, samples):
        pass
    with keeping_metrics(build_collector(0.5), open_location(str(tmp_path)), samples):
        pass
    rows = pq.read_table(tmp_path / "metrics").to_pylist()
    progress = [row["value"] for row in rows if row["name"] == "lastmile_progress_ratio"]
    assert progress == [0.25, 0.5]


def test_a_store_that_refuses_is_told_and_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics").write_text("a file")
    keeper = build_keeper(tmp_path, build_collector())
    keeper.sample()
    keeper.write()
    assert "metrics" in capsys.readouterr().out
