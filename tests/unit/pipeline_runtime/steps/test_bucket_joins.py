"""Joins by bucket: the rows of DuckDB, whatever the buckets, the strategy and the memory."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from bucketed_table import BucketedTable
from facts import assert_all_told, assert_one_tells, assert_told
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.bucketing import bucket
from pipeline_runtime.config.dataset import ParquetSource
from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.errors import ManifestError, SourceError
from pipeline_runtime.kernels import loading
from pipeline_runtime.plan.side_table_loading import build_side_table
from pipeline_runtime.sources import Bucketing
from pipeline_runtime.steps import side_parts
from pipeline_runtime.steps.anti_join.model import AntiJoinStep
from pipeline_runtime.steps.base import BindContext, Transform
from pipeline_runtime.steps.binding import bind_pipeline
from pipeline_runtime.steps.join.model import JoinStep, KeyPair
from pipeline_runtime.steps.rename.model import RenamedColumn, RenameStep
from pipeline_runtime.steps.side_parts import PartIndices

SIDE = ParquetSource(uri="side")
STRATEGIES = ["Broadcast", "Bucket", "Exchange"]
# Parts of so few bytes keep their keys alone.
LITTLE = 20_000


def bind(
    steps: Sequence[StepModel],
    schema: pa.Schema,
    bucketing: Bucketing | None,
    sides: Sequence[BucketedTable],
    *,
    kernels: bool = True,
) -> tuple[Transform, ...]:
    """Bind a pipeline whose joins take the side tables in turn."""
    left = list(sides)
    context = BindContext(
        open_side_table=lambda request: build_side_table(request, left.pop(0)),
        bucketing=bucketing,
        kernels=kernels,
    )
    return bind_pipeline(steps, schema, context)


def run(transforms: Sequence[Transform], rows: pa.Table) -> pa.Table:
    for transform in transforms:
        rows = transform(rows)
    return rows


def keys_of(rng: np.random.Generator, num_rows: int, span: int, kind: str) -> pa.Array:
    """Draw keys: some null, some twice, one for a third of the rows."""
    numbers = rng.integers(0, span, num_rows)
    numbers[rng.random(num_rows) < 0.33] = 3
    null = rng.random(num_rows) < 0.1
    if kind == "string":
        return pa.array([f"user-{number}" for number in numbers], mask=null)
    return pa.array(numbers.astype(kind), mask=null)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Two tables with buckets by the first of their keys, which may have other names and types."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_left, num_right = draw(st.integers(0, 300)), draw(st.integers(0, 200))
    span = draw(st.sampled_from([5, 60, 400]))
    kinds = draw(st.sampled_from([("int64", "int32"), ("int64", "int64"), ("string", "string")]))
    left = {"user": keys_of(rng, num_left, span, kinds[0]), "left_row": np.arange(num_left)}
    right = {"uid": keys_of(rng, num_right, span, kinds[1])}
    keys = [("user", "uid")]
    if draw(st.booleans()):
        left["item"] = keys_of(rng, num_left, 4, "int64")
        right["item"] = keys_of(rng, num_right, 4, "int64")
        keys = draw(st.permutations([("user", "uid"), ("item", "item")]))
    right |= {"right_row": np.arange(num_right), "text": [[str(n)] for n in range(num_right)]}
    return {
        "left": pa.table(left),
        "right": pa.table(right),
        "keys": keys,
        "num_left": draw(st.integers(1, 64)),
        "num_right": draw(st.integers(1, 64)),
        "unit_rows": draw(st.sampled_from([7, 1000])),
        "strategy": draw(st.sampled_from(STRATEGIES)),
        "max_bytes": draw(st.sampled_from([LITTLE, 1 << 30])),
    }


def sql(query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.execute(query).fetchall()


def bind_case(case: dict[str, Any], model: type[StepModel], **options: Any) -> tuple[Any, ...]:
    side = BucketedTable(
        rows=case["right"],
        bucketing=Bucketing(column="uid", num_buckets=case["num_right"]),
        unit_rows=case["unit_rows"],
    )
    step = model(
        parquet=SIDE,
        keys=tuple(KeyPair(left=a, right=b) for a, b in case["keys"]),
        strategy=case["strategy"],
        max_bytes=1 << 30 if case["strategy"] == "Broadcast" else case["max_bytes"],
        **options,
    )
    rows = Bucketing(column="user", num_buckets=case["num_left"])
    transforms = bind([step], case["left"].schema, rows, [side])
    return pickle.loads(pickle.dumps(transforms))


@settings(deadline=None, max_examples=examples(12))
@given(case=cases(), how=st.sampled_from(["Inner", "Left"]))
def test_a_bucket_join_gives_the_rows_of_sql(case: dict[str, Any], how: str) -> None:
    transforms = bind_case(case, JoinStep, how=how, columns=("right_row", "text"))
    joined = run(transforms, case["left"])
    on = " and ".join(f"l.{a} = r.{b}" for a, b in case["keys"])
    expected = sql(
        f"select left_row, right_row from l {how} join r on {on} order by all",
        l=case["left"],
        r=case["right"],
    )
    lefts, rights = joined["left_row"].to_pylist(), joined["right_row"].to_pylist()
    assert lefts == sorted(lefts)
    assert sorted(zip(lefts, rights, strict=True), key=str) == sorted(expected, key=str)
    assert joined["text"].to_pylist() == [None if row is None else [str(row)] for row in rights]


@settings(deadline=None, max_examples=examples(6))
@given(case=cases())
def test_a_bucket_anti_join_keeps_the_rows_of_not_exists(case: dict[str, Any]) -> None:
    kept = run(bind_case(case, AntiJoinStep), case["left"])
    on = " and ".join(f"l.{a} = r.{b}" for a, b in case["keys"])
    expected = sql(
        f"select left_row from l where not exists (select 1 from r where {on}) order by all",
        l=case["left"],
        r=case["right"],
    )
    assert [(row,) for row in kept["left_row"].to_pylist()] == expected


ROWS = pa.table({"user": [*range(400), None], "left_row": range(401)})
USERS = pa.table({"user": [*range(300), None], "age": range(301)})


def bucketed(rows: pa.Table = USERS, num_buckets: int = 8, **options: Any) -> BucketedTable:
    """A table with buckets by its column `user`."""
    by = Bucketing(column="user", num_buckets=num_buckets)
    return BucketedTable(rows=rows, bucketing=by, **options)


def bind_one(side: BucketedTable, num_row_buckets: int | None = 16, **options: Any) -> Transform:
    rows = (
        None if num_row_buckets is None else Bucketing(column="user", num_buckets=num_row_buckets)
    )
    step = JoinStep(parquet=SIDE, **{"keys": ("user",), **options})
    [transform] = bind([step], ROWS.schema, rows, [side])
    return transform


# Numbers of buckets of the sides: iceberg.md's trap of chained joins.
@pytest.mark.parametrize("strategy", ["Bucket", "Exchange"])
def test_chained_joins_of_unequal_buckets_equal_sql(strategy: str) -> None:
    rng = np.random.default_rng(0)
    rows = pa.table({"user": rng.integers(0, 300, 2000), "left_row": np.arange(2000)})
    sides, steps = [], []
    for number, num_buckets in enumerate([12, 8, 18, 6]):
        users = rng.integers(0, 300, 250)
        side = pa.table({"user": users, f"v{number}": np.arange(250)})
        sides.append(bucketed(side, num_buckets, unit_rows=50))
        how = "Left" if number % 2 else "Inner"
        steps.append(JoinStep(parquet=SIDE, keys=("user",), how=how, strategy=strategy))
    transforms = bind(steps, rows.schema, Bucketing(column="user", num_buckets=24), sides)
    tables = {f"s{n}": side.rows for n, side in enumerate(sides)}
    query = (
        "select l.user, left_row, v0, v1, v2, v3 from l join s0 on l.user = s0.user left join s1 "
        "on l.user = s1.user join s2 on l.user = s2.user left join s3 on l.user = s3.user order by "
        "all"
    )
    joined = run(transforms, rows)
    got = sorted(zip(*(column.to_pylist() for column in joined.columns), strict=True), key=str)
    assert got == sorted(sql(query, l=rows, **tables), key=str)
    if strategy == "Bucket":
        assert [transform.residues for transform in transforms] == [12, 8, 6, 6]


RENAME = RenameStep(columns=(RenamedColumn(name="user", new_name="uid"),))


def test_buckets_follow_a_renamed_key() -> None:
    join = JoinStep(parquet=SIDE, keys=(KeyPair(left="uid", right="user"),), strategy="Bucket")
    by = Bucketing(column="user", num_buckets=4)
    transforms = bind([RENAME, join], ROWS.schema, by, [bucketed()])
    assert run(transforms, ROWS)["age"].to_pylist() == [*range(300), *[None] * 101]


def test_a_strategy_changes_no_row_nor_its_order() -> None:
    tables = [bind_one(bucketed(), strategy=strategy)(ROWS) for strategy in STRATEGIES]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


@pytest.mark.parametrize("strategy", ["Bucket", "Exchange"])
def test_kernels_that_are_off_are_not_called(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading._LOADER, "kernels", object())  # any call of one would fail
    step = JoinStep(parquet=SIDE, keys=("user",), strategy=strategy)
    by = Bucketing(column="user", num_buckets=16)
    [transform] = bind([step], ROWS.schema, by, [bucketed()], kernels=False)
    assert transform(ROWS)["age"].to_pylist() == [*range(300), *[None] * 101]
    side_parts.clear_parts()
    [transform] = bind([step], ROWS.schema, by, [bucketed()])
    with pytest.raises(AttributeError):
        transform(ROWS)


AUTO = [
    pytest.param({}, {}, "Broadcast", id="a side table that fits"),
    pytest.param({}, {"max_bytes": 4000}, "Bucket", id="buckets on both sides"),
    pytest.param({"bucketing": None}, {"max_bytes": 4000}, "Exchange", id="no buckets on the side"),
    pytest.param(
        {"old_units": frozenset({1})}, {"max_bytes": 4000}, "Exchange", id="a file of an older spec"
    ),
    # One part of all rows would exceed maxBytes.
    pytest.param({"num_buckets": 3}, {"max_bytes": 4000}, "Exchange", id="no common divisor"),
]


@pytest.mark.parametrize(("side", "options", "expected"), AUTO)
def test_auto_takes_the_first_strategy_that_fits(
    side: dict[str, Any], options: dict[str, Any], expected: str
) -> None:
    fields = {"rows": USERS, "bucketing": Bucketing(column="user", num_buckets=8)}
    if num_buckets := side.pop("num_buckets", None):
        fields["bucketing"] = Bucketing(column="user", num_buckets=num_buckets)
    transform = bind_one(BucketedTable(**{**fields, **side}), **options)
    assert transform.side_table is not None
    assert_one_tells(transform.side_table.notes, f"strategy {expected}…")
    assert transform(ROWS)["age"].to_pylist() == [*range(300), *[None] * 101]


REFUSED = [
    pytest.param(
        {"bucketing": None},
        {"strategy": "Bucket"},
        "join.strategy: … Bucket … buckets by user … bucketBy: user",
        id="a side table without buckets",
    ),
    pytest.param(
        {"bucketing": Bucketing(column="age", num_buckets=8)},
        {"strategy": "Bucket"},
        "join.strategy: … by user … by age …",
        id="a side table with buckets by another column",
    ),
    pytest.param(
        {"old_units": frozenset({2})},
        {"strategy": "Bucket"},
        "join.strategy: … file-2 … rewrite_data_files…",
        id="a file that was written under an older spec",
    ),
    pytest.param(
        {},
        {"strategy": "Exchange", "num_row_buckets": None},
        "join.strategy: … Exchange … buckets by user … none …",
        id="rows without buckets",
    ),
    pytest.param(
        {},
        {"max_bytes": 3000, "num_row_buckets": None},
        "join: … maxBytes … 3,000 bytes … 4,860 bytes … buckets by user …",
        id="rows without buckets and a large side table",
    ),
    pytest.param(
        {},
        {"max_bytes": 500, "strategy": "Bucket"},
        "join: … keys of buckets 0 modulo 8 … 500 bytes … rows …",
        id="a part whose keys alone are too large",
    ),
]


@pytest.mark.parametrize(("side", "options", "expected"), REFUSED)
def test_an_impossible_strategy_is_refused_with_the_reason(
    side: dict[str, Any], options: dict[str, Any], expected: str
) -> None:
    fields = {"rows": USERS, "bucketing": Bucketing(column="user", num_buckets=8)}
    with pytest.raises(ManifestError) as caught:
        bind_one(BucketedTable(**{**fields, **side}), **options)
    assert_all_told(
        [str(problem) for problem in caught.value.problems], [f"spec.pipeline[0].{expected}"]
    )


def test_skewed_keys_are_refused_when_a_part_is_read() -> None:
    """A `where` hides the size until rows are read."""
    side = bucketed(pa.table({"user": [7] * 500, "age": range(500)}))
    transform = bind_one(side, strategy="Bucket", max_bytes=20_000, where="age >= 0")
    with pytest.raises(SourceError) as caught:
        transform(ROWS)
    assert_told(str(caught.value), "… rows in memory … 20,000 bytes … 500 rows …")


@pytest.fixture
def indices() -> Iterator[Callable[[], PartIndices]]:
    def find() -> PartIndices:
        [found] = side_parts.kept_parts()
        return found

    side_parts.clear_parts()
    yield find
    side_parts.clear_parts()


def test_parts_are_read_once_and_only_those_that_rows_need(
    indices: Callable[[], PartIndices],
) -> None:
    transform = bind_one(bucketed(), strategy="Bucket")
    buckets = bucket(ROWS.column("user"), 8)
    for _ in range(2):
        transform(ROWS.filter(pa.array(np.isin(buckets, [1, 5, -1]))))
    assert indices().num_loads == 2


def test_memory_of_parts_stays_within_the_bound(indices: Callable[[], PartIndices]) -> None:
    transform = bind_one(bucketed(), strategy="Bucket", max_bytes=8_000)
    expected = bind_one(bucketed())(ROWS)
    for _ in range(2):
        assert transform(ROWS).equals(expected)
        assert 0 < indices().num_bytes <= 8_000
    assert indices().num_loads > 8  # some made room and were read again


def test_threads_share_parts_within_the_bound(indices: Callable[[], PartIndices]) -> None:
    transform = bind_one(bucketed(), strategy="Bucket", max_bytes=8_000)
    expected = transform(ROWS)
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(transform(ROWS).equals(expected)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
    assert indices().num_bytes <= 8_000


def test_a_part_that_cannot_be_read_is_tried_again(indices: Callable[[], PartIndices]) -> None:
    failures = [True]

    class Failing(BucketedTable):
        def read(self, *arguments: Any, **options: Any) -> Any:
            if failures:
                failures.clear()
                raise SourceError("file-0: no such file")
            return BucketedTable.read(self, *arguments, **options)

    side = Failing(rows=USERS, bucketing=Bucketing(column="user", num_buckets=8))
    transform = bind_one(side, strategy="Bucket")
    with pytest.raises(SourceError, match="file-0"):
        transform(ROWS)
    assert transform(ROWS).num_rows == 401
