"""A staging table, with keys and new columns, as the destination of a backfill.

Its partitions are those of the source, or finer ones. A commit replaces some of them. Each key must
be there once: a bucket join and a promotion take one row per key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.errors import OutputRefused, StoreError
from pipeline_runtime.iceberg.files import DataFileRecord
from pipeline_runtime.materialization.backfill import Backfill, find_positions
from pipeline_runtime.materialization.coverage import Covered, find_missing, read_coverage
from pipeline_runtime.materialization.lookup import name_partition
from pipeline_runtime.materialization.states import WHOLE
from pipeline_runtime.output.covered_table import CoveredTable, list_fields
from pipeline_runtime.output.iceberg import IcebergTable, check_namespace, check_table_form
from pipeline_runtime.output.records import RunRecord, StagedFile
from pipeline_runtime.steps.side_tables import build_index, describe_repeated

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingTable(CoveredTable):
    """A staging table; see `destination.Destination`.

    Attributes:
        backfill: the partitions of the source that the table lacked at first.
    """

    backfill: Backfill

    def _check_state(self, table: Table | None) -> None:
        """Raise OutputRefused if the table cannot take the rows."""
        if table is None:
            check_namespace(self.catalog, self.name)
        else:
            check_table_form(table, self.wanted)
            self._check_unchanged(table)

    def _check_unchanged(self, table: Table) -> None:
        """Raise StoreError if another run has written a partition of the commit, of other rows.

        They may be newer: that run may have begun later, and read a newer state of the source.
        """
        with self._asking("read its coverage"):
            now = read_coverage(table)
        missing = find_missing(self.covered, now, lambda *_: False)
        moved = [
            key for key in missing if now.get(key) not in (None, self.backfill.stored.get(key))
        ]
        if moved:
            raise StoreError(
                f"{self.name}: {', '.join(map(name_partition, sorted(moved)))}: must stay as this "
                "run found it, but another run has written it meanwhile, of other rows. Run again: "
                "it writes what is missing then"
            )

    def _is_replaced(self, table: Table, file: DataFile) -> bool:
        """Return whether a file has rows of the commit's partitions."""
        positions = find_positions(table, file.spec_id, self.backfill.dimensions)
        values = [None if place is None else file.partition[place] for place in positions]
        if None in positions:
            raise OutputRefused(
                f"{self.name}: must have the partitions of the source in all files, but "
                f"{file.file_path} has an older partition spec. Rewrite the table's data files, "
                "or write another table"
            )
        return tuple(values) in {self.backfill.partitions[key].values for key in self.covered}

    def _merge(self, before: Mapping[str, Covered]) -> Mapping[str, Covered]:
        """Return the coverage after the commit, by partitions of the source as they are now."""
        is_whole = WHOLE in self.covered
        kept = {key: each for key, each in before.items() if (key == WHOLE) == is_whole}
        return {**kept, **self.covered}

    def commit(
        self,
        run: str,
        record: RunRecord,
        files: Sequence[StagedFile],
        check_claim: Callable[[], None],
    ) -> int:
        """See `destination.Destination`. Raises OutputRefused if a key is there twice."""
        self._check_keys(file.data_file for file in files if file.data_file is not None)
        return IcebergTable.commit(self, run, record, files, check_claim)

    def _check_keys(self, files: Iterable[DataFileRecord]) -> None:
        """Raise OutputRefused if a key is twice in files whose keys may be equal."""
        layout, keys = self.form.layout, list(self.backfill.keys)
        in_key = [
            place
            for place, field in enumerate(layout.spec.fields)
            if layout.schema.find_column_name(field.source_id) in keys
        ]
        groups: defaultdict[tuple[Any, ...], list[DataFileRecord]] = defaultdict(list)
        for file in files:
            groups[tuple(file.partition[place] for place in in_key)].append(file)
        for group in groups.values():
            with self._asking("read the keys of new files"):
                rows = pa.concat_tables(self._read_keys(file, keys) for file in group)
            index = build_index(rows, keys)
            if (repeated := describe_repeated(index)) is not None:
                raise OutputRefused(
                    f"{self.name}: must have each key ({', '.join(keys)}) once, but {repeated}. "
                    "Leave one row per key in a step, or correct spec.dataset.rowKey"
                )

    def _read_keys(self, file: DataFileRecord, keys: list[str]) -> pa.Table:
        with self.form.layout.io.new_input(file.path).open() as source:
            return pq.read_table(source, columns=keys, partitioning=None)


def open_staging_table(
    table: IcebergTable, backfill: Backfill, keys: Iterable[str]
) -> StagingTable:
    """Return a table to write some partitions of a backfill.

    Args:
        table: as `open_iceberg` opens it.
        keys: the partitions.
    """
    covered = {key: backfill.wanted[key] for key in keys}
    return StagingTable(**list_fields(table), covered=covered, backfill=backfill)
