"""The `lastmile_*` metrics of a run, for Prometheus and for the status of an experiment.

They come from the trainers' snapshots, so they do not depend on the engine that feeds the trainer.
Counters are monotonic within an attempt. Labels are few: rank, stage, state, step and metric name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.chunk import StepCount
from pipeline_runtime.monitor import RankSnapshot

_WORKER_STATES = ("read", "compute", "inference", "blocked_output", "idle")
_BLOCKED_STAGES = ("production", "transfer", "batching", "collate")
# Limits of the training's own metrics; only the history has more of them, or longer names.
MAX_TRAINING_METRICS = 16
MAX_METRIC_NAME_CHARS = 64
# Set in every pod of an experiment's cluster.
ROLE_VARIABLE = "LASTMILE_ROLE"
# The server looks this often whether to stop, and the end of a run waits for that.
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Progress and speed of a run; a value is None while it is not known.

    Attributes:
        progress_ratio: share of the whole run's rows that were read, 0 to 1.
        production_wait_ratio: share of the trainers' time spent waiting for data workers, 0 to 1.
        busy_ratio: share of the trainers' time outside pauses spent in the steps, 0 to 1.
        metrics: latest values of the training's own metrics, by name.
    """

    progress_ratio: float
    rows_per_second: float | None = None
    remaining_seconds: float | None = None
    samples_per_second: float | None = None
    production_wait_ratio: float | None = None
    busy_ratio: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class RunCollector(Collector):
    """A Prometheus collector over the latest snapshot of every rank.

    Counters start at 0 in each attempt. If one fell from 5,200 steps to the 5,000 of a checkpoint,
    Prometheus would take it for a reset and add 5,000 steps.
    """

    def __init__(self, step_names: Iterable[tuple[int, str]], damaged_checkpoints: int = 0) -> None:
        self._damaged_checkpoints = damaged_checkpoints
        self._steps = [f"{index}-{kind}" for index, kind in step_names]
        self._snapshots: Mapping[int, RankSnapshot] = {}
        self._pace: Pace | None = None
        self._lock = threading.Lock()

    def update(self, snapshots: Mapping[int, RankSnapshot], pace: Pace | None) -> None:
        """Take newer snapshots, by rank, and the pace of the whole run."""
        with self._lock:
            self._snapshots, self._pace = dict(snapshots), pace

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        with self._lock:
            snapshots, pace = list(self._snapshots.values()), self._pace
        if pace is not None:
            yield from _pace_gauges(pace)
            yield _cpu_ranks(snapshots)
            yield GaugeMetricFamily(
                "lastmile_damaged_checkpoints",
                "Damaged checkpoints that were skipped when this attempt resumed.",
                value=self._damaged_checkpoints,
            )
        yield from _run_totals(snapshots)
        yield from self._trainer_seconds(snapshots)
        yield from _workers(snapshots)
        yield from self._progress(snapshots)
        yield from _memory(snapshots)
        yield from steps_flow(
            self._steps, [s.counts for s in snapshots], [s.resumed_counts for s in snapshots]
        )

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
            "Seconds that a trainer waited for its next step, by stage.",
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
            "lastmile_checkpoints": ("Checkpoints written.", "checkpoints"),
            "lastmile_checkpoint_failures": ("Checkpoints that failed.", "checkpoint_failures"),
        }
        for name, (text, attribute) in counters.items():
            counter = CounterMetricFamily(name, text, labels=["rank"])
            for snapshot in snapshots:
                counter.add_metric([str(snapshot.rank)], getattr(snapshot, attribute))
            yield counter
        steps = CounterMetricFamily("lastmile_trainer_steps", "Optimiser steps.", labels=["rank"])
        for snapshot in snapshots:
            steps.add_metric([str(snapshot.rank)], snapshot.step - snapshot.resumed_step)
        yield steps
        gauges = {
            "lastmile_queue_length": ("Chunks that wait to be cut into batches.", "queue_length"),
            "lastmile_step_seconds": ("Seconds of the last step.", "last_step_seconds"),
            "lastmile_epoch": ("Epoch that is being trained, from 0.", "epoch"),
        }
        for name, (text, attribute) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=["rank"])
            for snapshot in snapshots:
                gauge.add_metric([str(snapshot.rank)], getattr(snapshot, attribute))
            yield gauge


def steps_flow(
    names: Sequence[str],
    counts: Sequence[Sequence[StepCount]],
    resumed: Sequence[Sequence[StepCount]],
) -> Iterator[Metric]:
    """Yield what each step returned in this attempt.

    Args:
        names: names of the read and of every step.
        counts: for each rank, the counts of these since the run began.
        resumed: for each rank, the counts when this attempt began.
    """
    rows = CounterMetricFamily(
        "lastmile_step_output_rows", "Rows that a step returned.", labels=["step"]
    )
    size = CounterMetricFamily(
        "lastmile_step_output_bytes", "Arrow bytes that a step returned.", labels=["step"]
    )
    seconds = CounterMetricFamily(
        "lastmile_step_busy_seconds", "Core seconds of data workers in a step.", labels=["step"]
    )
    for index, name in enumerate(names):
        now = [rank[index] for rank in counts if index < len(rank)]
        then = [rank[index] for rank in resumed if index < len(rank)]
        rows.add_metric([name], _sum(now, "rows") - _sum(then, "rows"))
        size.add_metric([name], _sum(now, "num_bytes") - _sum(then, "num_bytes"))
        seconds.add_metric([name], _sum(now, "seconds") - _sum(then, "seconds"))
    yield from (rows, size, seconds)


def _sum(counts: Iterable[StepCount], name: str) -> float:
    return float(sum(getattr(count, name) for count in counts))


def _memory(snapshots: list[RankSnapshot]) -> Iterator[Metric]:
    """Yield the memory of trainers' processes and GPUs; without a GPU, the latter has no sample."""
    resident = GaugeMetricFamily(
        "lastmile_trainer_resident_bytes", "Memory of a trainer's process.", labels=["rank"]
    )
    gpu = GaugeMetricFamily(
        "lastmile_trainer_gpu_memory_bytes",
        "GPU memory that a trainer's torch holds.",
        labels=["rank"],
    )
    for snapshot in snapshots:
        resident.add_metric([str(snapshot.rank)], snapshot.resident_bytes)
        if snapshot.gpu_bytes is not None:
            gpu.add_metric([str(snapshot.rank)], snapshot.gpu_bytes)
    yield from (resident, gpu)


def _run_totals(snapshots: list[RankSnapshot]) -> Iterator[Metric]:
    """Yield the totals of all ranks, which the autoscaler reads.

    They come early on the page, whatever the number of ranks. Ranks move in lockstep, so any rank
    has the loop and the waits of all.
    """
    if not snapshots:
        return
    first = min(snapshots, key=lambda snapshot: snapshot.rank)
    rows = CounterMetricFamily("lastmile_run_rows", "Rows that all trainers took.")
    rows.add_metric([], sum(snapshot.attempt_samples for snapshot in snapshots))
    steps = CounterMetricFamily("lastmile_run_steps", "Optimiser steps of each trainer.")
    steps.add_metric([], first.step - first.resumed_step)
    loop = CounterMetricFamily(
        "lastmile_run_loop_seconds",
        "Seconds of the training loop since its first batch was requested, without pauses.",
    )
    loop.add_metric([], first.loop_seconds)
    waits = CounterMetricFamily(
        "lastmile_run_wait_seconds",
        "Seconds of the loop spent waiting: the longest wait of any rank per step, by stage.",
        labels=["stage"],
    )
    for stage, seconds in first.longest.items():
        waits.add_metric([stage], seconds)
    yield from (rows, steps, loop, waits, *_run_finished(snapshots, first))
    if first.kept_until:  # rank 0 writes the checkpoints
        yield GaugeMetricFamily(
            "lastmile_run_kept_timestamp_seconds",
            "Unix time up to which a crash loses no training: that of the attempt's newest "
            "checkpoint, or before the first one, of its beginning.",
            value=first.kept_until,
        )
    yield from run_workers([snapshot.workers for snapshot in snapshots])


def _run_finished(snapshots: list[RankSnapshot], first: RankSnapshot) -> Iterator[Metric]:
    """Yield the totals of the finished steps, which long steps make the autoscaler's clock."""
    count, _, seconds = first.finished
    rows = sum(snapshot.finished[1] for snapshot in snapshots)
    for name, text, value in (
        ("steps", "Finished steps of each trainer.", count),
        ("rows", "Rows of all trainers in finished steps.", rows),
        ("seconds", "Seconds of the finished steps, without waits for production.", seconds),
    ):
        metric = CounterMetricFamily(f"lastmile_run_finished_{name}", text)
        metric.add_metric([], value)
        yield metric


def run_workers(usages: list[dict[str, float]]) -> Iterator[Metric]:
    """Yield the totals of all readers, with new ones apart, which are slower while they warm up."""
    told = [usage for usage in usages if any(usage.values())]
    if not told:
        return  # no reader yet, or the engine reports none
    total = {name: sum(usage[name] for usage in told) for name in told[0]}
    by_state = {
        "read": total["read"] - total["warming_read"],
        "compute": total["compute"] - total["warming_compute"],
        "warming": sum(total[f"warming_{name}"] for name in ("read", "compute", "inference")),
        "inference": total["inference"] - total["warming_inference"],
        "blocked_output": total["blocked_output"],
        "idle": total["idle"],
    }
    seconds = CounterMetricFamily(
        "lastmile_run_worker_seconds",
        "Seconds of all readers, by state; warming: the first three in a reader's first 20 s.",
        labels=["state"],
    )
    for state, value in by_state.items():
        seconds.add_metric([state], value)
    rows = CounterMetricFamily(
        "lastmile_run_worker_rows", "Rows that readers delivered after they had warmed up."
    )
    rows.add_metric([], total["rows"] - total["warming_rows"])
    most = max(told, key=lambda usage: usage["workers"])
    yield from (seconds, rows)
    yield GaugeMetricFamily(
        "lastmile_run_data_workers",
        "Data workers that have delivered rows and answer.",
        value=most["workers"],
    )
    yield GaugeMetricFamily(
        "lastmile_run_readers", "Readers of these data workers.", value=most["workers_readers"]
    )


def _workers(snapshots: list[RankSnapshot]) -> Iterator[Metric]:
    """Yield the state of the feed's readers; nothing if the engine does not report them."""
    seconds = CounterMetricFamily(
        "lastmile_worker_seconds",
        "Seconds of data workers' readers for the chunks of a rank, by state.",
        labels=["rank", "state"],
    )
    units = CounterMetricFamily(
        "lastmile_worker_units", "Row groups that were delivered completely.", labels=["rank"]
    )
    ready = GaugeMetricFamily(
        "lastmile_ready_readers", "Readers that answer a rank.", labels=["rank"]
    )
    for snapshot in snapshots:
        if not any(snapshot.workers.values()):
            continue  # no reader yet, or the engine reports none; 0 would mean that all are gone
        rank = str(snapshot.rank)
        for state in _WORKER_STATES:
            seconds.add_metric([rank, state], snapshot.workers[state])
        units.add_metric([rank], snapshot.workers["units"])
        ready.add_metric([rank], snapshot.workers["ready"])
    yield from (seconds, units, ready)


def _pace_gauges(pace: Pace) -> Iterator[Metric]:
    """Yield the pace of the run; an unknown value has no sample, which differs from 0."""
    gauges = {
        "lastmile_progress_ratio": ("Share of the run that is done.", pace.progress_ratio),
        "lastmile_estimated_remaining_seconds": (
            "Seconds until the end, at the pace of the last minute.",
            pace.remaining_seconds,
        ),
        "lastmile_samples_per_second": (
            "Rows per second that all trainers took, in the last minute.",
            pace.samples_per_second,
        ),
        "lastmile_production_wait_ratio": (
            "Share of the trainers' last minute spent waiting for data workers.",
            pace.production_wait_ratio,
        ),
        "lastmile_trainer_busy_ratio": (
            "Share of the trainers' last minute, without pauses, spent in the entrypoint's steps.",
            pace.busy_ratio,
        ),
    }
    for name, (text, value) in gauges.items():
        if value is not None:
            yield GaugeMetricFamily(name, text, value=value)
    own = GaugeMetricFamily(
        "lastmile_training_metric", "Latest value of the training's own metric.", labels=["name"]
    )
    named = [name for name in sorted(pace.metrics) if len(name) <= MAX_METRIC_NAME_CHARS]
    for name in named[:MAX_TRAINING_METRICS]:
        own.add_metric([name], pace.metrics[name])
    yield own


def _cpu_ranks(snapshots: Iterable[RankSnapshot]) -> Metric:
    """Count ranks on a CPU, not those on a GPU, since some may not have reported yet."""
    on_cpu = sum(snapshot.device == "cpu" for snapshot in snapshots)
    return GaugeMetricFamily("lastmile_cpu_ranks", "Ranks that train on a CPU.", value=on_cpu)


class MetricsServer:
    """Serves collectors on a port until it is closed.

    In a pod of a cluster, it listens on every address, and only on this port, where others expect
    it; LastmileError is raised if the port is taken. Elsewhere, it listens on loopback, and on a
    free port if this one is taken.
    """

    def __init__(self, collector: Collector, port: int, *others: Collector) -> None:
        registry = CollectorRegistry()
        for each in (collector, *others):
            registry.register(each)
        is_pod = ROLE_VARIABLE in os.environ
        host = "0.0.0.0" if is_pod else "127.0.0.1"
        handler = MetricsHandler.factory(registry)
        try:
            self._server = ThreadingHTTPServer((host, port), handler)
        except OSError as error:
            if is_pod:
                raise LastmileError(
                    f"--metrics-port {port}: must be free in a cluster's pod, where the operator "
                    f"reads the metrics: {error}; stop the process that listens there"
                ) from error
            self._server = ThreadingHTTPServer((host, 0), handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
