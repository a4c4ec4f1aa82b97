"""Rows on their way through a stage: columns copied late are the columns copied at every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline
from pipeline_runtime.feed.making.stage_rows import Rows
from pipeline_runtime.pipeline import iter_tables
from pipeline_runtime.plan import build_plan
from pipeline_runtime.steps.filter.model import FilterStep
from pipeline_runtime.steps.filter.transform import Filter

Story = Callable[[Pipeline, str], Pipeline]

MODULE = """
import pyarrow as pa
import pyarrow.compute as pc

def keep_thirds(table):
    return table.filter(pc.is_in(table["id"], pa.array(range(0, 300, 3))))

def double(table):
    return table.append_column("double", pc.multiply(table["id"], 2))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    rows = 300
    values = {
        "id": range(rows),
        "user": [row % 11 for row in range(rows)],
        "items": [[row, None] if row % 5 == 0 else [row] * (row % 4) for row in range(rows)],
        "score": [row / 7 for row in range(rows)],
    }
    pq.write_table(pa.table(values), tmp_path / "t.parquet", row_group_size=70)
    side = {"user": [1, 1, 2, 3], "name": ["a", "b", "c", None]}
    pq.write_table(pa.table(side), tmp_path / "side.parquet")
    users = range(0, 11, 2)
    lists = {"user": users, "path": [[user] * user for user in users], "size": users}
    pq.write_table(pa.table(lists), tmp_path / "lists.parquet")
    (tmp_path / "rows_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return str(tmp_path)


STORIES: dict[str, Story] = {
    "two columns trade names between filters": lambda base, folder: (
        base.filter("id % 2 = 0").rename({"id": "user", "user": "id"}).filter("id > 3")
    ),
    "rows thinned and weighed": lambda base, folder: (
        base.derive(label="user > 5")
        .downsample(30, where="not label", seed=3, weight_column="weight")
        .weight("weight", by="score")
        .filter("weight > 1")
        .truncate("items", length=1)
    ),
    "rows repeated by a join, then filtered": lambda base, folder: (
        base.filter("id > 5")
        .join(f"{folder}/side.parquet", on="user")
        .filter("name is null or name = 'b'")
        .derive(score="score + id")
        .select("items", "name", "score", "id")
    ),
    "lists of a join, filtered by another column of it": lambda base, folder: (
        base.join(f"{folder}/lists.parquet", on="user")
        .filter("size > 2 or size is null")
        .join(f"{folder}/side.parquet", on="user")
        .pad_sequence("path", length=3, value=0)
        .derive(wide="size * 2")
    ),
    "rows that only a join drops": lambda base, folder: base.join(
        f"{folder}/side.parquet", on="user", how="inner"
    ).drop("score"),
    "a function that drops rows": lambda base, folder: (
        base.filter("id > 9")
        .map("rows_module:keep_thirds", changes_rows=True)
        .filter("user > 2")
        .derive(twice="id * 2")
    ),
    "a function that adds a column": lambda base, folder: (
        base.filter("id > 9").map("rows_module:double", input_columns=["id"]).filter("user < 4")
    ),
    "lists padded when few rows are left": lambda base, folder: (
        base.filter("id % 3 = 0").pad_sequence("items", length=3, value=7).filter("user < 9")
    ),
    "a constant": lambda base, folder: base.filter("id > 9").derive(one="1").filter("user = 3"),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
@pytest.mark.parametrize("off", [(), ("kernels",), ("projection",), ("projection", "kernels")])
def test_columns_copied_late_are_those_copied_at_every_step(
    folder: str, story: Story, off: tuple[str, ...]
) -> None:
    pipeline = story(Pipeline.read_parquet(f"{folder}/t.parquet", row_key="id"), folder)
    rows = pipeline.with_options(**dict.fromkeys(off, False)).to_table()
    assert rows.num_rows
    assert rows.equals(pipeline.with_options(fusion=False, kernels=False).to_table())


@pytest.mark.parametrize("unit", ["row", "request"])
def test_shuffled_rows_are_the_same_whichever_way_they_are_copied(folder: str, unit: str) -> None:
    base = Pipeline.read_parquet(f"{folder}/t.parquet", row_key="id", request_key="user")
    pipeline = STORIES["rows thinned and weighed"](base, folder)

    def shuffled(**options: bool) -> pa.Table:
        experiment = pipeline.with_options(**options).experiment("rows", shuffle={"unit": unit})
        return pa.concat_tables(iter_tables(build_plan(experiment, folder).training))

    rows = shuffled()
    assert rows.equals(shuffled(kernels=False))
    assert rows.equals(shuffled(fusion=False))
    assert not rows.equals(pipeline.to_table())


def test_a_column_that_no_step_reads_is_copied_once_the_rows_are_known() -> None:
    table = pa.table({"x": range(4), "wide": [[row] * 9 for row in range(4)]})
    rows = Rows.of(table)
    for where, left in (("x > 0", 3), ("x < 3", 2)):
        transform: Any = Filter.bind(FilterStep(where=where), table.schema)
        rows.run(SimpleNamespace(transform=transform, live=frozenset(table.schema.names)))
        assert rows.num_rows == left
        assert rows.columns["wide"].now is None
    assert rows.table().equals(table.slice(1, 2))
    assert rows.num_bytes == table.slice(1, 2).nbytes
