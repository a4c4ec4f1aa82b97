"""The `lastmile_*` metrics of a run, for Prometheus; the autoscaler will live on them.

Fed from the trainers' snapshots, so they are the same whatever engine feeds the trainer. Counters
are monotonic within an attempt. Labels are few: a rank, a stage, a step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline_runtime.monitor import RankSnapshot

# The port of the runtime's exporter on every pod (its container port is named `lastmile`).
DEFAULT_METRICS_PORT = 9464
_BLOCKED_STAGES = ("production", "transfer", "batching", "collate")


class RunCollector:
    """A Prometheus collector over the latest snapshot of every rank."""

    def __init__(self, step_names: Iterable[tuple[int, str]]) -> None:
        self._steps = [f"{index}-{kind}" for index, kind in step_names]
        self._snapshots: Mapping[int, RankSnapshot] = {}
        self._lock = threading.Lock()

    def update(self, snapshots: Mapping[int, RankSnapshot]) -> None:
        """Take newer snapshots, by rank."""
        with self._lock:
            self._snapshots = dict(snapshots)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        with self._lock:
            snapshots = list(self._snapshots.values())
        yield from self._trainer_seconds(snapshots)
        yield from self._progress(snapshots)
        yield from self._steps_flow(snapshots)

    def _trainer_seconds(self, snapshots: list[RankSnapshot]) -> Iterator[Metric]:
        busy = CounterMetricFamily(
            "lastmile_trainer_busy_seconds",
            "Seconds that a trainer spent in the entrypoint's steps.",
            labels=["rank"],
        )
        paused = CounterMetricFamily(
            "lastmile_trainer_paused_seconds",
            "Seconds that a trainer spent in evaluation, checkpoints and reports.",
            labels=["rank"],
        )
        blocked = CounterMetricFamily(
            "lastmile_trainer_blocked_seconds",
            "Seconds that a trainer was kept from its next step, by stage.",
            labels=["rank", "stage"],
        )
        for snapshot in snapshots:
            rank = str(snapshot.rank)
            busy.add_metric([rank], snapshot.waited["compute"])
            paused.add_metric([rank], snapshot.waited["paused"])
            for stage in _BLOCKED_STAGES:
                blocked.add_metric([rank, stage], snapshot.waited[stage])
        yield from (busy, paused, blocked)

    def _progress(self, snapshots: list[RankSnapshot]) -> Iterator[Metric]:
        counters = {
            "lastmile_trainer_rows": ("Rows that the trainer took.", "attempt_samples"),
            "lastmile_trainer_bytes": (
                "Bytes of the batches that the trainer took.",
                "batch_bytes",
            ),
            "lastmile_trainer_steps": ("Optimiser steps.", "step"),
            "lastmile_checkpoints": ("Checkpoints written.", "checkpoints"),
            "lastmile_checkpoint_failures": ("Checkpoints that failed.", "checkpoint_failures"),
        }
        for name, (text, field) in counters.items():
            counter = CounterMetricFamily(name, text, labels=["rank"])
            for snapshot in snapshots:
                counter.add_metric([str(snapshot.rank)], getattr(snapshot, field))
            yield counter
        gauges = {
            "lastmile_queue_length": ("Pieces that wait to be cut into batches.", "queue_length"),
            "lastmile_step_seconds": ("Seconds of the last step.", "last_step_seconds"),
            "lastmile_epoch": ("Epoch that is being trained, from 0.", "epoch"),
        }
        for name, (text, field) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=["rank"])
            for snapshot in snapshots:
                gauge.add_metric([str(snapshot.rank)], getattr(snapshot, field))
            yield gauge

    def _steps_flow(self, snapshots: list[RankSnapshot]) -> Iterator[Metric]:
        rows = CounterMetricFamily(
            "lastmile_step_output_rows", "Rows that a step gave out.", labels=["step"]
        )
        size = CounterMetricFamily(
            "lastmile_step_output_bytes", "Arrow bytes that a step gave out.", labels=["step"]
        )
        seconds = CounterMetricFamily(
            "lastmile_step_busy_seconds", "Core seconds of data workers in a step.", labels=["step"]
        )
        for index, name in enumerate(self._steps):
            counts = [s.counts[index] for s in snapshots if index < len(s.counts)]
            rows.add_metric([name], sum(count.rows for count in counts))
            size.add_metric([name], sum(count.num_bytes for count in counts))
            seconds.add_metric([name], sum(count.seconds for count in counts))
        yield from (rows, size, seconds)


class MetricsServer:
    """Serves a collector on a port; the port that was asked for, or a free one if it is taken."""

    def __init__(self, collector: RunCollector, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, registry=registry)
        except OSError:
            self._server, self._thread = start_http_server(0, registry=registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
