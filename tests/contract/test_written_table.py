"""The operator reads what a driver tells about the table that it writes."""

from typing import get_args

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dataset_operator.observed import OUTPUT_PHASES, WrittenTable
from dataset_operator.ray.runtime_metrics import parse_progress
from pipeline_runtime.output.job import Phase, Progress
from pipeline_runtime.run.writing.writing_metrics import WritingCollector


@pytest.mark.parametrize("phase", get_args(Phase))
def test_the_metrics_of_each_phase_are_read(phase: Phase) -> None:
    collector = WritingCollector([(0, "read")], planned_rows=1000)
    registry = CollectorRegistry()
    registry.register(collector)
    collector.update(
        Progress(phase=phase, rows=700, resumed_rows=200, files=3, num_bytes=2**53 - 1)
    )
    progress = parse_progress(generate_latest(registry).decode())
    assert progress is not None
    assert progress.table == WrittenTable(phase=phase, rows=700, files=3, num_bytes=2**53 - 1)
    assert progress.table.phase in OUTPUT_PHASES
    assert progress.counters.trainer is not None
