"""Eight writers at once: Lastmile's runs that materialize a day each, and PyIceberg's appends.

Each writer is a process. Writers of Lastmile share a cache table; those of PyIceberg share another
table, and try each append once, with the retries that PyIceberg itself makes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.measuring.checksums import check_agreement, proof_of
from benchmarks.dataloading.measuring.piped import Process
from benchmarks.iceberg.child import to_batch
from benchmarks.iceberg.lakes import MAIN_COLUMNS, Lake, make_lake
from benchmarks.iceberg.ours import build_experiment
from benchmarks.iceberg.results import build_row
from benchmarks.records import Document
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import run_experiment
from pipeline_runtime.sample_data.lake import CATALOG, NAMESPACE
from pipeline_runtime.sample_data.lake_tables import DAY, IMPRESSIONS, KEY, to_date

_NUM_WRITERS: Final = 8
_NUM_COMMITS: Final = 6
_NUM_DAYS: Final = _NUM_WRITERS * _NUM_COMMITS
_ROWS_A_DAY: Final = 500
_CACHE: Final = "cache"  # the catalog of the written tables, and their namespace
_APPENDED: Final = f"{_CACHE}.appended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folder of the written tables, and the lake of their rows."""

    folder: Path
    lake: Lake

    @property
    def catalog(self) -> dict[str, str]:
        """The properties of the catalog."""
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/warehouse"
        return {"uri": uri, "warehouse": warehouse}

    @contextmanager
    def open(self) -> Iterator[Catalog]:
        """Open the catalog of the written tables."""
        with closing(SqlCatalog(_CACHE, **self.catalog)) as catalog:
            yield catalog

    def build(self, day: int) -> DatasetExperiment:
        """Return the manifest that materializes a day, and writes a column of it elsewhere."""
        source = {"catalog": CATALOG, "table": f"{NAMESPACE}.{IMPRESSIONS.name}"}
        target = {"catalog": _CACHE, "table": f"{_CACHE}.impressions"}
        step = {"iceberg": target, "bucketBy": KEY, "buckets": 2, "sortBy": [KEY]}
        return build_experiment(
            self.lake,
            catalogs=[
                {"name": CATALOG, "type": "Sql", "uri": self.lake.uri},
                {"name": _CACHE, "type": "Sql", **self.catalog},
            ],
            dataset={
                "iceberg": source,
                "where": f"{DAY} = '{to_date(day)}'",
                "rowKey": ["request_id", "position"],
            },
            pipeline=[{"materialize": step}],
            output={"columns": [KEY], "parquet": {"uri": f"{self.folder}/out-{day}/"}},
        )


def measure_writers(data: Path) -> list[Document]:
    """Let the writers write at once, then prune; raise BenchmarkError if rows are not the same."""
    lake = make_lake(data, _NUM_DAYS * _ROWS_A_DAY, days=_NUM_DAYS)
    with TemporaryDirectory(dir=lake.folder) as name:
        place = Place(folder=Path(name), lake=lake)
        with place.open() as catalog:
            catalog.create_namespace(_CACHE)
            catalog.create_table(_APPENDED, _read_day(place, 0).schema)
        failed = _write_at_once("materialize", place)
        refused = _write_at_once("append", place)
        with place.open() as catalog:
            [found] = [t for t in catalog.list_tables(_CACHE) if ".".join(t) != _APPENDED]
            appended = catalog.load_table(_APPENDED)
            before = len(_list_orphans(catalog.load_table(found)))
            _prune(place)
            table = catalog.load_table(found)
            check_agreement("writers", {"source": _sum(lake.load()), "kept": _sum(table)})
            names = {"subject": f"Lastmile, {_NUM_WRITERS} writers × {_NUM_COMMITS}", "peer": "–"}
            return [
                build_row(
                    **names,
                    measure="commits in the table",
                    values=[len(table.snapshots())],
                    at_least=_NUM_DAYS,
                    at_most=_NUM_DAYS,
                    note=f"{failed} runs failed; equal rows",
                ),
                build_row(
                    **names,
                    measure="orphan files after prune",
                    values=[len(_list_orphans(table))],
                    at_most=0,
                    note=f"{before} before",
                ),
                build_row(
                    subject=f"PyIceberg's append, {_NUM_WRITERS} writers × {_NUM_COMMITS}",
                    peer="–",
                    measure="commits in the table",
                    values=[len(appended.snapshots())],
                    note=f"{refused} appends raised; {len(_list_orphans(appended))} orphan files",
                ),
            ]


def _write_at_once(work: str, place: Place) -> int:
    """Run all writers; return how many of their commits failed."""
    with ExitStack() as stack:
        writers = [
            stack.enter_context(Process(f"{work} {i}", ("benchmarks.iceberg.writers", "serve")))
            for i in range(_NUM_WRITERS)
        ]
        for index, writer in enumerate(writers):
            days = range(index * _NUM_COMMITS, (index + 1) * _NUM_COMMITS)
            writer.send((work, place, days))
        return sum(writer.receive() for writer in writers)


def serve(connection: Connection) -> None:
    """Do the commits of one writer, and send how many of them failed."""
    connection.send(("ready", None))
    work, place, days = connection.recv()
    call = {"materialize": _materialize, "append": _append}[work]
    connection.send(("failed", sum(not call(place, day) for day in days)))


def _materialize(place: Place, day: int) -> bool:
    options = RunOptions(output=place.folder / f"report-{day}", storage_root=str(place.folder))
    outcome = run_experiment(place.build(day), "", options).outcome
    if outcome.kind != "Complete":
        print(f"day {day}: {outcome.error}", file=sys.stderr)
    return outcome.kind == "Complete"


def _append(place: Place, day: int) -> bool:
    rows = _read_day(place, day)
    try:
        with place.open() as catalog:
            catalog.load_table(_APPENDED).append(rows)
    except CommitFailedException:
        return False
    return True


def _read_day(place: Place, day: int) -> pa.Table:
    return place.lake.load().scan(f"{DAY} = '{to_date(day)}'").to_arrow()


def _prune(place: Place) -> None:
    """Run the command that deletes orphan files. Raises BenchmarkError if it fails."""
    path = place.folder / "manifest.json"  # JSON is YAML
    path.write_text(place.build(0).model_dump_json(by_alias=True, exclude_unset=True))
    command = [sys.executable, "-m", "pipeline_runtime", "materializations", "prune"]
    command += ["-f", str(path), "--orphans-older-than", "0m", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BenchmarkError(f"prune failed: {ended.stderr}")
    print(f"prune: {json.loads(ended.stdout)['orphans']}", file=sys.stderr)


def _list_orphans(table: Table) -> set[str]:
    """Return the data files and manifests in a table's folder that no snapshot names."""
    inspect = table.inspect
    columns: Sequence[tuple[pa.Table, str]] = (
        (inspect.all_files(), "file_path"),
        (inspect.all_manifests(), "path"),
        (inspect.snapshots(), "manifest_list"),
    )
    used = {path for found, name in columns for path in found[name].to_pylist()}
    folder = Path(table.location().removeprefix("file://"))
    written = (path for path in folder.rglob("*") if path.suffix in (".parquet", ".avro"))
    return {f"file://{path}" for path in written} - used


def _sum(table: Table) -> dict[str, Any]:
    return proof_of(to_batch(table.scan(selected_fields=MAIN_COLUMNS).to_arrow(), MAIN_COLUMNS))
