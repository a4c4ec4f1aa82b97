"""Runs with a step `materialize`: the same rows with its table and without, and only new days."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType

from pipeline_runtime.cli import main
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import FolderTaken, Interrupted, ManifestError
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.materialization.lookup import Materialization
from pipeline_runtime.materialization.tables import find_orphans
from pipeline_runtime.plan import Plan, build_plan, explain
from pipeline_runtime.run import partition_commits
from pipeline_runtime.run.advising import measure_advice
from pipeline_runtime.run.consumers import Reading
from pipeline_runtime.run.materializing import build_ready_plan
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import Finished, Watcher, run_experiment
from tests.support.tables.days_table import SCHEMA, compact, make_rows

MATERIALIZE = {
    "materialize": {
        "iceberg": {"catalog": "lake", "table": "db.cache"},
        "bucketBy": "user_id",
        "buckets": 4,
        "sortBy": ["user_id"],
    }
}


class World:
    """A source of days in a catalog, and runs over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        uri = f"sqlite:///{folder}/catalog.db"
        self.catalog = SqlCatalog("lake", uri=uri, warehouse=f"file://{folder}/lake")
        self.catalog.create_namespace("db")
        self.catalogs = [{"name": "lake", "type": "Sql", "uri": uri}]
        self.catalogs[0]["warehouse"] = f"file://{folder}/lake"
        spec = PartitionSpec(
            PartitionField(2, 1000, IdentityTransform(), "day"),
            PartitionField(1, 1001, BucketTransform(2), "bucket"),
        )
        self.source = self.catalog.create_table("db.source", SCHEMA, partition_spec=spec)
        self.add(1)
        self.add(2)

    def add(self, day: int) -> None:
        self.source.append(make_rows(day, users=20))

    def document(self, *, kept: bool = True, **spec: Any) -> dict[str, Any]:
        steps = [
            {"filter": {"where": "user_id < 15"}},
            {"derive": {"columns": [{"name": "x", "expression": "user_id * 2"}]}},
            *([MATERIALIZE] if kept else []),
            {"derive": {"columns": [{"name": "y", "expression": "x + 1"}]}},
        ]
        return {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": "days"},
            "spec": {
                "catalogs": self.catalogs,
                "dataset": {
                    "iceberg": {"catalog": "lake", "table": "db.source"},
                    "rowKey": ["user_id", "day"],
                    **spec.pop("dataset", {}),
                },
                "pipeline": spec.pop("pipeline", steps),
                "output": {"mode": "Overwrite", "parquet": {"uri": "out/"}},
                **spec,
            },
        }

    def run(self, watcher: Watcher | None = None, **spec: Any) -> Finished:
        options = RunOptions(
            output=self.folder / "report", folder_per_run=True, storage_root=str(self.folder)
        )
        experiment = parse_experiment(self.document(**spec))
        finished = run_experiment(experiment, "", options, watcher)
        assert finished.outcome.kind == "Complete", finished.outcome
        return finished

    def plan(self, **spec: Any) -> Plan:
        return build_plan(parse_experiment(self.document(**spec)), str(self.folder))

    def make_ready(self, **spec: Any) -> Materialization:
        """Plan a run with all rows kept, and return what was missing before."""
        experiment = parse_experiment(self.document(**spec))
        options = RunOptions(output=self.folder / "report", storage_root=str(self.folder))
        found = self.plan(**spec).materialization
        build = partial(build_plan, storage_root=str(self.folder), pins=Pins())
        plan = build_ready_plan(experiment, options, build)
        assert found is not None
        assert plan.materialization is not None
        assert plan.materialization.state == "Hit"
        read = {pin.table for pin in options.tables.pins}
        assert "db.source" in read  # known while rows are computed
        return found

    def rows(self) -> list[dict[str, Any]]:
        table = pq.read_table(self.folder / "out")
        rows: list[dict[str, Any]] = table.sort_by(
            [("day", "ascending"), ("user_id", "ascending")]
        ).to_pylist()
        return rows

    @property
    def caches(self) -> list[Table]:
        names = [each[-1] for each in self.catalog.list_tables("db")]
        found = [name for name in names if name.startswith("cache_")]
        return [self.catalog.load_table(f"db.{name}") for name in found]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_rows_are_the_same_with_the_table(world: World) -> None:
    world.run(kept=False)
    wanted = world.rows()
    assert len(wanted) == 30
    seen = _Seen()
    first = world.run(seen.watcher)  # which computes and keeps the rows first, then reads them
    assert world.rows() == wanted
    [cache] = world.caches
    [snapshot] = cache.metadata.snapshots
    second = world.run()
    for finished, state in ((first, "Miss"), (second, "Hit")):
        kept = finished.summary.materialization
        assert kept is not None
        assert f"{kept.catalog}.{kept.table}" == ".".join(("lake", *cache.name()))
        assert (kept.state, kept.partitions, kept.complete_partitions) == (state, 2, 2)
        assert kept.snapshot_id == str(snapshot.snapshot_id)
        read = {pin.table: pin.snapshot_id for pin in finished.summary.snapshots}
        assert read[kept.table] == kept.snapshot_id
        assert read["db.source"] == str(world.source.metadata.current_snapshot_id)
    phases = [phase.name for phase in first.summary.run.phases]
    assert phases[:3] == ["imports", "plan", "materializing"]
    assert "100 % read · 30 rows" in seen.lines[-1]
    assert "lastmile_run_rows_total 30.0" in seen.metrics[-1]
    assert "lastmile_materialization_rows 30.0" in seen.metrics[-1]
    assert "complete" in (first.output / "run.log").read_text()


class _Seen:
    """Records what a person and the autoscaler see while rows are computed.

    Args:
        stops_at: stop the run once more rows than these are stored.
    """

    def __init__(self, *, stops_at: int | None = None) -> None:
        self.lines: list[str] = []
        self.metrics: list[str] = []
        self._port = 0
        self._stops_at = stops_at
        self.watcher = Watcher(on_metrics_port=self._set_port, on_reading=self._read)

    def _set_port(self, port: int) -> None:
        self._port = port

    def _read(self, reading: Reading) -> None:
        if not reading.line.startswith("materializing:"):
            return
        self.lines.append(reading.line)
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics") as answer:
            self.metrics.append(answer.read().decode())
        if self._stops_at is not None and reading.source.rows > self._stops_at:
            self._stops_at = None
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stopped_run_keeps_the_days_that_it_committed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_commits, "_BYTES_PER_COMMIT", 1)  # a commit per day
    with pytest.raises(Interrupted):
        world.run(_Seen(stops_at=15).watcher)  # the rows of the first day
    assert list(world.folder.rglob("spool")) == []
    assert _missing(world.make_ready()) == {"02": "new"}


def test_another_runs_folder_is_refused_before_rows_are_computed(world: World) -> None:
    report = world.folder / "report"
    report.mkdir()
    (report / "run.json").write_text("{}")
    options = RunOptions(output=report, storage_root=str(world.folder))
    with pytest.raises(FolderTaken):
        run_experiment(parse_experiment(world.document()), "", options)
    assert world.caches == []


def test_a_plan_of_kept_rows_reads_the_table_alone(world: World) -> None:
    world.make_ready()
    plan = world.plan()
    assert plan.main.table.description.startswith("lake.db.cache_")
    assert [step.kind for step in plan.main.steps] == ["derive"]
    assert plan.main.read_columns == ("user_id", "day", "ts", "label", "x")
    assert plan.main.scan.pruning.rows_read == 30
    assert explain(plan).startswith("Materialization: hit")


def _missing(found: Materialization) -> dict[str, str]:
    return {key[-4:-2]: change for key, change in found.missing.items()}


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        pytest.param(lambda world: world.add(3), {"03": "new"}, id="new-day"),
        pytest.param(lambda world: world.add(2), {"02": "source"}, id="late-rows"),
        pytest.param(
            lambda world: world.source.delete("day = '2026-01-01' and user_id = 3"),
            {"01": "source"},
            id="erased-row",
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda world: world.source.delete("day = '2026-01-01'"), {}, id="removed-day"),
        pytest.param(lambda world: compact(world.source), {}, id="compaction"),
    ],
)
def test_only_changed_days_are_computed(
    world: World, change: Callable[[World], None], missing: dict[str, str]
) -> None:
    assert _missing(world.make_ready()) == {"01": "new", "02": "new"}
    change(world)
    assert _missing(world.make_ready()) == missing
    [cache] = world.caches
    assert len(cache.metadata.snapshots) == (2 if missing else 1)
    world.source.refresh()
    wanted = world.source.scan("user_id < 15").count()
    assert world.plan().main.scan.pruning.rows_read == wanted


def test_windows_share_their_days(world: World) -> None:
    world.add(3)
    first = {"dataset": {"where": "day <= '2026-01-02' and label = 0"}}
    second = {"dataset": {"where": "day >= '2026-01-02' and label = 0"}}
    assert _missing(world.make_ready(**_copy(first))) == {"01": "new", "02": "new"}
    assert _missing(world.make_ready(**_copy(second))) == {"03": "new"}
    assert world.plan(**_copy(first)).main.scan.pruning.rows_read == 30
    other = {"dataset": {"where": "day >= '2026-01-02' and label < 1"}}
    assert world.plan(**_copy(other)).materialization.state == "Miss"  # type: ignore[union-attr]


def _copy(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(part) for name, part in spec.items()}


def _read(plan: Plan, role: str) -> list[dict[str, Any]]:
    """Return the rows of a stream, by their key."""
    stream = plan.streams[role]
    rows = [
        row
        for group in stream.groups(0, stream.chunk_rows)
        for chunk in read_group(stream, group, stream.chunk_rows)
        for row in chunk.table.select(list(stream.output_schema.names)).to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["day"], row["user_id"]))


@pytest.mark.parametrize("evaluation", [{"holdoutPercent": 30}, {"where": "day = '2026-01-02'"}])
def test_training_and_evaluation_keep_their_rows(world: World, evaluation: dict[str, Any]) -> None:
    document = world.document()
    del document["spec"]["output"]
    document["spec"]["training"] = {"evaluation": evaluation}
    document["spec"]["pipeline"].append({"downsample": {"keepPercent": 50, "seed": 3}})
    experiment = parse_experiment(document)
    build = partial(build_plan, storage_root=str(world.folder))
    before = build(experiment)
    options = RunOptions(output=world.folder / "report", storage_root=str(world.folder))
    after = build_ready_plan(experiment, options, build)
    assert after.main.table.description != before.main.table.description
    for role in ("training", "evaluation"):
        assert _read(after, role) == _read(before, role) != []


def test_a_changed_side_table_has_all_days_computed(world: World) -> None:
    side = world.catalog.create_table("db.side", pa.schema([("user_id", pa.int64())]))
    side.append(pa.table({"user_id": pa.array(range(9), pa.int64())}))
    pipeline = world.document()["spec"]["pipeline"]
    pipeline[1] = {
        "antiJoin": {"iceberg": {"catalog": "lake", "table": "db.side"}, "keys": ["user_id"]}
    }
    pipeline[3] = {"filter": {"where": "user_id > 10"}}
    world.make_ready(pipeline=pipeline)
    compact(side)
    world.add(3)
    assert _missing(world.make_ready(pipeline=pipeline)) == {"03": "new"}
    side.append(pa.table({"user_id": pa.array([14], pa.int64())}))
    changed = _missing(world.make_ready(pipeline=pipeline))
    assert changed == {"01": "side", "02": "side", "03": "side"}
    users = {row["user_id"] for row in _read(world.plan(pipeline=pipeline), "output")}
    assert users == {11, 12, 13}


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(["a"], id="named"),
        pytest.param(None, id="all", marks=pytest.mark.slow),
    ],
)
def test_other_columns_of_a_side_table_are_another_recipe(
    world: World, columns: list[str] | None
) -> None:
    types = [(name, pa.int64()) for name in ("user_id", "a", "b")]
    side = world.catalog.create_table("db.side", pa.schema(types))
    users = pa.array(range(20), pa.int64())
    side.append(pa.table({"user_id": users, "a": users, "b": pc.add(users, 100)}))
    table = {"catalog": "lake", "table": "db.side"}
    join = {"iceberg": table, "keys": ["user_id"], "how": "Inner", "columns": columns}
    pipeline = [{"join": {name: part for name, part in join.items() if part}}, MATERIALIZE]
    world.make_ready(pipeline=pipeline)
    side.update_schema().rename_column("a", "old").commit()
    side.update_schema().rename_column("b", "a").commit()
    world.make_ready(pipeline=pipeline)
    rows = _read(world.plan(pipeline=pipeline), "output")
    assert {row["a"] - row["user_id"] for row in rows} == {100}
    assert ("old" in rows[0]) == (columns is None)


def test_another_name_mapping_is_another_recipe(world: World) -> None:
    def map_names(**names: str) -> str:
        fields = [{"field-id": 1, "names": ["user_id", names.get("user_id", "u")]}]
        fields.append({"field-id": 3, "names": [names.get("ts", "t")]})
        with world.source.transaction() as transaction:
            transaction.set_properties({"schema.name-mapping.default": json.dumps(fields)})
        plan = world.plan(pipeline=[{"drop": {"columns": ["ts"]}}, MATERIALIZE])
        assert plan.materialization is not None
        return plan.materialization.recipe.hash

    first = map_names()
    assert map_names(ts="time") == first  # a column that is not read
    assert map_names(user_id="user") != first


def test_a_table_that_joins_its_own_past_has_new_days_computed(world: World) -> None:
    past = str(world.source.refresh().current_snapshot().snapshot_id)  # type: ignore[union-attr]
    table = {"catalog": "lake", "table": "db.source", "snapshotId": past}
    pipeline = [{"antiJoin": {"iceberg": table, "keys": ["user_id", "day"]}}, MATERIALIZE]
    world.make_ready(pipeline=pipeline)
    world.add(1)
    assert _missing(world.make_ready(pipeline=pipeline)) == {"01": "source"}


def test_an_older_snapshot_is_chosen_by_its_own_names(world: World) -> None:
    past = str(world.source.refresh().current_snapshot().snapshot_id)  # type: ignore[union-attr]
    for old, new in (("label", "x"), ("day", "label")):
        world.source.update_schema().rename_column(old, new).commit()
    table = {"catalog": "lake", "table": "db.source", "snapshotId": past}
    found = world.plan(dataset={"iceberg": table, "where": "label = 0"}).materialization
    assert found is not None
    assert len(found.wanted) == 2


def test_parquet_tables_are_kept_as_a_whole(world: World) -> None:
    pq.write_table(make_rows(1), world.folder / "in.parquet")
    document = world.document()
    document["spec"]["dataset"] = {"parquet": {"uri": "in.parquet"}, "rowKey": ["user_id"]}
    experiment = parse_experiment(document)
    build = partial(build_plan, storage_root=str(world.folder))
    options = RunOptions(output=world.folder / "report", storage_root=str(world.folder))
    wanted = _read(build(experiment), "output")
    assert _read(build_ready_plan(experiment, options, build), "output") == wanted
    pq.write_table(make_rows(2), world.folder / "in.parquet")
    found = build(experiment).materialization
    assert found is not None
    assert dict(found.missing) == {"{}": "source"}


def test_a_missing_namespace_is_refused_before_a_run(world: World) -> None:
    pipeline = world.document()["spec"]["pipeline"]
    target = {"catalog": "lake", "table": "nowhere.cache"}
    pipeline[2] = {"materialize": {**MATERIALIZE["materialize"], "iceberg": target}}
    with pytest.raises(ManifestError) as caught:
        world.plan(pipeline=pipeline)
    assert caught.value.problems[0].path == "spec.pipeline[2].materialize.iceberg.table"


_KILLED = """
import os, sys, json
from functools import partial
from pathlib import Path
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.output.cache_table import CacheTable
from pipeline_runtime.plan import build_plan
from pipeline_runtime.run import materializing, partition_commits
from pipeline_runtime.run.options import RunOptions

partition_commits._BYTES_PER_COMMIT = 1  # a commit per day
folder, place = Path(sys.argv[1]), sys.argv[2]
method = getattr(CacheTable, place)
calls = []

def kill(self, *arguments):
    calls.append(1)
    result = method(self, *arguments) if place == "_stage" else None
    if len(calls) == 2:  # the second day
        os.kill(os.getpid(), 9)
    return result if place == "_stage" else method(self, *arguments)

setattr(CacheTable, place, kill)
experiment = parse_experiment(json.loads(sys.argv[3]))
build = partial(build_plan, storage_root=str(folder))
options = RunOptions(output=folder / "report", storage_root=str(folder))
materializing.build_ready_plan(experiment, options, build)
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["commit", "_stage", "clean_up"])
def test_a_killed_run_keeps_what_it_committed(world: World, place: str) -> None:
    arguments = [sys.executable, "-c", _KILLED, str(world.folder), place]
    killed = subprocess.run([*arguments, json.dumps(world.document())], check=False)
    assert killed.returncode == -9
    wanted = {} if place == "clean_up" else {"02": "new"}
    assert _missing(world.make_ready()) == wanted
    [cache] = world.caches
    assert cache.scan().count() == 30
    name = ".".join(cache.name())
    find_orphans(world.catalog, name, timedelta(0)).delete()
    assert cache.scan().count() == 30
    folder = Path(cache.location().removeprefix("file://"))
    assert len(list(folder.rglob("*.parquet"))) == 2 * 4


def test_files_are_bucketed_and_sorted(world: World) -> None:
    world.make_ready()
    [cache] = world.caches
    files = [task.file for task in cache.scan().plan_files()]
    assert len(files) == 2 * 4
    assert {file.sort_order_id for file in files} == {1}
    for file in files:
        users = pq.read_table(file.file_path.removeprefix("file://"))["user_id"].to_pylist()
        assert users == sorted(users)
        assert {BucketTransform(4).transform(SCHEMA.find_type("user_id"))(u) for u in users} == {
            file.partition[1]
        }


_BURN = """
import time

def burn(table, seconds):
    end = time.process_time() + seconds * table.num_rows
    while time.process_time() < end:
        pass
    return table
"""


@pytest.mark.slow
def test_advice_counts_what_expensive_steps_cost(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (world.folder / "burning.py").write_text(_BURN)
    monkeypatch.syspath_prepend(str(world.folder))
    pipeline = world.document()["spec"]["pipeline"]
    function = {"function": "burning:burn", "options": {"seconds": 0.01}}
    pipeline[1] = {"map": {**function, "outputColumns": [{"name": "label", "type": "int64"}]}}
    pipeline[3] = {"derive": {"columns": [{"name": "y", "expression": "label + 1"}]}}
    world.make_ready(pipeline=pipeline, dataset={"where": "day = '2026-01-01'"})
    manifest = world.folder / "m.yaml"
    manifest.write_text(json.dumps(world.document(pipeline=pipeline)))
    arguments = ["explain", "-f", str(manifest), "--storage-root", str(world.folder), "--json"]
    monkeypatch.setattr(sys, "argv", ["lastmile", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    advice = json.loads(capsys.readouterr().out)["materializationAdvice"]
    assert advice["sampleRows"] == 20  # of the missing day
    assert advice["withoutSeconds"] == pytest.approx(2 * 15 * 0.01, rel=0.5)
    assert advice["keepSeconds"] > 15 * 0.01
    assert advice["withSeconds"] < 15 * 0.01
    assert advice["paysAfterRuns"] >= 1
    [cache] = world.caches
    assert len(cache.metadata.snapshots) == 1  # the sample is kept elsewhere
    assert world.catalog.list_namespaces() == [("db",)]
    experiment = parse_experiment(world.document(pipeline=pipeline[:2]))
    assert measure_advice(experiment, world.plan(pipeline=pipeline[:2]), str(world.folder)) is None


def test_another_recipe_has_another_table(world: World) -> None:
    world.make_ready()
    pipeline = world.document()["spec"]["pipeline"]
    pipeline[0]["filter"]["where"] = "user_id < 7"
    plan = world.plan(pipeline=pipeline)
    assert plan.materialization is not None
    assert plan.materialization.changes == (
        'steps[0].filter.where: "user_id < 15" → "user_id < 7"',
    )
    assert "steps[0].filter.where" in explain(plan)
    world.make_ready(pipeline=pipeline)
    assert len(world.caches) == 2


def test_a_step_after_the_table_changes_no_recipe(world: World) -> None:
    world.make_ready()
    pipeline = world.document()["spec"]["pipeline"]
    pipeline[3] = {"filter": {"where": "x > 5"}}
    assert world.plan(pipeline=pipeline).materialization.state == "Hit"  # type: ignore[union-attr]


def test_a_foreign_commit_has_all_rows_computed_again(world: World) -> None:
    world.make_ready()
    [cache] = world.caches
    cache.append(cache.scan().to_arrow().slice(0, 5))
    assert _missing(world.make_ready()) == {"01": "new", "02": "new"}
    assert world.plan().main.scan.pruning.rows_read == 30


def test_a_day_without_rows_is_kept_too(world: World) -> None:
    pipeline = world.document()["spec"]["pipeline"]
    pipeline[0]["filter"]["where"] = "user_id < 0"
    world.make_ready(pipeline=pipeline)
    assert world.plan(pipeline=pipeline).materialization.state == "Hit"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("step", "path"),
    [
        pytest.param({"drop": {"columns": ["day"]}}, "[3].materialize", id="dropped-row-key"),
        pytest.param(
            {"hashBucket": {"columns": ["user_id"], "buckets": 9}},
            "[3].materialize",
            id="changed-row-key",
        ),
        pytest.param(
            {"cast": {"columns": [{"name": "label", "type": "int8"}]}},
            "[3].materialize",
            id="type-that-Iceberg-lacks",
        ),
        pytest.param(MATERIALIZE, "[3]", id="twice"),
        pytest.param(
            {"measure": {"metrics": [{"name": "m", "mean": {"column": "user_id"}}]}},
            "[3].materialize",
            id="rows-measured-before",
        ),
    ],
)
def test_steps_that_the_table_cannot_stand_for_are_refused(
    world: World, step: dict[str, Any], path: str
) -> None:
    pipeline = world.document()["spec"]["pipeline"]
    pipeline.insert(1, step)
    with pytest.raises(ManifestError) as caught:
        world.plan(pipeline=pipeline)
    assert [problem.path for problem in caught.value.problems] == [f"spec.pipeline{path}"]


def test_a_row_key_that_no_step_hands_on_is_refused(world: World) -> None:
    with world.source.update_schema() as update:
        update.add_column("_lastmile_row_id", LongType())
    with pytest.raises(ManifestError) as caught:
        world.plan(dataset={"rowKey": ["_lastmile_row_id"]})
    assert [problem.path for problem in caught.value.problems] == ["spec.pipeline[2].materialize"]


def test_sampling_for_the_training_alone_comes_after(world: World) -> None:
    pipeline = world.document()["spec"]["pipeline"]
    pipeline.insert(1, {"downsample": {"keepPercent": 50}})
    document = world.document(pipeline=pipeline)
    del document["spec"]["output"]
    document["spec"]["training"] = {"evaluation": {"holdoutPercent": 10}}
    with pytest.raises(ManifestError) as caught:
        build_plan(parse_experiment(document), str(world.folder))
    assert "spec.pipeline[1] downsample" in str(caught.value)


def test_concurrent_writers_keep_each_row_once(world: World) -> None:
    world.add(3)
    windows = [f"day >= '2026-01-0{day}'" for day in (1, 3, 1)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda where: world.make_ready(dataset={"where": where}), windows))
    [cache] = world.caches
    name = ".".join(cache.name())
    # Metadata files of attempts that the catalog refused; data files are deleted at once.
    orphans = find_orphans(world.catalog, name, timedelta(0))
    assert not any(path.endswith(".parquet") for path in orphans.paths)
    orphans.delete()
    assert find_orphans(world.catalog, name, timedelta(0)).paths == ()
    assert cache.scan().count() == 3 * 15
    assert world.plan().main.scan.pruning.rows_read == 3 * 15
