"""From spool files to the table's files, each close to the target size.

`plan_merge` is pure: it cuts the rows of every partition into files by their estimated size, and
gives small partitions to a task together. `run_task` writes the files of one task and keeps one
file open, so that memory does not grow with the number of partitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.files import SortKey, find_order
from pipeline_runtime.output.names import SPOOL_FOLDER, TABLE_FOLDER, make_token, name_file
from pipeline_runtime.output.records import ChunkRecord, StagedFile
from pipeline_runtime.output.spool import Section, read_section
from pipeline_runtime.output.storage import Storage

# Every partition is at least a file and a folder, and the driver knows all of them.
MAX_PARTITIONS = 20_000
# A file may exceed the target by this share, rather than leave a small second file.
_TOLERANCE = 1.1
# The estimate of a file's size was wrong: go on in another file.
_TOO_LARGE = 1.5
# Small partitions of one task: few enough that a killed run repeats little.
_PARTS_PER_TASK = 64
# A row group is what a reader later reads as a whole; as long as those of `convert`.
_ROWS_PER_GROUP = 131_072
_BYTES_PER_GROUP = 128 << 20
# Arrow bytes that are compressed to measure how small Parquet makes them.
_SAMPLE_BYTES = 16 << 20
# Rows that a task sorts in memory; enough for a file of 256 MiB where Parquet takes a quarter.
MAX_SORTED_BYTES = 1 << 30
# The driver may look at something else this often while tasks run.
_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """The options of the table's files.

    Attributes:
        schema: the columns in the files: all but those of the partitions.
        full_schema: all columns.
        compression: a codec of Parquet, as pyarrow names it.
        target_bytes: size that files approach.
        sort: order of the rows in a file; without keys, that of the source.
        max_sorted_bytes: Arrow bytes of a file that is sorted, all of which one task holds.
    """

    schema: pa.Schema
    full_schema: pa.Schema
    compression: str
    target_bytes: int
    sort: tuple[SortKey, ...] = ()
    max_sorted_bytes: int = MAX_SORTED_BYTES

    def announce(self, storage: Storage, task: Task, token: str) -> None:
        """Record files that are about to be written, if they could not be found otherwise."""

    @contextmanager
    def create(self, storage: Storage, folder: str, name: str) -> Iterator[NewFile]:
        """Open a new file of the table, below the run's table folder."""
        path = f"{folder}/{name}" if folder else name
        with (
            storage.create(f"{TABLE_FOLDER}/{storage.staged(path)}") as sink,
            open_writer(sink, self.schema, self.compression) as writer,
        ):
            yield ParquetFile(path=path, sink=sink, writer=writer)

    def write_empty(self, storage: Storage) -> tuple[StagedFile, ...]:
        """Write the only file of a table without rows; it holds the partitions' columns too."""
        with replace(self, schema=self.full_schema).create(storage, "", _name_empty()) as file:
            file.write(self.full_schema.empty_table())
            return (file.finish(),)


class NewFile(Protocol):
    """A file of the table that is being written."""

    def tell(self) -> int:
        """Return the bytes that were written so far."""
        ...

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        ...

    def finish(self) -> StagedFile:
        """Write the footer, and return the file's record."""
        ...


@dataclass(slots=True, kw_only=True)
class ParquetFile:
    """A Parquet file in a run's folder; see `NewFile`."""

    path: str
    sink: Any
    writer: pq.ParquetWriter
    rows: int = 0

    def tell(self) -> int:
        return int(self.sink.tell())

    def write(self, rows: pa.Table) -> None:
        self.writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self.rows += rows.num_rows

    def finish(self) -> StagedFile:
        self.writer.close()
        return StagedFile(path=self.path, rows=self.rows, bytes=self.tell())


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Rows of one section, from `start` to before `stop`."""

    file: str
    section: Section
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows of one file, or of a few more if they take more room than expected."""

    folder: str
    number: int  # of the partition's files
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Files that one worker writes, one after another."""

    index: int
    parts: tuple[Part, ...]


def check_num_partitions(folders: Iterable[str]) -> None:
    """Raise OutputRefused if the table would have too many partitions."""
    found = len(set(folders))
    if found > MAX_PARTITIONS:
        raise OutputRefused(
            f"spec.output.partitionBy: must give at most {MAX_PARTITIONS:,} partitions, but the "
            f"rows so far have {found:,}; partition by columns with fewer values"
        )


def plan_merge(chunks: Sequence[ChunkRecord], ratio: float, form: FileFormat) -> list[Task]:
    """Cut a table into files.

    Args:
        chunks: all chunks, in the order of the source table.
        ratio: bytes of Parquet per byte of Arrow.
    """
    partitions: dict[str, list[tuple[str, Section]]] = {}
    for chunk in chunks:
        for section in chunk.sections:
            partitions.setdefault(section.folder, []).append((chunk.file, section))
    tasks: list[Task] = []
    small: list[Part] = []
    for folder in sorted(partitions):
        parts = _cut_partition(folder, partitions[folder], ratio, form)
        if len(parts) > 1:
            tasks += [Task(index=len(tasks) + i, parts=(part,)) for i, part in enumerate(parts)]
            continue
        small += parts
        if len(small) == _PARTS_PER_TASK:
            tasks.append(Task(index=len(tasks), parts=tuple(small)))
            small = []
    if small:
        tasks.append(Task(index=len(tasks), parts=tuple(small)))
    return tasks


def _cut_partition(
    folder: str, sections: Sequence[tuple[str, Section]], ratio: float, form: FileFormat
) -> list[Part]:
    rows = sum(section.rows for _, section in sections)
    num_bytes = sum(section.num_bytes for _, section in sections)
    num_files = math.ceil(ratio * num_bytes / (_TOLERANCE * form.target_bytes))
    if form.sort:
        num_files = max(num_files, math.ceil(num_bytes / form.max_sorted_bytes))
    num_files = min(rows, max(1, num_files))
    bounds = [rows * index // num_files for index in range(num_files + 1)]
    return [
        Part(folder=folder, number=number, slices=tuple(_slices(sections, start, stop)))
        for number, (start, stop) in enumerate(pairwise(bounds))
    ]


def _slices(sections: Sequence[tuple[str, Section]], start: int, stop: int) -> Iterator[Slice]:
    """Yield the slices of a partition's rows from `start` to before `stop`."""
    first = 0
    for file, section in sections:
        begin, end = max(0, start - first), min(section.rows, stop - first)
        if begin < end:
            yield Slice(file=file, section=section, start=begin, stop=end)
        first += section.rows


def measure_ratio(storage: Storage, chunks: Sequence[ChunkRecord], form: FileFormat) -> float:
    """Return the bytes of Parquet per byte of Arrow of the first rows."""
    rows: list[pa.Table] = []
    num_bytes: int = 0
    for chunk in chunks:
        for section in chunk.sections:
            for table in read_section(
                storage, f"{SPOOL_FOLDER}/{chunk.file}", section, 0, section.rows
            ):
                rows.append(table)
                num_bytes += int(table.nbytes)
                if num_bytes >= _SAMPLE_BYTES:
                    return _compress(rows, form) / num_bytes
    return _compress(rows, form) / num_bytes if num_bytes else 1.0


def _compress(rows: Sequence[pa.Table], form: FileFormat) -> int:
    sink = pa.BufferOutputStream()
    with open_writer(sink, form.schema, form.compression) as writer:
        writer.write_table(pa.concat_tables(rows).cast(form.schema))
    return int(sink.tell())


class Merge(Protocol):
    """Runs tasks, several at a time."""

    def __call__(
        self,
        storage: Storage,
        tasks: Sequence[Task],
        form: FileFormat,
        on_wait: Callable[[], None],
    ) -> Iterator[tuple[Task, tuple[StagedFile, ...]]]:
        """Yield each task and its files as it is done.

        Args:
            on_wait: called every second or two; may raise to give up the rest.
        """
        ...


@dataclass(frozen=True, slots=True)
class MergeInThreads:
    """Runs tasks in threads of this process; see `Merge`."""

    num_threads: int

    def __call__(
        self,
        storage: Storage,
        tasks: Sequence[Task],
        form: FileFormat,
        on_wait: Callable[[], None],
    ) -> Iterator[tuple[Task, tuple[StagedFile, ...]]]:
        waiting = iter(tasks)
        running: dict[Future[tuple[StagedFile, ...]], Task] = {}
        pool = ThreadPoolExecutor(self.num_threads, "lastmile-merge")
        try:
            while True:
                for task in waiting:
                    running[pool.submit(run_task, storage, task, form)] = task
                    if len(running) > self.num_threads:
                        break
                if not running:
                    return
                done, _ = wait(running, _WAIT_SECONDS, FIRST_COMPLETED)
                on_wait()
                for future in done:
                    yield running.pop(future), future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run_task(storage: Storage, task: Task, form: FileFormat) -> tuple[StagedFile, ...]:
    """Write the files of a task, under names that no other attempt has.

    Args:
        storage: the run's folder.
    """
    token = make_token()
    form.announce(storage, task, token)
    files: list[StagedFile] = []
    for part in task.parts:
        groups = _row_groups(storage, part, form)
        pending = next(groups, None)
        index = 0
        while pending is not None:
            with form.create(storage, part.folder, name_file(part.number, index, token)) as file:
                while pending is not None and file.tell() < _TOO_LARGE * form.target_bytes:
                    file.write(pending)
                    pending = next(groups, None)
                files.append(file.finish())
            index += 1
    return tuple(files)


def _row_groups(storage: Storage, part: Part, form: FileFormat) -> Iterator[pa.Table]:
    """Yield a part's rows, a row group at a time."""
    rows = sum(chunk.stop - chunk.start for chunk in part.slices)
    num_bytes = sum(s.section.num_bytes * (s.stop - s.start) // s.section.rows for s in part.slices)
    width = max(1, num_bytes // max(1, rows))
    limit = max(1, min(_ROWS_PER_GROUP, _BYTES_PER_GROUP // width))
    if form.sort:
        yield from _sort(_read(storage, part, form), form.sort, limit)
        return
    held: list[pa.Table] = []
    num_held = 0
    for table in _read(storage, part, form):
        held.append(table)
        num_held += table.num_rows
        while num_held >= limit:
            joined = pa.concat_tables(held)
            yield joined.slice(0, limit)
            held, num_held = [joined.slice(limit)], num_held - limit
    if num_held:
        yield pa.concat_tables(held)


def _read(storage: Storage, part: Part, form: FileFormat) -> Iterator[pa.Table]:
    """Yield a part's rows in the order of the source, in small tables."""
    for chunk in part.slices:
        name = f"{SPOOL_FOLDER}/{chunk.file}"
        for table in read_section(storage, name, chunk.section, chunk.start, chunk.stop):
            yield table.cast(form.schema)


def _sort(tables: Iterable[pa.Table], keys: Sequence[SortKey], limit: int) -> Iterator[pa.Table]:
    """Yield rows in order, at most `limit` at a time; holds all of them, and no copy."""
    rows = pa.concat_tables(tables)
    for index, field in enumerate(rows.schema):  # one column after another, which frees its parts
        rows = rows.set_column(index, field, rows.column(index).combine_chunks())
    order = find_order(rows, keys)
    for start in range(0, len(order), limit):
        yield rows.take(order.slice(start, limit))


def _name_empty() -> str:
    return name_file(0, 0, make_token())


def open_writer(sink: Any, schema: pa.Schema, compression: str) -> pq.ParquetWriter:
    """Open a Parquet file to write."""
    return pq.ParquetWriter(sink, schema, compression=compression)
