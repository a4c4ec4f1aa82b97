"""The fluent API, explain and validate work on Iceberg tables, as main tables and as sides."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from facts import assert_one_tells, assert_told
from iceberg_tables import Lake
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType
from typer.testing import CliRunner

from pipeline_runtime import Pipeline
from pipeline_runtime.cli import app
from pipeline_runtime.errors import CheckpointError, ManifestError, SourceError

EVENTS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "user", LongType(), required=False),
)
USERS = Schema(
    NestedField(1, "user", LongType(), required=False),
    NestedField(2, "country", StringType(), required=False),
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a catalog with db.events in 4 buckets by user, and db.users."""
    lake = Lake(tmp_path)
    events = lake.create("events", EVENTS, ("user", BucketTransform(4)))
    users = [None if i % 10 == 9 else i % 7 for i in range(40)]
    events.append(pa.table({"id": pa.array(range(40)), "user": pa.array(users, pa.int64())}))
    countries = pa.table({"user": pa.array([0, 1, 2, None], pa.int64()), "country": [*"abcd"]})
    lake.create("users", USERS).append(countries)
    return lake


def read(lake: Lake, **fields: object) -> Pipeline:
    catalog = lake.model.model_dump(by_alias=True, exclude_none=True)
    return Pipeline.read_iceberg("db.events", catalog, **fields)  # type: ignore[arg-type]


SIDE = {"catalog": "lake", "table": "db.users"}


def test_sides_may_be_iceberg_tables(lake: Lake) -> None:
    joined = read(lake).join(SIDE, on="user").to_table()
    found = {(row["user"], row["country"]) for row in joined.to_pylist()}
    assert joined.num_rows == 40
    assert found == {(0, "a"), (1, "b"), (2, "c"), *((i, None) for i in (3, 4, 5, 6, None))}
    left = read(lake).anti_join(SIDE, on="user").to_table()
    assert set(left["user"].to_pylist()) == {3, 4, 5, 6, None}


def test_rows_of_conditions_and_columns(lake: Lake) -> None:
    pipeline = read(lake, where="user = 3", columns=["user", "id"])
    rows = pipeline.to_table()
    assert rows.column_names == ["user", "id"]
    assert rows["id"].to_pylist() == [i for i in range(40) if i % 7 == 3 and i % 10 != 9]
    assert pipeline.head(1).num_rows == 1


def test_explain_names_snapshots_and_buckets(lake: Lake) -> None:
    lines = read(lake, where="user = 3").join(SIDE, on="user").explain().splitlines()
    snapshots = [
        str(lake.catalog.load_table(f"db.{name}").current_snapshot().snapshot_id)
        for name in ("events", "users")
    ]
    assert_one_tells(lines, f"… lake.db.events at snapshot {snapshots[0]} … 4 … user")
    assert_one_tells(lines, f"… lake.db.users at snapshot {snapshots[1]}")
    assert_one_tells(lines, "… user = 3")


def test_sampling_needs_a_row_key(lake: Lake) -> None:
    with pytest.raises(ManifestError) as raised:
        read(lake).sample(50).plan()
    [problem] = raised.value.problems
    assert_told(str(problem), "spec.dataset.rowKey … spec.pipeline[0] … lake.db.events")
    assert 0 < read(lake, row_key="id").sample(50).to_table().num_rows < 40


def test_catalog_of_a_name_is_in_the_environment(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", str(lake.model.uri))
    assert Pipeline.read_iceberg("db.events", "lake").to_table().num_rows == 40


def test_a_side_needs_its_catalog(lake: Lake, tmp_path: Path) -> None:
    other = {"catalog": "others", "table": "db.users"}
    with pytest.raises(ManifestError) as raised:
        read(lake).join(other, on="user").plan()
    assert_told(str(raised.value.problems[0]), "spec.pipeline[0].join.iceberg.catalog … 'others'")
    uri = f"sqlite:///{tmp_path}/nothing.db"
    with pytest.raises(ManifestError) as raised:
        read(lake).with_catalog("others", type="Sql", uri=uri).join(other, on="user").plan()
    assert_told(str(raised.value), "spec.pipeline[0].join … spec.catalogs[others] … nothing.db")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        pytest.param({"table": "db.user"}, "table … 'db.user' … db.users", id="table"),
        pytest.param({"table": "bd.users"}, "table … 'bd'", id="namespace"),
        pytest.param({"tag": "x"}, "tag … 'x'", id="tag"),
        pytest.param({"snapshotId": "12"}, "snapshotId … '12'", id="snapshot"),
        pytest.param({"sampleBuckets": {"percent": 9}}, "sampleBuckets … users", id="buckets"),
    ],
)
def test_a_wrong_table_is_named_by_field_and_line(
    lake: Lake, tmp_path: Path, fields: dict[str, object], told: str
) -> None:
    pipeline = read(lake).join({**SIDE, **fields}, on="user")
    manifest = yaml.safe_load(pipeline.to_yaml("m"))
    spec = manifest["spec"]
    manifests = {
        "spec.pipeline[0].join": {**spec, "training": {"columns": ["id"]}},
        "spec.dataset": {**spec, "dataset": {"iceberg": {**SIDE, **fields}}, "pipeline": []},
    }
    for place, changed in manifests.items():
        path = tmp_path / "m.yaml"
        path.write_text(yaml.safe_dump({**manifest, "spec": changed}))
        result = CliRunner().invoke(app, ["validate", "-f", str(path)])
        [line] = [line for line in result.stderr.splitlines() if place in line]
        assert re.search(rf"m\.yaml:\d+:\d+: {re.escape(place)}\.iceberg\.", line), line
        assert_told(line.partition(".iceberg.")[2], told)


def test_at_most_one_state_is_given(lake: Lake) -> None:
    with pytest.raises(ManifestError) as raised:
        read(lake, branch="main", tag="x").plan()
    assert_told(str(raised.value.problems[0]), "spec.dataset.iceberg … branch, tag")


def test_convert_stores_requests_once(lake: Lake, tmp_path: Path) -> None:
    catalog = lake.model.model_dump(by_alias=True, exclude_none=True)
    pipeline = Pipeline.read_iceberg("db.events", catalog, request_key="user")
    (tmp_path / "m.yaml").write_text(pipeline.to_yaml("nested"))
    command = ["convert", "-f", str(tmp_path / "m.yaml"), "--output", str(tmp_path / "nested")]
    result = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["rows"] == 40
    nested = Pipeline.read_parquet(str(tmp_path / "nested")).to_table()
    flat = pipeline.to_table()
    assert nested.sort_by("id").equals(flat.sort_by("id"))


def test_loader_resumes_at_the_snapshots_of_its_state(lake: Lake) -> None:
    pipeline = read(lake, row_key=["id"]).join({**SIDE}, on="user").select("id")
    loader = pipeline.loader(batch_size=8, shuffle=True, num_threads=1)
    batches = iter(loader)
    before = [*next(batches)["id"].tolist(), *next(batches)["id"].tolist()]
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [row for batch in batches for row in batch["id"].tolist()]
    events = lake.catalog.load_table("db.events")
    events.append(pa.table({"id": [40, 41], "user": pa.array([1, 2], pa.int64())}))
    resumed = pipeline.loader(batch_size=8, shuffle=True, num_threads=1)
    resumed.load_state_dict(state)
    assert [row for batch in resumed for row in batch["id"].tolist()] == rest
    assert sorted(before + rest) == list(range(40))
    assert resumed.state_dict()["snapshots"] == state["snapshots"]
    events.maintenance.expire_snapshots().by_id(events.snapshots()[0].snapshot_id).commit()
    with pytest.raises(SourceError, match="expired"):
        pipeline.loader(batch_size=8, shuffle=True).load_state_dict(state)
    damaged = state | {"snapshots": [{"catalog": "lake"}]}
    with pytest.raises(CheckpointError):
        pipeline.loader(batch_size=8, shuffle=True).load_state_dict(damaged)
