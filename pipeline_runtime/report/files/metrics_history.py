"""The history of all metrics, `metrics.parquet`, with one row per value.

This module owns the file's columns, writes it in bounded memory, and reads it, even after a kill.
During a run, values go to a journal beside the file, an Arrow stream whose flushed part stays
readable after a kill. Closing merges the journal into the file. `run.session` appends, and `series`
reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import open_regular, replacing
from pipeline_runtime.training.recorder import ROW_SCHEMA

HISTORY_FILE = "metrics.parquet"

_NAME = pa.field("name", pa.dictionary(pa.int32(), pa.string()), nullable=False)
HISTORY_SCHEMA = ROW_SCHEMA.set(ROW_SCHEMA.get_field_index("name"), _NAME)

# The names that the runtime writes; a training loop may add its own.
HISTORY_NAMES: Mapping[str, str] = {
    "loss": "Training loss of the step, weighted mean over the ranks.",
    "learning_rate": "Learning rate of the step.",
    "samples_per_second": "Samples trained on per second since the last entry.",
    "rows_per_second": "Rows read from the table per second since the last entry.",
    "step_seconds": "Duration of a step, in seconds, mean since the last entry.",
    "share_compute": "Share of trainer time in the model since the last entry, 0 to 1.",
    "share_production": "Share waited because no batch had been produced, 0 to 1.",
    "share_transfer": "Share waited for a batch on its way to the trainer, 0 to 1.",
    "share_batching": "Share spent forming mini-batches, 0 to 1.",
    "share_collate": "Share spent turning Arrow into tensors on the device, 0 to 1.",
    "share_paused": "Share in evaluation, checkpoints and set-up, 0 to 1.",
    "queue_length": "Ready batches that wait for the trainer.",
    "wait_share": "Share of all trainers' time that they waited for data, pauses included.",
    "busy_share": "Share of all trainers' time that they spent in the model, pauses included.",
    "readers": "Readers that answer.",
    "data_workers": "Data workers that have delivered rows and answer.",
    "unix_seconds": "Unix time by the driver's clock.",
    "eval_<metric>": "Value of that metric at an evaluation.",
}

RUNTIME_NAMES = frozenset(HISTORY_NAMES)
# Those that a training loop reports.
LOOP_NAMES = frozenset({"loss", "learning_rate"})

# 4096 rows of 5 columns are about 150 KB, far less than a batch, and take under 1 ms to flush.
FLUSH_ROWS = 4096
# A kill loses at most this much. With a flush every 5 s, a day's journal has 17,000 batches, which
# merge within a second.
FLUSH_SECONDS = 5.0

# Rows per row group, which limits the memory of the merge to about 5 MB.
ROW_GROUP_ROWS = 131_072

# The journal stores names as plain strings; a stream would need a new dictionary per batch.
_JOURNAL_SCHEMA = ROW_SCHEMA

# Rows of the Parquet file when the journal was created. If the file has another number now, the
# journal was already merged, and a kill came between the rename and the removal of the journal.
_BASE_ROWS_KEY = b"lastmile.base_rows"

_Row = tuple[float, int, int, str, float]


def _journal_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.journal")


class HistoryWriter:
    """Appends metrics to a history, from one thread; `close` completes the Parquet file.

    Args:
        path: the Parquet file, usually `DIR/metrics.parquet`. An existing history is replaced.
        kept: rows of earlier attempts, with `training.recorder.ROW_SCHEMA`; the history begins with
            them.
    """

    def __init__(self, path: Path, *, kept: pa.Table | None = None) -> None:
        self._path = Path(path)
        self._journal = _journal_path(self._path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._rows: list[_Row] = []
        base_rows = self._keep(kept)
        self._last_flush_seconds = 0.0
        self._file: BinaryIO = self._journal.open("xb")  # "x" follows no link
        schema = _JOURNAL_SCHEMA.with_metadata({_BASE_ROWS_KEY: str(base_rows)})
        self._stream = pa.ipc.new_stream(self._file, schema)
        self._closed = False

    def _keep(self, kept: pa.Table | None) -> int:
        """Replace the file by the rows of earlier attempts; return their number."""
        if kept is None or kept.num_rows == 0:
            self._path.unlink(missing_ok=True)
            self._journal.unlink(missing_ok=True)
            return 0
        _write_parquet(self._path, iter(kept.to_batches()))
        self._journal.unlink(missing_ok=True)
        return int(kept.num_rows)

    def append(self, seconds: float, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Add the value of each metric at one moment.

        Args:
            seconds: time since the start of the first attempt, without pauses between attempts.
            epoch: current epoch, from 0.
            step: optimiser steps done.
            metrics: values by name; see HISTORY_NAMES for the runtime's names and their units.
        """
        if self._closed:
            raise LastmileError(f"{self._path}: must be open to append to, but it was closed")
        row = (seconds, epoch, step)
        self._rows.extend((*row, name, float(value)) for name, value in metrics.items())
        if len(self._rows) >= FLUSH_ROWS or seconds - self._last_flush_seconds >= FLUSH_SECONDS:
            self._last_flush_seconds = seconds
            self.flush()

    def flush(self) -> None:
        """Pass the appended values to the operating system, so that a kill does not lose them."""
        if not self._rows:
            return
        columns = zip(*self._rows, strict=True)
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, _JOURNAL_SCHEMA, strict=True)
        ]
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_JOURNAL_SCHEMA))
        self._file.flush()
        self._rows.clear()

    def close(self) -> None:
        """Flush, and write `metrics.parquet` atomically. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.flush()
        self._stream.close()
        self._file.close()
        _write_parquet(self._path, _iterate_batches(self._path))
        self._journal.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_history(directory: Path) -> pa.Table:
    """Read the history in `directory`, with HISTORY_SCHEMA; without one, return no rows.

    If a killed run left a journal, it is read up to its last whole batch. Nothing is written.
    """
    return _read(Path(directory) / HISTORY_FILE)


def _read(path: Path) -> pa.Table:
    batches = list(_iterate_batches(path))
    return pa.Table.from_batches(batches, schema=_JOURNAL_SCHEMA).cast(HISTORY_SCHEMA)


def _write_parquet(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    with replacing(path) as file, pq.ParquetWriter(file, HISTORY_SCHEMA) as writer:
        pending: list[pa.RecordBatch] = []
        for batch in batches:
            pending.append(batch)
            if sum(part.num_rows for part in pending) >= ROW_GROUP_ROWS:
                _write_group(writer, pending)
        _write_group(writer, pending)


def _write_group(writer: pq.ParquetWriter, pending: list[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(pending, schema=_JOURNAL_SCHEMA).combine_chunks()
    writer.write_table(table.cast(HISTORY_SCHEMA), row_group_size=ROW_GROUP_ROWS)
    pending.clear()


def _iterate_batches(path: Path) -> Iterator[pa.RecordBatch]:
    base_rows = 0
    if path.exists():
        base_rows, batches = _open_parquet(path)
        yield from batches
    journal = _journal_path(path)
    if journal.exists():
        yield from _iterate_journal(journal, base_rows)


def _open_parquet(path: Path) -> tuple[int, Iterator[pa.RecordBatch]]:
    try:
        os.close(open_regular(path))
    except OSError as error:
        raise LastmileError(f"{path}: cannot be read: {error}; remove it") from error
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise LastmileError(
            f"{path}: must be a metrics history, but is not Parquet ({error}); remove it"
        ) from error
    missing = [name for name in HISTORY_SCHEMA.names if name not in file.schema_arrow.names]
    if missing:
        raise LastmileError(
            f"{path}: must have the columns {', '.join(HISTORY_SCHEMA.names)}, "
            f"got {', '.join(file.schema_arrow.names)}; remove it"
        )
    return file.metadata.num_rows, _iterate_parquet(file)


def _iterate_parquet(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    with file:
        for batch in file.iter_batches(columns=HISTORY_SCHEMA.names):
            yield batch.cast(_JOURNAL_SCHEMA)


def _iterate_journal(journal: Path, base_rows: int) -> Iterator[pa.RecordBatch]:
    with os.fdopen(open_regular(journal), "rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
            written_on = int((reader.schema.metadata or {}).get(_BASE_ROWS_KEY, b"0"))
            if written_on != base_rows:
                return
            for batch in reader:
                yield batch.replace_schema_metadata(None)
        except (pa.ArrowInvalid, OSError):
            # A kill may tear the last batch; all before it are whole. Arrow raises ArrowInvalid for
            # a torn header, and OSError for a torn body.
            return
