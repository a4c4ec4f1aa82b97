"""A snapshot that replaces all rows of a table; import it late, as it imports PyIceberg."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from uuid import UUID

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import (
    _new_manifest_file_name,
    _new_manifest_list_file_name,
    _OverwriteFiles,
)


class ReplaceAll(_OverwriteFiles):
    """Deletes all files of the newest snapshot, delete files too, and adds others.

    PyIceberg's overwrite keeps delete files, and builds a predicate that is nested as deep as there
    are partitions, although nothing is to be kept.
    """

    def __init__(
        self, transaction: Transaction, properties: dict[str, str], commit_uuid: UUID
    ) -> None:
        """Begin a snapshot.

        Args:
            properties: of its summary.
            commit_uuid: unique; part of the names of its manifests.
        """
        io = transaction._table.io
        snapshot = transaction.table_metadata.current_snapshot()
        self._live = list(list_entries(snapshot, io)) if snapshot else []
        super().__init__(
            operation=Operation.OVERWRITE if self._live else Operation.APPEND,
            transaction=transaction,
            io=io,
            commit_uuid=commit_uuid,
            snapshot_properties=properties,
        )
        for entry in self._live:
            self.delete_data_file(entry.data_file)

    def _existing_manifests(self) -> list[ManifestFile]:
        return []

    def _deleted_entries(self) -> list[ManifestEntry]:
        # Entries of delete files need a manifest of another kind, and need none to be gone.
        return [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.DELETED,
                snapshot_id=self._snapshot_id,
                sequence_number=entry.sequence_number,
                file_sequence_number=entry.file_sequence_number,
                data_file=entry.data_file,
            )
            for entry in self._live
            if entry.data_file.content == DataFileContent.DATA
        ]

    def _build_delete_files_partition_predicate(self) -> None:
        """Build none: no manifest is kept."""


def name_metadata(commit_uuid: UUID, snapshot_id: int) -> tuple[str, Iterator[str]]:
    """Return the names of the manifest list and of the manifests, without end, of a snapshot."""
    manifests = (_new_manifest_file_name(number, commit_uuid) for number in itertools.count())
    return _new_manifest_list_file_name(snapshot_id, 0, commit_uuid), manifests


def list_entries(snapshot: Snapshot, io: FileIO) -> Iterator[ManifestEntry]:
    """Yield the entries of all files of a snapshot, delete files too."""
    for manifest in snapshot.manifests(io):
        yield from manifest.fetch_manifest_entry(io, discard_deleted=True)


def list_data_files(table: Table) -> list[DataFile]:
    """Return the data files of a table's newest snapshot."""
    snapshot = table.current_snapshot()
    files = (entry.data_file for entry in list_entries(snapshot, table.io)) if snapshot else ()
    return [file for file in files if file.content == DataFileContent.DATA]
