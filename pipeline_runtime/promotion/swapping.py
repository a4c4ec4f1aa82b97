"""Replaces data files of an Iceberg table by others, in one commit, if they are still live.

The files are planned and written from one state of the table. If another writer changes the same
files before the commit, the change is planned again: files that stayed the same are not written
again. Commits to other partitions do not matter.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline_runtime.errors import LastmileError, OutputError, OutputRefused
from pipeline_runtime.iceberg.catalogs import ask_catalog
from pipeline_runtime.iceberg.commits import (
    CommitKey,
    Committed,
    CommitUnknown,
    Retrying,
    commit_change,
    remove_files,
)
from pipeline_runtime.promotion.partitions import (
    Fingerprint,
    PartitionChoice,
    find_live,
    fingerprint,
)
from pipeline_runtime.promotion.rewriting import FileRewriter

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.types import IcebergType

PROMOTION_PROPERTY = "lastmile.promotion"
ROLLBACK_PROPERTY = "lastmile.rollback"
TAG_PREFIX = "lastmile-before-"
# Plans, while other writers change the same files: each repeats the work for what changed.
_MAX_PLANS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A planned change of a table.

    Attributes:
        live: the files of the chosen partitions, for which the change was planned.
        schema: the schema that the table then has.
        adds: columns that the commit adds for that.
        removed: files to replace.
        added: files in their place.
        properties: of the snapshot.
        is_tagging_previous: True tags the snapshot before the new one.
        tags: more snapshots to tag, each by the snapshot that replaced its files.
    """

    live: Mapping[str, FileScanTask]
    schema: Schema
    adds: Mapping[str, IcebergType] = field(default_factory=dict)
    removed: Sequence[DataFile]
    added: Sequence[DataFile]
    properties: Mapping[str, str]
    is_tagging_previous: bool = False
    tags: Mapping[int, int] = field(default_factory=dict)


class _Moved(Exception):
    """The chosen files, or the schema, are no longer those of the plan."""


def swap_files(
    catalog: Catalog,
    name: str,
    choice: PartitionChoice,
    plan: Callable[[Table, FileRewriter], Swap],
    *,
    retrying: Retrying | None = None,
) -> Committed:
    """Plan and commit a change; delete the files that it wrote in vain.

    Args:
        name: the table's name, with its namespace.
        plan: called with the newest state of the table; again if that changes.

    Raises:
        CommitUnknown: no answer to the commit; its files stay, since it may be carried out.
        OutputError: the commit was refused, or other writers were always faster.
        SourceError: the table cannot be read.
    """
    rewriter = FileRewriter()
    key = CommitKey(run=f"swap-{uuid.uuid4().hex[:8]}", token=uuid.uuid4().hex)
    table: Table | None = None
    needed: set[str] = set()
    try:
        for _ in range(_MAX_PLANS):
            table = ask_catalog(f"{name}: cannot load the table", lambda: catalog.load_table(name))
            stage = _build_stage(plan(table, rewriter), key, choice)
            # Also after Ctrl-C: the catalog may have been asked to carry the commit out.
            needed = set(rewriter.paths)
            try:
                committed = commit_change(catalog, name, key, stage, retrying=retrying)
            except CommitUnknown:
                raise
            except LastmileError:
                needed = set()
                raise
            except _Moved:
                needed = set()
                continue
            needed = _find_added(catalog, name, committed.snapshot_id)
            return committed
        raise OutputError(
            f"{name}: other writers changed the chosen partitions during each of {_MAX_PLANS} "
            "attempts. Nothing was changed; try again when they pause"
        )
    finally:
        if table is not None:
            remove_files(table.io, [path for path in rewriter.paths if path not in needed])


def _build_stage(
    swap: Swap, key: CommitKey, choice: PartitionChoice
) -> Callable[[Table | None], Transaction]:
    planned = _fingerprints(swap.live)

    def stage(table: Table | None) -> Transaction:
        if table is None or _fingerprints(find_live(table, choice)) != planned:
            raise _Moved
        if any(file.spec_id != table.spec().spec_id for file in swap.added):
            raise _Moved  # the next plan refuses them
        transaction = add_columns(table, swap.adds)
        if transaction.table_metadata.schema() != swap.schema:  # or other field ids
            raise _Moved
        producer = transaction.update_snapshot(
            snapshot_properties={**swap.properties, **key.to_properties()}
        ).overwrite()
        for file in swap.removed:
            producer.delete_data_file(file)
        for file in swap.added:
            producer.append_data_file(file)
        producer.commit()
        tags = dict(swap.tags)
        if swap.is_tagging_previous and (previous := table.current_snapshot()):
            tags[producer.snapshot_id] = previous.snapshot_id
        _stage_tags(transaction, table, tags)
        return transaction

    return stage


def check_specs(table: Table, files: Iterable[DataFile]) -> None:
    """Check that files to add, or to write again, have the table's current partition spec.

    PyIceberg 0.12 writes all added files into a manifest of the current spec. A file of an older
    one would get a wrong partition there, and readers would skip its rows.

    Raises OutputRefused if one has an older spec.
    """
    current = table.spec().spec_id
    for file in files:
        if file.spec_id != current:
            raise OutputRefused(
                f"{'.'.join(table.name())}: must have the current partition spec ({current}) in "
                f"the chosen partitions, but {file.file_path} has an older one ({file.spec_id}). "
                "Choose other partitions, or rewrite the table's data files (CALL "
                "system.rewrite_data_files with rewrite-all => true)"
            )


def add_columns(table: Table, columns: Mapping[str, IcebergType]) -> Transaction:
    """Return a transaction, not committed, that adds optional columns to a table's schema."""
    transaction = table.transaction()
    if columns:
        with transaction.update_schema() as schema:
            for column, kind in columns.items():
                schema.add_column((column,), kind)
    return transaction


def _stage_tags(transaction: Transaction, table: Table, tags: Mapping[int, int]) -> None:
    """Tag snapshots in the same commit, and drop the tags that nothing needs any more.

    A tag keeps the files of the snapshot before a promotion until the promotion's own snapshot has
    expired. Expiring that deletes the files that it replaced, even if a rollback made them live
    again (iceberg#8255).
    """
    from pyiceberg.table.update.snapshot import ManageSnapshots

    known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    manager = ManageSnapshots(transaction)
    for replacing, kept in tags.items():
        if f"{TAG_PREFIX}{replacing}" not in table.metadata.refs:
            manager.create_tag(kept, f"{TAG_PREFIX}{replacing}")
    for tag in table.metadata.refs:
        replaced = tag.removeprefix(TAG_PREFIX)
        if replaced != tag and replaced.isdigit() and int(replaced) not in known:
            manager.remove_tag(tag)
    manager.commit()


def _fingerprints(live: Mapping[str, FileScanTask]) -> set[Fingerprint]:
    return {fingerprint(task) for task in live.values()}


def _find_added(catalog: Catalog, name: str, snapshot_id: int) -> set[str]:
    """Return the files that the commit added: those of an earlier plan, if that one landed."""
    table = ask_catalog(f"{name}: cannot load the table", lambda: catalog.load_table(name))
    return {file.file_path for file in added_files(table, snapshot_id)}


def added_files(table: Table, snapshot_id: int) -> list[DataFile]:
    """Return the data files that a snapshot added."""
    from pyiceberg.manifest import DataFileContent, ManifestEntryStatus

    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED
        and entry.data_file.content == DataFileContent.DATA
    ]
