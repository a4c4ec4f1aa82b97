"""One attempt to write a table: spool, merge, commit; and where an earlier attempt stopped.

`open_job` finds the earlier attempt, claims the run for this one, and reads its records.
`Job.write` then does what is left. The feed leases groups to readers, which store the rows of each
chunk themselves; the driver records what they deliver. So a killed run repeats the chunks that
were in the making, and a lost reader those that it had not delivered. Merge tasks are the same:
what was not recorded is done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal

from pipeline_runtime.errors import OutputError, OutputRefused, StoreError
from pipeline_runtime.feed.base import FeedSource, Waited, WorkerUsage
from pipeline_runtime.feed.chunk import StepCount, add_counts
from pipeline_runtime.feed.reader_feed import ReaderFeed
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.output import names
from pipeline_runtime.output.commit import abandon, check_before, clean_up, commit, is_committed
from pipeline_runtime.output.merge import (
    FileFormat,
    Merge,
    check_num_partitions,
    measure_ratio,
    plan_merge,
    write_empty,
)
from pipeline_runtime.output.place import Mode, Place, check_table
from pipeline_runtime.output.recording import recording
from pipeline_runtime.output.records import (
    ChunkRecord,
    ClaimRecord,
    MergedRecord,
    MergeRecord,
    RunRecord,
    check_same_run,
    find_done_groups,
    keep_stored,
    read_record,
    read_records,
    write_record,
)
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.sources.output_manifest import (
    OutputFile,
    OutputManifest,
    PartitionColumn,
    read_output_manifest,
)
from pipeline_runtime.sources.partition_names import find_partition_type
from pipeline_runtime.sources.stores import list_folder

ROLE = "output"
Phase = Literal["Spooling", "Merging", "Committing", "Committed"]


class Stopped(Exception):
    """The run was asked to stop; what it has recorded is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The table that a run writes, and its place."""

    place: Place
    form: FileFormat
    mode: Mode
    partition_by: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a run; numbers count from its first attempt.

    Attributes:
        counts: rows and bytes of the read and of every step.
        resumed_counts: the same when this attempt began.
        rows: rows that the steps left, all in spool files.
        resumed_rows: the same when this attempt began.
        checksum: of these rows' identities; None if an older release recorded some of them.
        chunks: chunks that this attempt recorded.
        spooling_seconds: time since this attempt began to spool, until its spool was complete.
        recording_seconds: part of that time in which the driver was busy with records.
        files, num_bytes: what the merge has written of the table.
        merged_rows: rows in these files.
    """

    phase: Phase = "Spooling"
    counts: tuple[StepCount, ...] = ()
    resumed_counts: tuple[StepCount, ...] = ()
    rows: int = 0
    resumed_rows: int = 0
    checksum: Checksum | None = field(default_factory=Checksum)
    chunks: int = 0
    spooling_seconds: float = 0.0
    recording_seconds: float = 0.0
    files: int = 0
    num_bytes: int = 0
    merged_rows: int = 0
    files_planned: int = 0
    waited: Waited = field(default_factory=Waited)
    usage: WorkerUsage = field(default_factory=WorkerUsage)

    @property
    def rows_read(self) -> tuple[int, int]:
        """The rows that were read, and those of them that earlier attempts read."""
        counts = (self.counts, self.resumed_counts)
        read, before = (each[0].rows if each else 0 for each in counts)
        return read, before

    def add_chunk(self, record: ChunkRecord) -> None:
        """Count a chunk that is recorded."""
        self.counts = add_counts(self.counts, record.step_counts)
        self.rows += record.rows
        added = record.rows_checksum
        self.checksum = self.checksum.merge(added) if self.checksum and added else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """The processes that store rows.

    Attributes:
        feed: gives chunks that `Spooler` has stored in the job's spool.
        merge: runs the merge's tasks, once the feed is used up.
    """

    feed: FeedSource
    merge: Merge


@dataclass(slots=True, kw_only=True)
class Job:
    """An attempt that owns its run.

    Attributes:
        run: name of the run; its staged files are in a folder of this name.
        done: chunks of complete groups from earlier attempts, by group.
        is_new: whether this is the first attempt.
        is_staged: whether the run has staged files; else its table is in place.
    """

    target: Target
    run: str
    record: RunRecord
    claim: ClaimRecord
    done: dict[int, list[ChunkRecord]]
    is_new: bool = False
    is_staged: bool = True
    progress: Progress = field(default_factory=Progress)
    warnings: list[str] = field(default_factory=list)

    @property
    def staged(self) -> Storage:
        return self.target.place.run(self.run)

    @property
    def spool(self) -> Storage:
        return self.staged.below(names.SPOOL_FOLDER)

    def left(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Return the groups that are not completely recorded."""
        return tuple(group for group in groups if group.index not in self.done)

    def write(
        self,
        open_writers: Callable[[], AbstractContextManager[Writers]],
        groups: Sequence[Group],
        on_progress: Callable[[Progress], None],
    ) -> OutputManifest:
        """Write the table, or what is left of it, and put it in place.

        Args:
            open_writers: called unless the table is complete.
            groups: all groups of the stream.
            on_progress: called after every record, and every second or two; may raise Stopped.
        """
        if not is_committed(self.target.place, self.record.id):
            with open_writers() as writers:
                chunks = self._spool(writers, groups, on_progress)
                files = self._merge(writers, chunks, on_progress)
            self._check_claim()
            self.progress.phase = "Committing"
            on_progress(self.progress)
            commit(self.target.place, self._manifest(files), self.target.mode)
        manifest = self.finish()
        on_progress(self.progress)
        return manifest

    def finish(self) -> OutputManifest:
        """Remove the staged files of a committed run, if the store lets it.

        Raises OutputRefused if the table in place is not this run's.
        """
        table = self.target.place.table
        manifest = read_output_manifest(table.location)
        if manifest is None or manifest.id != self.record.id:
            found = f"holds the table of run {manifest.run}" if manifest else "is gone"
            raise OutputRefused(
                f"{table.uri}: must hold the table that this run has just put in place, but "
                f"{found}. Let one experiment write to a folder at a time, and run this one again"
            )
        try:
            clean_up(self.target.place, manifest)
        except (OutputError, StoreError) as error:
            self.warnings.append(f"the table is in place, but staged files are left: {error}")
        self.progress.phase = "Committed"
        self.progress.files, self.progress.num_bytes = len(manifest.files), manifest.num_bytes
        self.progress.rows = manifest.rows
        return manifest

    def _spool(
        self,
        writers: Writers,
        groups: Sequence[Group],
        on_progress: Callable[[Progress], None],
    ) -> list[ChunkRecord]:
        """Have the rows of all groups spooled; return the records in the table's order."""
        progress, began = self.progress, time.monotonic()
        recorded = [chunk for chunks in self.done.values() for chunk in chunks]
        folders = {section.folder for chunk in recorded for section in chunk.sections}

        def look() -> None:
            progress.spooling_seconds = time.monotonic() - began
            on_progress(progress)

        def count(stored: Sequence[ChunkRecord], started: float) -> None:
            recorded.extend(stored)
            for record in stored:
                progress.add_chunk(record)
            progress.chunks += len(stored)
            progress.recording_seconds += time.monotonic() - started
            look()

        left = self.left(groups)
        if not left:
            return sorted(recorded, key=lambda record: record.place)
        feed = writers.feed.open(ROLE, 0, left, in_order=False)
        if isinstance(feed, ReaderFeed):
            feed = replace(feed, on_wait=look)
        with recording(self.staged, self._check_claim) as recorder:
            for chunk in feed.chunks(progress.waited, progress.usage):
                started = time.monotonic()
                record = ChunkRecord.of(chunk)
                folders.update(section.folder for section in record.sections)
                check_num_partitions(folders)
                count(recorder.put(record), started)
            started = time.monotonic()
            count(recorder.drain(), started)
        return sorted(recorded, key=lambda record: record.place)

    def _merge(
        self,
        writers: Writers,
        chunks: Sequence[ChunkRecord],
        on_progress: Callable[[Progress], None],
    ) -> list[OutputFile]:
        """Write the table's files that no earlier attempt recorded; return all, in order."""
        staged, progress = self.staged, self.progress
        progress.phase = "Merging"
        plan = read_record(staged, names.MERGE_FILE, MergeRecord)
        if plan is None:
            plan = MergeRecord(ratio=measure_ratio(staged, chunks, self.target.form))
            staged.below(names.MERGED_FOLDER).remove()  # files that were cut by another plan
            write_record(staged, names.MERGE_FILE, plan)
        tasks = plan_merge(chunks, plan.ratio, self.target.form.target_bytes)
        merged = read_records(staged, names.MERGED_FOLDER, MergedRecord)
        progress.files_planned = sum(len(task.parts) for task in tasks)
        for record in merged.values():
            self._count(record)
        on_progress(progress)
        left = [task for task in tasks if names.name_task(task.index) not in merged]
        running = writers.merge(staged, left, self.target.form, lambda: on_progress(progress))
        for task, files in running if left else ():
            record = MergedRecord(files=files)
            self._check_claim()
            name = names.name_task(task.index)
            write_record(staged, f"{names.MERGED_FOLDER}/{name}", record)
            merged[name] = record
            self._count(record)
            on_progress(progress)
        if not tasks:
            return [write_empty(staged, self.target.form)]
        return [file for name in sorted(merged) for file in merged[name].files]

    def _count(self, record: MergedRecord) -> None:
        self.progress.files += len(record.files)
        self.progress.num_bytes += sum(file.bytes for file in record.files)
        self.progress.merged_rows += sum(file.rows for file in record.files)

    def _manifest(self, files: Sequence[OutputFile]) -> OutputManifest:
        schema = self.target.form.full_schema
        return OutputManifest(
            id=self.record.id,
            run=self.run,
            run_hash=self.record.run_hash,
            partition_by=tuple(
                PartitionColumn(name=name, type=str(find_partition_type(schema.field(name).type)))
                for name in self.target.partition_by
            ),
            files=tuple(files),
        )

    def _check_claim(self) -> None:
        """Raise OutputError if another attempt has taken the run over."""
        found = read_record(self.staged, names.CLAIM_FILE, ClaimRecord)
        if found != self.claim:
            raise OutputError(
                f"{self.staged.uri}: another attempt has taken over this run, so this one stops. "
                "Look for another process that writes the same output"
            )


def open_job(
    target: Target,
    run: str,
    record: RunRecord,
    *,
    is_mine: Callable[[str], bool],
    resume: bool,
    claim: Callable[[str], None],
) -> Job:
    """Claim a run for a new attempt: the newest one that is staged, or a new one.

    Args:
        run: name of a new run.
        record: properties of the run; a resumed run keeps the size of its chunks.
        is_mine: whether a run of this name may be resumed, or removed if `resume` is false.
        claim: called with the name of the run before anything is changed, unless its table is in
            place.

    Raises OutputRefused if the run may not write there, or another table has appeared.
    """
    place = target.place
    staged = [name for name in _list_runs(place.staging) if is_mine(name)]
    if not resume:
        claim(run)
        for name in staged:
            abandon(place, name)
        check_table(place.table, target.mode)
        return _begin(target, run, record)
    for name in staged:
        stored = read_record(place.run(name), names.RUN_FILE, RunRecord)
        if stored is not None and stored.run_config == record.run_config:
            check_same_run(stored, record, place.run(name).uri)
            check_before(place, target.mode, name, stored.id)
            claim(name)
            return _resume(target, name, stored)
    existing = read_output_manifest(place.table.location)
    if existing is not None and is_mine(existing.run):
        return Job(
            target=target,
            run=existing.run,
            record=record.model_copy(update={"id": existing.id}),
            claim=ClaimRecord(attempt=1, token=""),
            done={},
            is_staged=False,
        )
    check_table(place.table, target.mode)
    claim(run)
    return _begin(target, run, record)


def _list_runs(staging: Storage) -> list[str]:
    """Return the names of the staged runs, newest first."""
    infos = list_folder(staging.location, "look for staged runs")
    return sorted((info.base_name for info in infos), reverse=True)


def _begin(target: Target, run: str, record: RunRecord) -> Job:
    staged = target.place.run(run)
    write_record(staged, names.RUN_FILE, record)
    claim = ClaimRecord(attempt=1, token=names.make_token())
    write_record(staged, names.CLAIM_FILE, claim)
    return Job(target=target, run=run, record=record, claim=claim, done={}, is_new=True)


def _resume(target: Target, run: str, record: RunRecord) -> Job:
    staged = target.place.run(run)
    before = read_record(staged, names.CLAIM_FILE, ClaimRecord)
    claim = ClaimRecord(attempt=1 + (before.attempt if before else 0), token=names.make_token())
    write_record(staged, names.CLAIM_FILE, claim)
    chunks = read_records(staged, names.CHUNKS_FOLDER, ChunkRecord).values()
    done = find_done_groups(keep_stored(chunks, staged.sizes(names.SPOOL_FOLDER)))
    job = Job(target=target, run=run, record=record, claim=claim, done=done)
    for chunk in (chunk for found in done.values() for chunk in found):
        job.progress.add_chunk(chunk)
    job.progress.resumed_counts, job.progress.resumed_rows = job.progress.counts, job.progress.rows
    return job
