"""`lastmile backfill` computes the partitions that a staging table lacks, and commits each once."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from facts import assert_told
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType
from written_iceberg import list_orphans, make_lake

from pipeline_runtime import bucketing
from pipeline_runtime.cli import main
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.kernels import Kernels, select
from pipeline_runtime.materialization.tables import find_orphans
from pipeline_runtime.run import partition_commits
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import Finished, run_experiment
from pipeline_runtime.runs.cleaning import CleaningRule, delete, plan_cleaning
from pipeline_runtime.runs.listing import list_runs
from tests.support.tables.days_table import SCHEMA, compact, make_rows

Capture = pytest.CaptureFixture[str]
USERS = 20


class World:
    """A source of days, and backfills of a staging table with a key and a new column."""

    def __init__(self, folder: Path, catalog: SqlCatalog) -> None:
        self.folder, self.catalog = folder, catalog

    def create_source(self, *, is_hidden: bool = False) -> None:
        day = PartitionField(2, 1000, IdentityTransform(), "day")
        spec = PartitionSpec(
            PartitionField(3, 1000, DayTransform(), "ts_day") if is_hidden else day,
            PartitionField(1, 1001, BucketTransform(2), "bucket"),
        )
        self.source = self.catalog.create_table("db.source", SCHEMA, partition_spec=spec)
        for day in (1, 2):
            self.add(day)

    def add(self, day: int) -> None:
        self.source.append(make_rows(day, users=USERS))

    def document(self, **spec: Any) -> dict[str, Any]:
        output = {
            "mode": "OverwritePartitions",
            "columns": ["user_id", "day", "x"],
            "partitionBy": ["day"],
            "iceberg": {"catalog": "lake", "table": "db.x", "bucketBy": "user_id", "buckets": 3},
        }
        lake = {"name": "lake", "type": "Sql", "uri": f"sqlite:///{self.folder}/catalog.db"}
        step = {"derive": {"columns": [{"name": "x", "expression": "user_id * 2"}]}}
        return {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": "x"},
            "spec": {
                "catalogs": [{**lake, "warehouse": f"file://{self.folder}/lake"}],
                "dataset": {
                    "iceberg": {"catalog": "lake", "table": "db.source"},
                    "rowKey": ["user_id", "day"],
                    **spec.pop("dataset", {}),
                },
                "pipeline": spec.pop("pipeline", [step]),
                "output": {**output, **spec.pop("output", {})},
                **spec,
            },
        }

    def run(self, *partitions: str, resume: bool = False, **spec: Any) -> Finished:
        options = RunOptions(
            output=self.folder / "report",
            folder_per_run=True,
            storage_root=str(self.folder),
            partitions=partitions,
            resume=resume,
        )
        document = self.document(**spec)
        finished = run_experiment(parse_experiment(document), yaml.safe_dump(document), options)
        assert finished.outcome.kind == "Complete", finished.outcome
        return finished

    def backfill(self, *partitions: str, **spec: Any) -> tuple[list[str], list[str]]:
        """Return the days that a run wrote, and those that were there."""
        written = self.run(*partitions, **spec).summary.output
        assert written is not None
        days = (written.written_partitions or (), written.complete_partitions or ())
        return tuple([name[-2:] for name in each] for each in days)  # type: ignore[return-value]

    def call(self, *options: str, **spec: Any) -> int:
        """Run the command line; return the exit code."""
        path = self.folder / "x.yaml"
        path.write_text(yaml.safe_dump(self.document(**spec)))
        sys.argv = ["lastmile", "backfill", "-f", str(path), "--storage-root", str(self.folder)]
        sys.argv += options
        with pytest.raises(SystemExit) as caught:
            main()
        return int(caught.value.code or 0)

    def rows(self) -> list[tuple[int, int, int]]:
        """Return the user, the day of January, and the new column, of the staging table."""
        found = self.catalog.load_table("db.x").scan().to_arrow().to_pylist()
        return sorted((row["user_id"], row["day"].day, row["x"]) for row in found)

    @property
    def num_snapshots(self) -> int:
        return len(self.catalog.load_table("db.x").metadata.snapshots)


def expect(*days: int, factor: int = 2) -> list[tuple[int, int, int]]:
    return sorted((user, day, user * factor) for user in range(USERS) for day in days)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(partition_commits, "_BYTES_PER_COMMIT", 1)  # a commit per partition
    catalog = make_lake(tmp_path)
    found = World(tmp_path, catalog)
    found.create_source()
    yield found
    catalog.engine.dispose()


OTHER = [{"derive": {"columns": [{"name": "x", "expression": "user_id * 3"}]}}]


@pytest.mark.parametrize(
    ("change", "spec", "days"),
    [
        pytest.param(lambda world: world.add(3), {}, ["03"], id="new day"),
        pytest.param(
            lambda world: world.source.delete("day = '2026-01-01' and user_id = 3"),
            {},
            ["01"],
            id="changed day",
        ),
        pytest.param(lambda world: compact(world.source), {}, [], id="compaction"),
        pytest.param(lambda world: None, {"pipeline": OTHER}, ["01", "02"], id="recipe"),
        pytest.param(
            lambda world: world.catalog.load_table("db.x").delete("user_id = 3"),
            {},
            ["01", "02"],
            id="other writer",
        ),
    ],
)
def test_only_missing_and_changed_days_are_written(
    world: World, change: Callable[[World], None], spec: dict[str, Any], days: list[str]
) -> None:
    assert world.backfill() == (["01", "02"], [])
    assert (world.num_snapshots, world.rows()) == (2, expect(1, 2))
    change(world)
    num_snapshots = world.num_snapshots
    others = [day for day in ("01", "02") if day not in days]
    assert world.backfill(**spec) == (days, others)
    assert world.num_snapshots == num_snapshots + len(days)
    world.source.refresh()
    keys = world.source.scan().to_arrow().select(["user_id", "day"]).to_pylist()
    factor = 3 if spec else 2
    assert world.rows() == sorted(
        (key["user_id"], key["day"].day, key["user_id"] * factor) for key in keys
    )


def test_the_command_reports_chosen_days(world: World, capsys: Capture) -> None:
    assert world.call("--partition", "day=2026-01-02", "--json", "--resume") == 0
    output = json.loads(capsys.readouterr().out)["output"]
    assert output["writtenPartitions"] == ["day=2026-01-02"]
    assert (output["completePartitions"], output["rows"]) == ([], USERS)
    assert world.rows() == expect(2)
    assert world.call() == 0
    assert_told(capsys.readouterr().out, "… day=2026-01-01 … day=2026-01-02 …")
    assert world.rows() == expect(1, 2)


def test_hidden_partitions_of_an_existing_table_are_replaced(world: World) -> None:
    world.catalog.drop_table("db.source")
    world.create_source(is_hidden=True)
    schema = Schema(
        *(
            NestedField(i, n, t())
            for i, n, t in ((1, "user_id", LongType), (2, "ts", TimestampType), (3, "x", LongType))
        )
    )
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "ts_day"))
    world.catalog.create_table("db.x", schema, partition_spec=spec)
    given: dict[str, Any] = {
        "dataset": {"rowKey": ["user_id", "ts"]},
        "output": {
            "columns": ["user_id", "ts", "x"],
            "partitionBy": None,
            "iceberg": {"catalog": "lake", "table": "db.x"},
        },
    }
    assert world.backfill(**copy.deepcopy(given)) == (["01", "02"], [])
    world.source.delete("user_id = 3 and day = '2026-01-02'")
    assert world.backfill("ts_day=2026-01-02", **copy.deepcopy(given)) == (["02"], [])
    found = world.catalog.load_table("db.x").scan().to_arrow().to_pylist()
    assert sorted((row["ts"].day, row["x"]) for row in found) == [
        (day, user * 2) for day in (1, 2) for user in range(USERS) if (day, user) != (2, 3)
    ]


def test_every_partition_of_texts_can_be_chosen(world: World, capsys: Capture) -> None:
    world.catalog.drop_table("db.source")
    schema = Schema(NestedField(1, "user_id", LongType()), NestedField(2, "c", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "c"))
    source = world.catalog.create_table("db.source", schema, partition_spec=spec)
    texts = ["a,b", "50%", "null", None, "x/y=z", ""]
    source.append(pa.table({"user_id": range(len(texts)), "c": texts}))
    given: dict[str, Any] = {
        "dataset": {"rowKey": ["user_id"]},
        "output": {"columns": ["user_id", "c", "x"], "partitionBy": ["c"]},
    }
    assert world.call("--partition", "c=none", **copy.deepcopy(given)) == 5
    told = "".join(capsys.readouterr())
    choices = ["c=a%2Cb", "c=50%25", "c=%6Eull", "c=null", "c=x/y=z", "c="]
    assert all(f"{choice}," in told or f"{choice}." in told for choice in choices)
    for choice in choices:
        written = world.run(choice, **copy.deepcopy(given)).summary.output
        assert written is not None
        assert written.rows == 1


def test_a_source_without_partitions_is_written_as_a_whole(world: World) -> None:
    world.source.update_spec().remove_field("day").remove_field("bucket").commit()
    world.source.delete()
    world.add(4)
    assert world.backfill()[0] == ["le"]  # "the whole table"
    world.add(5)
    world.backfill()
    assert world.rows() == expect(4, 5)


@pytest.mark.slow
def test_several_runs_write_one_table_at_a_time(world: World) -> None:
    for day in (3, 4):
        world.add(day)
    choices: list[list[str]] = [["day=2026-01-01", "day=2026-01-03"], ["day=2026-01-04"], []]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda chosen: world.backfill(*chosen), choices))
    assert world.backfill() == ([], ["01", "02", "03", "04"])
    assert world.rows() == expect(1, 2, 3, 4)
    assert not any(
        path.endswith(".parquet") for path in list_orphans(world.catalog.load_table("db.x"))
    )


def test_days_that_another_run_commits_meanwhile_are_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SqlCatalog.commit_table
    others: list[tuple[list[str], list[str]]] = []

    def commit_after_another(catalog: SqlCatalog, *arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        others.append(world.backfill("day=2026-01-01"))
        return commit(catalog, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_another)
    assert world.backfill() == (["02"], ["01"])
    assert others == [(["01"], [])]
    assert (world.num_snapshots, world.rows()) == (2, expect(1, 2))


def test_newer_rows_of_another_run_stay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = SqlCatalog.commit_table

    def commit_after_another(catalog: SqlCatalog, *arguments: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        world.source.delete("user_id = 3")
        world.backfill("day=2026-01-01")
        return commit(catalog, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_another)
    with pytest.raises(AssertionError, match="day=2026-01-01"):
        world.run()
    newer = [row for row in expect(1, 2) if row[0] != 3]
    assert world.rows() == [row for row in newer if row[1] == 1]
    assert world.backfill() == (["02"], ["01"])
    assert world.rows() == newer


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda lake: lake.drop_table("db.x"), id="deleted"),
        pytest.param(
            lambda catalog: catalog.load_table("db.x").delete("user_id = 3"), id="written"
        ),
    ],
)
def test_a_table_that_another_program_changes_meanwhile_is_not_complete(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[SqlCatalog], None]
) -> None:
    commit = SqlCatalog.commit_table
    calls: list[object] = []

    def commit_after_change(catalog: SqlCatalog, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            monkeypatch.setattr(SqlCatalog, "commit_table", commit)
            change(catalog)
        return commit(catalog, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_after_change)
    with pytest.raises(AssertionError, match="day=2026-01-01"):
        world.run()
    assert world.backfill() == (["01"], ["02"])
    assert world.rows() == expect(1, 2)


@pytest.mark.parametrize("wanted", [True, False])
def test_buckets_are_hashed_by_kernels_if_wanted(
    world: World, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    asked: list[bool] = []

    def note(wanted: bool, num_items: int) -> Kernels | None:
        if num_items > 1:  # a file's first row tells its partition
            asked.append(wanted)
        return select(wanted, num_items)

    monkeypatch.setattr(bucketing, "select", note)
    world.backfill(pipelineOptions={"debug": {"kernels": wanted}})
    assert set(asked) == {wanted}


def test_commits_leave_no_folder(world: World) -> None:
    world.backfill()
    assert list(world.folder.glob("experiments/x/backfill_*")) == []


MATERIALIZE = {
    "materialize": {
        "iceberg": {"catalog": "lake", "table": "db.c"},
        "bucketBy": "user_id",
        "buckets": 2,
    }
}


@pytest.mark.parametrize(
    ("options", "spec", "code", "facts"),
    [
        pytest.param(
            [], {"output": {"mode": "Overwrite"}}, 2, "spec.output.mode … 'Overwrite'", id="mode"
        ),
        pytest.param(
            [],
            {"output": {"iceberg": None, "parquet": {"uri": "out/"}}},
            2,
            "spec.output.mode … iceberg",
            id="no Iceberg table",
        ),
        pytest.param(
            [],
            {"output": {"partitionBy": None}},
            2,
            "spec.output.partitionBy … (day)",
            id="partitions",
        ),
        pytest.param([], {"dataset": {"rowKey": None}}, 2, "spec.dataset.rowKey", id="no keys"),
        pytest.param(
            [],
            {"output": {"columns": ["day", "x"]}},
            2,
            "spec.output.columns … user_id",
            id="keys that are not written",
        ),
        pytest.param(
            [], {"pipeline": [MATERIALIZE]}, 2, "spec.pipeline[0] … Remove", id="materialize"
        ),
        pytest.param(
            [],
            {
                "pipeline": [
                    {"derive": {"columns": [{"name": "x", "expression": "1"}]}},
                    {"fillNull": {"columns": [{"name": "day", "value": "2026-01-01"}]}},
                ]
            },
            2,
            "spec.pipeline[1] … 'day'",
            id="changed partition",
        ),
        pytest.param(
            ["--partition", "day=2027-01-01"],
            {},
            5,
            "--partition … day=2026-01-01",
            id="no such partition",
        ),
        pytest.param(
            [],
            {"output": {"iceberg": {"catalog": "lake", "table": "db.source"}}},
            2,
            "spec.output.iceberg.table … spec.dataset",
            id="its own source",
        ),
        pytest.param(["--partition", "day"], {}, 5, "--partition … 'day'", id="partition's form"),
        pytest.param(
            [],
            {
                "dataset": {"rowKey": ["label", "day"]},
                "output": {"columns": ["label", "day", "x"]},
                "pipeline": OTHER,
            },
            2,
            "spec.output.iceberg.bucketBy",
            id="bucket of another column",
        ),
        pytest.param(
            [],
            {"dataset": {"rowKey": ["label"]}, "output": {"columns": ["user_id", "label", "x"]}},
            5,
            f"db.x … (label) … {USERS} rows … label=0",
            id="duplicate keys",
        ),
    ],
)
def test_bad_input_gets_one_error_and_writes_nothing(
    world: World, capsys: Capture, options: list[str], spec: dict[str, Any], code: int, facts: str
) -> None:
    assert world.call(*options, **spec) == code
    assert_told("".join(capsys.readouterr()), f"… {facts}")
    assert not world.catalog.table_exists("db.x")
    assert list(world.folder.rglob("lake/db/x/**/*.parquet")) == []
    assert list(world.folder.rglob("_staging/*")) == []


# Kills its process at one moment of the second commit, as `kill -9` would.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from pyiceberg.catalog.sql import SqlCatalog
from pipeline_runtime.output import iceberg, merge
from pipeline_runtime.materialization.tables import find_orphans
from pipeline_runtime.run import partition_commits
from test_backfill import World

def dying(function, before):
    calls = []
    def call(*args, **options):
        calls.append(args)
        dies = len(calls) > 1
        if dies and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **options)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

owner, name = {
    "staged": (iceberg.IcebergTable, "_stage"),
    "committed": (SqlCatalog, "commit_table"),
    "removed": (iceberg.IcebergTable, "_remove_files"),
}[sys.argv[1]]
setattr(owner, name, dying(getattr(owner, name), sys.argv[2] == "before"))
partition_commits._BYTES_PER_COMMIT = 1
World(Path.cwd(), None).run()
"""


def test_clean_deletes_what_a_killed_backfill_staged(world: World) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}\n{SCRIPT}"
    command = [sys.executable, "-c", code, "staged", "before"]
    killed = subprocess.run(command, cwd=world.folder, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(world.folder.glob("experiments/x/backfill_*"))) == 1
    time.sleep(1 - time.time() % 1)  # runs are listed by the second in which they began
    world.backfill()
    assert len(list_orphans(world.catalog.load_table("db.x"))) == 3
    two_hours_ago = time.time() - 7200
    for path in world.folder.rglob("*"):
        os.utime(path, (two_hours_ago, two_hours_ago))
    rule, runs = CleaningRule(keep_last=1), list_runs(str(world.folder))
    done = delete(plan_cleaning(runs, rule, datetime.now(UTC)))
    assert [deletion.run.phase for deletion in done.deletions] == ["Unfinished"], done.kept
    assert list(world.folder.glob("experiments/x/backfill_*")) == []
    assert list_orphans(world.catalog.load_table("db.x")) == set()
    assert world.rows() == expect(1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("resume", [False, True], ids=["again", "resumed"])
@pytest.mark.parametrize("moment", ["staged", "committed", "removed"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_backfill_computes_the_other_days(
    world: World, moment: str, when: str, resume: bool
) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}\n{SCRIPT}"
    killed = subprocess.run(
        [sys.executable, "-c", code, moment, when], cwd=world.folder, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    before = world.num_snapshots
    written = world.run(resume=resume).summary.output
    assert written is not None
    assert len(written.written_partitions or ()) == 2 - before
    assert (world.num_snapshots, world.rows()) == (2, expect(1, 2))
    table = world.catalog.load_table("db.x")
    find_orphans(world.catalog, "db.x", timedelta(0)).delete()
    assert (list_orphans(table), world.rows()) == (set(), expect(1, 2))
