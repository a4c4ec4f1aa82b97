"""Output jobs for tests: without threads, and with a storage that kills them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime import Pipeline
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.output.destination import Committed
from pipeline_runtime.output.folder import Folder, name_types
from pipeline_runtime.output.job import Job, Progress, Target, Writers, open_job
from pipeline_runtime.output.merge import FileFormat, MergeInThreads
from pipeline_runtime.output.names import make_token
from pipeline_runtime.output.partitions import SplitByFolder
from pipeline_runtime.output.place import Mode, Place, open_place
from pipeline_runtime.output.records import RunRecord
from pipeline_runtime.output.spool import Spooler, spool_schema
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.plan import Group, StreamPlan, plan_groups
from pipeline_runtime.sources import open_location
from pipeline_runtime.sources.output_manifest import OutputManifest, read_output_manifest


@dataclass(frozen=True)
class InlineFeed:
    """Makes and spools the chunks where they are asked for."""

    stream: StreamPlan
    chunk_rows: int
    spooler: Spooler
    groups: Sequence[Group] = ()

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> Any:
        return InlineFeed(self.stream, self.chunk_rows, self.spooler, groups)

    def chunks(self, waited: Waited, usage: WorkerUsage | None = None) -> Iterator[Chunk]:
        for group in self.groups:
            for chunk in read_group(self.stream, group, self.chunk_rows):
                yield self.spooler(chunk)


@dataclass(frozen=True, kw_only=True)
class Written:
    """The settings of a job."""

    stream: StreamPlan
    uri: str
    partition_by: tuple[str, ...] = ()
    mode: Mode = "Fail"
    target_bytes: int = 1 << 28
    run: str = "20260101T000000Z-0123456789abcdef"
    storage: type[Storage] = Storage
    chunk_rows: int = 100

    def place(self) -> Place:
        found = open_place(open_location(self.uri))
        return Place(
            table=self.storage(found.table.location), staging=self.storage(found.staging.location)
        )

    def target(self) -> Target:
        stream = self.stream
        return Target(
            name=self.uri,
            destination=Folder(
                place=self.place(),
                mode=self.mode,
                partition_by=name_types(stream.output_schema, self.partition_by),
            ),
            form=FileFormat(
                schema=spool_schema(stream, self.partition_by),
                full_schema=stream.output_schema,
                compression="zstd",
                target_bytes=self.target_bytes,
            ),
            split=SplitByFolder(self.partition_by),
        )

    def open(self, *, resume: bool = False) -> Job:
        target = self.target()
        record = RunRecord(
            id=make_token(),
            run_hash=self.run[-16:],
            run_config={},
            data_digest=str(len(self.stream.scan.units)),
            chunk_rows=self.chunk_rows,
            layout=target.layout,
        )
        return open_job(
            target,
            self.run,
            record,
            is_mine=lambda name: name[16:] == self.run[16:],  # the hash
            resume=resume,
            claim=lambda run: None,
        )

    def write(self, *, resume: bool = False, seen: list[Progress] | None = None) -> OutputManifest:
        self.finish(resume=resume, seen=seen)
        manifest = read_output_manifest(self.place().table.location)
        assert manifest is not None
        return manifest

    def finish(self, *, resume: bool = False, seen: list[Progress] | None = None) -> Committed:
        stream = self.stream
        job = self.open(resume=resume)
        groups = plan_groups(
            stream.scan.units, seed=0, epoch=0, shuffle=stream.shuffle, chunk_rows=self.chunk_rows
        )
        spooler = Spooler(
            storage=job.spool,
            columns=tuple(stream.output_schema.names),
            split=job.target.split,
        )
        feed = InlineFeed(stream, self.chunk_rows, spooler)
        if seen is not None:
            seen.append(job.progress)
        writers = Writers(feed=feed, merge=MergeInThreads(1))
        return job.write(lambda: nullcontext(writers), groups, lambda progress: None)


class Killed(BaseException):
    """The process dies here."""


class KillingStorage(Storage):
    """Kills the process before or after its n-th change of the store."""

    left: ClassVar[int] = -1
    is_after: ClassVar[bool] = False
    log: ClassVar[list[str]] = []

    def __reduce__(self) -> Any:
        return (KillingStorage, (self.location,))

    @classmethod
    @contextmanager
    def killing(cls, at: int, *, after: bool) -> Iterator[None]:
        cls.left, cls.is_after, cls.log = at, after, []
        try:
            yield
        finally:
            cls.left = -1

    @staticmethod
    @contextmanager
    def step(what: str) -> Iterator[None]:
        """Count a change of any store, before or after which the process may die."""
        cls = KillingStorage
        cls.log.append(what)
        dies, cls.left = cls.left == 0, cls.left - 1
        if dies and not cls.is_after:
            raise Killed(what)
        yield
        if dies:
            raise Killed(what)

    def write(self, name: str, content: bytes) -> None:
        with self.step(f"write {name}"):
            super().write(name, content)

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        with self.step(f"create {name}"), super().create(name) as sink:
            yield sink

    def remove_file(self, name: str) -> None:
        with self.step(f"remove {name}"):
            super().remove_file(name)

    def remove(self) -> None:
        with self.step(f"remove {self.uri}"):
            super().remove()

    def put_in_place(self, path: str, target: Storage) -> None:
        with self.step(f"put {path}"):
            super().put_in_place(path, target)

    def rename_to(self, target: Storage) -> None:
        with self.step(f"rename to {target.uri}"):
            super().rename_to(target)

    def exchange_with(self, other: Storage) -> bool:
        with self.step(f"exchange with {other.uri}"):
            return super().exchange_with(other)


def plan_table(path: Path, table: pa.Table, rows_per_group: int = 100) -> StreamPlan:
    """Write a Parquet file with small row groups, and plan to read it."""
    pq.write_table(table, path, row_group_size=rows_per_group)
    return Pipeline.read_parquet(str(path)).plan("").training


def staged_names(place: Place) -> list[str]:
    """Return the staged files of all runs."""
    return sorted(place.staging.sizes())
