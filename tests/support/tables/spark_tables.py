"""Iceberg tables that Spark wrote, at a place of this run, with the rows that Spark reads.

tests/corpus/iceberg has them as archives. Iceberg's metadata contains absolute paths, so that a
table has to be rewritten for its place: paths are in JSON, in Avro, in the Parquet files of
position deletes, and in the footers of deletion vectors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime import config
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.sources import Opening, Source, open_source

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from pyiceberg.types import StructType

CORPUS = Path(__file__).parents[2] / "corpus" / "iceberg"
WRITTEN_TO = "/tmp/lastmile-spark-tables"  # as in write_tables.py
NAMESPACE = "spark"
# Fields with the length of the file that another field names.
LENGTHS = {"manifest_path": "manifest_length", "file_path": "file_size_in_bytes"}
PUFFIN_TRAILER_BYTES = 12  # length of the footer's JSON, flags, magic


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkTable:
    """A table that Spark wrote.

    Attributes:
        name: within the namespace `spark`.
        folder: its location.
        metadata: the file of its current metadata.
    """

    name: str
    folder: Path
    metadata: Path

    @property
    def identifier(self) -> str:
        """The name within the catalog."""
        return f"{NAMESPACE}.{self.name}"

    def expected(self, query: str = "") -> pa.Table:
        """Return the rows as Spark read them, in any order.

        Args:
            query: empty for the whole table; `@first` for the tag or branch `first`; `.left` for
                the left join with the side of the table. EXPECTED in statements.py lists them.
        """
        return pq.read_table(CORPUS / "expected" / f"{self.name}{query}.parquet")


class SparkTables:
    """A warehouse with the tables that were asked for, and its SQL catalog, named `lake`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.uri = f"sqlite:///{self.folder}/catalog.db"

    @cached_property
    def catalog(self) -> SqlCatalog:
        """The catalog that knows the tables."""
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("lake", uri=self.uri, warehouse=f"file://{self.folder}")
        catalog.create_namespace_if_not_exists(NAMESPACE)
        return catalog

    def __getitem__(self, name: str) -> SparkTable:
        """Return a table, which the first call puts into the warehouse and the catalog."""
        folder = self.folder / NAMESPACE / name
        if not folder.exists():
            with ZipFile(CORPUS / "tables" / f"{name}.zip") as archive:
                archive.extractall(folder)
            relocate(folder, f"{WRITTEN_TO}/", f"{self.folder}/")
            [metadata] = folder.glob("metadata/*.metadata.json")  # no commit has been made yet
            self.catalog.register_table((NAMESPACE, name), str(metadata))
        *_, metadata = sorted(folder.glob("metadata/*.metadata.json"))
        return SparkTable(name=name, folder=folder, metadata=metadata)

    def load(self, name: str) -> Table:
        """Return a table as PyIceberg's object."""
        return self.catalog.load_table(self[name].identifier)

    def open(self, name: str, **fields: Any) -> Source:
        """Open a table as a run does, with the fields of `dataset.iceberg`."""
        catalog = config.Catalog(name="lake", type="Sql", uri=self.uri)
        model = config.IcebergSource(catalog="lake", table=self[name].identifier, **fields)
        opening = Opening(storage_root="", catalogs=(catalog,), pins=Pins())
        return open_source(config.SourceChoice(iceberg=model), opening)

    @staticmethod
    def names() -> Sequence[str]:
        """Return the names of all tables."""
        return sorted(path.stem for path in (CORPUS / "tables").glob("*.zip"))


def relocate(folder: Path, old: str, new: str) -> None:
    """Replace the beginning of all paths in a table's files.

    A file's length is part of the metadata above it, so that the files below come first.
    """
    swap = Swap(old=old, new=new)
    for path in folder.rglob("*.puffin"):
        swap.puffin(path)
    for path in folder.rglob("*-deletes.parquet"):
        if "file_path" in pq.read_schema(path).names:
            table = pq.read_table(path)
            paths = pa.array(swap.value(table["file_path"].to_pylist()), pa.string())
            at = table.schema.get_field_index("file_path")
            pq.write_table(table.set_column(at, table.schema.field(at), paths), path)
    manifests, lists = folder.glob("metadata/*-m?.avro"), folder.glob("metadata/snap-*.avro")
    for path in (*manifests, *lists):
        swap.avro(path)
    for path in folder.glob("metadata/*.metadata.json"):
        path.write_text(json.dumps(swap.value(json.loads(path.read_text()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One beginning of paths in the place of another."""

    old: str
    new: str

    def value(self, value: Any) -> Any:
        """Return a value with the paths in it swapped: a text, bytes, a list or a dict."""
        match value:
            case str():
                return self.new + value[len(self.old) :] if value.startswith(self.old) else value
            case bytes():  # bounds of paths
                old, new = self.old.encode(), self.new.encode()
                return new + value[len(old) :] if value.startswith(old) else value
            case list():
                return [self.value(each) for each in value]
            case dict():
                return {key: self.value(each) for key, each in value.items()}
            case _:
                return value

    def puffin(self, path: Path) -> None:
        """Swap the paths in the footer of a Puffin file."""
        content = path.read_bytes()
        size = int.from_bytes(content[-PUFFIN_TRAILER_BYTES:-8], "little")
        start = len(content) - PUFFIN_TRAILER_BYTES - size
        footer = json.loads(content[start:-PUFFIN_TRAILER_BYTES])
        text = json.dumps(self.value(footer)).encode()
        path.write_bytes(content[:start] + text + len(text).to_bytes(4, "little") + content[-8:])

    def avro(self, path: Path) -> None:
        """Swap the paths in a manifest or a list of manifests, and correct the files' lengths."""
        from pyiceberg.avro.file import AvroFile, AvroOutputFile
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io = PyArrowFileIO()
        with AvroFile[Any](io.new_input(str(path))) as file:
            rows, schema, header = [*file], file.schema, dict(file.header.meta)

        for row in rows:
            self._record(row, schema.as_struct())
        name = json.loads(header.pop("avro.schema"))["name"]
        with AvroOutputFile[Any](io.new_output(str(path)), schema, name, metadata=header) as output:
            output.write_block(rows)

    def _record(self, value: Any, kind: StructType) -> None:
        """Swap the paths in a record of PyIceberg."""
        places = {field.name: place for place, field in enumerate(kind.fields)}
        for place, field in enumerate(kind.fields):
            if field.field_type.is_struct and value[place] is not None:
                self._record(value[place], cast("StructType", field.field_type))
            else:
                value[place] = self.value(value[place])
        for path, length in LENGTHS.items():
            # A file that the table no longer has may be named still.
            if path in places and Path(value[places[path]]).exists():
                value[places[length]] = Path(value[places[path]]).stat().st_size
