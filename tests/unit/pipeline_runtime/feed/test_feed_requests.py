"""Columns that a request's rows share: worked on once a request, the rows are those of each row."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_one_tells
from hypothesis import given
from hypothesis import strategies as st
from step_models import cast

from pipeline_runtime import Pipeline, kernels
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.convert import ConversionOptions, convert_table
from pipeline_runtime.feed.making import found_requests
from pipeline_runtime.feed.making.found_requests import find_requests
from pipeline_runtime.feed.making.stage_rows import Rows
from pipeline_runtime.pipeline import iter_tables
from pipeline_runtime.plan import build_plan, explain
from pipeline_runtime.sources import open_location
from pipeline_runtime.sources.parquet import open_parquet
from pipeline_runtime.steps.cast.transform import Cast
from pipeline_runtime.steps.filter.model import FilterStep
from pipeline_runtime.steps.filter.transform import Filter

SHARED = ("user", "country", "history")
Story = Callable[[Pipeline, str], Pipeline]

MODULE = """
import pyarrow as pa
import pyarrow.compute as pc

def rank_of(table):
    return table.append_column("rank", pa.array(range(table.num_rows), pa.int64()))

def first(table):
    return table.append_column("first", table.column(0).cast("string"))

def odd(table):
    return table.filter(pc.equal(pc.bit_wise_and(table["id"], 1), 1))
"""

STORIES: dict[str, Story] = {
    "nothing": lambda base, folder: base,
    "padded, hashed and filtered by what is shared": lambda base, folder: (
        base.filter("country != 'b'")
        .filter("id % 3 != 0")
        .hash_bucket("country", "history", buckets=100)
        .fill_null({"user": -1})
        .pad_sequence("history", length=3, value=0)
        .filter("user > 1")
    ),
    "a shared column made of two levels": lambda base, folder: (
        base.filter("id > 5").derive(user="user + id").filter("user % 2 = 0")
    ),
    "an own column made of a shared one": lambda base, folder: (
        base.derive(id="user * 2").filter("id > 2").derive(other="id + user")
    ),
    "shared and own columns in one step": lambda base, folder: (
        base.filter("id % 4 != 0")
        .fill_null({"user": -1, "country": "none", "request": 0})
        .cast({"user": "int32", "id": "int32"})
        .hash_bucket("country", "id", "user", buckets=10)
        .filter("user != 3 and id != 4")
    ),
    "names traded across levels": lambda base, folder: (
        base.rename({"user": "score", "score": "user"}).filter("user < 20").drop("country")
    ),
    "sampled by the row": lambda base, folder: (
        base.downsample(40, where="country = 'a'", seed=1, weight_column="weight")
        .sample(80, by="user", seed=2)
        .truncate("history", length=1)
    ),
    "repeated by a join on a shared key": lambda base, folder: base.join(
        f"{folder}/side.parquet", on="user"
    ).filter("name is null or name = 'b'"),
    "a function over the rows of a shared column": lambda base, folder: base.filter("id > 3").map(
        "shared_rows_module:rank_of", input_columns=["user"]
    ),
    "a function that takes the first column": lambda base, folder: base.map(
        "shared_rows_module:first", output_columns={"first": "string"}
    ),
    "a function that drops rows": lambda base, folder: base.map(
        "shared_rows_module:odd", changes_rows=True
    ).filter("country = 'a'"),
    "only what is shared": lambda base, folder: base.filter("id > 7").select("history", "country"),
    "no row left": lambda base, folder: base.filter("country = 'z'").truncate("history", length=1),
}


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert kernels.warm()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("requests")
    draw = random.Random(5)
    rows: list[dict[str, Any]] = []
    for request in range(60):
        shared: dict[str, Any] = {
            "user": draw.choice([None, 1, 2, 3, 40]),
            "country": draw.choice(["a", "b", None]),
            "history": draw.choice([None, [], [1], [2, 3], [request] * 5]),
        }
        for _ in range(draw.randint(3, 12)):
            key = None if request % 11 == 0 else request
            rows.append({**shared, "id": len(rows), "request": key, "score": draw.random()})
        if request % 7 == 0:  # a row that is not as the others of its request
            rows[-1]["history"] = [9, 9]
    schema = pa.schema(
        {
            "user": pa.int64(),
            "country": pa.string(),
            "history": pa.list_(pa.int64()),
            "id": pa.int64(),
            "request": pa.int64(),
            "score": pa.float64(),
        }
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), path / "t.parquet", row_group_size=90)
    options = ConversionOptions(request_key="request", request_columns=SHARED, has_row_key=True)
    convert_table(
        open_parquet(ParquetSource(uri=str(path / "t.parquet")), ""),
        open_location(str(path / "nested")),
        options,
    )
    pq.write_table(
        pa.table({"user": [1, 1, 2, 3], "name": ["a", "b", "c", None]}), path / "side.parquet"
    )
    (path / "shared_rows_module.py").write_text(MODULE)
    return str(path)


def base(folder: str, table: str, **more: Any) -> Pipeline:
    uri = f"{folder}/{table}"
    return Pipeline.read_parquet(uri, row_key="id", request_key="request", **more)


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
@pytest.mark.parametrize("table", ["t.parquet", "nested"])
def test_rows_are_the_same_however_they_are_shared(
    folder: str, monkeypatch: pytest.MonkeyPatch, story: Story, table: str
) -> None:
    monkeypatch.syspath_prepend(folder)
    shared = story(base(folder, table, request_columns=SHARED), folder)
    rows = shared.to_table()
    plain = shared.with_options(deduplication=False, fusion=False, kernels=False)
    assert rows.equals(plain.to_table())
    assert rows.equals(shared.with_options(fusion=False).to_table())
    assert rows.equals(shared.with_options(page_decoding=False).to_table())
    assert rows.num_rows or story is STORIES["no row left"]


@pytest.mark.parametrize("unit", ["row", "request"])
@pytest.mark.parametrize("table", ["t.parquet", "nested"])
def test_shuffled_rows_are_the_same_however_they_are_shared(
    folder: str, unit: str, table: str
) -> None:
    pipeline = STORIES["padded, hashed and filtered by what is shared"](
        base(folder, table, request_columns=SHARED), folder
    )

    def shuffled(**options: bool) -> pa.Table:
        shuffle = {"unit": unit, "windowRows": 200}
        experiment = pipeline.with_options(**options).experiment("rows", shuffle=shuffle)
        return pa.concat_tables(iter_tables(build_plan(experiment, folder).training))

    assert shuffled().equals(shuffled(deduplication=False))


def test_a_step_runs_once_a_request_and_sees_no_request_without_rows() -> None:
    seen: list[int] = []

    class Watched:
        """A cast that says how many rows it was given."""

        def __init__(self, cast: Cast) -> None:
            self._cast = cast

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cast, name)

        def __call__(self, table: pa.Table) -> pa.Table:
            seen.append(table.num_rows)
            return self._cast(table)

    table = pa.table(
        {
            "id": range(12),
            "request": [0, 1, 2] * 4,
            "text": ["1", "no number", "3"] * 4,
        }
    ).sort_by("request")
    found = find_requests(table, "request", ["text"])
    assert found is not None
    rows = Rows.of(found)
    live = frozenset(table.schema.names)
    keep: Any = Filter.bind(FilterStep(where="request != 1 and id > 2"), table.schema)
    watched: Any = Watched(Cast.bind(cast({"text": "int64"}), table.schema))
    for transform in (keep, watched):
        rows.run(SimpleNamespace(transform=transform, live=live))
    assert seen == [2]
    assert rows.table().to_pydict() == {
        "id": [3, 6, 9, 5, 8, 11],
        "request": [0, 0, 0, 2, 2, 2],
        "text": [1, 1, 1, 3, 3, 3],
    }


VALUES = st.one_of(
    st.lists(st.one_of(st.none(), st.lists(st.integers(0, 2), max_size=3)), max_size=12).map(
        lambda v: pa.array(v, pa.list_(pa.int8()))
    ),
    st.lists(st.lists(st.one_of(st.none(), st.integers(0, 1)), max_size=2), max_size=12).map(
        lambda v: pa.array(v, pa.list_(pa.int8()))
    ),
    st.lists(st.sampled_from([None, "", "a", "b"]), max_size=12).map(
        lambda v: pa.array(v, pa.string())
    ),
    st.lists(st.sampled_from([None, 0.0, -0.0, float("nan")]), max_size=12).map(
        lambda v: pa.array(v, pa.float32())
    ),
)


@given(VALUES, st.lists(st.sampled_from([None, 0, 1]), min_size=12, max_size=12), st.data())
def test_rows_found_to_be_requests_expand_to_themselves(
    values: pa.Array, keys: list[int | None], data: st.DataObject
) -> None:
    rows = pa.table(
        {"key": pa.array(sorted(keys[: len(values)], key=str), pa.int64()), "shared": values}
    ).append_column("id", pa.array(range(len(values)), pa.int64()))
    first = data.draw(st.integers(0, len(values)))
    rows = rows.slice(first)
    with patch.object(found_requests, "MIN_ROWS_PER_REQUEST", 1.0):
        found = find_requests(rows, "key", ["shared"])
    if found is None:
        assert rows.num_rows < 2
        return
    # As text, in which NaN is NaN and -0.0 is not 0.0.
    assert repr(found.expand(rows.schema.names).to_pydict()) == repr(rows.to_pydict())
    assert "key" in found.impressions.schema.names


@pytest.mark.parametrize("sharing", [True, False])
def test_a_nested_table_without_a_row_key_gives_all_rows_of_what_it_holds_once(
    folder: str, sharing: bool
) -> None:
    whole = Pipeline.read_parquet(f"{folder}/nested").with_options(deduplication=sharing)
    assert whole.select("country").to_table().equals(whole.to_table().select(["country"]))


def test_a_column_that_arrow_cannot_compare_is_no_shared_one(folder: str, tmp_path: Path) -> None:
    views = pa.array(["a", "b"] * 20, pa.string_view())
    lists = pa.array([[1], [2, 3]] * 20, pa.list_view(pa.int64()))
    table = pa.table({"id": range(40), "key": [0] * 40, "text": views, "list": lists})
    pq.write_table(table, tmp_path / "views.parquet")
    pipeline = Pipeline.read_parquet(
        str(tmp_path / "views.parquet"), request_key="key", request_columns=["text", "list"]
    )
    assert pipeline.to_table().num_rows == 40


def test_explain_says_what_stands_once_a_request(folder: str) -> None:
    def said(columns: Sequence[str], *, once: bool = True) -> list[str]:
        pipeline = base(folder, "t.parquet", request_columns=columns)
        experiment = pipeline.experiment("rows", deduplicated=once)
        return explain(build_plan(experiment, folder)).splitlines()

    assert_one_tells(said(SHARED), "… request … : user, country, history")
    assert_one_tells(said(["user"]), "… requests … numbers")
    assert_one_tells(said(SHARED, once=False), "… requests … batches repeat")


def test_requests_are_searched_for_only_if_batches_carry_their_columns_once(folder: str) -> None:
    pipeline = base(folder, "t.parquet", request_columns=SHARED).filter("id > 3")
    plans = [
        build_plan(pipeline.experiment("rows", deduplicated=once), folder).training
        for once in (True, False)
    ]
    assert [plan.sharing.key for plan in plans] == ["request", None]
    assert [plan.first_look is None for plan in plans] == [True, False]


def test_lists_of_requests_are_the_same(tmp_path: Path) -> None:
    """Tables where keeping a request's columns once pays, and does not; `same` spans requests."""
    for rows_per_request in (1, 2, 10):
        found_requests = [row // rows_per_request for row in range(400)]
        rows = {
            "id": range(400),
            "request": found_requests,
            "history": [[request] * (request % 50) or None for request in found_requests],
            "same": [[1, 2, 3]] * 400,
        }
        path = tmp_path / f"{rows_per_request}.parquet"
        pq.write_table(pa.table(rows), path, data_page_size=1024, write_batch_size=16)
        shared = ("history", "same")
        read = Pipeline.read_parquet(
            str(path), row_key="id", request_key="request", request_columns=shared
        )
        assert read.to_table().equals(pa.table(rows))
        some = pa.table({name: list(column)[3::7] for name, column in rows.items()})
        assert read.filter("id % 7 = 3").to_table().equals(some)


TYPES = {
    "as in the other file": pa.list_(pa.int64()),
    "large": pa.large_list(pa.int64()),
    "items never null": pa.list_(pa.field("element", pa.int64(), False)),
}


@pytest.mark.parametrize("data_type", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("nullable", [True, False])
def test_files_and_row_groups_may_differ(
    tmp_path: Path, data_type: pa.DataType, nullable: bool
) -> None:
    """In the type of a list, and in whether requests are worth looking for."""
    expected = []
    for index, history in enumerate([pa.list_(pa.int64()), data_type]):
        schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable),
                pa.field("request", pa.int64(), nullable),
                pa.field("history", history, nullable),
            ]
        )
        found_requests = [row // 10 for row in range(100)] + list(range(100, 200))
        rows = {
            "id": range(200 * index, 200 * index + 200),
            "request": found_requests,
            "history": [[request, index, 2] for request in found_requests],
        }
        table = pa.table(rows, schema=schema)
        pq.write_table(table, tmp_path / f"{index}.parquet", row_group_size=100)
        expected += table.to_pylist()
    read = Pipeline.read_parquet(
        str(tmp_path), row_key="id", request_key="request", request_columns=["history"]
    )
    assert read.to_table().to_pylist() == expected
    assert read.with_options(page_decoding=False).to_table().to_pylist() == expected
    assert read.to_table().schema == read.with_options(deduplication=False).to_table().schema
