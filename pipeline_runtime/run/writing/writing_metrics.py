"""The `lastmile_*` metrics of a run that writes a table; names are shared with other runs.

The autoscaler reads the same `lastmile_run_*` as of a training. There, trainers wait for rows; here
nothing but the driver's own records could keep data workers from writing, so all other time of the
spool is a wait for them. While files are merged, both clocks stand still.

Rows that a step `materialize` keeps are written before a run, which may be a training. So the
metrics that are shown as the run's own results and progress have other names then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline_runtime.metrics import run_workers, steps_flow
from pipeline_runtime.output.job import Progress

_PHASES = ("Spooling", "Merging", "Committing", "Committed")
# As of a training, whose trainers wait for these.
_STAGES = ("production", "transfer", "batching", "collate")
# Rates are of so many seconds: long enough for a few large chunks.
WINDOW_SECONDS = 30.0
# Part of a run's progress that is its spool, which reads and computes; a merge only copies.
_SPOOL_SHARE = 0.75
# The commit is the last part, and takes moments where it is a rename.
_COMMIT_SHARE = 0.01


class Names(NamedTuple):
    """Beginnings of names.

    Attributes:
        table: of the metrics of the table that is written.
        run: of the metrics of the whole run's progress.
    """

    table: str
    run: str


OUTPUT_NAMES = Names("lastmile_output", "lastmile")
KEPT_NAMES = Names("lastmile_materialization", "lastmile_materialization")


class _Reading(NamedTuple):
    seconds: float
    rows: int
    ratio: float


class WritingCollector(Collector):
    """A Prometheus collector over the progress of a run; counters start at 0 in each attempt."""

    def __init__(
        self,
        step_names: Sequence[tuple[int, str]],
        planned_rows: int,
        clock: Callable[[], float] = time.monotonic,
        names: Names = OUTPUT_NAMES,
    ) -> None:
        self._names = names
        self._steps = [f"{index}-{kind}" for index, kind in step_names]
        self._planned_rows = planned_rows
        self._clock = clock
        self._window: deque[_Reading] = deque()
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
        yield from self._build_pace(progress)
        prefix = self._names.table
        stored = progress.rows - progress.resumed_rows
        yield GaugeMetricFamily(
            f"{prefix}_rows",
            "Rows for the table that are stored, those of earlier attempts too.",
            value=progress.rows,
        )
        yield GaugeMetricFamily(
            f"{prefix}_files", "Files of the table that were written.", value=progress.files
        )
        yield GaugeMetricFamily(
            f"{prefix}_bytes", "Bytes of these files.", value=progress.num_bytes
        )
        if progress.num_partitions:
            yield GaugeMetricFamily(
                f"{prefix}_partitions",
                "Partitions of the source that the table is to have.",
                value=progress.num_partitions,
            )
            yield GaugeMetricFamily(
                f"{prefix}_complete_partitions",
                "Partitions of these that are committed, also by earlier runs.",
                value=progress.num_complete_partitions,
            )
        commits = "Commits of the table."
        yield _count(f"{prefix}_commits", commits, progress.commits)
        retries = "Commits that were tried again, because another writer was faster."
        yield _count(f"{prefix}_commit_retries", retries, progress.commit_retries)
        phase = GaugeMetricFamily(f"{prefix}_phase", "1 for the present phase.", labels=["phase"])
        for name in _PHASES:
            phase.add_metric([name], float(name == progress.phase))
        yield phase
        yield from _build_totals(progress, stored)
        yield from run_workers([progress.usage.figures()])
        yield from steps_flow(self._steps, [progress.counts], [progress.resumed_counts])

    def _build_pace(self, progress: Progress) -> Iterator[Metric]:
        """Yield the progress, and rates of the last seconds; an unknown one has no sample."""
        now = _Reading(self._clock(), progress.rows, self._find_ratio(progress))
        yield GaugeMetricFamily(
            f"{self._names.run}_progress_ratio", "Share of the run that is done.", value=now.ratio
        )
        yield GaugeMetricFamily(
            f"{self._names.run}_read_ratio",
            "Share of the run's rows that were read.",
            value=self._find_read_ratio(progress),
        )
        window = self._window
        window.append(now)
        while len(window) > 2 and now.seconds - window[1].seconds >= WINDOW_SECONDS:
            window.popleft()
        seconds, done = now.seconds - window[0].seconds, now.ratio - window[0].ratio
        if done > 0.0 and seconds > 0.0:
            yield GaugeMetricFamily(
                f"{self._names.run}_estimated_remaining_seconds",
                "Seconds until the end, at the present pace.",
                value=(1.0 - now.ratio) * seconds / done,
            )
        if progress.phase == "Spooling" and seconds > 0.0:
            yield GaugeMetricFamily(
                f"{self._names.table}_rows_per_second",
                "Rows for the table that were stored per second, in the last half minute.",
                value=(now.rows - window[0].rows) / seconds,
            )

    def _find_ratio(self, progress: Progress) -> float:
        if progress.num_partitions and progress.phase != "Committed":  # they come one by one
            return (1.0 - _COMMIT_SHARE) * self._find_read_ratio(progress)
        if progress.phase == "Spooling":
            return _SPOOL_SHARE * self._find_read_ratio(progress)
        if progress.phase == "Merging":
            merged = min(1.0, progress.merged_rows / max(1, progress.rows))
            return _SPOOL_SHARE + (1.0 - _SPOOL_SHARE - _COMMIT_SHARE) * merged
        return 1.0 if progress.phase == "Committed" else 1.0 - _COMMIT_SHARE

    def _find_read_ratio(self, progress: Progress) -> float:
        read, _ = progress.rows_read
        return min(1.0, read / max(1, self._planned_rows))


def _build_totals(progress: Progress, stored: int) -> Iterator[Metric]:
    """Yield the totals that the autoscaler reads; see `metrics.RunCollector`."""
    yield _count("lastmile_run_rows", "Rows that data workers stored.", stored)
    yield _count("lastmile_run_steps", "Chunks of rows that were recorded.", progress.chunks)
    loop = progress.spooling_seconds
    yield _count("lastmile_run_loop_seconds", "Seconds since the attempt began to spool.", loop)
    waits = CounterMetricFamily(
        "lastmile_run_wait_seconds",
        "Seconds of these spent waiting for data workers.",
        labels=["stage"],
    )
    waiting = max(0.0, loop - progress.recording_seconds)
    for stage in _STAGES:
        waits.add_metric([stage], waiting if stage == "production" else 0.0)
    yield waits


def _count(name: str, text: str, value: float) -> Metric:
    counter = CounterMetricFamily(name, text)
    counter.add_metric([], value)
    return counter
