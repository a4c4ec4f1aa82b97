"""The metrics history that belongs to checkpoints: Parquet files in `checkpoints/history/`.

Before rank 0 commits a checkpoint, it writes the rows since the last one to a new file. The header
names all files that together hold the history up to the checkpoint. A file never changes, so
headers may share files. Like the digits of a binary number, files of equal length are merged: there
are few of them, and a row is written only a few times.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from pipeline_runtime.sources import Location
from pipeline_runtime.sources.durable import make_folder, sync_names, write_file
from pipeline_runtime.sources.stores import asking, list_folder, read_file
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore
from pipeline_runtime.training.checkpoints.header import CheckpointHeader, HistoryPart

FOLDER = "history"
# Far more than the history of a run of weeks; a limit for content that is not ours.
_MAX_PART_BYTES = 4 << 30


class CheckpointHistory:
    """Writes the history of a run's checkpoints; only rank 0 has one.

    Args:
        parts: those of the checkpoint that the run resumes from.
        take: returns the rows since its last call, in one schema.
    """

    def __init__(
        self, store: CheckpointStore, parts: Iterable[HistoryPart], take: Callable[[], pa.Table]
    ) -> None:
        self._store = store
        self._folder = store.location.join(FOLDER)
        self._parts = tuple(parts)
        self._take = take
        self._unwritten: list[pa.Table] = []  # rows that a store refused
        self._has_merged = False

    def write(self, step: int) -> tuple[HistoryPart, ...]:
        """Write the new rows; return the files that hold the history until now.

        Raises StoreError if the store refuses; the next call then writes these rows as well.
        """
        self._unwritten.append(self._take())
        rows, parts = pa.concat_tables(self._unwritten), list(self._parts)
        if rows.num_rows == 0:
            return self._parts
        while parts and parts[-1].rows <= rows.num_rows:
            older = _read_part(self._folder, parts.pop(), rows.schema)
            rows = rows if older is None else pa.concat_tables([older, rows])
        part = HistoryPart(name=f"step-{step:010d}-{uuid.uuid4().hex}.parquet", rows=rows.num_rows)
        sink = io.BytesIO()
        pq.write_table(rows, sink, compression="zstd")
        with asking(self._folder.uri, "write the metrics history of a checkpoint"):
            make_folder(self._folder)
            write_file(self._folder.join(part.name), sink.getvalue())
            sync_names(self._folder)
        self._has_merged = self._has_merged or len(parts) < len(self._parts)
        self._parts, self._unwritten = (*parts, part), []
        return self._parts

    def remove_unused(self) -> None:
        """Remove files that no checkpoint needs any more, if there may be any.

        Raises StoreError if the store refuses, and CheckpointError for a checkpoint of another
        version.
        """
        if not self._has_merged:
            return
        used = {part.name for part in self._parts}
        for header in self._store.candidates():
            if isinstance(header, CheckpointHeader):
                used.update(part.name for part in header.history or ())
        for info in list_folder(self._folder, "look for files of the metrics history"):
            if info.base_name not in used and info.type == pafs.FileType.File:
                with asking(self._folder.uri, "remove an old file of the metrics history"):
                    self._folder.filesystem.delete_file(info.path)
        self._has_merged = False


def read_checkpoint_history(
    store: CheckpointStore, header: CheckpointHeader, schema: pa.Schema
) -> tuple[list[pa.Table], tuple[str, ...]]:
    """Read the history of a checkpoint, oldest rows first.

    Args:
        schema: of every file; one with another schema is damaged.

    Returns the tables, and the URIs of files that are missing or damaged.

    Raises StoreError if the store does not answer.
    """
    folder = store.location.join(FOLDER)
    found = [(part, _read_part(folder, part, schema)) for part in header.history or ()]
    tables = [table for _, table in found if table is not None]
    return tables, tuple(folder.join(part.name).uri for part, table in found if table is None)


def _read_part(folder: Location, part: HistoryPart, schema: pa.Schema) -> pa.Table | None:
    """Return the rows of a file; None if it is missing or damaged, for which no run must end."""
    content = read_file(folder.join(part.name), "read the metrics history", _MAX_PART_BYTES)
    if content is None:
        return None
    try:
        table = pq.read_table(io.BytesIO(content))
    except (pa.ArrowException, OSError):
        return None
    is_whole = table.num_rows == part.rows and table.schema.equals(schema)
    return table if is_whole else None
