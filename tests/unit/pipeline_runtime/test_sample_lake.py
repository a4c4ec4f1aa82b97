"""The Iceberg sample: its layout, that it is the same everywhere, and that its joins teach."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from logistic import FloatArray, fit_logistic, measure_auc, share_topics
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType

from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import SourceError
from pipeline_runtime.pipeline import iter_tables
from pipeline_runtime.plan import build_plan
from pipeline_runtime.sample_data import SampleDataOptions, write_sample_data
from pipeline_runtime.sample_data.lake import CATALOG, WAREHOUSE, write_lake
from pipeline_runtime.sample_data.lake_tables import to_date
from pipeline_runtime.sample_data.population import build_histories, build_population

# More than a chunk (4,096 rows) a day; buckets of `user_features` that need several files.
SMALL = SampleDataOptions(rows=10_007, days=2, rows_per_file=20_000)
WORN = replace(SMALL, rows=1_000)
LAST_DAY = to_date(7)
MANIFEST = Path(__file__).parents[3] / "deploy" / "samples" / "iceberg.yaml"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small")
    write_lake(directory, SMALL)
    return directory


@pytest.fixture
def catalog(small: Path) -> Iterator[SqlCatalog]:
    catalog = _open(small)
    yield catalog
    catalog.close()


def _open(directory: Path) -> SqlCatalog:
    return SqlCatalog(CATALOG, uri=f"sqlite:///{directory}/catalog.db")


def _read(directory: Path, name: str) -> pa.Table:
    catalog = _open(directory)
    try:
        return catalog.load_table(f"sample.{name}").scan().to_arrow()
    finally:
        catalog.close()


def _hash_files(directory: Path) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((directory / WAREHOUSE).rglob("*.parquet"))
    }


def test_new_tables_lie_beside_the_sample(small: Path, catalog: SqlCatalog) -> None:
    location = catalog.load_namespace_properties("sample")["location"]
    assert location == f"file://{small}/{WAREHOUSE}/sample"


def test_the_same_options_give_the_same_files(
    tmp_path: Path, worn: tuple[Path, dict[str, str]]
) -> None:
    write_lake(tmp_path, WORN)
    assert _hash_files(tmp_path) == worn[1]


def test_impressions_are_the_rows_of_the_plain_sample(tmp_path: Path, small: Path) -> None:
    write_sample_data(tmp_path, SMALL)
    plain = pq.read_table(tmp_path / "impressions").sort_by("_lastmile_row_id")
    found = _read(small, "impressions").sort_by("_lastmile_row_id")
    for field in found.schema:
        kind = pa.string() if pa.types.is_large_string(field.type) else field.type
        if field.name == "day":
            kind = pa.string()
        assert found[field.name].cast(kind).equals(plain[field.name].cast(kind)), field.name


@pytest.mark.parametrize(
    ("name", "num_buckets", "has_days", "sort_by"),
    [
        ("impressions", 8, True, ["user_id", "request_id", "position"]),
        ("user_features", 6, False, ["user_id"]),
        ("user_actions", 12, True, ["user_id"]),
    ],
)
def test_files_hold_one_bucket_sorted(
    catalog: SqlCatalog, name: str, num_buckets: int, has_days: bool, sort_by: list[str]
) -> None:
    table = catalog.load_table(f"sample.{name}")
    transforms = [field.transform for field in table.spec().fields]
    bucket = BucketTransform(num_buckets)
    assert transforms == ([IdentityTransform(), bucket] if has_days else [bucket])
    order = [table.schema().find_column_name(f.source_id) for f in table.sort_order().fields]
    assert order == sort_by
    tasks = list(table.scan().plan_files())
    for task in tasks:
        rows = pq.read_table(task.file.file_path.removeprefix("file://"), partitioning=None)
        assert rows.num_rows == task.file.record_count <= SMALL.rows_per_file
        users = rows["user_id"].combine_chunks()
        buckets = bucket.pyarrow_transform(LongType())(users)
        assert pc.unique(buckets).to_pylist() == [task.file.partition[-1]]
        assert rows.equals(rows.sort_by([(column, "ascending") for column in order]))
        assert task.file.sort_order_id == table.sort_order().order_id
    assert len({task.file.partition[-1] for task in tasks}) == num_buckets


def test_a_condition_prunes_files(catalog: SqlCatalog) -> None:
    table = catalog.load_table("sample.impressions")
    user = table.scan(limit=1).to_arrow()["user_id"][0].as_py()
    everything = table.scan().to_arrow()
    found = table.scan(row_filter=f"user_id = {user}")
    expected = everything.filter(pc.equal(everything["user_id"], user)).num_rows
    assert found.to_arrow().num_rows == expected > 0
    one_bucket, all_files = (len(list(scan.plan_files())) for scan in (found, table.scan()))
    assert one_bucket <= all_files / 4
    one_day = table.scan(row_filter="day = '2026-01-02'")
    assert pc.unique(one_day.to_arrow()["day"]).to_pylist() == [to_date(1)]


def test_each_day_is_a_snapshot(catalog: SqlCatalog) -> None:
    table = catalog.load_table("sample.impressions")
    first, last = table.snapshots()
    assert table.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == SMALL.rows // 2
    assert table.scan(snapshot_id=last.snapshot_id).to_arrow().num_rows == SMALL.rows


def test_keys_of_the_sides_are_unique_and_some_are_missing(small: Path) -> None:
    features, actions = (_read(small, name) for name in ("user_features", "user_actions"))
    assert pc.count_distinct(features["user_id"]).as_py() == features.num_rows
    assert actions.group_by(["user_id", "day"]).aggregate([]).num_rows == actions.num_rows
    shown = _read(small, "impressions").group_by(["user_id", "day"]).aggregate([])
    for side, keys in ((features, ["user_id"]), (actions, ["user_id", "day"])):
        unmatched = shown.join(side.select(keys), keys, join_type="left anti").num_rows
        assert 0 < unmatched < shown.num_rows / 3
    listed = features.filter(pc.is_valid(features["spam_reason"]))
    assert set(listed["user_id"].to_pylist()) == set(build_population(17).spam_ids.tolist())


def test_actions_lie_before_their_day(small: Path) -> None:
    """A row has the newest events of the user at midnight, and none that the next day has."""
    actions = _read(small, "user_actions")
    row = actions.filter(pc.equal(actions["day"], to_date(1))).slice(3, 1).to_pylist()[0]
    users = np.array([row["user_id"]])
    items = build_histories(build_population(17), users, np.array([1.0])).item_ids_E
    assert 4 <= len(row["recent_items"]) == len(row["recent_actions"]) <= 61
    assert row["recent_items"] == items[: len(row["recent_items"])].tolist()


def _fill(column: pa.ChunkedArray) -> FloatArray:
    return np.asarray(pc.fill_null(column, 0.0), np.float64)


@pytest.mark.slow  # ten seconds: a regression on 80,000 rows, three times
def test_both_joins_raise_the_auc(tmp_path: Path) -> None:
    write_lake(tmp_path, SampleDataOptions(rows=80_000))
    # Row numbers, since Arrow joins no lists.
    actions = _read(tmp_path, "user_actions")
    numbers = actions.select(["user_id", "day"]).append_column("row", pa.array(range(len(actions))))
    rows = (
        _read(tmp_path, "impressions")
        .join(_read(tmp_path, "user_features"), ["user_id"])
        .join(numbers, ["user_id", "day"])
    )
    rows = rows.filter(pc.is_null(rows["spam_reason"]))
    topics = share_topics(actions["recent_items"].take(rows["row"]), rows["item_id"])
    plain = [np.ones(len(rows)), np.log1p(_fill(rows["position"]))]
    plain += [_fill(rows[f"dense_{index:02d}"]) for index in range(6, 20)]
    of_users = [_fill(rows[f"dense_{index:02d}"]) for index in range(6)]
    clicked = np.asarray(rows["clicked"])
    is_last = np.asarray(pc.equal(rows["day"], LAST_DAY))
    aucs = []
    for columns in (plain, [*plain, *of_users], [*plain, *of_users, 10 * topics]):
        features = np.stack(columns, axis=1)
        weights = fit_logistic(features[~is_last], clicked[~is_last])
        aucs.append(measure_auc(clicked[is_last], features[is_last] @ weights))
    without, with_features, with_both = aucs
    assert with_features > without + 0.01
    assert with_both > with_features + 0.01


# The steps of the sample manifest in another language, but for its downsampling.
REFERENCE = """
    select i.request_id, i.position, len(a.recent_items) as actions,
      f.dense_00, i.clicked or coalesce(i.saves, 0) > 0 as label
    from '{data}/impressions/data/*/*/*.parquet' i
    left join '{data}/user_features/data/*/*.parquet' f using (user_id)
    left join '{data}/user_actions/data/*/*/*.parquet' a on a.user_id = i.user_id and a.day = i.day
    where i.day < date '2026-01-02' and f.spam_reason is null and i.position < 30
    order by all
"""


def test_the_manifest_joins_the_rows_of_duckdb(small: Path) -> None:
    document = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    steps = document["spec"]["pipeline"]
    document["spec"]["pipeline"] = [step for step in steps if "downsample" not in step]
    columns = ["request_id", "position", "recent_items", "dense_00", "label"]
    evaluation = {"where": "day = date '2026-01-02'"}
    changes = {"columns": columns, "weightColumn": None, "evaluation": evaluation}
    document["spec"]["training"] |= changes
    document["spec"]["catalogs"][0]["uri"] = f"sqlite:///{small}/catalog.db"
    plan = build_plan(parse_experiment(document), str(small))
    rows = pa.concat_tables(iter_tables(plan.training)).select(columns)
    found = rows.set_column(2, "actions", pc.list_value_length(rows["recent_items"]))
    data = small / WAREHOUSE / "sample"
    expected = duckdb.sql(REFERENCE.format(data=data)).fetchall()
    ordered = found.sort_by([("request_id", "ascending"), ("position", "ascending")])
    assert list(zip(*ordered.to_pydict().values(), strict=True)) == expected
    assert any(row[2] is None for row in expected)


def test_a_second_call_writes_nothing(small: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in small.rglob("*")}
    progress: list[int] = []
    summary = write_lake(small, SMALL, progress.append)
    assert summary.was_current
    assert summary.files == len(_hash_files(small))
    assert progress == [SMALL.rows]
    assert {path: path.stat().st_mtime_ns for path in small.rglob("*")} == before


def _remove_a_file(directory: Path) -> None:
    next((directory / WAREHOUSE).rglob("*.parquet")).unlink()


def _cut_a_file(directory: Path) -> None:
    path = next((directory / WAREHOUSE).rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:100])


def _remove_the_catalog(directory: Path) -> None:
    (directory / "catalog.db").unlink()


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Write tables that tests may damage; also the hashes of their files."""
    directory = tmp_path_factory.mktemp("worn")
    write_lake(directory, WORN)
    return directory, _hash_files(directory)


@pytest.mark.parametrize("damage", [_remove_a_file, _cut_a_file, _remove_the_catalog])
def test_damaged_tables_are_written_again(
    worn: tuple[Path, dict[str, str]], damage: Callable[[Path], None]
) -> None:
    directory, before = worn
    damage(directory)
    assert not write_lake(directory, WORN).was_current
    assert _hash_files(directory) == before
    assert _read(directory, "impressions").num_rows == WORN.rows


def test_a_copied_folder_is_written_again(
    tmp_path: Path, worn: tuple[Path, dict[str, str]]
) -> None:
    """Its metadata still names the files of the first folder."""
    shutil.copytree(worn[0], tmp_path / "copy")
    assert not write_lake(tmp_path / "copy", WORN).was_current
    metadata = next((tmp_path / "copy").rglob("00001-*.metadata.json")).read_text()
    assert str(tmp_path / "copy") in metadata
    assert str(worn[0]) not in metadata


def test_an_interrupted_write_is_finished_by_the_next_call(tmp_path: Path) -> None:
    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_lake(tmp_path, WORN, stop)
    assert not write_lake(tmp_path, WORN).was_current
    assert _read(tmp_path, "impressions").num_rows == WORN.rows


def test_other_options_replace_the_tables_and_keep_others(tmp_path: Path) -> None:
    write_lake(tmp_path, replace(SMALL, rows=1_000))
    catalog = _open(tmp_path)
    mine = pa.table({"x": [1, 2]})
    catalog.create_namespace("mine")
    location = f"file://{tmp_path / WAREHOUSE / 'mine'}"
    catalog.create_table("mine.t", mine.schema, location=location).append(mine)
    catalog.close()
    write_lake(tmp_path, replace(SMALL, rows=2_000))
    assert _read(tmp_path, "impressions").num_rows == 2_000
    catalog = _open(tmp_path)
    assert catalog.load_table("mine.t").scan().to_arrow().num_rows == 2
    catalog.close()


@pytest.mark.parametrize("name", ["catalog.db", "warehouse/sample/impressions/x.parquet"])
def test_tables_of_somebody_else_are_left_alone(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("precious")
    with pytest.raises(SourceError, match=re.escape(str(tmp_path))):
        write_lake(tmp_path, SMALL)
    assert path.read_text() == "precious"
