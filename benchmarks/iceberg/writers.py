"""Eight writers at once: Lastmile's runs that materialize a day each, and PyIceberg's appends.

Each writer is a process. Writers of Lastmile share a cache table; those of PyIceberg share another
table, and try each append once, with the retries that PyIceberg itself makes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from benchmarks.dataloading.measuring.checksums import proof_of
from benchmarks.harness.cells import Cell
from benchmarks.harness.children import Child
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.rounds import check_agreement
from benchmarks.harness.serving import serve
from benchmarks.iceberg.child import to_batch
from benchmarks.iceberg.lakes import MAIN_COLUMNS, Lake, make_lake
from benchmarks.iceberg.ours import build_experiment
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import run_experiment
from pipeline_runtime.sample_data.lake import CATALOG, NAMESPACE
from pipeline_runtime.sample_data.lake_tables import DAY, IMPRESSIONS, KEY, to_date

_NUM_WRITERS: Final = 8
_COMMITS_EACH: Final = 6
NUM_COMMITS: Final = _NUM_WRITERS * _COMMITS_EACH  # a day each
_ROWS_A_DAY: Final = 500
_START_SECONDS: Final = 300.0  # of eight processes at once
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


def measure_writers(data: Path) -> list[Cell]:
    """Let the writers write at once, then prune; raise BenchmarkError if rows are not the same."""
    lake = make_lake(data, NUM_COMMITS * _ROWS_A_DAY, days=NUM_COMMITS)
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
            commits, orphans = float(len(table.snapshots())), float(len(_list_orphans(table)))
            theirs = {
                "commits": [float(len(appended.snapshots()))],
                "orphans": [float(len(_list_orphans(appended)))],
            }
            name = f"writers, {_NUM_WRITERS} × {_COMMITS_EACH} commits"
            note = f"{failed} runs failed; equal rows; {before} orphans before prune"
            return [
                Cell(
                    name=name,
                    base="",
                    arms={
                        "Lastmile": {
                            "commits": [commits],
                            "orphans": [orphans],
                            "ownCommits": [commits],
                            "ownOrphans": [orphans],
                        }
                    },
                    facts={"note": note},
                ),
                Cell(
                    name=name,
                    base="",
                    arms={"PyIceberg's append": theirs},
                    facts={"note": f"{refused} appends raised"},
                ),
            ]


def _write_at_once(work: str, place: Place) -> int:
    """Run all writers; return how many of their commits failed."""

    def write(index: int) -> int:
        first = index * _COMMITS_EACH
        request = {
            "work": work,
            "folder": str(place.folder),
            "lake": str(place.lake.folder),
            "rows": place.lake.rows,
            "days": list(range(first, first + _COMMITS_EACH)),
        }
        with Child(f"{work} {index}", ["-m", "benchmarks.iceberg.writers"]) as child:
            barrier.wait(_START_SECONDS)
            failed: int = child.ask(request)
        return failed

    barrier = threading.Barrier(_NUM_WRITERS)
    with ThreadPoolExecutor(_NUM_WRITERS) as threads:
        return sum(threads.map(write, range(_NUM_WRITERS)))


def _answer(request: dict[str, Any]) -> int:
    """Do the commits of one writer, and return how many of them failed."""
    lake = Lake(Path(request["lake"]), request["rows"])
    place = Place(folder=Path(request["folder"]), lake=lake)
    call = {"materialize": _materialize, "append": _append}[request["work"]]
    return sum(not call(place, day) for day in request["days"])


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


if __name__ == "__main__":
    serve(lambda: (None, _answer))
