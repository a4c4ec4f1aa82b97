"""Staging tables: keys and new columns, looked up by the rows of a main table.

Where both tables are partitioned by columns of the key, a file of the main table needs only a
group of the staging table's files: those of equal partition values and, of bucket numbers that are
equal modulo the greatest common divisor of both bucket counts. One group at a time is in memory.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.pins import Reference, find_pin
from pipeline_runtime.promotion.partitions import PartitionChoice, find_live
from pipeline_runtime.promotion.rewriting import read_rows
from pipeline_runtime.sources.iceberg import IcebergTable, open_snapshot
from pipeline_runtime.steps.list_columns import Bools, Int64s
from pipeline_runtime.steps.side_tables import KeyIndex, build_index, describe_repeated, has_null

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.types import IcebergType

Group = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTable:
    """A staging table, pinned to a snapshot.

    Attributes:
        source: the rows of the snapshot.
        left_keys, right_keys: the key's columns in the main table and in this one.
        columns: the new columns.
        max_bytes: bound on the memory of one group of its files.
    """

    name: str
    table: Table
    source: IcebergTable
    snapshot_id: int
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    columns: tuple[str, ...]
    max_bytes: int

    @property
    def schema(self) -> Schema:
        """The columns of the pinned snapshot."""
        return self.table.schemas()[self.source.pin.schema_id]

    def find_types(self) -> dict[str, IcebergType]:
        """Return the types of the new columns by name."""
        return {name: self.schema.find_field(name).field_type for name in self.columns}

    def check(self, main: Table) -> None:
        """Check that the columns exist, and that the keys compare.

        Raises OutputRefused if not.
        """
        main_name = ".".join(main.name())
        wanted = ((main_name, main.schema(), self.left_keys),)
        for name, schema, columns in (*wanted, (self.name, self.schema, self._all_columns)):
            known = [each.name for each in schema.fields]
            for column in columns:
                if column not in known:
                    raise OutputRefused(
                        f"{name}: must have the column {column!r}, but has {', '.join(known)}. "
                        "Correct the join's keys or columns"
                    )
        for left, right in zip(self.left_keys, self.right_keys, strict=True):
            ours = main.schema().find_field(left).field_type
            theirs = self.schema.find_field(right).field_type
            if ours != theirs and not {str(ours), str(theirs)} <= {"int", "long"}:
                raise OutputRefused(
                    f"{self.name}: the key {right!r} must have the type of {left!r} in "
                    f"{main_name}, {ours}, but has {theirs}. Write the staging table with that type"
                )

    @property
    def _all_columns(self) -> tuple[str, ...]:
        return (*self.right_keys, *self.columns)

    def read(self, tasks: Sequence[FileScanTask]) -> pa.Table:
        """Return the rows of files, of the key and the new columns.

        Raises OutputRefused if they take more than `max_bytes`.
        """
        parts: list[pa.Table] = []
        num_bytes = 0
        for part in read_rows(self.source, tasks, self._all_columns):
            parts.append(part)
            num_bytes += part.nbytes
            if num_bytes > self.max_bytes:
                total = sum(task.file.record_count for task in tasks)
                raise OutputRefused(
                    f"{self.name}: {sum(p.num_rows for p in parts):,} of {total:,} rows that must "
                    f"be in memory together take {num_bytes} bytes, more than maxBytes "
                    f"({self.max_bytes}) of the join. Bucket the staging table by its key as the "
                    "main table is, or raise maxBytes"
                )
        schema = pa.schema([self.source.schema.field(name) for name in self._all_columns])
        return pa.concat_tables(parts) if parts else schema.empty_table()


def pin_staging(
    reference: Reference,
    table: Table,
    *,
    left_keys: tuple[str, ...],
    right_keys: tuple[str, ...],
    columns: tuple[str, ...] | None = None,
    max_bytes: int,
) -> StagingTable:
    """Return a staging table at a snapshot.

    Args:
        reference: the table and its state, as a manifest names them.
        columns: the new columns; all but the key if None.

    Raises SourceError if there is no such state, OutputRefused if there is nothing to promote.
    """
    name, pin = reference.table, find_pin(reference, table.metadata)
    if pin.snapshot_id is None:
        raise OutputRefused(f"{name}: must have rows, but nothing was written yet. Write it first")
    schema = table.schemas()[pin.schema_id]
    every = tuple(field.name for field in schema.fields if field.name not in right_keys)
    wanted = tuple(column for column in columns or every if column not in right_keys)
    if not wanted:
        raise OutputRefused(f"{name}: must have a column beside its key, but has none. Add one")
    return StagingTable(
        name=name,
        table=table,
        source=open_snapshot(table, int(pin.snapshot_id), pin.schema_id),
        snapshot_id=int(pin.snapshot_id),
        left_keys=left_keys,
        right_keys=right_keys,
        columns=wanted,
        max_bytes=max_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedField:
    """A partition field of both tables, by its position in each; buckets are equal by a modulus."""

    main: int
    side: int
    modulus: int | None

    def key_of(self, value: Any) -> Any:
        return value % self.modulus if self.modulus and value is not None else value


@dataclass(slots=True)
class _Matches:
    """The rows of one group that some row of the main table has matched."""

    matched: Bools
    num_null_keys: int


@dataclass(slots=True)
class StagingJoin:
    """Looks rows up in a staging table, one group of its files at a time."""

    staging: StagingTable
    shared: tuple[_SharedField, ...]
    tasks: Mapping[Group, Sequence[FileScanTask]]
    matches: dict[Group, _Matches] = field(default_factory=dict)
    _loaded: tuple[Group, KeyIndex] | None = None

    @classmethod
    def open(cls, main: Table, live: Iterable[FileScanTask], staging: StagingTable) -> StagingJoin:
        """Group the files of a staging table by what files of the main table need.

        Args:
            live: the files of the main table.
        """
        found = find_live(staging.table, PartitionChoice(), staging.snapshot_id)
        files = sorted(found.values(), key=lambda task: task.file.file_path)
        shared = _find_shared(main, live, staging, files)
        tasks: dict[Group, list[FileScanTask]] = defaultdict(list)
        for task in files:
            values = task.file.partition
            tasks[tuple(each.key_of(values[each.side]) for each in shared)].append(task)
        return cls(staging=staging, shared=shared, tasks=tasks)

    def group_of(self, task: FileScanTask) -> Group:
        """Return the group that a file of the main table needs."""
        values = task.file.partition
        return tuple(each.key_of(values[each.main]) for each in self.shared)

    def find(self, group: Group, rows: pa.Table) -> tuple[Int64s, Bools, pa.Table]:
        """Look rows of the main table up.

        Returns the row of the group for each row, whether there is none, and the group's rows.

        Raises OutputRefused if a key is twice in the group, or the group takes too much memory.
        """
        index = self._load(group)
        left, right = index.find([rows.column(key) for key in self.staging.left_keys])
        missing = np.ones(rows.num_rows, dtype=np.bool_)
        missing[left] = False
        found = np.zeros(rows.num_rows, dtype=np.int64)
        found[left] = right
        self.matches[group].matched[right] = True
        return found, missing, index.table

    def visit_rest(self, live: Iterable[FileScanTask]) -> None:
        """Load the groups that no file of the main table needed, to check and count their keys.

        Groups of partitions other than those of the files, such as other days, are left out.
        """
        plain = [index for index, each in enumerate(self.shared) if each.modulus is None]
        chosen = {tuple(self.group_of(task)[index] for index in plain) for task in live}
        for group in self.tasks:
            if group not in self.matches and tuple(group[index] for index in plain) in chosen:
                self._load(group)

    def _load(self, group: Group) -> KeyIndex:
        if self._loaded is not None and self._loaded[0] == group:
            return self._loaded[1]
        self._loaded = None  # free its memory before the next is loaded
        rows = self.staging.read(self.tasks.get(group, ()))
        index = build_index(rows, self.staging.right_keys)
        if group not in self.matches:
            self._check_unique(index)
            keys = [index.table.column(key) for key in self.staging.right_keys]
            self.matches[group] = _Matches(
                matched=np.zeros(rows.num_rows, dtype=np.bool_),
                num_null_keys=int(has_null(keys).sum()) if rows.num_rows else 0,
            )
        self._loaded = group, index
        return index

    def _check_unique(self, index: KeyIndex) -> None:
        if (repeated := describe_repeated(index)) is not None:
            raise OutputRefused(
                f"{self.staging.name}: must have each key once, but {repeated}. Write the staging "
                "table again with one row per key"
            )


def _find_shared(
    main: Table, live: Iterable[FileScanTask], staging: StagingTable, files: Iterable[FileScanTask]
) -> tuple[_SharedField, ...]:
    """Return the partition fields of both tables that equal keys have in common.

    Files of an older partition spec may have other fields, so there are none then.
    """
    from pyiceberg.transforms import BucketTransform, VoidTransform

    main_spec, side_spec = main.spec(), staging.table.spec()
    if any(task.file.spec_id != main_spec.spec_id for task in live):
        return ()
    if any(task.file.spec_id != side_spec.spec_id for task in files):
        return ()
    pairs = dict(zip(staging.left_keys, staging.right_keys, strict=True))
    shared = []
    for main_at, ours in enumerate(main_spec.fields):
        right = pairs.get(main.schema().find_column_name(ours.source_id) or "")
        for side_at, theirs in enumerate(side_spec.fields):
            if staging.table.schema().find_column_name(theirs.source_id) != right:
                continue
            mine, other = ours.transform, theirs.transform
            modulus = None
            if isinstance(mine, BucketTransform) and isinstance(other, BucketTransform):
                modulus = math.gcd(mine.num_buckets, other.num_buckets)
            elif mine != other or isinstance(mine, VoidTransform):
                continue
            shared.append(_SharedField(main=main_at, side=side_at, modulus=modulus))
    return tuple(shared)
