"""An Iceberg table is read at one snapshot, with its rows, its columns and its partitions."""

import pickle
from datetime import date, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from facts import assert_told
from iceberg_tables import Lake, read_all, where
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from pipeline_runtime.errors import SourceError, StoreError
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.sources import Bucketing
from pipeline_runtime.sources.iceberg.planning import Planner
from pipeline_runtime.sources.iceberg.sampling import choose_buckets

SCHEMA = Schema(
    NestedField(1, "user", LongType(), required=False),
    NestedField(2, "time", TimestampType(), required=False),
    NestedField(3, "country", StringType(), required=False),
    NestedField(4, "items", ListType(5, LongType(), element_required=False), required=False),
)


def events(start: int, stop: int) -> pa.Table:
    """Return rows of three days, some without a user."""
    ids = range(start, stop)
    return pa.table(
        {
            "user": pa.array([None if i % 10 == 9 else i for i in ids], pa.int64()),
            "time": pa.array([datetime(2026, 1, 1 + i % 3, i % 24) for i in ids]),
            "country": pa.array([f"c{i % 4}" for i in ids]),
            "items": pa.array([[i] * (i % 3) for i in ids], pa.list_(pa.int64())),
        }
    )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def table(lake: Lake) -> Table:
    """Return db.events: 60 rows in 4 buckets by user, by day, and by country."""
    parts = (
        ("user", BucketTransform(4)),
        ("time", DayTransform()),
        ("country", IdentityTransform()),
    )
    table = lake.create("events", SCHEMA, *parts)
    table.append(events(0, 60))
    return table


def rows_of(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.parametrize("max_rows", [1 << 20, 2])
@pytest.mark.parametrize("decodes_pages", [True, False])
def test_rows_equal_those_written(
    lake: Lake, table: Table, max_rows: int, *, decodes_pages: bool
) -> None:
    source = lake.open("events", decodes_pages=decodes_pages)
    assert source.schema.names == ["user", "time", "country", "items"]
    assert rows_of(read_all(source, max_rows=max_rows)) == rows_of(events(0, 60))
    assert read_all(source, ["country", "user"]).column_names == ["country", "user"]
    units = source.scan(()).units
    assert sum(part.num_rows for unit in units for part in source.read(unit, [], max_rows)) == 60


@pytest.mark.parametrize("values", [[[], None], [None, None]])
def test_lists_and_maps_without_any_item_are_read(
    lake: Lake, values: list[list[str] | None]
) -> None:
    fields = (
        NestedField(1, "list", ListType(2, StringType(), element_required=False)),
        NestedField(3, "map", MapType(4, StringType(), 5, StringType(), value_required=False)),
    )
    table = lake.create("empty", Schema(*fields))
    columns = {"list": values, "map": values}
    table.append(pa.table(columns, schema=table.schema().as_arrow()))
    assert rows_of(read_all(lake.open("empty"))) == rows_of(table.scan().to_arrow())


def test_copy_in_another_process_reads_chosen_rows(lake: Lake, table: Table) -> None:
    source = lake.open("events")
    unit = max(source.scan(()).units, key=lambda unit: unit.num_rows)
    copy = pickle.loads(pickle.dumps(source))
    [whole] = copy.read(unit, ["user", "items"], 1 << 20)
    wanted = np.arange(0, unit.num_rows, 2)
    [chosen] = copy.read(unit, ["user", "items"], 1 << 20, rows=wanted)
    assert chosen.equals(whole.take(pa.array(wanted)))


def test_units_have_bucket_and_partition(lake: Lake, table: Table) -> None:
    source = lake.open("events")
    assert source.bucketing == Bucketing(column="user", num_buckets=4)
    seen = set()
    for unit in source.scan(()).units:
        [rows] = source.read(unit, ["user", "time", "country"], 1 << 20)
        is_null = rows["user"].null_count == rows.num_rows
        assert (unit.bucket == -1) == is_null
        assert {row["time"].date() for row in rows.to_pylist()} == {unit.partition["p1"]}
        assert set(rows["country"].to_pylist()) == {unit.partition["p2"]}
        seen.add(unit.bucket)
    assert seen == {-1, 0, 1, 2, 3}


PREDICATES = {
    "bucket": "user = 4",
    "day, which is hidden": "time < '2026-01-02'",
    "identity": "country in ('c1', 'c2')",
    "both": "country = 'c1' and user >= 30",
    "either": "country = 'c1' or user = 0",
    "not": "not (country = 'c1')",
    "null": "user is null",
    "not null": "user is not null",
    "nothing": "user = 1000",
}


@pytest.mark.parametrize("text", PREDICATES.values(), ids=PREDICATES)
def test_pruning_keeps_every_matching_row(lake: Lake, table: Table, text: str) -> None:
    source = lake.open("events")
    predicate = where(text, source.schema)
    rows = read_all(source, predicates=[predicate])
    wanted = events(0, 60).filter(predicate.filter)
    assert rows_of(rows.filter(predicate.filter)) == rows_of(wanted)
    pruning = source.scan([predicate]).pruning
    assert pruning.files_read < pruning.files_total == 40
    assert pruning.rows_total == 60


def test_row_groups_are_pruned_by_renamed_and_widened_columns(lake: Lake) -> None:
    schema = Schema(
        NestedField(1, "a", IntegerType(), required=False),
        NestedField(2, "b", StringType(), required=False),
    )
    table = lake.create("groups", schema)
    with table.transaction() as change:
        change.set_properties({"write.parquet.row-group-limit": "10"})
    table.append(pa.table({"a": pa.array(range(50), pa.int32()), "b": ["x"] * 50}))
    with table.update_schema() as update:
        update.update_column("a", LongType())
        update.rename_column("a", "number")
    table.append(pa.table({"number": pa.array(range(50, 60)), "b": ["x"] * 10}))
    source = lake.open("groups")
    scan = source.scan([where("number >= 15 and number < 25", source.schema)])
    assert [unit.index for unit in scan.units] == [1, 2]
    assert scan.pruning.row_groups_total == 5  # the other file is not opened
    assert sorted(read_all(source)["number"].to_pylist()) == list(range(60))


def test_columns_are_found_by_their_ids(lake: Lake) -> None:
    place = StructType(
        NestedField(10, "x", IntegerType(), required=False),
        NestedField(11, "y", StringType(), required=False),
    )
    schema = Schema(
        NestedField(1, "a", IntegerType(), required=False),
        NestedField(2, "b", StringType(), required=False),
        NestedField(3, "place", place, required=False),
    )
    table = lake.create("evolved", schema)
    kind = pa.struct([("x", pa.int32()), ("y", pa.string())])
    evolved = pa.struct([("z", pa.int32()), ("y", pa.int64())])
    old = {"a": pa.array([1], pa.int32()), "b": ["old"]}
    table.append(pa.table(old | {"place": pa.array([{"x": 1, "y": "y"}], kind)}))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("b")
        update.rename_column("a", "c")
        update.rename_column(("place", "x"), "z")
        update.delete_column(("place", "y"))
    with table.update_schema() as update:
        update.add_column("b", DoubleType())
        update.add_column(("place", "y"), LongType())
        update.move_first("b")
    table.append(
        pa.table(
            {
                "b": [0.5],
                "c": pa.array([2], pa.int32()),
                "place": pa.array([{"z": 2, "y": 5}], evolved),
            }
        )
    )
    rows = read_all(lake.open("evolved")).sort_by("c").to_pylist()
    assert rows == [
        {"b": None, "c": 1, "place": {"z": 1, "y": None}},
        {"b": 0.5, "c": 2, "place": {"z": 2, "y": 5}},
    ]


def test_predicates_name_the_columns_of_the_snapshot(lake: Lake, table: Table) -> None:
    snapshot = str(table.refresh().current_snapshot().snapshot_id)
    with table.update_schema() as update:
        update.rename_column("country", "land")
    table.append(events(60, 70).rename_columns(["user", "time", "land", "items"]))
    old, new = lake.open("events", snapshot_id=snapshot), lake.open("events")
    assert "country" in old.schema.names
    assert "land" in new.schema.names
    assert read_all(old, predicates=[where("country = 'c1'", old.schema)]).num_rows == 15
    assert read_all(new, predicates=[where("land = 'c1'", new.schema)]).num_rows == 18


def test_states_of_a_table_are_read_by_name(lake: Lake, table: Table) -> None:
    first = table.refresh().current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(first, "first").create_branch(first, "audit").commit()
    table.append(events(60, 90))
    table.append(events(90, 95), branch="audit")
    counts = {
        "newest": lake.open("events"),
        "tag": lake.open("events", tag="first"),
        "branch": lake.open("events", branch="audit"),
        "snapshot": lake.open("events", snapshot_id=str(first)),
    }
    found = {name: read_all(source).num_rows for name, source in counts.items()}
    assert found == {"newest": 90, "tag": 60, "branch": 65, "snapshot": 60}


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        pytest.param({"snapshot_id": "12"}, "iceberg.snapshotId … '12'", id="snapshot"),
        pytest.param({"branch": "nope"}, "iceberg.branch … main … 'nope'", id="branch"),
        pytest.param({"tag": "main"}, "iceberg.tag … none … 'main'", id="a branch as a tag"),
    ],
)
def test_unknown_states_are_refused(
    lake: Lake, table: Table, fields: dict[str, str], facts: str
) -> None:
    with pytest.raises(SourceError) as raised:
        lake.open("events", **fields)
    assert_told(str(raised.value), facts)


def test_pinned_table_stays_as_it_is(lake: Lake, table: Table) -> None:
    pins = Pins()
    before = lake.open("events", pins=pins)
    [pin] = pins.found
    assert pin.snapshot_id == str(table.refresh().current_snapshot().snapshot_id)
    table.append(events(60, 70))
    with table.update_schema() as update:
        update.rename_column("country", "land")
    assert read_all(lake.open("events", pins=pins)).num_rows == 60  # a side, or a second stream
    resumed = Pins()
    resumed.restore(pins.found)
    after = lake.open("events", pins=resumed)
    assert after.schema == before.schema
    assert after.digest(after.scan(()).units) == before.digest(before.scan(()).units)


def test_expired_snapshot_is_reported(lake: Lake, table: Table) -> None:
    pins = Pins()
    lake.open("events", pins=pins)
    old = table.refresh().current_snapshot().snapshot_id
    table.append(events(60, 70))
    table.maintenance.expire_snapshots().by_id(old).commit()
    with pytest.raises(SourceError) as raised:
        lake.open("events", pins=pins)
    assert_told(str(raised.value), f"lake.db.events … {old} … expired")


def test_another_table_of_the_same_name_is_refused(lake: Lake, table: Table) -> None:
    pins = Pins()
    lake.open("events", pins=pins)
    lake.catalog.drop_table("db.events")
    lake.create("events", SCHEMA).append(events(0, 3))
    with pytest.raises(SourceError) as raised:
        lake.open("events", pins=pins)
    assert_told(str(raised.value), f"lake.db.events … {table.metadata.table_uuid}")


def test_table_without_a_snapshot_has_no_rows(lake: Lake) -> None:
    lake.create("empty", SCHEMA)
    assert read_all(lake.open("empty")).num_rows == 0


def test_missing_data_file_is_named(lake: Lake, table: Table) -> None:
    source = lake.open("events")
    unit = source.scan(()).units[0]
    path = Path(unit.path)  # type: ignore[attr-defined]
    path.unlink()
    with pytest.raises(SourceError) as raised:
        next(iter(source.read(unit, ["user"], 10)))
    assert_told(str(raised.value), f"{path} … {source.description}")
    with pytest.raises(SourceError) as raised:
        lake.open("events").scan(())
    assert_told(str(raised.value), f"{path}")


def test_digest_depends_on_rows_and_version_on_files(lake: Lake, table: Table) -> None:
    source = lake.open("events")
    units = source.scan(()).units
    again = lake.open("events")
    assert source.digest(units) == again.digest(again.scan(()).units)
    table.append(events(60, 61))
    newer = lake.open("events")
    more = newer.scan(()).units
    assert source.digest(units) != newer.digest(more)
    assert source.version(units) != newer.version(more)
    assert date(2026, 1, 1) in {unit.partition["p1"] for unit in more}


def test_files_without_ids_need_a_name_mapping(lake: Lake, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    schema = Schema(
        NestedField(1, "a", LongType(), required=False),
        NestedField(2, "b", StringType(), required=False),
    )
    table = lake.create("imported", schema)
    pq.write_table(pa.table({"b": ["x", "y"], "a": [1, 2]}), tmp_path / "old.parquet")
    table.add_files([str(tmp_path / "old.parquet")])
    with table.update_schema() as update:
        update.rename_column("a", "c")
    rows = read_all(lake.open("imported"))
    assert rows.to_pylist() == [{"c": 1, "b": "x"}, {"c": 2, "b": "y"}]
    with table.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(SourceError) as raised:
        lake.open("imported").scan(())
    assert_told(str(raised.value), "… old.parquet … schema.name-mapping.default")


@pytest.mark.parametrize("seed", [0, 1])
def test_sample_has_the_values_of_its_buckets(lake: Lake, table: Table, seed: int) -> None:
    source = lake.open("events", sample_buckets={"percent": 50, "seed": seed})
    units = source.scan(()).units
    assert len({unit.bucket for unit in units}) == 2
    users = set(read_all(source)["user"].to_pylist())
    finer = lake.create("finer", SCHEMA, ("user", BucketTransform(8)))
    finer.append(events(0, 60))
    other = lake.open("finer", sample_buckets={"percent": 50, "seed": seed})
    assert set(read_all(other)["user"].to_pylist()) == users


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        pytest.param("plain", "iceberg.sampleBuckets … lake.db.plain", id="no buckets"),
        pytest.param("later", "lake.db.later … sampleBuckets … .parquet", id="bucketed later"),
    ],
)
def test_sample_needs_buckets(lake: Lake, name: str, facts: str) -> None:
    table = lake.create(name, SCHEMA)
    table.append(events(0, 5))
    if name == "later":
        with table.update_spec() as update:
            update.add_field("user", BucketTransform(4), "q")
    with pytest.raises(SourceError) as raised:
        lake.open(name, sample_buckets={"percent": 10}).scan(())
    assert_told(str(raised.value), facts)


@pytest.mark.parametrize("percent", [1, 10, "12.5", 50, 99])
def test_larger_tables_keep_a_part_of_what_smaller_ones_keep(percent: int | str) -> None:
    for coarse, fine in ((4, 16), (16, 64), (64, 1024)):
        kept = choose_buckets(coarse, percent, seed=3)
        finer = choose_buckets(fine, percent, seed=3)
        assert {bucket % coarse for bucket in finer} == kept
        assert len(finer) == -(-fine * Fraction(percent) // 100)


def test_other_seeds_choose_other_buckets() -> None:
    chosen = {choose_buckets(60, 20, seed) for seed in range(20)}
    assert {len(each) for each in chosen} == {12}
    assert len(chosen) > 10
    assert choose_buckets(60, 20, 0) < choose_buckets(60, 50, 0)


def open_store(table: Table, uri: str, properties: dict[str, str]) -> str:
    """Open the store of a file as a plan does; return its kind and the file's path there."""
    planner = Planner(
        name="t",
        columns=pa.schema([]),
        metadata=table.metadata,
        snapshot=None,
        io=load_file_io(properties, uri),
    )
    store, path = planner.open_store(uri)
    return f"{planner.stores[store].type_name} {path}"


def test_stores_are_opened_with_their_properties(lake: Lake) -> None:
    table = lake.create("t", SCHEMA)
    google = {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": "4102444800000"}
    assert open_store(table, "gs://b/t/f.parquet", google) == "gcs b/t/f.parquet"
    azure = {"adls.account-name": "a", "adls.account-key": "a2V5"}
    with pytest.raises(SourceError, match="adlfs") as raised:  # a package that is not installed
        open_store(table, "abfss://c@a.dfs.core.windows.net/t/f.parquet", azure)
    assert not isinstance(raised.value, StoreError)
