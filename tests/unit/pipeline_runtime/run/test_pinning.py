"""A run reads the same snapshots in all of its attempts, although the tables have moved on."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from facts import assert_told
from iceberg_tables import Lake
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField

from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import SourceError
from pipeline_runtime.report import load_summary
from pipeline_runtime.run.consumers import ConsumerRun
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.pinning import PINS_FILE
from pipeline_runtime.run.session import Finished, Watcher, run_experiment

MAIN = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "clicked", DoubleType(), required=False),
)
SIDE = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "feature", DoubleType(), required=False),
)


class KilledError(Exception):
    """In the place of a SIGKILL as the work is about to begin."""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a catalog with db.main of 100 rows and db.side of 100 features."""
    monkeypatch.chdir(tmp_path)
    lake = Lake(tmp_path)
    lake.create("main", MAIN)
    lake.create("side", SIDE)
    grow(lake, 0, 100)
    return lake


def grow(lake: Lake, start: int, stop: int) -> None:
    """Append rows to both tables; a later feature is negative."""
    ids = pa.array(range(start, stop), pa.int64())
    clicked = pa.array([float(i % 2) for i in range(start, stop)])
    sign = -1.0 if start else 1.0
    lake.catalog.load_table("db.main").append(pa.table({"id": ids, "clicked": clicked}))
    features = pa.array([sign * i for i in range(stop)])
    if start:
        lake.catalog.load_table("db.side").delete("id >= 0")
    every = pa.array(range(stop), pa.int64())
    lake.catalog.load_table("db.side").append(pa.table({"id": every, "feature": features}))


def run(lake: Lake, consumer: dict[str, Any], *, resume: bool, is_killed: bool = False) -> Finished:
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "pinned"},
        "spec": {
            "catalogs": [lake.model.model_dump(by_alias=True, exclude_none=True)],
            "dataset": {"iceberg": {"catalog": "lake", "table": "db.main"}, "rowKey": ["id"]},
            "pipeline": [
                {"join": {"iceberg": {"catalog": "lake", "table": "db.side"}, "keys": ["id"]}}
            ],
            **consumer,
        },
    }
    options = RunOptions(
        output=lake.folder / "report",
        folder_per_run=True,
        storage_root=str(lake.folder),
        resume=resume,
    )

    def die(_: ConsumerRun) -> None:
        if is_killed:
            raise KilledError

    watcher = Watcher(on_prepared=die)
    text = yaml.safe_dump(document)
    return run_experiment(parse_experiment(document), text, options, watcher)


OUTPUT = {"output": {"parquet": {"uri": "out/"}}}
TRAINING = {"training": {"batchSize": 10, "labelColumn": "clicked"}}


@pytest.mark.parametrize("consumer", [OUTPUT, TRAINING], ids=["output", "training"])
def test_retry_before_any_progress_reads_the_same_rows(
    lake: Lake, consumer: dict[str, Any]
) -> None:
    with pytest.raises(KilledError):
        run(lake, consumer, resume=False, is_killed=True)
    [folder] = (lake.folder / "experiments/pinned").iterdir()
    recorded = json.loads((folder / PINS_FILE).read_text())
    grow(lake, 100, 150)
    with pytest.raises(KilledError):
        run(lake, consumer, resume=True, is_killed=True)
    newest = max((lake.folder / "experiments/pinned").iterdir())
    assert json.loads((newest / PINS_FILE).read_text()) == recorded
    assert [table["table"] for table in recorded["tables"]] == ["db.main", "db.side"]
    with pytest.raises(KilledError):
        run(lake, consumer, resume=False, is_killed=True)  # a run of its own is pinned anew
    newest = max((lake.folder / "experiments/pinned").iterdir())
    assert json.loads((newest / PINS_FILE).read_text()) != recorded


def test_finished_retry_has_the_rows_of_the_first_attempt(lake: Lake) -> None:
    with pytest.raises(KilledError):
        run(lake, OUTPUT, resume=False, is_killed=True)
    grow(lake, 100, 150)
    finished = run(lake, OUTPUT, resume=True)
    assert finished.outcome.kind == "Complete"
    rows = pq.read_table(lake.folder / "out").sort_by("id")
    assert rows["id"].to_pylist() == list(range(100))
    assert rows["feature"].to_pylist() == [float(i) for i in range(100)]
    summary = load_summary(finished.output)
    assert [pin.table for pin in summary.snapshots] == ["db.main", "db.side"]
    report = (finished.output / "report.html").read_text()
    assert all(str(pin.snapshot_id) in report for pin in summary.snapshots)
    plan = json.loads((finished.output / "plan.json").read_text())
    assert [each["snapshotId"] for each in plan["snapshots"]] == [
        pin.snapshot_id for pin in summary.snapshots
    ]


def test_damaged_record_is_refused(lake: Lake) -> None:
    with pytest.raises(KilledError):
        run(lake, OUTPUT, resume=False, is_killed=True)
    [folder] = (lake.folder / "experiments/pinned").iterdir()
    (folder / PINS_FILE).write_text("{}")
    with pytest.raises(SourceError) as raised:
        run(lake, OUTPUT, resume=True)
    assert_told(str(raised.value), f"… {PINS_FILE} … tables")


def test_expired_snapshot_stops_a_retry(lake: Lake) -> None:
    with pytest.raises(KilledError):
        run(lake, OUTPUT, resume=False, is_killed=True)
    grow(lake, 100, 150)
    main = lake.catalog.load_table("db.main")
    expired = main.snapshots()[0].snapshot_id
    main.maintenance.expire_snapshots().older_than(datetime.now()).commit()
    with pytest.raises(SourceError) as raised:
        run(lake, OUTPUT, resume=True)
    assert_told(str(raised.value), f"lake.db.main … {expired}")
