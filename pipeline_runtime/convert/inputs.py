"""The table that is converted: the files to write, and the rows of each.

A Parquet table keeps the names and partition folders of its files. A data file of an Iceberg table
has a name of a catalog's making, so its rows get a file with a number; all columns are within it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.sources import Source, Unit
from pipeline_runtime.sources.iceberg.reading import IcebergUnit
from pipeline_runtime.sources.iceberg.table import IcebergTable
from pipeline_runtime.sources.parquet import ParquetTable
from pipeline_runtime.sources.parquet.footers import Footer
from pipeline_runtime.sources.parquet.table import ParquetUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A table that is converted.

    Attributes:
        stored: the columns within the files; partition folders stay folders.
        files: for each file to write its name, relative to the output, and its units.
        footers: those of the files.
        places: for each file that is read its file system and its path there.
    """

    source: Source
    stored: pa.Schema
    files: tuple[tuple[str, tuple[Unit, ...]], ...]
    footers: tuple[Footer, ...]
    places: tuple[tuple[Any, str], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that are read."""
        systems = {id(system): system for system, _ in self.places}
        infos = (
            info
            for key, system in systems.items()
            for info in system.get_file_info([p for each, p in self.places if id(each) == key])
        )
        return sum(info.size or 0 for info in infos)


def describe_input(table: ParquetTable | IcebergTable) -> Input:
    """Return how a table is converted.

    Raises ManifestError for a table of a catalog that has no rows: there would be no file.
    """
    if isinstance(table, IcebergTable):
        return _describe_iceberg(table)
    folders = {name for values in table.partition_values for name in values}
    units: dict[int, list[Unit]] = {index: [] for index in range(len(table.files))}
    for unit in table.scan(()).units:
        assert isinstance(unit, ParquetUnit)
        units[unit.file].append(unit)
    return Input(
        source=table,
        stored=pa.schema([field for field in table.schema if field.name not in folders]),
        files=tuple((name, tuple(units[index])) for index, name in enumerate(table.files)),
        footers=table.footers,
        places=tuple((table.filesystem, path) for path in table.paths),
    )


def _describe_iceberg(table: IcebergTable) -> Input:
    by_file: dict[str, list[IcebergUnit]] = {}
    for unit in table.scan(()).units:
        assert isinstance(unit, IcebergUnit)
        by_file.setdefault(unit.path, []).append(unit)
    if not by_file:
        message = f"must have rows, but {table.description} has none"
        raise ManifestError([Problem(path="spec.dataset.iceberg", message=message)])
    return Input(
        source=table,
        stored=table.schema,
        files=tuple(
            (f"part-{index:05d}.parquet", tuple(units))
            for index, units in enumerate(by_file.values())
        ),
        footers=tuple(table.footers[path].footer for path in by_file),
        places=tuple(_places(table, by_file.values())),
    )


def _places(table: IcebergTable, files: Iterable[list[IcebergUnit]]) -> Iterable[tuple[Any, str]]:
    for units in files:
        yield table.stores[units[0].store], units[0].path
