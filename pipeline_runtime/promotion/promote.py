"""Joins staging tables to chosen partitions of a main table, and commits the result at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline_runtime.errors import OutputError, OutputRefused
from pipeline_runtime.iceberg.catalogs import ask_catalog
from pipeline_runtime.iceberg.commits import Retrying, read_summary
from pipeline_runtime.iceberg.schemas import without_ids
from pipeline_runtime.promotion.partitions import (
    Fingerprint,
    PartitionChoice,
    check_found,
    find_live,
    fingerprint,
    name_partition,
)
from pipeline_runtime.promotion.rewriting import FileRewriter, open_newest, read_rows
from pipeline_runtime.promotion.staging import StagingJoin, StagingTable
from pipeline_runtime.promotion.swapping import (
    PROMOTION_PROPERTY,
    Swap,
    add_columns,
    added_files,
    check_specs,
    swap_files,
)
from pipeline_runtime.sources.iceberg import IcebergTable

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import IcebergType


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingReport:
    """The rows of a staging table in a promotion.

    Attributes:
        rows: rows that were read.
        unmatched: rows whose key is in no row of the chosen partitions, or is null.
        null_keys: those of them with a null in the key.
        missing: rows of the main table that have no match, and get nulls.
        nulls: nulls of each new column in the main table, `missing` included.
    """

    table: str
    snapshot_id: int
    rows: int
    unmatched: int
    null_keys: int
    missing: int
    nulls: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionReport:
    """A promotion, planned or committed.

    Attributes:
        snapshot_id: of the commit; None for a dry run of a new promotion.
        previous_snapshot_id: the newest snapshot before it, to which a rollback can return.
        is_repeated: True if all files had been promoted before, from the same snapshots of the
            staging tables, so that nothing was to do.
        rows, files: of the main table, in the chosen partitions.
    """

    table: str
    snapshot_id: int | None
    previous_snapshot_id: int | None
    is_repeated: bool = False
    partitions: tuple[str, ...]
    rows: int
    files: int
    staging: tuple[StagingReport, ...]


@dataclass(frozen=True, slots=True)
class _FileCounts:
    """The rows of a file, those without a match by staging table, and the nulls of new columns."""

    rows: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)


class _Repeated(Exception):
    """The promotion was committed before, and nothing has changed since."""


def promote(
    catalog: Catalog,
    name: str,
    choice: PartitionChoice,
    staging: Sequence[StagingTable],
    *,
    replaces: bool = False,
    dry_run: bool = False,
    retrying: Retrying | None = None,
) -> PromotionReport:
    """Add the columns of staging tables to the rows of the chosen partitions, in one commit.

    The schema gets new columns at the end. Rows without a match get nulls. If another writer
    changes the chosen partitions meanwhile, the files that changed are joined again. Files that the
    same promotion wrote before, of other partitions perhaps, stay.

    Args:
        name: the main table's name, with its namespace.
        replaces: True replaces values of columns that the main table has already.
        dry_run: True only reads.

    Raises:
        OutputRefused: duplicate keys, columns or keys that do not fit, or values to replace.
        OutputError, SourceError: as `swap_files` does.
    """
    promotion = _Promotion(name=name, choice=choice, staging=tuple(staging), replaces=replaces)
    if dry_run:
        table = ask_catalog(f"{name}: cannot load the table", lambda: catalog.load_table(name))
        promotion.count(table)
        return promotion.report(None)
    try:
        committed = swap_files(catalog, name, choice, promotion.plan, retrying=retrying)
    except _Repeated:
        return promotion.report(None)
    return promotion.report(committed.snapshot_id)


@dataclass(slots=True, kw_only=True)
class _Promotion:
    """A promotion over all its plans: counts of files that stay the same are kept."""

    name: str
    choice: PartitionChoice
    staging: tuple[StagingTable, ...]
    replaces: bool
    table: Table | None = None
    live: Mapping[str, FileScanTask] = field(default_factory=dict)
    joins: list[StagingJoin] = field(default_factory=list)
    counts: dict[Fingerprint, _FileCounts] = field(default_factory=dict)
    schema: Schema | None = None
    promoted: Mapping[str, Snapshot] = field(default_factory=dict)

    @property
    def is_repeated(self) -> bool:
        """Return whether the same promotion wrote all live files."""
        return len(self.promoted) == len(self.live)

    def plan(self, table: Table, rewriter: FileRewriter) -> Swap:
        """Join the files that are not joined yet, and return the change."""
        schema, adds = self._begin(table)
        if self.is_repeated:
            self.count(table)
            raise _Repeated
        source = open_newest(table)
        added, removed = [], []
        for task in self._in_order():
            if task.file.file_path in self.promoted:
                self._count(source, task)
                continue
            removed.append(task.file)
            file = rewriter.rewrite(
                table,
                source,
                task,
                reads=[column.name for column in table.schema().fields],
                writes=schema,
                change=lambda rows, task=task: self._join(task, rows),  # type: ignore[misc]
                replaces=[column for each in self.staging for column in each.columns],
            )
            added += [file] if file is not None else []
        self._finish()
        return Swap(
            live=self.live,
            schema=schema,
            adds=adds,
            removed=removed,
            added=added,
            properties={PROMOTION_PROPERTY: json.dumps(self._describe(schema))},
            is_tagging_previous=True,
        )

    def count(self, table: Table) -> None:
        """Look up the rows of all files, and count; write nothing."""
        self._begin(table)
        source = open_newest(table)
        for task in self._in_order():
            self._count(source, task)
        self._finish()

    def _count(self, source: IcebergTable, task: FileScanTask) -> None:
        """Look up the rows of a file, and count, unless they are counted."""
        if fingerprint(task) in self.counts:
            return
        needed = [key for each in self.staging for key in each.left_keys]
        names = set(source.schema.names)
        needed += [name for each in self.staging for name in each.columns if name in names]
        for rows in read_rows(source, [task], list(dict.fromkeys(needed))):
            self._join(task, rows)

    def report(self, snapshot_id: int | None) -> PromotionReport:
        """Return what the last plan, or `count`, did."""
        assert self.table is not None
        table, tasks = self.table, list(self.live.values())
        before = table.current_snapshot()
        if self.is_repeated:
            commits = sorted(self.promoted.values(), key=lambda each: each.timestamp_ms)
            snapshot_id = commits[-1].snapshot_id
            before = table.snapshot_by_id(commits[0].parent_snapshot_id or 0)
        counts = [self.counts.get(fingerprint(task), _FileCounts()) for task in tasks]
        return PromotionReport(
            table=self.name,
            snapshot_id=snapshot_id,
            previous_snapshot_id=before.snapshot_id if before else None,
            is_repeated=self.is_repeated,
            partitions=tuple(sorted({name_partition(table, task.file) for task in tasks})),
            rows=sum(each.rows for each in counts),
            files=len(tasks),
            staging=tuple(self._report_staging(join, counts) for join in self.joins),
        )

    def _report_staging(self, join: StagingJoin, counts: Sequence[_FileCounts]) -> StagingReport:
        name = join.staging.name
        groups = join.matches.values()
        return StagingReport(
            table=name,
            snapshot_id=join.staging.snapshot_id,
            rows=sum(len(each.matched) for each in groups),
            unmatched=sum(int((~each.matched).sum()) for each in groups),
            null_keys=sum(each.num_null_keys for each in groups),
            missing=sum(each.missing.get(name, 0) for each in counts),
            nulls={
                column: sum(each.nulls.get(column, 0) for each in counts)
                for column in join.staging.columns
            },
        )

    def _begin(self, table: Table) -> tuple[Schema, Mapping[str, IcebergType]]:
        """Check the tables, and return the new schema and the columns that it adds."""
        adds = _check_tables(table, self.staging)
        self.table, self.live = table, find_live(table, self.choice)
        check_found(table, self.choice, self.live)
        check_specs(table, (task.file for task in self.live.values()))
        joins = [StagingJoin.open(table, self.live.values(), each) for each in self.staging]
        if not self.joins:
            self.joins = joins
        elif [each.shared for each in joins] != [each.shared for each in self.joins]:
            raise OutputError(
                f"{self.name}: the table's partition spec was changed during the promotion. "
                "The table was not promoted; run it again"
            )
        schema = add_columns(table, adds).table_metadata.schema()
        if schema != self.schema:  # all files are written again
            self.counts.clear()
        self.schema, self.promoted = schema, self._find_promoted(table, self._describe(schema))
        return schema, adds

    def _in_order(self) -> list[FileScanTask]:
        """Return the files in an order that loads a group of a staging table rarely."""

        def key(task: FileScanTask) -> Any:
            groups = [value for join in self.joins for value in join.group_of(task)]
            return [(value is not None, value) for value in groups], task.file.file_path

        return sorted(self.live.values(), key=key)

    def _join(self, task: FileScanTask, rows: pa.Table) -> pa.Table:
        """Replace or append the new columns of rows of a file, and count."""
        key = fingerprint(task)
        before = self.counts.get(key, _FileCounts())
        missing, nulls = dict(before.missing), dict(before.nulls)
        joined = rows
        for join in self.joins:
            found, is_missing, side = join.find(join.group_of(task), rows)
            name = join.staging.name
            missing[name] = missing.get(name, 0) + int(is_missing.sum())
            taken = side.select(join.staging.columns).take(pa.array(found, mask=is_missing))
            for column in join.staging.columns:
                values = taken.column(column)
                nulls[column] = nulls.get(column, 0) + values.null_count
                if column in joined.column_names:
                    self._check_replaced(task, column, rows.column(column))
                    joined = joined.drop_columns([column])
                joined = joined.append_column(column, values)
        self.counts[key] = _FileCounts(before.rows + rows.num_rows, missing, nulls)
        return joined

    def _check_replaced(self, task: FileScanTask, column: str, values: pa.ChunkedArray) -> None:
        is_promoted = task.file.file_path in self.promoted
        if self.replaces or is_promoted or values.null_count == len(values):
            return
        assert self.table is not None
        partition = name_partition(self.table, task.file)
        raise OutputRefused(
            f"{self.name}: column {column!r} must have no values yet, but has some in {partition}. "
            "Replace them by --replace, or name the staging table's column differently"
        )

    def _finish(self) -> None:
        for join in self.joins:
            join.visit_rest(self.live.values())

    def _describe(self, schema: Schema) -> dict[str, Any]:
        columns = [name for each in self.staging for name in each.columns]
        return {
            "version": 1,
            "columns": {name: schema.find_field(name).field_id for name in columns},
            "staging": [
                {
                    "table": each.name,
                    "uuid": str(each.table.metadata.table_uuid),
                    "snapshot": each.snapshot_id,
                    "keys": [list(each.left_keys), list(each.right_keys)],
                }
                for each in self.staging
            ],
        }

    def _find_promoted(self, table: Table, document: Mapping[str, Any]) -> dict[str, Snapshot]:
        """Return the live files that commits of the same promotion wrote, with these commits."""
        whole = {path for path, task in self.live.items() if not task.delete_files}
        return {
            file.file_path: snapshot
            for snapshot in table.metadata.snapshots
            if (text := read_summary(snapshot).get(PROMOTION_PROPERTY)) is not None
            and json.loads(text) == document
            for file in added_files(table, snapshot.snapshot_id)
            if file.file_path in whole
        }


def _check_tables(table: Table, staging: Sequence[StagingTable]) -> dict[str, IcebergType]:
    """Check that the promotion fits the main table; return the columns that it has not yet."""
    name = ".".join(table.name())
    if table.format_version > 2:
        raise OutputRefused(
            f"{name}: must be of format version 1 or 2, got {table.format_version}: Lastmile "
            "cannot write version 3. Join the staging tables by the engine that writes the table"
        )
    schema = table.schema()
    fixed = {schema.find_column_name(part.source_id) for part in table.spec().fields}
    fixed |= {key for each in staging for key in each.left_keys}
    present = {column.name: column.field_type for column in schema.fields}
    adds: dict[str, IcebergType] = {}
    seen: set[str] = set()
    for each in staging:
        each.check(table)
        for column, kind in each.find_types().items():
            if column in seen or column in fixed:
                used = "another staging table" if column in seen else "a key or a partition"
                raise OutputRefused(
                    f"{each.name}: column {column!r} must be new, but is one of {used} of {name}. "
                    "Name it differently"
                )
            seen.add(column)
            if column not in present:
                adds[column] = kind
            elif without_ids(present[column]) != without_ids(kind):
                raise OutputRefused(
                    f"{each.name}: column {column!r} must have the type it has in {name}, "
                    f"{without_ids(present[column])}, but has {without_ids(kind)}. Write it with "
                    "that type"
                )
    return adds
