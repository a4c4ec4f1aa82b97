"""A folder of Parquet files as the destination of an output; `place` and `commit` do the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline_runtime.output.commit import abandon, check_before, clean_up, commit
from pipeline_runtime.output.destination import Committed
from pipeline_runtime.output.place import Mode, Place, check_table
from pipeline_runtime.output.records import RunRecord, StagedFile
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.sources.output_manifest import (
    OutputManifest,
    PartitionColumn,
    read_output_manifest,
)
from pipeline_runtime.sources.partition_names import find_partition_type
from pipeline_runtime.sources.stores import list_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of Parquet files; see `destination.Destination`.

    Attributes:
        partition_by: the columns that become folders, with their types.
    """

    place: Place
    mode: Mode
    partition_by: tuple[PartitionColumn, ...] = ()

    def list_runs(self) -> list[str]:
        infos = list_folder(self.place.staging.location, "look for staged runs")
        return sorted((info.base_name for info in infos), reverse=True)

    def stage(self, run: str) -> Storage:
        return self.place.run(run)

    def check(self, staged: tuple[str, str] | None = None) -> None:
        if staged is None:
            check_table(self.place.table, self.mode)
        else:
            check_before(self.place, self.mode, *staged)

    def find(self, is_mine: Callable[[str], bool]) -> Committed | None:
        manifest = self._read()
        return _describe(manifest) if manifest is not None and is_mine(manifest.run) else None

    def read(self, own_id: str) -> Committed | None:
        manifest = self._read()
        return _describe(manifest) if manifest is not None and manifest.id == own_id else None

    def describe_other(self) -> str:
        manifest = self._read()
        found = f"holds the table of run {manifest.run}" if manifest else "is gone"
        return f"{self.place.table.uri}: must hold it, but {found}"

    def commit(
        self,
        run: str,
        record: RunRecord,
        files: Sequence[StagedFile],
        check_claim: Callable[[], None],
    ) -> int:
        manifest = OutputManifest(
            id=record.id,
            run=run,
            run_hash=record.run_hash,
            partition_by=self.partition_by,
            files=tuple(files),
        )
        commit(self.place, manifest, self.mode)
        return 0

    def clean_up(self, run: str) -> None:
        manifest = self._read()
        if manifest is not None and manifest.run == run:
            clean_up(self.place, manifest)

    def abandon(self, run: str) -> bool:
        abandon(self.place, run)
        return True

    def _read(self) -> OutputManifest | None:
        return read_output_manifest(self.place.table.location)


def name_types(schema: pa.Schema, columns: Sequence[str]) -> tuple[PartitionColumn, ...]:
    """Return the columns that become folders, with the types that readers give them."""
    types = {name: find_partition_type(schema.field(name).type) for name in columns}
    return tuple(PartitionColumn(name=name, type=str(kind)) for name, kind in types.items())


def _describe(manifest: OutputManifest) -> Committed:
    return Committed(
        run=manifest.run,
        id=manifest.id,
        rows=manifest.rows,
        files=len(manifest.files),
        num_bytes=manifest.num_bytes,
    )
