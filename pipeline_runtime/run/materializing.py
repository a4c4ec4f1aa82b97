"""Computes the rows that a step `materialize` keeps, before a run reads them.

`build_ready_plan` plans a run. If the cache table lacks rows, an output of its own writes them:
the experiment's steps up to `materialize`, over the partitions of the source that are missing. A
few partitions at a time are committed, so that a run that is killed keeps those before. Rows that
another run commits meanwhile are not committed twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa

from pipeline_runtime.config import DatasetExperiment, IcebergTarget, Output, Training
from pipeline_runtime.config.output import DEFAULT_FILE_BYTES
from pipeline_runtime.errors import StoreError
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.iceberg.catalogs import find_catalog
from pipeline_runtime.materialization.lookup import Materialization
from pipeline_runtime.materialization.tables import ORPHAN_AGE, PARTITION_COLUMN
from pipeline_runtime.output.cache_table import AlreadyCovered, CacheTable, open_cache_table
from pipeline_runtime.output.iceberg import SplitByPartition
from pipeline_runtime.output.job import Job, Progress, Target, Writers, open_job
from pipeline_runtime.output.names import make_token
from pipeline_runtime.output.records import RunRecord
from pipeline_runtime.output.spool import Spooler
from pipeline_runtime.plan import Group, Plan
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.sources import open_location
from pipeline_runtime.training.position import digest_units

_log = logging.getLogger(__name__)
# Stored bytes of the source that one commit is made of; a killed run computes them again.
_BYTES_PER_COMMIT = 4 << 30
_MOMENT = "%Y%m%dT%H%M%SZ"

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
        options.tables.begin(found)
    if found is None or found.state == "Hit":
        return plan
    began = time.monotonic()
    for line in found.explain():
        options.show(f"materialize: {line}")
    materialize(experiment, found, options, build)
    options.show(f"materialize: {found.table} is complete, {time.monotonic() - began:.1f} s")
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
    plan = build(_build_writing(experiment, found))
    artifacts = open_location(experiment.spec.artifacts.uri, options.storage_root).join(
        experiment.metadata.name
    )
    catalog = find_catalog(experiment.spec.catalogs, found.step.iceberg.catalog)
    needs_ray = options.address != "local" or plan.feed.engine == "RayData"
    with _connected(options) if needs_ray else _nothing():
        for keys in _cut_commits(found):
            table = open_cache_table(
                found, keys, plan.main.output_schema, catalog, artifacts, DEFAULT_FILE_BYTES
            )
            _sweep(table, found)
            _write(_Writing(plan=plan, found=found, keys=keys, table=table), needs_ray=needs_ray)
            options.tables.add_complete(len(keys))
            options.show(f"materialize: {len(keys):,} partitions committed to {found.table}")


def _build_writing(experiment: DatasetExperiment, found: Materialization) -> DatasetExperiment:
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


def _cut_commits(found: Materialization) -> Iterator[frozenset[str]]:
    """Yield the missing partitions of each commit."""
    keys: set[str] = set()
    num_bytes = 0
    for key in found.missing:
        size = found.partitions[key].num_bytes
        if keys and num_bytes + size > _BYTES_PER_COMMIT:
            yield frozenset(keys)
            keys, num_bytes = set(), 0
        keys.add(key)
        num_bytes += size
    if keys or not found.missing:  # a table without rows is complete too
        yield frozenset(keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """The work of one commit."""

    plan: Plan
    found: Materialization
    keys: frozenset[str]
    table: CacheTable

    def plan_groups(self) -> tuple[StreamPlan, list[Group], list[str]]:
        """Return the stream of these partitions, its groups, and the partition of each group."""
        stream = self.plan.main
        units = []
        groups: list[Group] = []
        owners: list[str] = []
        for key in sorted(self.keys):
            places = self.found.partitions[key].places
            mine = [unit for unit in stream.scan.units if unit.place in places]
            part = replace(stream, scan=replace(stream.scan, units=tuple(mine)))
            for group in part.groups(0, stream.chunk_rows) if mine else ():
                groups.append(replace(group, index=len(groups)))
                owners.append(key)
            units += mine
        return replace(stream, scan=replace(stream.scan, units=tuple(units))), groups, owners


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
    before = f"{first}{datetime.now(UTC) - ORPHAN_AGE:{_MOMENT}}"
    for name in table.list_runs():
        if name.startswith(first) and name < before:
            table.abandon(name)


def _write(writing: _Writing, *, needs_ray: bool) -> None:
    stream_plan, groups, owners = writing.plan_groups()
    form = writing.table.form
    target = Target(
        name=writing.table.name,
        destination=writing.table,
        form=form,
        split=SplitByPartition(form.layout),
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
    run = f"{_name_runs(writing.found)}{datetime.now(UTC):{_MOMENT}}-{record.id}"
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
        owners=tuple(owners),
        spooler=Spooler(
            storage=job.spool,
            columns=(*stream_plan.output_schema.names, PARTITION_COLUMN),
            split=target.split,
        ),
    )
    stream = Stream(plan=stream_plan, chunk_rows=record.chunk_rows, finish=stamp)
    try:
        job.write(lambda: _open_writers(plan, stream, job, needs_ray), groups, _report)
    except AlreadyCovered:
        _log.debug("%s: another run has computed the same rows", writing.table.name)
    finally:
        writing.table.abandon(run)  # what is committed stays


def _open_writers(
    plan: Plan, stream: Stream, job: Job, needs_ray: bool
) -> AbstractContextManager[Writers]:
    # The package of the writing consumer imports this module.
    if not needs_ray:
        from pipeline_runtime.run.writing.local_writers import open_local_writers

        return open_local_writers(plan, stream)
    from pipeline_runtime.run.writing.ray_writers import open_ray_writers

    return open_ray_writers(plan, stream, job.staged, staging_field="spec.artifacts.uri")


def _report(progress: Progress) -> None:
    _log.debug("%s: %d rows", progress.phase, progress.rows)


def _connected(options: RunOptions) -> AbstractContextManager[None]:
    from pipeline_runtime.run.ray_connection import connected

    return connected(options.address, 0, verbose=options.verbose)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
