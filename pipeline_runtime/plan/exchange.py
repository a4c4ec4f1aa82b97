"""The exchange of a join: a side table without buckets is written to parts of the rows' buckets.

The side table is read once. Its rows are collected up to a bound of memory, sorted by part, and
written as one Parquet file with a row group for each part; so however many parts there are, few
files are open. A reader of a part reads its row groups, in the order in which they were written.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.bucketing import NO_BUCKET, bucket
from pipeline_runtime.formatting import format_bytes
from pipeline_runtime.plan.bucketed_sides import BucketedParts, SideRows
from pipeline_runtime.sources import Unit
from pipeline_runtime.sources.gather import Int64s
from pipeline_runtime.sources.stores import asking

# Rows that are collected before they are sorted and written. A reader of a part opens a file for
# each, so it is large; the sorted copy takes as much again.
_COLLECTED_BYTES = 256 << 20
_COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangedTable:
    """The files of an exchange, of which `bucketed_sides` reads units."""

    description: str
    schema: pa.Schema
    folder: str
    filesystem: Any = None  # of pyarrow; None: this machine's

    def read(
        self, unit: Unit, columns: Sequence[str], max_rows: int, *, rows: Int64s | None = None
    ) -> Iterator[pa.Table]:
        """See Source."""
        path = f"{self.folder}/{unit.place}"
        with (
            asking(path, "read a part of a side table"),
            pq.ParquetFile(path, filesystem=self.filesystem) as file,
        ):
            table = file.read_row_group(unit.index, columns=list(columns), use_threads=False)
        table = table.select(list(columns))
        if rows is not None:
            yield table.take(pa.array(rows))
            return
        for first in range(0, table.num_rows, max_rows):
            yield table.slice(first, max_rows)


@dataclass(slots=True)
class _PartWriter:
    """Writes rows to files with a row group for each part."""

    table: ExchangedTable
    key_column: str
    num_parts: int
    prefix: str
    kernels: bool
    units: list[Unit] = field(default_factory=list)
    _tables: list[pa.Table] = field(default_factory=list)
    _num_bytes: int = 0
    _num_files: int = 0

    def add(self, rows: pa.Table) -> None:
        self._tables.append(rows)
        self._num_bytes += rows.nbytes
        if self._num_bytes >= _COLLECTED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the collected rows, sorted by part; rows without a key match nothing."""
        if not self._tables:
            return
        rows = pa.concat_tables(self._tables).combine_chunks()
        parts = bucket(rows.column(self.key_column), self.num_parts, kernels=self.kernels)
        order = np.argsort(parts, kind="stable")
        values, firsts = np.unique(parts[order], return_index=True)
        place = f"{self.prefix}{self._num_files}.parquet"
        path = f"{self.table.folder}/{place}"
        with (
            asking(path, "write the parts of a side table"),
            pq.ParquetWriter(
                path, rows.schema, filesystem=self.table.filesystem, compression=_COMPRESSION
            ) as writer,
        ):
            index = 0
            for part, numbers in zip(values, np.split(order, firsts[1:]), strict=True):
                if part == NO_BUCKET:
                    continue
                chosen = rows.take(pa.array(numbers))
                writer.write_table(chosen, row_group_size=len(numbers))
                unit = Unit(
                    place=place,
                    index=index,
                    num_rows=len(numbers),
                    num_bytes=chosen.nbytes,
                    bucket=int(part),
                )
                self.units.append(unit)
                index += 1
        self._tables, self._num_bytes, self._num_files = [], 0, self._num_files + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The exchange of a side table that has not been done yet; picklable.

    Attributes:
        units: of the side table.
        key: the number of the key that the parts are of.
        kernels: hash by compiled kernels.
    """

    rows: SideRows
    units: tuple[Unit, ...]
    right_keys: tuple[str, ...]
    key: int
    num_parts: int
    num_row_buckets: int
    max_bytes: int
    kernels: bool = True

    def write(self, folder: str, filesystem: Any = None, prefix: str = "") -> tuple[Unit, ...]:
        """Write the rows below a folder, which exists, and return the units of all parts."""
        writer = _PartWriter(
            table=self.open_table(folder, filesystem),
            key_column=self.right_keys[self.key],
            num_parts=self.num_parts,
            prefix=prefix,
            kernels=self.kernels,
        )
        for unit in self.units:
            for rows, _ in self.rows.read(unit, self.rows.columns):
                writer.add(rows)
        writer.flush()
        return tuple(writer.units)

    def open_table(self, folder: str, filesystem: Any = None) -> ExchangedTable:
        """Return the table of the files below a folder."""
        return ExchangedTable(
            description=self.rows.table.description,
            schema=self.rows.schema_of(self.rows.columns),
            folder=folder,
            filesystem=filesystem,
        )

    def split(self, count: int) -> list[Exchange]:
        """Return up to `count` exchanges of neighbouring units, for as many tasks."""
        cuts = np.array_split(np.arange(len(self.units)), max(1, min(count, len(self.units))))
        return [replace(self, units=tuple(self.units[i] for i in numbers)) for numbers in cuts]

    def build_parts(
        self, units: Sequence[Unit], folder: str, filesystem: Any = None
    ) -> BucketedParts:
        """Return the parts of written units."""
        parts: list[list[Unit]] = [[] for _ in range(self.num_parts)]
        for unit in units:
            assert unit.bucket is not None  # `write` sets it
            parts[unit.bucket].append(unit)
        table = self.open_table(folder, filesystem)
        return BucketedParts(
            rows=SideRows(table=table, columns=self.rows.columns, where=None),
            right_keys=self.right_keys,
            key=self.key,
            num_row_buckets=self.num_row_buckets,
            max_bytes=self.max_bytes,
            num_files=len({unit.place for unit in units}),
            units=tuple(map(tuple, parts)),
            unit_bytes=tuple(tuple(unit.num_bytes for unit in part) for part in parts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangedParts:
    """A `steps.base.SideParts` whose first use in a process does the exchange, on its local disk.

    A feed over several processes finishes it before they start.
    """

    exchange: Exchange
    digest: str
    num_bytes: int  # of the side table, uncompressed

    @property
    def key(self) -> int:
        """See SideParts."""
        return self.exchange.key

    @property
    def num_parts(self) -> int:
        """See SideParts."""
        return self.exchange.num_parts

    @property
    def num_row_buckets(self) -> int:
        """See SideParts."""
        return self.exchange.num_row_buckets

    @property
    def max_bytes(self) -> int:
        """See SideParts."""
        return self.exchange.max_bytes

    def describe(self, row_units: Sequence[Unit]) -> list[str]:
        """See SideParts."""
        files = len({unit.place for unit in self.exchange.units})
        size = format_bytes(min(self.max_bytes, self.num_bytes))
        return [
            f"reads {files} files of the side table once, {format_bytes(self.num_bytes)} "
            "uncompressed, and writes them to a temporary folder",
            f"peak memory per reader about {size}",
        ]

    def estimate_bytes(self, part: int) -> int:
        """See SideParts."""
        return self.finish().estimate_bytes(part)

    def load(self, part: int) -> pa.Table | None:
        """See SideParts."""
        return self.finish().load(part)

    def load_keys(self, part: int) -> pa.Table:
        """See SideParts."""
        return self.finish().load_keys(part)

    def gather(self, part: int, places: pa.Table, columns: Sequence[str]) -> pa.Table:
        """See SideParts."""
        return self.finish().gather(part, places, columns)

    def finish(self) -> BucketedParts:
        """Return the parts, written to this machine's disk by the first caller in the process."""
        with _lock:
            if self.digest not in _done:
                folder = make_local_folder()
                _done[self.digest] = self.exchange.build_parts(self.exchange.write(folder), folder)
            return _done[self.digest]


_lock = threading.Lock()
_done: dict[str, BucketedParts] = {}


def make_local_folder() -> str:
    """Make a folder on the local disk that is deleted when the process ends."""
    folder = tempfile.mkdtemp(prefix="lastmile-exchange-")
    atexit.register(partial(shutil.rmtree, folder, ignore_errors=True))
    return str(Path(folder))
