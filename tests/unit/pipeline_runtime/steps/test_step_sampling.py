"""`downsample` and `sample`: the same rows whatever the order, and the share that was asked for."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime.errors import ManifestError, StepError
from pipeline_runtime.steps.base import BindContext, SideTable, SideTableRequest, public_schema
from pipeline_runtime.steps.binding import bind_pipeline
from pipeline_runtime.steps.downsample.model import DownsampleStep
from pipeline_runtime.steps.downsample.transform import Downsample
from pipeline_runtime.steps.row_hash import add_row_hash
from pipeline_runtime.steps.sample.model import SampleStep
from pipeline_runtime.steps.sample.transform import Sample

NUM_ROWS = 20_000


def rows(num_rows: int = NUM_ROWS) -> pa.Table:
    ids = pa.array(range(num_rows))
    label = pa.array([None if i % 7 == 0 else i % 3 == 0 for i in range(num_rows)])
    table = pa.table({"id": ids, "label": label, "user": pa.array(np.arange(num_rows) // 10)})
    return add_row_hash(table, ["id"])


ROWS = rows()
SCHEMA = public_schema(ROWS.schema)


def no_side_tables(request: SideTableRequest) -> SideTable:
    raise AssertionError(request)


CONTEXT = BindContext(open_side_table=no_side_tables)


def within_five_deviations(kept: int, num_rows: int, keep_percent: float) -> bool:
    share = keep_percent / 100
    return abs(kept - num_rows * share) <= 5 * (num_rows * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("keep_percent", [0, "0.5", 1, 10, "12.25", 50, 100])
def test_downsample_thins_matching_rows_to_the_share_and_keeps_all_others(
    keep_percent: int | str,
) -> None:
    config = DownsampleStep(keep_percent=keep_percent, where="not label", seed=5)
    kept = Downsample.bind(config, SCHEMA)(ROWS)
    for label in (True, None):  # where is false and where it is null
        mask = [value is label for value in ROWS["label"].to_pylist()]
        assert kept["label"].to_pylist().count(label) == sum(mask)
    num_false = ROWS["label"].to_pylist().count(False)
    num_kept = kept["label"].to_pylist().count(False)
    assert within_five_deviations(num_kept, num_false, float(keep_percent))


@settings(deadline=None, max_examples=examples(10))
@given(
    seed=st.integers(0, 3),
    order_seed=st.integers(0, 100),
    cuts=st.lists(st.integers(0, 500), max_size=5),
)
def test_downsample_keeps_the_same_rows_in_any_blocks_and_order(
    seed: int, order_seed: int, cuts: list[int]
) -> None:
    table = rows(500)
    bound = Downsample.bind(DownsampleStep(keep_percent=30, seed=seed), SCHEMA)
    shuffled = table.take(np.random.default_rng(order_seed).permutation(500))
    edges = sorted([0, *cuts, 500])
    blocks = [bound(shuffled.slice(a, b - a)) for a, b in itertools.pairwise(edges)]
    got = pa.concat_tables(blocks)["id"].to_pylist()
    assert sorted(got) == bound(table)["id"].to_pylist()


def test_downsample_without_where_keeps_a_share_of_all_rows() -> None:
    kept = Downsample.bind(DownsampleStep(keep_percent=25), SCHEMA)(ROWS)
    assert within_five_deviations(kept.num_rows, NUM_ROWS, 25)


def test_another_seed_keeps_other_rows() -> None:
    kept = []
    for seed in (1, 2):
        bound = Downsample.bind(DownsampleStep(keep_percent=50, seed=seed), SCHEMA)
        kept.append(set(bound(ROWS)["id"].to_pylist()))
    assert within_five_deviations(len(kept[0] & kept[1]), NUM_ROWS, 25)


def test_downsample_makes_a_weight_that_corrects_for_it() -> None:
    config = DownsampleStep(keep_percent=20, where="not label", weight_column="w")
    bound = Downsample.bind(config, SCHEMA)
    kept = bound(ROWS)
    assert bound.output_schema.field("w").type == kept["w"].type == pa.float32()
    for label, weight in zip(kept["label"].to_pylist(), kept["w"].to_pylist(), strict=True):
        assert weight == (5.0 if label is False else 1.0)


def test_downsample_multiplies_the_weight_that_is_there() -> None:
    table = ROWS.append_column("w", pa.array([0.5, None] * (NUM_ROWS // 2)))
    config = DownsampleStep(keep_percent=50, where="not label", weight_column="w")
    bound = Downsample.bind(config, public_schema(table.schema))
    kept = bound(table)
    assert kept["w"].type == pa.float64()
    assert bound.inputs == {"label", "w"}
    for row in kept.to_pylist():
        before = 0.5 if row["id"] % 2 == 0 else None
        factor = 2.0 if row["label"] is False else 1.0
        assert row["w"] == (None if before is None else before * factor)


def test_downsample_to_nothing_keeps_the_other_rows_at_their_weight() -> None:
    config = DownsampleStep(keep_percent=0, where="not label", weight_column="w")
    kept = Downsample.bind(config, SCHEMA)(ROWS)
    assert set(kept["label"].to_pylist()) == {True, None}
    assert set(kept["w"].to_pylist()) == {1.0}


@pytest.mark.parametrize(("fraction", "whole"), [("10.0", 10), ("0.5", 1), ("99.5", 100)])
def test_a_fraction_keeps_a_subset_of_a_larger_percentage(fraction: str, whole: int) -> None:
    few, many = (
        set(Downsample.bind(DownsampleStep(keep_percent=p), SCHEMA)(ROWS)["id"].to_pylist())
        for p in (fraction, whole)
    )
    assert few <= many
    assert (few == many) is (fraction == "10.0")


def test_a_fraction_weighs_its_rows_exactly() -> None:
    config = DownsampleStep(keep_percent="12.5", weight_column="w")
    assert set(Downsample.bind(config, SCHEMA)(ROWS)["w"].to_pylist()) == {8.0}


def test_downsample_of_no_rows_still_makes_the_weight() -> None:
    config = DownsampleStep(keep_percent=10, weight_column="w")
    assert Downsample.bind(config, SCHEMA)(ROWS.slice(0, 0)).schema.field("w").type == pa.float32()


def test_downsample_refuses_an_integer_weight_and_a_number_as_condition() -> None:
    config = DownsampleStep(keep_percent=10, where="id + 1", weight_column="id")
    with pytest.raises(ManifestError) as caught:
        Downsample.bind(config, SCHEMA)
    assert [problem.path for problem in caught.value.problems] == [
        "downsample.where",
        "downsample.weightColumn",
    ]


def test_a_table_without_identity_is_refused() -> None:
    bound = Sample.bind(SampleStep(keep_percent=10), SCHEMA)
    assert bound.needs_row_hash
    with pytest.raises(StepError, match="_lastmile_row_hash"):
        bound(ROWS.select(["id"]))


def test_sample_by_a_key_keeps_all_rows_of_a_key_or_none() -> None:
    bound = Sample.bind(SampleStep(keep_percent=30, by=("user",), seed=9), SCHEMA)
    assert not bound.needs_row_hash
    kept = bound(ROWS)
    users, counts = np.unique(kept["user"].to_numpy(), return_counts=True)
    assert set(counts.tolist()) == {10}
    assert within_five_deviations(len(users), NUM_ROWS // 10, 30)


def test_sample_by_a_key_treats_null_as_a_key() -> None:
    table = pa.table({"k": pa.array([None] * 50, pa.string())})
    kept = {
        Sample.bind(SampleStep(keep_percent=50, by=("k",), seed=s), table.schema)(table).num_rows
        for s in range(20)
    }
    assert kept == {0, 50}


def test_sample_by_a_float_is_refused() -> None:
    schema = pa.schema([("f", pa.float64())])
    with pytest.raises(ManifestError, match=r"sample\.by\[0\]: .*'f'"):
        Sample.bind(SampleStep(keep_percent=50, by=("f",)), schema)


def test_two_steps_of_one_seed_draw_independently() -> None:
    steps = [DownsampleStep(keep_percent=50), SampleStep(keep_percent=50)]
    table = ROWS
    for transform in bind_pipeline(steps, SCHEMA, CONTEXT):
        table = transform(table)
    assert within_five_deviations(table.num_rows, NUM_ROWS, 25)


def test_a_later_step_does_not_change_the_rows_of_an_earlier_one() -> None:
    step = DownsampleStep(keep_percent=50, seed=3)
    alone = bind_pipeline([step], SCHEMA, CONTEXT)[0]
    first = bind_pipeline([step, step], SCHEMA, CONTEXT)[0]
    assert alone(ROWS).equals(first(ROWS))
    assert alone(ROWS).equals(Downsample.bind(step, SCHEMA)(ROWS))


def test_the_sample_is_that_of_every_release() -> None:
    kept = Downsample.bind(DownsampleStep(keep_percent=20, seed=7), SCHEMA)(rows(60))
    assert kept["id"].to_pylist() == [2, 3, 8, 11, 12, 27, 29, 30, 39, 42, 52, 54, 57, 58, 59]
