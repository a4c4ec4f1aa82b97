"""Tables that Spark wrote have the rows that Spark reads: whole, pruned, at a state, and joined."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from counted_calls import counting
from facts import assert_told
from iceberg_readers import sorted_rows
from iceberg_tables import read_all, where
from spark_tables import SparkTables

from pipeline_runtime.config.dataset import ParquetSource
from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.errors import LastmileError, SourceError
from pipeline_runtime.plan.side_table_loading import build_side_table
from pipeline_runtime.sources import read_flat
from pipeline_runtime.sources.iceberg import deletes
from pipeline_runtime.steps.anti_join.model import AntiJoinStep
from pipeline_runtime.steps.base import BindContext
from pipeline_runtime.steps.binding import bind_pipeline
from pipeline_runtime.steps.join.model import JoinStep, KeyPair

READABLE = [name for name in SparkTables.names() if name != "equality_deletes"]
ON_USERS = (KeyPair(left="user_id", right="userId"),)
# The source is opened by the test; a step has to name some.
SIDE = ParquetSource(uri="side")


@pytest.mark.parametrize("name", READABLE)
def test_rows_are_those_that_spark_reads(name: str, spark_tables: SparkTables) -> None:
    expected = spark_tables[name].expected()
    source = spark_tables.open(name)

    assert source.schema.names == expected.column_names
    assert sorted_rows(read_all(source)) == sorted_rows(expected)
    # A reader's windows end within pages and row groups.
    assert sorted_rows(read_all(source, max_rows=7)) == sorted_rows(expected)


STATES = [
    pytest.param("snapshots", {"tag": "first"}, "@first", id="tag"),
    pytest.param("snapshots", {"branch": "audit"}, "@audit", id="branch"),
    pytest.param("compacted", {"tag": "before"}, "@before", id="before a compaction"),
]


@pytest.mark.parametrize(("name", "state", "query"), STATES)
def test_states_are_those_that_spark_reads(
    name: str, state: dict[str, str], query: str, spark_tables: SparkTables
) -> None:
    found = read_all(spark_tables.open(name, **state))

    assert sorted_rows(found) == sorted_rows(spark_tables[name].expected(query))


PREDICATES = [
    pytest.param("v1", "day = '2026-01-02'", id="identity"),
    pytest.param("hidden_partitions", "event_time < '2026-01-02'", id="day"),
    pytest.param("hidden_partitions", "country = 'de3'", id="truncate"),
    pytest.param("hidden_partitions", "user_id = 4", id="bucket"),
    pytest.param("bucket_4_to_8", "member_id in (5, 17)", id="two bucket specs and a new name"),
    pytest.param("evolution", "score > 8", id="a wider type"),
    pytest.param("evolution", "first = 'second 3'", id="swapped names"),
    pytest.param("evolution", "country = 'new 25' and id > 20", id="a name that is used again"),
    pytest.param("v2_position_deletes", "request_id < 40", id="row groups with deletes"),
    pytest.param("v3_deletion_vectors", "request_id < 40", id="row groups with vectors"),
    pytest.param("sorted", "user_id = 50", id="sorted"),
]


@pytest.mark.parametrize(("name", "text"), PREDICATES)
def test_pruning_drops_only_rows_that_do_not_match(
    name: str, text: str, spark_tables: SparkTables
) -> None:
    source = spark_tables.open(name)
    predicate = where(text, source.schema)
    expected = spark_tables[name].expected().cast(source.schema).filter(predicate.filter)

    found = read_all(source, predicates=[predicate])

    assert expected.num_rows
    assert sorted_rows(found.filter(predicate.filter)) == sorted_rows(expected)
    assert found.num_rows < read_all(source).num_rows


def test_rows_with_a_default_are_not_pruned(spark_tables: SparkTables) -> None:
    """The default is in no file, and so in no statistics."""
    source = spark_tables.open("v3_default_values")
    predicate = where("kind = 'old' and weight < 1", source.schema)

    assert read_all(source, predicates=[predicate]).filter(predicate.filter)["id"].to_pylist() == [
        0,
        1,
        2,
        3,
    ]


def test_equality_deletes_are_refused(spark_tables: SparkTables) -> None:
    source = spark_tables.open("equality_deletes")

    with pytest.raises(SourceError) as caught:
        source.scan(())
    assert_told(str(caught.value), "… spark.equality_deletes … equality deletes …")


def test_a_shared_delete_file_is_opened_once(spark_tables: SparkTables) -> None:
    """ray#66147: once for each data file."""
    source = spark_tables.open("shared_delete_file")
    units = source.scan(()).units
    reader = pickle.loads(pickle.dumps(source))

    with counting(deletes._read_file) as calls:
        for unit in units:
            [_] = read_flat(reader, unit, ["request_id"], 1 << 20)
    assert len(units) == 8
    assert calls.by_name["_read_file"] == 1


def bind(tables: SparkTables, main: str, side: str, step: StepModel) -> Any:
    context = BindContext(
        open_side_table=lambda request: build_side_table(request, tables.open(side)),
        bucketing=tables.open(main).bucketing,
    )
    [transform] = bind_pipeline([step], tables.open(main).schema, context)
    return transform


JOINS = [
    pytest.param(JoinStep(parquet=SIDE, keys=ON_USERS, how=how), f".{how.lower()}", id=how)
    for how in ("Left", "Inner")
] + [pytest.param(AntiJoinStep(parquet=SIDE, keys=ON_USERS), ".anti", id="anti")]


@pytest.mark.parametrize("strategy", ["Broadcast", "Bucket", "Exchange"])
@pytest.mark.parametrize(("step", "query"), JOINS)
def test_null_keys_match_nothing_as_in_spark(
    step: StepModel, query: str, strategy: str, spark_tables: SparkTables
) -> None:
    """trino#28053: both tables keep them in a partition of their own, with 4 and 6 buckets."""
    step = step.model_copy(update={"strategy": strategy})
    join = bind(spark_tables, "null_keys", "null_keys_side", step)

    joined = join(read_all(spark_tables.open("null_keys")))

    expected: pa.Table = spark_tables["null_keys"].expected(query)
    assert sorted_rows(joined.select(expected.column_names)) == sorted_rows(expected)


@pytest.mark.parametrize("side", ["bucket_4_to_8", "bucketed_later"])
def test_a_side_with_files_of_an_older_spec_is_refused(
    side: str, spark_tables: SparkTables
) -> None:
    name = "member_id" if side == "bucket_4_to_8" else "user_id"
    keys = (KeyPair(left="user_id", right=name),)
    step = JoinStep(parquet=SIDE, keys=keys, strategy="Bucket")

    with pytest.raises(LastmileError) as caught:
        bind(spark_tables, "hidden_partitions", side, step)
    assert ".parquet" in str(caught.value)
    assert "rewrite_data_files" in str(caught.value)
