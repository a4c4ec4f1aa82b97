"""Rolls partitions of a table back to what they were before a promotion.

A partition that no other writer has touched since gets its old files back, which changes metadata
only. Any other is written again without the promoted columns: rows that were appended since stay,
and rows that were deleted since stay deleted. Both kinds are one commit.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.catalogs import asking_catalog
from pipeline_runtime.iceberg.commits import Retrying, read_summary
from pipeline_runtime.promotion.partitions import (
    Partition,
    PartitionChoice,
    check_found,
    find_live,
    name_partition,
    partition_of,
)
from pipeline_runtime.promotion.rewriting import FileRewriter, open_newest, read_rows
from pipeline_runtime.promotion.swapping import (
    PROMOTION_PROPERTY,
    ROLLBACK_PROPERTY,
    TAG_PREFIX,
    Swap,
    added_files,
    check_specs,
    swap_files,
)
from pipeline_runtime.sources.iceberg import open_snapshot

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

Tasks = Mapping[str, "FileScanTask"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """A rollback that is in the table.

    Attributes:
        restored: partitions that have their old files again.
        rewritten: partitions that were written again without the promoted columns.
        columns: the promoted columns.
    """

    snapshot_id: int
    to_snapshot_id: int
    restored: tuple[str, ...]
    rewritten: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """A promotion in a table's history.

    Attributes:
        parent_id: the snapshot before it.
        columns: the field ids of the promoted columns by name.
        files: the files that it wrote, by partition.
    """

    snapshot_id: int
    parent_id: int | None
    columns: Mapping[str, int]
    files: Mapping[Partition, frozenset[str]]


def roll_back(
    catalog: Catalog,
    name: str,
    choice: PartitionChoice,
    to_snapshot_id: int,
    *,
    retrying: Retrying | None = None,
) -> RolledBack:
    """Undo the promotions of the chosen partitions since a snapshot.

    Args:
        name: the table's name, with its namespace.
        to_snapshot_id: a snapshot from before the promotions to undo.

    Raises:
        OutputRefused: nothing to undo, no such snapshot, or values that cannot be restored.
        OutputError, SourceError: as `swap_files` does.
    """
    planned: list[_Plan] = []

    def plan(table: Table, rewriter: FileRewriter) -> Swap:
        with asking_catalog(f"{name}: cannot plan the rollback"):
            planned.append(_Plan.make(table, choice, to_snapshot_id))
        return planned[-1].build_swap(rewriter)

    committed = swap_files(catalog, name, choice, plan, retrying=retrying)
    last = planned[-1]
    return RolledBack(
        snapshot_id=committed.snapshot_id,
        to_snapshot_id=to_snapshot_id,
        restored=last.name(last.restored),
        rewritten=last.name(last.rewritten),
        columns=tuple(last.columns),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The treatment of each partition.

    Attributes:
        live, old: the chosen files now, and at the snapshot to return to.
        promotions: of each partition, the newest first; never empty.
        restored: partitions that get their old files back.
    """

    table: Table
    to: Snapshot
    live: Tasks
    old: Tasks
    promotions: Mapping[Partition, Sequence[Promoted]]
    restored: tuple[Partition, ...]

    @classmethod
    def make(cls, table: Table, choice: PartitionChoice, to_id: int) -> _Plan:
        if table.format_version > 2:
            raise OutputRefused(
                f"{_name(table)}: must be of format version 1 or 2, got {table.format_version}: "
                "Lastmile cannot write version 3. Roll back with the engine that writes the table"
            )
        to, promoted = _find_promotions(table, choice, to_id)
        live = find_live(table, choice)
        check_found(table, choice, live)
        promotions: dict[Partition, list[Promoted]] = defaultdict(list)
        for partition in _group(table, live):
            found = [each for each in promoted if partition in each.files]
            if found:
                promotions[partition] = found
        if not promotions:
            raise OutputRefused(
                f"--to: must be a snapshot of {_name(table)} from before a promotion of the chosen "
                f"partitions, but none was promoted after {to_id}. {_advise(table)}"
            )
        old = find_live(table, choice, to_id)
        history = _History(table, choice)
        restored = [p for p, found in promotions.items() if history.can_restore(p, found, to_id)]
        return cls(
            table=table,
            to=to,
            live=live,
            old=old,
            promotions=promotions,
            restored=tuple(restored),
        )

    @property
    def rewritten(self) -> tuple[Partition, ...]:
        return tuple(each for each in self.promotions if each not in self.restored)

    @property
    def columns(self) -> Mapping[str, int]:
        """The promoted columns' field ids by name."""
        found = [each.columns for promotions in self.promotions.values() for each in promotions]
        return {name: field_id for columns in found for name, field_id in columns.items()}

    def name(self, partitions: Iterable[Partition]) -> tuple[str, ...]:
        """Return partitions as texts, sorted."""
        wanted = set(partitions)
        files = [task.file for task in (*self.live.values(), *self.old.values())]
        table = self.table
        return tuple(
            sorted({name_partition(table, f) for f in files if partition_of(table, f) in wanted})
        )

    def build_swap(self, rewriter: FileRewriter) -> Swap:
        live, old = _group(self.table, self.live), _group(self.table, self.old)
        tasks = [
            task for each in (live, old) for part in self.promotions for task in each.get(part, [])
        ]
        check_specs(self.table, (task.file for task in tasks))
        source = open_newest(self.table)
        removed: list[DataFile] = []
        added: list[DataFile] = []
        for partition in self.restored:
            removed += [task.file for task in live[partition]]
            added += [task.file for task in old[partition]]
        for partition in self.rewritten:
            columns = self._columns_of(partition)
            self._check_rewritable(partition, columns, old.get(partition, []))
            kept = _drop_columns(self.table.schema(), columns)
            names = [field.name for field in kept.fields]
            for task in live[partition]:
                removed.append(task.file)
                file = rewriter.rewrite(self.table, source, task, reads=names, writes=kept)
                added += [file] if file is not None else []
        oldest = [promotions[-1] for promotions in self.promotions.values()]
        tags = {each.snapshot_id: each.parent_id for each in oldest if each.parent_id is not None}
        document = {"version": 1, "to": self.to.snapshot_id, "columns": dict(self.columns)}
        return Swap(
            live=self.live,
            schema=self.table.schema(),
            removed=removed,
            added=added,
            properties={ROLLBACK_PROPERTY: json.dumps(document)},
            tags={replacing: kept for replacing, kept in tags.items() if self._has(kept)},
        )

    def _has(self, snapshot_id: int) -> bool:
        return self.table.snapshot_by_id(snapshot_id) is not None

    def _columns_of(self, partition: Partition) -> Mapping[str, int]:
        return {
            name: field_id
            for promoted in self.promotions[partition]
            for name, field_id in promoted.columns.items()
        }

    def _check_rewritable(
        self, partition: Partition, columns: Mapping[str, int], old: Sequence[FileScanTask]
    ) -> None:
        """Refuse to null columns that had values at the snapshot to return to."""
        schema_id = self.to.schema_id or 0
        schema = self.table.schemas()[schema_id]
        existed = [name for name, field_id in columns.items() if field_id in schema.field_ids]
        if not existed or not old:
            return
        names = [schema.find_column_name(columns[name]) or name for name in existed]
        source = open_snapshot(self.table, self.to.snapshot_id, schema_id)
        for rows in read_rows(source, old, names):
            for name in names:
                if rows.column(name).null_count < rows.num_rows:
                    shown = ", ".join(self.name([partition]))
                    raise OutputRefused(
                        f"{_name(self.table)}: cannot roll back {shown}: column {name!r} had "
                        f"values at {self.to.snapshot_id}, and the partition was changed since "
                        "the promotion, so its old files cannot return. Promote a staging table "
                        "with the old values by --replace instead"
                    )


class _History:
    """The live files of snapshots, by partition."""

    def __init__(self, table: Table, choice: PartitionChoice) -> None:
        self._table = table
        self._choice = choice
        self._live: dict[int, dict[Partition, list[FileScanTask]]] = {}

    def can_restore(self, partition: Partition, promotions: Sequence[Promoted], to_id: int) -> bool:
        """Return whether a partition changed by its promotions only, since a snapshot.

        Position deletes cannot be made live again by PyIceberg, and files may be gone from the
        store; such a partition is written again.
        """
        current = self._table.current_snapshot()
        at: int | None = current.snapshot_id if current else None
        for promoted in promotions:
            if not self._has_files(at, partition, promoted.files[partition]):
                return False
            at = promoted.parent_id
        old = self._find(to_id, partition)
        paths = frozenset(task.file.file_path for task in old)
        if not self._has_files(at, partition, paths):
            return False
        if any(task.delete_files for task in old):
            return False
        return all(self._table.io.new_input(path).exists() for path in paths)

    def _has_files(self, at: int | None, partition: Partition, paths: frozenset[str]) -> bool:
        if at is None or self._table.snapshot_by_id(at) is None:
            return False
        tasks = self._find(at, partition)
        is_whole = not any(task.delete_files for task in tasks)
        return is_whole and {task.file.file_path for task in tasks} == paths

    def _find(self, snapshot_id: int, partition: Partition) -> list[FileScanTask]:
        if snapshot_id not in self._live:
            live = find_live(self._table, self._choice, snapshot_id)
            self._live[snapshot_id] = _group(self._table, live)
        return self._live[snapshot_id].get(partition, [])


def _find_promotions(
    table: Table, choice: PartitionChoice, to_id: int
) -> tuple[Snapshot, list[Promoted]]:
    """Return the snapshot, and the promotions after it, the newest first."""
    from pyiceberg.table.snapshots import ancestors_of

    if table.snapshot_by_id(to_id) is None:
        raise OutputRefused(
            f"--to: must be a snapshot of {_name(table)}, but it has no {to_id}, or it has "
            f"expired. {_advise(table)}"
        )
    promoted: list[Promoted] = []
    undone: dict[Partition, int] = {}  # until the walk reaches the snapshot of the rollback
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        undone = {part: to for part, to in undone.items() if to != snapshot.snapshot_id}
        if snapshot.snapshot_id == to_id:
            return snapshot, promoted
        summary = read_summary(snapshot)
        if ROLLBACK_PROPERTY in summary:
            to = json.loads(summary[ROLLBACK_PROPERTY])["to"]
            files = _added_by_partition(table, choice, snapshot)
            undone |= {partition: to for partition in files if partition not in undone}
        elif PROMOTION_PROPERTY in summary:
            files = _added_by_partition(table, choice, snapshot)
            promoted.append(
                Promoted(
                    snapshot_id=snapshot.snapshot_id,
                    parent_id=snapshot.parent_snapshot_id,
                    columns=json.loads(summary[PROMOTION_PROPERTY])["columns"],
                    files={part: paths for part, paths in files.items() if part not in undone},
                )
            )
    raise OutputRefused(
        f"--to: must be an ancestor of the newest snapshot of {_name(table)}, but {to_id} is on "
        f"another branch, or a snapshot between the two has expired. {_advise(table)}"
    )


def _added_by_partition(
    table: Table, choice: PartitionChoice, snapshot: Snapshot
) -> dict[Partition, frozenset[str]]:
    """Return the files that a snapshot added to the chosen partitions."""
    files: dict[Partition, set[str]] = defaultdict(set)
    for file in added_files(table, snapshot.snapshot_id):
        if choice.contains(table, file):
            files[partition_of(table, file)].add(file.file_path)
    return {partition: frozenset(paths) for partition, paths in files.items()}


def _drop_columns(schema: Schema, columns: Mapping[str, int]) -> Schema:
    from pyiceberg.schema import Schema as IcebergSchema

    dropped = set(columns.values())
    fields = [field for field in schema.fields if field.field_id not in dropped]
    return IcebergSchema(*fields, schema_id=schema.schema_id)


def _group(table: Table, tasks: Tasks) -> dict[Partition, list[FileScanTask]]:
    groups: dict[Partition, list[FileScanTask]] = defaultdict(list)
    for task in tasks.values():
        groups[partition_of(table, task.file)].append(task)
    return groups


def _advise(table: Table) -> str:
    """Return the snapshots before promotions, which tags keep."""
    refs = table.metadata.refs
    tagged = [str(ref.snapshot_id) for tag, ref in refs.items() if tag.startswith(TAG_PREFIX)]
    if not tagged:
        return "No promotion of the table is known"
    return f"Snapshots before promotions: {', '.join(tagged)}"


def _name(table: Table) -> str:
    return ".".join(table.name())
