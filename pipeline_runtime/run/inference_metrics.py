"""The `lastmile_inference_*` metrics of a run, by which the operator scales inference workers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline_runtime.run.reported_inference import ReportedInference


class InferenceCollector(Collector):
    """A Prometheus collector over the inference workers of a run; nothing if it has no group.

    A group that has ended, as once its rows are written, has no gauges; its counters stay.
    """

    def __init__(self, inference: ReportedInference) -> None:
        self._inference = inference

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        groups = self._inference.list_groups()
        if not groups:
            return
        workers = GaugeMetricFamily(
            "lastmile_inference_workers",
            "Inference workers of a group that take requests.",
            labels=["group"],
        )
        waiting = GaugeMetricFamily(
            "lastmile_inference_waiting_requests",
            "Requests that wait at these inference workers, without those that they score.",
            labels=["group"],
        )
        rows = CounterMetricFamily(
            "lastmile_inference_rows",
            "Rows that the inference workers of a group scored, once for each model.",
            labels=["group"],
        )
        busy = CounterMetricFamily(
            "lastmile_inference_busy_seconds",
            "Seconds that the inference workers of a group spent in their models.",
            labels=["group"],
        )
        for each in groups:
            if each.workers is not None:
                workers.add_metric([each.group], each.workers)
                waiting.add_metric([each.group], each.waiting_requests)
            rows.add_metric([each.group], each.rows)
            busy.add_metric([each.group], each.busy_seconds)
        yield from (workers, waiting, rows, busy)
