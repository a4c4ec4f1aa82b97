"""Clustered tables: every chunk of a shuffled epoch has rows from all over the table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from clustered_files import Layout, make_rows, mark_as_clustered, write_clustered_files
from facts import assert_one_tells
from hypothesis import given, settings
from hypothesis import strategies as st
from iceberg_tables import Lake
from property_tests import examples
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import FloatType, LongType, NestedField

from pipeline_runtime import Pipeline
from pipeline_runtime.config import Shuffle, parse_experiment
from pipeline_runtime.plan import build_plan, explain
from pipeline_runtime.plan.groups import Group, plan_groups, share_groups
from pipeline_runtime.plan.mixing import MAX_OPEN_BYTES, Mixing, count_units
from pipeline_runtime.sources import Unit

BATCH_SIZE, WINDOW_ROWS = 128, 2048
# A global permutation has 1; the variance of some hundred batches deviates by a tenth.
MAX_RATIO = 1.2

sizes = st.lists(st.integers(1, 500), min_size=1, max_size=60)


def make_units(row_counts: Sequence[int], buckets: int = 6, days: int = 5) -> list[Unit]:
    """Return units of days and buckets; those of one bucket in seven have none."""
    return [
        Unit(
            place=str(index // 3),
            index=index % 3,
            num_rows=rows,
            num_bytes=rows * 10,
            partition={"day": None if index % days == 4 else index % days},
            bucket=None if index % 7 == 6 else index % buckets,
        )
        for index, rows in enumerate(row_counts)
    ]


def mix(
    units: Sequence[Unit], chunk_rows: int, *, residues: int | None = None, epoch: int = 0
) -> list[Group]:
    mixing = Mixing(residues=residues)
    return plan_groups(
        units, seed=1, epoch=epoch, shuffle=Shuffle(), chunk_rows=chunk_rows, mixing=mixing
    )


@settings(max_examples=examples(60))
@given(
    row_counts=sizes,
    chunk_rows=st.integers(1, 900),
    residues=st.sampled_from([None, 1, 6, 20]),
    num_ranks=st.integers(1, 4),
)
def test_chunks_of_mixed_groups_have_every_row_once(
    row_counts: list[int], chunk_rows: int, residues: int | None, num_ranks: int
) -> None:
    units = make_units(row_counts)
    found: list[tuple[str, int, int]] = []
    shares = share_groups(mix(units, chunk_rows, residues=residues), num_ranks)
    for group in [group for share in shares for group in share]:
        for chunk in range(group.num_chunks(chunk_rows)):
            ranges = group.chunk_rows_of_units(chunk, chunk_rows)
            rows = [
                (unit.place, unit.index, row)
                for unit, some in zip(group.units, ranges, strict=True)
                for row in some
            ]
            assert 0 < len(rows) <= chunk_rows
            found += rows
    assert sorted(found) == sorted((u.place, u.index, i) for u in units for i in range(u.num_rows))
    counts = [sum(len(group.row_range) for group in share) for share in shares]
    assert max(counts) - min(counts) <= 1


def test_seed_and_epoch_decide_the_order() -> None:
    units = make_units([100] * 400)
    assert mix(units, 1000, epoch=2) == mix(units, 1000, epoch=2)
    first, second = ({frozenset(g.units) for g in mix(units, 1000, epoch=e)} for e in (0, 1))
    assert len(first & second) < len(first) / 10  # other units meet in each epoch


def test_no_units_are_no_groups() -> None:
    assert mix([], 100) == []


@pytest.mark.parametrize("num_buckets", [64, 24])
def test_a_join_by_bucket_needs_few_residues_at_a_time(num_buckets: int) -> None:
    units = make_units([100] * 24 * num_buckets, buckets=num_buckets, days=1)
    units = [unit for unit in units if unit.bucket is not None]
    assert count_loads(units, 1, num_buckets) > 3 * num_buckets
    # A window has 8 residues.
    assert count_loads(units, num_buckets, num_buckets) == num_buckets


def count_loads(units: Sequence[Unit], residues: int, num_buckets: int, held: int = 12) -> int:
    """Return how often a reader loads an index, if it holds the latest ones."""
    loads, indices = 0, OrderedDict[int, None]()
    for group in mix(units, 1000, residues=residues):
        for unit in group.units:
            assert unit.bucket is not None
            index = unit.bucket % num_buckets
            loads += index not in indices
            indices.pop(index, None)
            indices[index] = None
            if len(indices) > held:
                indices.popitem(last=False)
    return loads


@pytest.mark.parametrize(
    ("num_units", "unit_bytes", "chunk_rows", "wanted"),
    [
        pytest.param(32 * 30, 1 << 20, 32_768, 30, id="a month of days"),
        pytest.param(10_000, 1 << 20, 32_768, 32, id="many row groups"),
        pytest.param(10_000, MAX_OPEN_BYTES // 12, 32_768, 12, id="large row groups"),
        pytest.param(10_000, MAX_OPEN_BYTES, 32_768, 8, id="huge row groups"),
        pytest.param(40, 1 << 20, 32_768, 8, id="few row groups"),
        pytest.param(10_000, 1 << 20, 16, 2, id="tiny chunks"),
    ],
)
def test_memory_and_chunks_bound_the_units_at_a_time(
    num_units: int, unit_bytes: int, chunk_rows: int, wanted: int
) -> None:
    unit = Unit(place="f", index=0, num_rows=100_000, num_bytes=unit_bytes)
    assert count_units([unit] * num_units, chunk_rows) == wanted


LAYOUTS = {
    "row groups shorter than a chunk": Layout(),
    "row groups longer than a chunk": Layout(days=6, buckets=4),
    "buckets sorted by day": Layout(has_days=False, sort=("day",), group_rows=200),
    "one file sorted by day": Layout(has_days=False, buckets=1, sort=("day",), group_rows=300),
}


def ratios_of(pipeline: Pipeline, shuffle: Any, epochs: int = 1) -> dict[str, float]:
    """Return the variance of batch means, by column, relative to a global permutation's."""
    loader = pipeline.loader(
        BATCH_SIZE, columns=["label", "day"], shuffle=shuffle, seed=3, last_batch="drop"
    )
    batches = [batch for _ in range(epochs) for batch in loader]
    found = {}
    for name in ("label", "day"):
        rows = torch.stack([batch[name].double() for batch in batches])
        found[name] = float(rows.mean(1).var() / (rows.var() / BATCH_SIZE))
    return found


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_batches_vary_like_those_of_a_global_permutation(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_clustered_files(tmp_path / "t", layout)
    pipeline, shuffle = Pipeline.read_parquet(f"{table}/"), {"window_rows": WINDOW_ROWS}
    assert ratios_of(pipeline, shuffle)["day"] > 2
    mark_as_clustered(monkeypatch)
    assert max(ratios_of(pipeline, shuffle).values()) <= MAX_RATIO


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_an_iceberg_table_is_mixed(lake: Lake) -> None:
    schema = Schema(
        NestedField(1, "x", LongType()),
        NestedField(2, "user", LongType()),
        NestedField(3, "day", LongType()),
        NestedField(4, "label", FloatType()),
    )
    parts = (("day", IdentityTransform()), ("user", BucketTransform(6)))
    table = lake.create("clicks", schema, *parts)
    with table.transaction() as transaction:
        transaction.set_properties({"write.parquet.row-group-limit": "300"})
    table.append(make_rows(Layout()).sort_by([("day", "ascending"), ("user", "ascending")]))
    pipeline = Pipeline.read_iceberg("db.clicks", lake.model.model_dump(mode="json"))
    assert pipeline.plan().training.scan.is_clustered
    # Names of files, and so the order of their rows, are random: three epochs deviate little.
    ratios = ratios_of(pipeline, {"window_rows": WINDOW_ROWS}, epochs=3)
    assert max(ratios.values()) <= MAX_RATIO


def test_explain_shows_how_rows_are_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_clustered_files(tmp_path / "t", Layout(rows=4000))
    document = Pipeline.read_parquet(f"{table}/").document("mixed")
    document["spec"]["training"] = {"labelColumn": "label"}

    def lines() -> list[str]:
        return explain(build_plan(parse_experiment(document), "")).splitlines()

    assert not any("at a time" in line for line in lines())
    mark_as_clustered(monkeypatch)
    assert_one_tells(lines(), "… 8 row groups at a time … uncompressed")
    document["spec"]["training"]["shuffle"] = {"unit": "None"}
    assert not any("at a time" in line for line in lines())
