"""Snapshots that replace rows of a table; import them late, as they import PyIceberg."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
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


class ReplaceSome(ReplaceAll):
    """Deletes some data files of the newest snapshot, and adds others."""

    def __init__(
        self,
        transaction: Transaction,
        properties: dict[str, str],
        commit_uuid: UUID,
        is_replaced: Callable[[DataFile], bool],
    ) -> None:
        super().__init__(transaction, properties, commit_uuid)
        self._live = [
            entry
            for entry in self._live
            if entry.data_file.content == DataFileContent.DATA and is_replaced(entry.data_file)
        ]
        self._deleted_data_files = {entry.data_file for entry in self._live}
        self._operation = Operation.OVERWRITE if self._live else Operation.APPEND

    def _existing_manifests(self) -> list[ManifestFile]:
        """Return the manifests of the other files; one that has both kinds is written anew."""
        snapshot = self._transaction.table_metadata.current_snapshot()
        manifests = snapshot.manifests(self._io) if snapshot else []
        return [kept for each in manifests if (kept := self._keep(each)) is not None]

    def _keep(self, manifest: ManifestFile) -> ManifestFile | None:
        entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        kept = [entry for entry in entries if entry.data_file not in self._deleted_data_files]
        if not kept or len(kept) == len(entries):
            return manifest if kept else None
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for entry in kept:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.EXISTING,
                        snapshot_id=entry.snapshot_id,
                        sequence_number=entry.sequence_number,
                        file_sequence_number=entry.file_sequence_number,
                        data_file=entry.data_file,
                    )
                )
        return writer.to_manifest_file()


def list_entries(snapshot: Snapshot, io: FileIO) -> Iterator[ManifestEntry]:
    """Yield the entries of all files of a snapshot, delete files too."""
    for manifest in snapshot.manifests(io):
        yield from manifest.fetch_manifest_entry(io, discard_deleted=True)


def list_data_files(table: Table) -> list[DataFile]:
    """Return the data files of a table's newest snapshot."""
    snapshot = table.current_snapshot()
    files = (entry.data_file for entry in list_entries(snapshot, table.io)) if snapshot else ()
    return [file for file in files if file.content == DataFileContent.DATA]
