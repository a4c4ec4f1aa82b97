"""The `lastmile_*` metrics of a run that writes a table; names are shared with other runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline_runtime.feed.pieces import StepCount
from pipeline_runtime.metrics import run_workers, steps_flow
from pipeline_runtime.output.job import Progress

_PHASES = ("Spooling", "Merging", "Committing", "Committed")


class WritingCollector(Collector):
    """A Prometheus collector over the progress of a run; counters start at 0 in each attempt."""

    def __init__(self, step_names: Sequence[tuple[int, str]], planned_rows: int) -> None:
        self._steps = [f"{index}-{kind}" for index, kind in step_names]
        self._planned_rows = planned_rows
        self._lock = threading.Lock()
        self._metrics: list[Metric] = []

    def update(self, progress: Progress) -> None:
        """Take the newest progress."""
        metrics = list(self._build(progress))
        with self._lock:
            self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        with self._lock:
            yield from self._metrics

    def _build(self, progress: Progress) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "lastmile_progress_ratio",
            "Share of the run that is done.",
            value=min(1.0, _rows(progress.counts) / max(1, self._planned_rows)),
        )
        rows = CounterMetricFamily("lastmile_output_rows", "Rows for the table that were stored.")
        rows.add_metric([], _last(progress.counts) - _last(progress.resumed_counts))
        yield rows
        yield GaugeMetricFamily(
            "lastmile_output_files", "Files of the table that were written.", value=progress.files
        )
        yield GaugeMetricFamily(
            "lastmile_output_bytes", "Bytes of these files.", value=progress.num_bytes
        )
        phase = GaugeMetricFamily(
            "lastmile_output_phase", "1 for the present phase.", labels=["phase"]
        )
        for name in _PHASES:
            phase.add_metric([name], float(name == progress.phase))
        yield phase
        yield from run_workers([progress.usage.figures()])
        yield from steps_flow(self._steps, [progress.counts], [progress.resumed_counts])


def _rows(counts: Sequence[StepCount]) -> int:
    return counts[0].rows if counts else 0


def _last(counts: Sequence[StepCount]) -> int:
    return counts[-1].rows if counts else 0
