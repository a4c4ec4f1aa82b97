"""A table to write: every row of one stream, in the order of the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.config import ExperimentSpec, IcebergTarget, Output
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.iceberg.schemas import WantedTable, find_faults, find_writable
from pipeline_runtime.plan.consumers.base import TakesInOrder
from pipeline_runtime.plan.engine import choose_feed
from pipeline_runtime.plan.model import FeedChoice, Plan, Stage, StreamPlan
from pipeline_runtime.sources.partition_names import find_name_fault, find_partition_type
from pipeline_runtime.steps.base import is_internal, public_schema
from pipeline_runtime.steps.checks import unknown_column
from pipeline_runtime.steps.rename.model import RenameStep


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConsumer(TakesInOrder):
    """Writes a table; see `consumers.base.Consumer`."""

    spec: ExperimentSpec

    @property
    def output(self) -> Output:
        """The section of the manifest."""
        assert self.spec.output is not None
        return self.spec.output

    @property
    def partition_by(self) -> tuple[str, ...]:
        """Columns that become folders."""
        return self.output.partition_by or ()

    @property
    def runner(self) -> str:
        return "pipeline_runtime.run.writing"

    @property
    def roles(self) -> tuple[str, ...]:
        return ("output",)

    def find_columns(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the columns of the table, those of the partitions included."""
        partition_by = self.partition_by
        wanted = self.output.columns or tuple(public_schema(schema).names)
        if self.output.layout == "KeyAndScore":
            wanted = self._find_key_and_scores(schema)
        columns = tuple(dict.fromkeys([*wanted, *partition_by]))
        if self.output.iceberg is not None:
            return _check_iceberg(self.spec, columns, schema)
        fields = dict.fromkeys(columns, "columns") | dict.fromkeys(partition_by, "partitionBy")
        problems = [
            _problem(fields[name], unknown_column(name, schema.names, "the pipeline's output"))
            for name in columns
            if name not in schema.names
        ]
        if not problems:
            problems += _find_partition_problems(partition_by, schema)
            stored = [schema.field(name) for name in columns if name not in partition_by]
            if not stored:
                message = "must leave a column for the files, but has all columns; remove one"
                problems.append(_problem("partitionBy", message))
            problems += [_problem("columns", text) for text in _find_unwritable(stored)]
        if problems:
            raise ManifestError(problems)
        return columns

    def _find_key_and_scores(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the row key and the columns that models made. Raises ManifestError without one."""
        key = self.spec.dataset.row_key or ()
        made: list[str] = []
        for step in self.spec.pipeline:
            if isinstance(step.config, RenameStep):
                new_names = {column.name: column.new_name for column in step.config.columns}
                made = [new_names.get(name, name) for name in made]
            made += step.config.find_scores()
        scores = [name for name in made if name in schema.names]
        problems = []
        if not key:
            message = (
                "must name the key of a row for output.layout KeyAndScore, but is absent. Add it"
            )
            problems.append(Problem(path="spec.dataset.rowKey", message=message))
        if own := [name for name in key if is_internal(name)]:
            message = (
                f"must name columns that another table may have for output.layout KeyAndScore, but "
                f"has {own[0]}, which is Lastmile's own. Name the columns that identify a row"
            )
            problems.append(Problem(path="spec.dataset.rowKey", message=message))
        if not scores:
            message = (
                "must be Columns in a pipeline that ends without a column that a model made, but "
                "is KeyAndScore. Add a step predict, or change it"
            )
            problems.append(_problem("layout", message))
        problems += [
            _problem("layout", unknown_column(name, schema.names, "the pipeline's output"))
            for name in key
            if name not in schema.names and not is_internal(name)
        ]
        if problems:
            raise ManifestError(problems)
        return tuple(dict.fromkeys([*key, *scores]))

    def takes_once(self, columns: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def choose_feed(self, stages: Sequence[Stage]) -> FeedChoice:
        """Return the same engine as for a training: whatever makes the rows stores them."""
        feed = choose_feed(self.spec.pipeline_options, stages)
        if not feed.may_switch:
            return feed
        reason = "on one machine as threads of this process, which store the rows that they make"
        return replace(feed, reason=reason, may_switch=False)

    def warn(self, stream: StreamPlan) -> Iterator[str]:
        yield from ()

    def describe(self, plan: Plan) -> Iterator[str]:
        by = self.partition_by
        folders = f", in folders by {', '.join(by)}" if by else ""
        yield (
            f"Then: a table of {len(plan.batch_columns)} columns{folders}, rows in the order of "
            f"the source within each folder, to {self.output.parquet.uri} ({self.output.mode})"
            if self.output.parquet
            else _describe_iceberg(self.output, plan)
        )
        yield f"Feed: {plan.feed.engine} ({plan.feed.reason})"

    def document(self, plan: Plan) -> dict[str, Any]:
        return {
            "output": {
                "columns": list(plan.batch_columns),
                "partitionBy": list(self.partition_by),
                "mode": self.output.mode,
            }
        }


def open_consumer(spec: ExperimentSpec) -> OutputConsumer:
    """Return the consumer of a manifest with `output`."""
    return OutputConsumer(spec=spec)


def want_table(output: Output, target: IcebergTarget, schema: pa.Schema) -> WantedTable:
    """Return the Iceberg table that a manifest asks for.

    Args:
        schema: the table's columns, as the pipeline has them; each has a type that is writable.
    """
    return WantedTable(
        schema=pa.schema([(f.name, find_writable(f.type)) for f in schema]),
        partition_by=output.partition_by or (),
        bucket_by=target.bucket_by,
        num_buckets=target.buckets or 0,
        sort_by=target.sort_by or (),
    )


def _check_iceberg(
    spec: ExperimentSpec, columns: tuple[str, ...], schema: pa.Schema
) -> tuple[str, ...]:
    """Return the columns of an Iceberg table. Raises ManifestError."""
    output = spec.output
    assert output is not None
    target = output.iceberg
    assert target is not None
    fields = dict.fromkeys(columns, "columns") | dict.fromkeys(
        output.partition_by or (), "partitionBy"
    )
    problems = [
        _problem(fields[name], unknown_column(name, schema.names, "the pipeline's output"))
        for name in columns
        if name not in schema.names
    ]
    layout = [("bucketBy", target.bucket_by)] if target.bucket_by else []
    layout += [("sortBy", name) for name in target.sort_by or ()]
    problems += [
        _problem(f"iceberg.{field}", unknown_column(name, columns, "the table's columns"))
        for field, name in layout
        if name not in columns
    ]
    if not problems:
        for name in columns:
            try:
                find_writable(schema.field(name).type)
            except TypeError as error:
                problems.append(_problem("columns", f"column {name!r} {error}"))
    if not problems:
        wanted = want_table(output, target, pa.schema([schema.field(name) for name in columns]))
        problems = [_problem(*fault) for fault in find_faults(wanted)]
    if output.is_by_partition:
        problems += _find_backfill_problems(spec, columns)
    if problems:
        raise ManifestError(problems)
    return columns


def _find_backfill_problems(spec: ExperimentSpec, columns: tuple[str, ...]) -> Iterator[Problem]:
    """Yield what is missing to write a staging table by partitions."""
    keys = spec.dataset.row_key or ()
    if not keys:
        message = (
            "must name the key of the staging table for output.mode OverwritePartitions, but is "
            "absent. Add it"
        )
        yield Problem(path="spec.dataset.rowKey", message=message)
    if absent := [key for key in keys if key not in columns]:
        message = f"must have the columns of dataset.rowKey, but lacks {', '.join(absent)}. Add it"
        yield _problem("columns", message)
    if (place := _find_own_source(spec)) is not None:
        message = (
            f"must be another table than that of {place}, whose rows each commit would change, so "
            "that no partition would stay complete. Name another table"
        )
        yield _problem("iceberg.table", message)
    for index, step in enumerate(spec.pipeline):
        if step.kind == "materialize":
            message = (
                "must not come with output.mode OverwritePartitions, whose table keeps the rows "
                "itself. Remove the step"
            )
            yield Problem(path=f"spec.pipeline[{index}]", message=message)


def _find_own_source(spec: ExperimentSpec) -> str | None:
    """Return the field that reads the table that is written; None if none does."""
    read = {f"spec.pipeline[{i}]": s.config.find_side_table() for i, s in enumerate(spec.pipeline)}
    target = spec.output.iceberg if spec.output else None
    for place, side in {"spec.dataset": spec.dataset, **read}.items():
        source = side.iceberg if side else None
        if source and target and (source.catalog, source.table) == (target.catalog, target.table):
            return place
    return None


def _describe_iceberg(output: Output, plan: Plan) -> str:
    target = output.iceberg
    assert target is not None
    parts = [*(output.partition_by or ())]
    if target.bucket_by:
        parts.append(f"{target.buckets} buckets of {target.bucket_by}")
    by = f", partitioned by {', '.join(parts)}" if parts else ""
    order = f", files sorted by {', '.join(target.sort_by)}" if target.sort_by else ""
    return (
        f"Then: an Iceberg table of {len(plan.batch_columns)} columns{by}{order}, to "
        f"{target.table} of catalog {target.catalog} ({output.mode})"
    )


def _problem(field: str, message: str) -> Problem:
    return Problem(path=f"spec.output.{field}", message=message)


def _find_partition_problems(columns: tuple[str, ...], schema: pa.Schema) -> Iterator[Problem]:
    for name in columns:
        kind = schema.field(name).type
        if find_partition_type(kind) is None:
            yield _problem(
                "partitionBy",
                f"column {name!r} must hold texts, integers, booleans or dates, but is {kind}; "
                "cast it in a step",
            )
        elif fault := find_name_fault(name):
            yield _problem("partitionBy", f"column {name!r} cannot be a folder: {fault}; rename it")


def _find_unwritable(fields: list[pa.Field]) -> Iterator[str]:
    """Yield what is wrong with each column whose type Parquet does not have."""
    if _find_fault(pa.schema(fields)) is None:
        return
    for field in fields:
        if fault := _find_fault(pa.schema([field])):
            yield (
                f"column {field.name!r} cannot be written to Parquet as {field.type}: {fault}; "
                "cast or drop it in a step"
            )


def _find_fault(schema: pa.Schema) -> str | None:
    """Return why Parquet cannot have these columns; None if it can."""
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except (pa.ArrowException, NotImplementedError) as error:
        return str(error)
    return None
