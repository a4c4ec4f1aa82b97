"""Computes the rows that a step `materialize` keeps, before a run reads them.

`build_ready_plan` plans a run. If the cache table lacks rows, an output of its own writes them:
the experiment's steps up to `materialize`, over the partitions of the source that are missing. A
few partitions at a time are committed, so that a run that is killed or stopped keeps those before.
Rows that another run commits meanwhile are not committed twice. It is a phase of the run, with
progress, metrics and signals (`preceding`), though the run has no folder yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from pipeline_runtime.config import DatasetExperiment, IcebergTarget, Output, Training
from pipeline_runtime.config.output import DEFAULT_FILE_BYTES
from pipeline_runtime.errors import Interrupted, StoreError
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.iceberg.catalogs import find_catalog
from pipeline_runtime.importing import importing
from pipeline_runtime.materialization.lookup import Materialization
from pipeline_runtime.materialization.tables import ORPHAN_AGE, PARTITION_COLUMN
from pipeline_runtime.output.cache_table import CacheTable, open_cache_table
from pipeline_runtime.output.covered_table import AlreadyCovered
from pipeline_runtime.output.iceberg import SplitByPartition
from pipeline_runtime.output.job import Job, Progress, Stopped, Target, Writers, open_job
from pipeline_runtime.output.names import make_token
from pipeline_runtime.output.observed import find_observers, merge_observed
from pipeline_runtime.output.records import ChunkRecord, RunRecord
from pipeline_runtime.output.spool import Spooler
from pipeline_runtime.plan import Plan
from pipeline_runtime.run.consumers import Reading
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.partition_commits import MOMENT, CommitRows, cut_commits
from pipeline_runtime.run.phases import MATERIALIZING, PLAN, RAY
from pipeline_runtime.sources import open_location
from pipeline_runtime.training.position import digest_units

if TYPE_CHECKING:  # it imports Ray
    from pipeline_runtime.feed.over_ray.model_pool import PlacedModels

_log = logging.getLogger(__name__)

Build = Callable[[DatasetExperiment], Plan]


def build_ready_plan(experiment: DatasetExperiment, options: RunOptions, build: Build) -> Plan:
    """Plan a run whose materialization has all rows; compute and keep the missing ones.

    Args:
        build: plans an experiment, at the same snapshots each time.

    Raises what an output raises: OutputError, StepError and SourceError, among others.
    """
    plan = build(experiment)
    found = plan.materialization
    if found is not None:
        options.tables.begin(found, plan.pins)
    if found is None or found.state == "Hit":
        return plan
    began, preceding = time.monotonic(), options.preceding
    preceding.show(Reading(notes=tuple(f"materialize: {line}" for line in found.explain())))
    try:
        materialize(experiment, found, options, build)
    except Stopped as error:
        raise Interrupted(
            f"stopped by a signal while rows for {found.table} were computed; what is committed is "
            "kept. Run again to continue"
        ) from error
    seconds = time.monotonic() - began
    note = f"materialize: {found.table} is complete, {seconds:.1f} s"
    preceding.show(Reading(notes=(note,)))
    preceding.phases.begin(PLAN)
    plan = build(experiment)
    assert plan.materialization is not None
    if plan.materialization.state != "Hit":
        raise StoreError(
            f"{found.table}: must have all rows of this run, which has just computed them, but "
            "another program has changed or deleted the table. Run again"
        )
    options.tables.complete(plan.materialization)
    return plan


def materialize(
    experiment: DatasetExperiment, found: Materialization, options: RunOptions, build: Build
) -> None:
    """Compute the missing partitions of a materialization, and commit them."""
    from pipeline_runtime.run.writing.progress import KeepingProgress  # it imports this module

    plan = build(build_writing(experiment, found))
    artifacts = open_location(experiment.spec.artifacts.uri, options.storage_root).join(
        experiment.metadata.name
    )
    catalog = find_catalog(experiment.spec.catalogs, found.step.iceberg.catalog)
    needs_ray = options.address != "local" or plan.needs_ray
    preceding = options.preceding
    num_rows = sum(found.partitions[key].rows for key in found.missing)
    progress = KeepingProgress(plan.main, num_rows, preceding)
    with (
        _connected(options) if needs_ray else nullcontext(),
        preceding.watch(progress.collector),
        _place_models(plan, options) if needs_ray else nullcontext() as placed,
    ):
        preceding.phases.begin(MATERIALIZING)
        for keys in cut_commits(found.missing, found.partitions):
            table = open_cache_table(
                found, keys, plan.main.output_schema, catalog, artifacts, DEFAULT_FILE_BYTES
            )
            _sweep(table, found)
            writing = Writing(plan=plan, found=found, keys=keys, table=table)
            opening = partial(_open_writers, placed)
            write_partitions(writing, opening, progress)
            options.tables.add_complete(len(keys))
            note = f"materialize: {len(keys):,} partitions committed to {found.table}"
            preceding.show(Reading(notes=(note,)))


def build_writing(experiment: DatasetExperiment, found: Materialization) -> DatasetExperiment:
    """Return the experiment that computes the rows: the steps before `materialize`."""
    target = IcebergTarget(catalog=found.step.iceberg.catalog, table=found.table)
    spec = experiment.spec.model_copy(
        update={
            "pipeline": experiment.spec.pipeline[: found.place],
            "training": Training(),
            "output": Output(mode="Overwrite", iceberg=target),
        }
    )
    return experiment.model_copy(update={"spec": spec})


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """The work of one commit."""

    plan: Plan
    found: Materialization
    keys: frozenset[str]
    table: CacheTable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stamp:
    """Gives the rows of a chunk their partition, and stores them; see `Stream.finish`.

    Attributes:
        owners: the partition of each group.
    """

    owners: Sequence[str]
    spooler: Spooler

    def __call__(self, chunk: Chunk) -> Chunk:
        """Store a chunk."""
        rows = chunk.table
        key = pa.scalar(self.owners[chunk.header.group], pa.string())
        column = pa.repeat(key, rows.num_rows)
        return self.spooler(replace(chunk, rows=rows.append_column(PARTITION_COLUMN, column)))


def _name_runs(found: Materialization) -> str:
    """Return the beginning of the names of the folders in which a table's rows are staged."""
    return f"materialize-{found.recipe.hash}-"


def _sweep(table: CacheTable, found: Materialization) -> None:
    """Remove what writers of the table left that were killed a day ago or longer."""
    first = _name_runs(found)
    before = f"{first}{datetime.now(UTC) - ORPHAN_AGE:{MOMENT}}"
    for name in table.list_runs():
        if name.startswith(first) and name < before:
            table.abandon(name)


class _OnProgress(Protocol):
    def begin(self, job: Job) -> None: ...

    def __call__(self, progress: Progress) -> None: ...


def write_partitions(
    writing: Writing,
    open_writers: Callable[[Plan, Stream, Job], AbstractContextManager[Writers]],
    on_progress: _OnProgress,
) -> None:
    """Write the partitions of one commit. Raises Stopped if `on_progress` does."""
    rows = CommitRows.plan(writing.plan.main, writing.keys, writing.found.partitions)
    stream_plan = rows.stream
    form = writing.table.form
    target = Target(
        name=writing.table.name,
        destination=writing.table,
        form=form,
        split=SplitByPartition(form.layout, stream_plan.kernels),
        layout=form.layout.to_json(),
    )
    record = RunRecord(
        id=make_token(),
        run_hash=writing.found.recipe.hash,
        run_config={},
        data_digest=digest_units(stream_plan),
        chunk_rows=stream_plan.chunk_rows,
        layout=target.layout,
    )
    run = f"{_name_runs(writing.found)}{datetime.now(UTC):{MOMENT}}-{record.id}"
    plan = replace(writing.plan, streams={stream_plan.role: stream_plan})
    try:
        job = open_job(
            target,
            run,
            record,
            is_mine=lambda name: False,
            resume=False,
            claim=lambda name: None,
        )
    except AlreadyCovered:
        return
    stamp = _Stamp(
        owners=rows.owners,
        spooler=Spooler(
            storage=job.spool,
            columns=(*stream_plan.output_schema.names, PARTITION_COLUMN),
            split=target.split,
        ),
    )
    stream = Stream(plan=stream_plan, chunk_rows=record.chunk_rows, finish=stamp)
    observers = find_observers(stream_plan.steps)

    def check(chunks: Sequence[ChunkRecord]) -> None:
        if observers:  # the results may fail the run, and are not kept
            merge_observed(job.spool, chunks, observers)

    on_progress.begin(job)
    try:
        job.write(lambda: open_writers(plan, stream, job), rows.groups, on_progress, check)
    except AlreadyCovered:
        _log.debug("%s: another run has computed the same rows", writing.table.name)
    finally:
        writing.table.abandon(run)  # what is committed stays


def _open_writers(
    placed: PlacedModels | None, plan: Plan, stream: Stream, job: Job
) -> AbstractContextManager[Writers]:
    # The package of the writing consumer imports this module.
    if placed is None:
        from pipeline_runtime.run.writing.local_writers import open_local_writers

        return open_local_writers(plan, stream)
    from pipeline_runtime.run.writing.ray_writers import open_ray_writers

    return open_ray_writers(
        plan, stream, job.staged, staging_field="spec.artifacts.uri", placed=placed
    )


def _place_models(plan: Plan, options: RunOptions) -> AbstractContextManager[PlacedModels]:
    from pipeline_runtime.run.writing.ray_writers import place_models

    def show(note: str) -> None:
        options.preceding.show(Reading(notes=(note,)))

    return place_models(plan, on_note=show, on_reading=options.inference.record)


@contextmanager
def _connected(options: RunOptions) -> Iterator[None]:
    """Connect to Ray; the run itself connects again."""
    options.preceding.phases.begin(RAY)
    with importing():
        from pipeline_runtime.run.ray_connection import connected

    with connected(options.address, 0, verbose=options.verbose):
        yield
