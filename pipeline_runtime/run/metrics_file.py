"""Stores a run's metrics over time beside its checkpoints, in case no Prometheus scrapes it.

In a cluster's pod, the driver samples the metrics that it serves. It writes them as Parquet files
named by time, so that a lost head costs only the samples since the last file. Together the files
are one table:

    time     timestamp[ms, UTC]
    name     the name in Prometheus, such as lastmile_run_rows_total
    labels   a JSON mapping
    value    float64
"""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client.registry import Collector

from pipeline_runtime.errors import StoreError
from pipeline_runtime.metrics import ROLE_VARIABLE
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import write_files

FOLDER = "metrics"
SAMPLES_PER_FILE = 6
FIRST_FILE_SECONDS = 60.0
# Files cover more time as the run goes on, so that a week has about 300 files, not 10,000.
FILE_SHARE_OF_RUN = 0.02
_TIME = pa.timestamp("ms", tz="UTC")
_WORD = pa.dictionary(pa.int32(), pa.string())
Samples = list[tuple[datetime, str, str, float]]
_COLUMNS = {"time": _TIME, "name": _WORD, "labels": _WORD, "value": pa.float64()}


def file_seconds(elapsed_seconds: float) -> float:
    """Return the seconds that the next file covers, after a run of this length."""
    return max(FIRST_FILE_SECONDS, elapsed_seconds * FILE_SHARE_OF_RUN)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class MetricsKeeper:
    """Samples a collector and writes the samples; those that the store refuses are lost.

    Attributes:
        location: the run's folder on the artifacts store; None while it is not known.
        samples: those that are not written yet.
    """

    collector: Collector
    location: Location | None
    now: Callable[[], datetime] = _now
    samples: Samples = field(default_factory=list)
    _samples: int = 0

    def run(self, stop: threading.Event) -> None:
        """Sample and write until `stop` is set, then write the remaining samples."""
        started = time.monotonic()
        while not stop.wait(file_seconds(time.monotonic() - started) / SAMPLES_PER_FILE):
            self.sample()
            if self._samples >= SAMPLES_PER_FILE:
                self.write()
        self.sample()
        self.write()

    def sample(self) -> None:
        """Record the current values of all metrics."""
        now = self.now()
        self._samples += 1
        self.samples += [
            (now, sample.name, json.dumps(sample.labels, sort_keys=True), float(sample.value))
            for metric in self.collector.collect()
            for sample in metric.samples
        ]

    def write(self) -> None:
        """Write the samples since the last file to a new one."""
        self._samples = 0
        if not self.samples or self.location is None:
            return
        rows = self.samples.copy()
        self.samples.clear()
        columns = zip(_COLUMNS.items(), zip(*rows, strict=True), strict=True)
        table = pa.table({name: pa.array(values, kind) for (name, kind), values in columns})
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        name = f"{rows[0][0].strftime('%Y%m%dT%H%M%S%fZ')}.parquet"
        try:
            folder = self.location.join(FOLDER)
            write_files(folder, {name: sink.getvalue()}, "keep metrics there")
        except StoreError as error:
            print(f"warning: {error}", flush=True)


@contextmanager
def keeping_metrics(
    collector: Collector, location: Location | None, samples: Samples
) -> Iterator[None]:
    """Sample metrics during the run in a cluster's pod; elsewhere, do nothing.

    Args:
        location: the run's folder on the artifacts store; None before it is known. The samples are
            then left in `samples`, for the next call to write.
    """
    if ROLE_VARIABLE not in os.environ:
        yield
        return
    stop = threading.Event()
    keeper = MetricsKeeper(collector=collector, location=location, samples=samples)
    thread = threading.Thread(target=keeper.run, args=(stop,), name="lastmile-metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
