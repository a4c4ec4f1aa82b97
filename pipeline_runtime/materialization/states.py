"""The state of an Iceberg table: a fingerprint of each partition's files, and what changed since.

A partition is a set of rows with equal partition values, whatever their buckets. Rows of a table
without partitions, or whose files have several partition specs, are one partition.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_FINGERPRINT_CHARS = 16  # of a SHA-256, as of the run's hash
WHOLE = "{}"  # the key of the only partition of a table that has no others


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A field of a partition spec that is not a bucket.

    Attributes:
        column: name of the source column; None if it was dropped.
        transform: Iceberg's name of the transform, such as `identity` or `day`.
    """

    column: str | None
    transform: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The rows of a partition.

    Attributes:
        values: a value per dimension, as Iceberg stores it; a date is a number of days.
        fingerprint: changes with the data files, and with the delete files that apply to them.
        places: the data files, as the units of a source name them (`Unit.place`).
    """

    values: tuple[Any, ...]
    fingerprint: str
    rows: int
    num_bytes: int
    places: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The rows of a snapshot, by partition.

    Attributes:
        snapshot_id: None for a table without a snapshot.
        partitions: by key: a JSON object with the values as texts, such as `{"day":"2026-01-01"}`.
    """

    uuid: str
    snapshot_id: int | None
    dimensions: tuple[Dimension, ...]
    partitions: Mapping[str, PartitionState]

    @property
    def fingerprint(self) -> str:
        """Return a fingerprint of all partitions together."""
        return _digest(f"{key}\n{each.fingerprint}" for key, each in self.partitions.items())


def read_state(
    table: Table, snapshot_id: int | None = None, schema: Schema | None = None
) -> TableState:
    """Read the state of a snapshot, or of the newest one.

    Args:
        schema: names the columns of the dimensions; None for the table's current one.

    Raises what PyIceberg raises, so call it within `asking_catalog`.
    """
    if snapshot_id is None and (snapshot := table.current_snapshot()):
        snapshot_id = snapshot.snapshot_id
    tasks = list(table.scan(snapshot_id=snapshot_id).plan_files()) if snapshot_id else []
    keys = _Keys(table, {task.file.spec_id for task in tasks}, schema)
    lines: defaultdict[str, list[str]] = defaultdict(list)
    rows: defaultdict[str, int] = defaultdict(int)
    num_bytes: defaultdict[str, int] = defaultdict(int)
    values: dict[str, tuple[Any, ...]] = {}
    places: defaultdict[str, set[str]] = defaultdict(set)
    root = table.location().rstrip("/") + "/"
    for task in tasks:
        key = keys.build(task.file)
        values[key] = keys.find_values(task.file)
        deletes = sorted(file.file_path for file in task.delete_files)
        lines[key].append("\n ".join([task.file.file_path, *deletes]))
        places[key].add(task.file.file_path.removeprefix(root))
        rows[key] += task.file.record_count
        num_bytes[key] += task.file.file_size_in_bytes
    partitions = {
        key: PartitionState(
            values=values[key],
            fingerprint=_digest(lines[key]),
            rows=rows[key],
            num_bytes=num_bytes[key],
            places=frozenset(places[key]),
        )
        for key in sorted(lines)
    }
    return TableState(
        uuid=str(table.metadata.table_uuid),
        snapshot_id=snapshot_id,
        dimensions=keys.dimensions,
        partitions=partitions,
    )


def find_changed(table: Table, state: TableState, since: int) -> frozenset[str] | None:
    """Return the partitions whose rows snapshots after `since` changed, up to that of the state.

    A snapshot that replaces files, as a compaction does, changes no row. None means that all may
    have changed: `since` has expired, or is on another branch.
    """
    from pyiceberg.manifest import ManifestEntryStatus
    from pyiceberg.table.snapshots import Operation, ancestors_of

    keys = _Keys(table, None if state.dimensions else set())
    changed: set[str] = set()
    newest = table.metadata.snapshot_by_id(state.snapshot_id) if state.snapshot_id else None
    for snapshot in ancestors_of(newest, table.metadata):
        number = snapshot.snapshot_id
        if number == since:
            return frozenset(changed)
        if snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE:
            continue
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != number:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.status != ManifestEntryStatus.EXISTING and entry.snapshot_id == number:
                    changed.add(keys.build(entry.data_file))
    return None


class _Keys:
    """Builds the keys of partitions.

    Args:
        spec_ids: specs of the table's files; None for those of a table that is known to have
            partitions.
    """

    def __init__(
        self, table: Table, spec_ids: set[int] | None, schema: Schema | None = None
    ) -> None:
        self._specs = table.specs()
        self._schema = schema or table.schema()
        found = {_list_signature(_list_fields(self._specs[number])) for number in spec_ids or ()}
        self._is_whole = spec_ids is not None and (len(found) != 1 or found == {()})
        self.dimensions: tuple[Dimension, ...] = ()
        if spec_ids and not self._is_whole:
            fields = _list_fields(self._specs[next(iter(spec_ids))])
            self.dimensions = tuple(
                Dimension(
                    column=self._schema.find_column_name(field.source_id),
                    transform=str(field.transform),
                )
                for _, field in fields
            )

    def find_values(self, file: DataFile) -> tuple[Any, ...]:
        """Return the file's value of each dimension."""
        if self._is_whole:
            return ()
        return tuple(file.partition[place] for place, _ in _list_fields(self._specs[file.spec_id]))

    def build(self, file: DataFile) -> str:
        """Return the key of the partition that a file is in."""
        if self._is_whole:
            return WHOLE
        texts = {}
        for place, field in _list_fields(self._specs[file.spec_id]):
            value = file.partition[place]
            source = self._schema._lazy_id_to_field.get(field.source_id)
            if value is None or source is None:
                texts[field.name] = value
            else:
                texts[field.name] = field.transform.to_human_string(source.field_type, value)
        return json.dumps(texts, sort_keys=True, separators=(",", ":"), default=str)


def _list_fields(spec: Any) -> list[tuple[int, PartitionField]]:
    """Return the fields of a spec that are no buckets, with their place in partition values."""
    from pyiceberg.transforms import BucketTransform, VoidTransform

    return [
        (place, field)
        for place, field in enumerate(spec.fields)
        if not isinstance(field.transform, BucketTransform | VoidTransform)
    ]


def _list_signature(fields: list[tuple[int, PartitionField]]) -> tuple[tuple[str, int, str], ...]:
    return tuple(sorted((f.name, f.source_id, str(f.transform)) for _, f in fields))


def _digest(lines: Iterator[str] | list[str]) -> str:
    text = "\n".join(sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()[:_FINGERPRINT_CHARS]
