"""One attempt to write a table: spool, merge, commit; and where an earlier attempt stopped.

`open_job` finds the earlier attempt, claims the run for this one, and reads its records.
`Job.write` then does what is left. The feed leases groups to readers, which store the rows of each
chunk themselves; the driver records what they deliver. So a killed run repeats the chunks that
were in the making, and a lost reader those that it had not delivered. Merge tasks are the same:
what was not recorded is done again.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from pipeline_runtime.errors import OutputError, OutputRefused, StoreError
from pipeline_runtime.feed.base import FeedSource, Waited, WorkerUsage
from pipeline_runtime.feed.chunk import StepCount, add_counts
from pipeline_runtime.feed.reader_feed import ReaderFeed
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.output import names
from pipeline_runtime.output.destination import Committed, Destination
from pipeline_runtime.output.merge import (
    FileFormat,
    Merge,
    check_num_partitions,
    measure_ratio,
    plan_merge,
)
from pipeline_runtime.output.partitions import Split
from pipeline_runtime.output.recording import recording
from pipeline_runtime.output.records import (
    ChunkRecord,
    ClaimRecord,
    MergedRecord,
    MergeRecord,
    RunRecord,
    StagedFile,
    check_same_run,
    find_done_groups,
    keep_stored,
    read_record,
    read_records,
    write_record,
)
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.plan.groups import Group

ROLE = "output"
Phase = Literal["Spooling", "Merging", "Committing", "Committed"]


class Stopped(Exception):
    """The run was asked to stop; what it has recorded is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The table that a run writes.

    Attributes:
        name: the table's name for people: a URI, or the name of a table.
        split: divides each chunk's rows into partitions.
        layout: see `RunRecord`.
        staging_field: the field of the manifest that decides where rows are spooled.
    """

    name: str
    destination: Destination
    form: FileFormat
    split: Split
    layout: dict[str, Any] = field(default_factory=dict)
    staging_field: str = "spec.output.parquet.uri"


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
        commits: commits that this attempt made.
        commit_retries: commits that were tried again, since another writer was faster.
        num_partitions: partitions of the source that the run is to write; 0 if it writes all rows
            at once.
        num_complete_partitions: those of them that are committed, also by earlier runs.
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
    commits: int = 0
    commit_retries: int = 0
    files_planned: int = 0
    num_partitions: int = 0
    num_complete_partitions: int = 0
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


def add_progress(before: Progress, now: Progress) -> Progress:
    """Return the progress of two jobs, one after the other; the phase is that of the second."""
    counts = add_counts(before.counts, now.counts)
    added: dict[str, Any] = {
        each.name: getattr(before, each.name) + getattr(now, each.name)
        for each in fields(Progress)
        if isinstance(getattr(now, each.name), int | float)
    }
    checksum = before.checksum.merge(now.checksum) if before.checksum and now.checksum else None
    return replace(now, **added, counts=counts, checksum=checksum)


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
        committed: the table in place, once the job is finished.
        given_up: earlier runs whose commit may be carried out until this one's is.
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
    committed: Committed | None = None
    given_up: tuple[str, ...] = ()

    @property
    def staged(self) -> Storage:
        return self.target.destination.stage(self.run)

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
        on_spooled: Callable[[Sequence[ChunkRecord]], None] = lambda chunks: None,
    ) -> Committed:
        """Write the table, or what is left of it, and put it in place.

        Args:
            open_writers: called unless the table is complete.
            groups: all groups of the stream.
            on_progress: called after every record, and every second or two; may raise Stopped.
            on_spooled: called with the records of all chunks once their rows are spooled, in the
                order of the table; again by each attempt until the table is in place.
        """
        if self.target.destination.read(self.record.id) is None:
            with open_writers() as writers:
                chunks = self._spool(writers, groups, on_progress)
                on_spooled(chunks)
                files = self._merge(writers, chunks, on_progress)
            self._check_claim()
            self.progress.phase = "Committing"
            on_progress(self.progress)
            self._commit(files, on_progress)
        committed = self.finish()
        on_progress(self.progress)
        return committed

    def finish(self) -> Committed:
        """Remove the staged files of a committed run, if the store lets it.

        Raises OutputRefused if the table in place is not this run's.
        """
        destination = self.target.destination
        committed = destination.read(self.record.id)
        if committed is None:
            raise OutputRefused(
                f"this run has put its table in place, and it is there no more. "
                f"{destination.describe_other()}. Let one experiment write to a table at a time, "
                "and run this one again"
            )
        try:
            destination.clean_up(self.run)
            for run in self.given_up:
                destination.abandon(run)
        except (OutputError, StoreError) as error:
            self.warnings.append(f"the table is in place, but staged files are left: {error}")
        self.progress.phase = "Committed"
        self.progress.files, self.progress.num_bytes = committed.files, committed.num_bytes
        self.progress.rows = committed.rows
        self.committed = committed
        return committed

    def _commit(self, files: Sequence[StagedFile], on_progress: Callable[[Progress], None]) -> None:
        progress, earlier, attempts = self.progress, self.progress.commit_retries, itertools.count()

        def check() -> None:
            self._check_claim()
            progress.commit_retries = earlier + next(attempts)
            on_progress(progress)

        commit = self.target.destination.commit
        progress.commit_retries = earlier + commit(self.run, self.record, files, check)
        progress.commits += 1

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
    ) -> list[StagedFile]:
        """Write the table's files that no earlier attempt recorded; return all, in order."""
        staged, progress = self.staged, self.progress
        progress.phase = "Merging"
        plan = read_record(staged, names.MERGE_FILE, MergeRecord)
        if plan is None:
            plan = MergeRecord(ratio=measure_ratio(staged, chunks, self.target.form))
            staged.below(names.MERGED_FOLDER).remove()  # files that were cut by another plan
            write_record(staged, names.MERGE_FILE, plan)
        tasks = plan_merge(chunks, plan.ratio, self.target.form)
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
            return list(self.target.form.write_empty(staged))
        return [file for name in sorted(merged) for file in merged[name].files]

    def _count(self, record: MergedRecord) -> None:
        self.progress.files += len(record.files)
        self.progress.num_bytes += sum(file.bytes for file in record.files)
        self.progress.merged_rows += sum(file.rows for file in record.files)

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
    destination = target.destination
    staged = [name for name in destination.list_runs() if is_mine(name)]
    if not resume:
        claim(run)
        left = tuple(name for name in staged if not destination.abandon(name))
        destination.check()
        job = _begin(target, run, record)
        job.given_up = left
        return job
    for name in staged:
        stored = read_record(destination.stage(name), names.RUN_FILE, RunRecord)
        if stored is not None and stored.run_config == record.run_config:
            check_same_run(stored, record, destination.stage(name).uri)
            destination.check((name, stored.id))
            claim(name)
            return _resume(target, name, stored)
    existing = destination.find(is_mine)
    if existing is not None:
        return Job(
            target=target,
            run=existing.run,
            record=record.model_copy(update={"id": existing.id}),
            claim=ClaimRecord(attempt=1, token=""),
            done={},
            is_staged=False,
        )
    destination.check()
    claim(run)
    return _begin(target, run, record)


def _begin(target: Target, run: str, record: RunRecord) -> Job:
    staged = target.destination.stage(run)
    write_record(staged, names.RUN_FILE, record)
    claim = ClaimRecord(attempt=1, token=names.make_token())
    write_record(staged, names.CLAIM_FILE, claim)
    return Job(target=target, run=run, record=record, claim=claim, done={}, is_new=True)


def _resume(target: Target, run: str, record: RunRecord) -> Job:
    staged = target.destination.stage(run)
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
