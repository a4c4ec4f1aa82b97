"""The operator reads what a driver reports about the tables that it writes, reads and keeps."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from pyiceberg.catalog.sql import SqlCatalog

from dataset_operator.observed import OUTPUT_PHASES, CatalogTables, WrittenTable
from dataset_operator.ray.runtime_metrics import parse_progress
from dataset_operator.ray.table_reports import parse_lines
from pipeline_runtime.cli import main
from pipeline_runtime.config import MaterializationStatus, ModelStatus
from pipeline_runtime.iceberg.pins import ModelPin, Pin
from pipeline_runtime.output.job import Phase, Progress
from pipeline_runtime.report import Materialized
from pipeline_runtime.run.reported_tables import ReportedTables
from pipeline_runtime.run.table_metrics import TableCollector
from pipeline_runtime.run.writing.writing_metrics import WritingCollector

SPEC = {
    "dataset": {"parquet": {"uri": "in.parquet"}},
    "output": {"parquet": {"uri": "out/"}, "partitionBy": ["day"]},
}


@pytest.mark.parametrize("phase", get_args(Phase))
def test_the_metrics_of_each_phase_are_read(phase: Phase) -> None:
    collector = WritingCollector([(0, "read")], planned_rows=1000)
    registry = CollectorRegistry()
    registry.register(collector)
    table = Progress(phase=phase, rows=700, resumed_rows=200, files=3, num_bytes=2**53 - 1)
    collector.update(replace(table, num_partitions=9, num_complete_partitions=4))
    progress = parse_progress(generate_latest(registry).decode())
    assert progress is not None
    assert progress.table == WrittenTable(
        phase=phase,
        rows=700,
        files=3,
        num_bytes=2**53 - 1,
        partitions=9,
        complete_partitions=4,
    )
    assert progress.table.phase in OUTPUT_PHASES
    assert progress.counters.trainer is not None


@pytest.mark.parametrize("as_json", [False, True])
def test_the_end_of_a_log_names_the_table(
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": range(5), "day": list("aabbb")}), "in.parquet")
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "kept"},
        "spec": SPEC,
    }
    Path("kept.yaml").write_text(yaml.safe_dump(document))
    for resume in (False, True):  # the second attempt finds the run complete
        options = [*["--json"] * as_json, *["--resume"] * resume, "--metrics-port", "0"]
        command = ["lastmile", "run", "-f", "kept.yaml", "--storage-root", str(tmp_path)]
        monkeypatch.setattr("sys.argv", [*command, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        log = "".join(capfd.readouterr())
        files = list(Path("out").rglob("*.parquet"))
        size = sum(file.stat().st_size for file in files)
        assert parse_lines(log.encode()) == (
            WrittenTable(rows=5, files=2, num_bytes=size),
            CatalogTables(),
        )


PIN = Pin(catalog="lake", table="db.rows", table_uuid="u", snapshot_id=str(2**63 - 1), schema_id=0)
KEPT = Materialized(
    catalog="lake", table="db.cache_1", state="Partial", partitions=3, complete_partitions=1
)


@pytest.mark.parametrize("kept", [None, KEPT], ids=["no step", "kept"])
def test_the_metrics_of_tables_are_read(kept: Materialized | None) -> None:
    # An empty table has no snapshot; one may be read twice, as the dataset and as a side.
    pins = (PIN, PIN.model_copy(update={"snapshot_id": None}), PIN.model_copy(update={"tag": "a"}))
    many = tuple(PIN.model_copy(update={"snapshot_id": str(n)}) for n in range(1, 100))
    for given, wanted in ((pins, 1), (many, 16)):
        registry = CollectorRegistry()
        registry.register(TableCollector(ReportedTables(pins=given, materialization=kept)))
        progress = parse_progress(generate_latest(registry).decode())
        assert progress is not None
        names = {"catalog": "lake", "table": "db.rows"}
        assert [each.model_dump(exclude={"snapshot_id"}) for each in progress.tables.snapshots] == [
            names
        ] * wanted
        assert progress.tables.snapshots[0].snapshot_id == given[0].snapshot_id
        found = progress.tables.materialization
        assert (found and found.model_dump()) == (kept and kept.model_dump())


def test_the_metrics_of_models_are_read() -> None:
    sha256 = "0123456789abcdef" * 4
    trained = ModelPin(
        source="a", uri="s3://b/teacher/R/checkpoints/step-7", sha256=sha256, run="R"
    ).model_copy(update={"experiment": "teacher"})
    file = ModelPin(source="b", uri="models/ranker.onnx", sha256=sha256)
    registry = CollectorRegistry()
    registry.register(TableCollector(ReportedTables(models=(trained, file, file))))
    progress = parse_progress(generate_latest(registry).decode())
    assert progress is not None
    assert progress.tables.models == (
        ModelStatus(experiment="teacher", run="R", file="step-7", sha256=sha256),
        ModelStatus(file="ranker.onnx", sha256=sha256),
    )


STEP = {
    "materialize": {
        "iceberg": {"catalog": "lake", "table": "db.cache"},
        "bucketBy": "id",
        "buckets": 1,
    }
}


@pytest.mark.parametrize(
    ("as_json", "steps", "mode"),
    [
        pytest.param(False, [STEP], "Fail", id="kept rows"),
        pytest.param(True, [], "OverwritePartitions", id="backfill"),
    ],
)
def test_the_end_of_a_log_names_the_tables_of_a_catalog(
    as_json: bool,
    steps: list[object],
    mode: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    uri, warehouse = f"sqlite:///{tmp_path}/lake.db", f"file://{tmp_path}/lake"
    catalog = SqlCatalog("lake", uri=uri, warehouse=warehouse)
    catalog.create_namespace("db")
    rows = pa.table({"id": range(5)})
    source = catalog.create_table("db.rows", rows.schema)
    source.append(rows)
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "kept"},
        "spec": {
            "catalogs": [{"name": "lake", "type": "Sql", "uri": uri, "warehouse": warehouse}],
            "dataset": {"iceberg": {"catalog": "lake", "table": "db.rows"}, "rowKey": ["id"]},
            "pipeline": steps,
            "output": {"mode": mode, "iceberg": {"catalog": "lake", "table": "db.out"}},
        },
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LASTMILE_ROLE", "head")
    Path("kept.yaml").write_text(yaml.safe_dump(document))
    command = ["lastmile", "run", "-f", "kept.yaml", "--storage-root", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*command, *["--json"] * as_json, "--metrics-port", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    log = "".join(capfd.readouterr()).encode()
    ids = {
        f"db.{name}": str(catalog.load_table(f"db.{name}").metadata.current_snapshot_id)
        for _, name in catalog.list_tables("db")
    }
    written, found = parse_lines(log)
    assert written is not None
    assert (written.rows, written.snapshot_id) == (5, ids.pop("db.out"))
    assert (written.partitions, written.complete_partitions) == ((None, None) if steps else (1, 1))
    assert {each.table: each.snapshot_id for each in found.snapshots} == ids
    caches = [name for name in ids if name.startswith("db.cache")]
    assert len(caches) == len(steps)
    kept = found.materialization
    assert ([kept] if kept else []) == [
        MaterializationStatus(
            catalog="lake",
            table=cache,
            state="Miss",
            partitions=1,
            complete_partitions=1,
            snapshot_id=ids[cache],
        )
        for cache in caches
    ]
