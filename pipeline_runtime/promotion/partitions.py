"""Partitions of an Iceberg table as a user names them, and the live files in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.catalogs import asking_catalog

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

_MAX_SHOWN = 8
_NULL = "null"

# A partition: the id of its spec, and its values as texts.
Partition = tuple[int, tuple[str, ...]]
# The state of a data file: its path, and those of its delete files.
Fingerprint = tuple[str, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChoice:
    """The chosen partitions of a table.

    Attributes:
        wanted: alternatives; each maps names of partition fields to values as texts. All
            partitions if empty.
    """

    wanted: tuple[Mapping[str, str], ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> PartitionChoice:
        """Parse texts such as `day=2026-01-01` or `day=2026-01-01,user_id_bucket=3`.

        A null is `null`. In a text, a comma is `%2C`, and the text null is `%6Eull`.

        Raises OutputRefused if one has another form.
        """
        wanted = []
        for text in texts:
            fields: dict[str, str] = {}
            for part in text.split(","):
                name, equals, value = part.partition("=")
                if not name or not equals or name in fields:
                    raise OutputRefused(
                        f"--partition: must be NAME=VALUE, or several of different names with "
                        f"commas, got {text!r}. Write it like day=2026-01-01"
                    )
                fields[name] = value if value == _NULL else encode_value(unquote(value))
            wanted.append(fields)
        return cls(wanted=tuple(wanted))

    def contains(self, table: Table, file: DataFile) -> bool:
        """Return whether a data file belongs to a chosen partition.

        Raises OutputRefused if the file's partition lacks a field that is named.
        """
        if not self.wanted:
            return True
        values = dict(_name_values(table, file))
        for fields in self.wanted:
            for name in fields:
                if name not in values:
                    raise OutputRefused(
                        f"--partition: must name fields of the partition of {file.file_path} "
                        f"({', '.join(values) or 'none'}), got {name!r}. Correct it or, if the "
                        "file has an older partition spec, rewrite the table's data files"
                    )
        return self.matches(values)

    def matches(self, values: Mapping[str, str]) -> bool:
        """Return whether a partition with these values of its fields is chosen."""
        return not self.wanted or any(fields.items() <= values.items() for fields in self.wanted)


def find_live(
    table: Table, choice: PartitionChoice, snapshot_id: int | None = None
) -> dict[str, FileScanTask]:
    """Return the live data files of the chosen partitions by path, with their delete files.

    Args:
        snapshot_id: the newest snapshot if None.

    Raises SourceError or StoreError as `asking_catalog` does, for equality deletes too.
    """
    name = ".".join(table.name())
    with asking_catalog(f"{name}: cannot plan the files to read"):
        tasks = list(table.scan(snapshot_id=snapshot_id).plan_files())
    return {task.file.file_path: task for task in tasks if choice.contains(table, task.file)}


def check_found(table: Table, choice: PartitionChoice, found: Mapping[str, FileScanTask]) -> None:
    """Raise OutputRefused if no file is in the chosen partitions, with partitions that exist."""
    if found:
        return
    every = find_live(table, PartitionChoice())
    shown = sorted({name_partition(table, task.file) for task in every.values()})
    rest = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
    name = ".".join(table.name())
    raise OutputRefused(
        f"--partition: must choose a partition of {name} that has rows, but none of "
        f"{', '.join(shown[:_MAX_SHOWN]) or 'no partitions'}{rest} is chosen. Correct it"
    )


def partition_of(table: Table, file: DataFile) -> Partition:
    """Return the partition of a data file."""
    return file.spec_id, tuple(value for _, value in _name_values(table, file))


def name_partition(table: Table, file: DataFile) -> str:
    """Return the partition of a data file as a text, such as `day=2026-01-01,user_id_bucket=3`."""
    return ",".join(f"{name}={value}" for name, value in _name_values(table, file)) or "(all rows)"


def fingerprint(task: FileScanTask) -> Fingerprint:
    """Return what determines the rows of a data file."""
    return task.file.file_path, frozenset(file.file_path for file in task.delete_files)


def _name_values(table: Table, file: DataFile) -> list[tuple[str, str]]:
    """Return the names of a file's partition fields, and the texts of their values."""
    spec = table.specs()[file.spec_id]
    schemas = [table.schema(), *reversed(table.schemas().values())]
    named = []
    for position, field in enumerate(spec.fields):
        # The column of an older spec may be dropped.
        known = next(each for each in schemas if field.source_id in each.field_ids)
        value = file.partition[position]
        text = field.transform.to_human_string(known.find_type(field.source_id), value)
        named.append((field.name, encode_value(None if value is None else text)))
    return named


def encode_value(text: str | None) -> str:
    """Return the text of a value that `PartitionChoice.parse` reads; a null has one of its own."""
    if text is None:
        return _NULL
    if text == _NULL:
        return "%6Eull"
    return text.replace("%", "%25").replace(",", "%2C")
