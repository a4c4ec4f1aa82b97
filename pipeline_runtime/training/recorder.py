"""Turns the reports of trainers into rows of the metrics history, for the driver and checkpoints.

The monitor owns a recorder. Each row goes two ways: the driver reads it with the monitor's state,
and rank 0 takes it before it commits a checkpoint (`checkpoints.history`). So the history up to a
checkpoint is the same in both. A resumed attempt continues the time axis of the earlier ones, and
does not repeat what they recorded.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pipeline_runtime.monitor import Evaluated, HistoryPoint, RankSnapshot
from pipeline_runtime.training.supply import SupplyMeter

# One row per value.
ROW_SCHEMA = pa.schema(
    [
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("epoch", pa.int32(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
STAGES = ("compute", "production", "transfer", "batching", "collate", "paused")
# A run that never saves keeps all its rows; compressed, 100 steps a second take a few MB an hour.
CHUNK_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Values that earlier attempts recorded, up to the checkpoint that the run resumes from.

    Attributes:
        rows: the history, with ROW_SCHEMA.
        are_saved: False if the checkpoint does not have the rows, as in earlier releases.
        seconds: time of the last row, since the first attempt began, without pauses between.
        rows_read: rows of the table that were read.
        known: step and name of values that a resumed attempt may report again.
        metrics: the last value of each name that the training loop reported.
    """

    rows: pa.Table = field(default_factory=ROW_SCHEMA.empty_table)
    are_saved: bool = True
    seconds: float = 0.0
    rows_read: float = 0.0
    known: Collection[tuple[int, str]] = frozenset()
    evaluations: tuple[Evaluated, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class HistoryRates:
    """Turns running totals, as trainers record them, into rates and shares between two points."""

    _previous: dict[str, float] = field(default_factory=dict)
    _seconds: float = 0.0

    def convert(self, point: HistoryPoint) -> dict[str, float]:
        """Return the metrics of a point as the history names them."""
        if "samples" not in point.metrics:
            return point.metrics
        elapsed = point.seconds - self._seconds
        delta = {n: v - self._previous.get(n, 0.0) for n, v in point.metrics.items()}
        self._previous, self._seconds = point.metrics, point.seconds
        spent = sum(max(0.0, delta[f"seconds_{stage}"]) for stage in STAGES)
        rates = {
            "step_seconds": point.metrics["step_seconds"],
            "queue_length": point.metrics["queue_length"],
        }
        if elapsed > 0:
            rates["samples_per_second"] = delta["samples"] / elapsed
            rates["rows_per_second"] = max(0.0, delta["rows"]) / elapsed
        if spent > 0:
            rates |= {f"share_{s}": max(0.0, delta[f"seconds_{s}"]) / spent for s in STAGES}
        return rates


class Recorder:
    """Records the metrics of one attempt; see `monitor.Recorder`."""

    def __init__(self, past: Past) -> None:
        self.evaluations = past.evaluations
        self._known = frozenset(past.known)
        self._offset_seconds = past.seconds
        self._rates = HistoryRates({"rows": past.rows_read})
        self._supply = SupplyMeter()
        self._chunks: list[pa.Buffer] = []
        if not past.are_saved:
            self._chunks.append(_pack(past.rows))
        self._rows: list[tuple[float, int, int, str, float]] = []

    def add(
        self, ranks: Collection[RankSnapshot], points: Collection[HistoryPoint]
    ) -> list[HistoryPoint]:
        """Record points and how well the data workers keep up; return the points to store."""
        converted = [replace(point, metrics=self._rates.convert(point)) for point in points]
        if converted:
            found = self._supply.measure(list(ranks), time.time())
            converted.append(replace(converted[-1], metrics=found))
        stored = [
            replace(
                point,
                seconds=self._offset_seconds + point.seconds,
                metrics=self.drop_known(point.step, point.metrics),
            )
            for point in converted
        ]
        for point in stored:
            self._rows += [
                (point.seconds, point.epoch, point.step, name, float(value))
                for name, value in point.metrics.items()
            ]
        if len(self._rows) >= CHUNK_ROWS:
            self._pack_rows()
        return stored

    def drop_known(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return metrics without those that an earlier attempt recorded at this step."""
        return {name: value for name, value in metrics.items() if (step, name) not in self._known}

    def take(self) -> pa.Table:
        """Return the rows since the last call, with ROW_SCHEMA."""
        self._pack_rows()
        chunks, self._chunks = self._chunks, []
        tables = [pa.ipc.open_stream(chunk).read_all() for chunk in chunks]
        return pa.concat_tables([ROW_SCHEMA.empty_table(), *tables])

    def _pack_rows(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, ROW_SCHEMA, strict=True)]
            self._chunks.append(_pack(pa.Table.from_arrays(arrays, schema=ROW_SCHEMA)))
            self._rows.clear()


def _pack(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, ROW_SCHEMA, options=options) as stream:
        stream.write_table(rows)
    return sink.getvalue()
