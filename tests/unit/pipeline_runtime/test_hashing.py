"""Facts about the hash: it never changes, and equal values hash equal."""

from __future__ import annotations

import datetime
import re
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime import hashing

INT_TYPES = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
MORNING = datetime.datetime(2024, 2, 29, 6, 30, 15, 123456)

# What each release has given and must give: samples, buckets and checkpoints depend on it.
GOLDEN = [
    pytest.param(pa.array([0], pa.int64()), 11879638895053706309, id="the integer zero"),
    pytest.param(pa.array([-1], pa.int8()), 5645663912331892493, id="minus one"),
    pytest.param(pa.array([2**64 - 1], pa.uint64()), 5645663912331892493, id="the largest integer"),
    pytest.param(pa.array([""]), 14928935822457240438, id="the empty text"),
    pytest.param(pa.array(["user-1"]), 1585045861652378659, id="a short text"),
    pytest.param(
        pa.array(["größe 😀 of more than one word"]),
        2072083845327436226,
        id="a long text of several scripts",
    ),
    pytest.param(pa.array([False]), 11879638895053706309, id="false"),
    pytest.param(pa.array([MORNING.date()]), 9135409976995507404, id="a date"),
    pytest.param(pa.array([MORNING]), 15169853726383593950, id="a timestamp"),
    pytest.param(pa.array([MORNING.time()]), 1284031472329436816, id="a time"),
    pytest.param(pa.array([90], pa.duration("s")), 1516298617600586060, id="a duration"),
    pytest.param(pa.nulls(1), 5839288236212676579, id="null"),
    pytest.param(pa.array([b"\x00\xff"]), 12186968192002405211, id="bytes"),
]


def hashes(array: pa.Array, seed: int = 0) -> list[int]:
    return hashing.hash_columns([array], seed).tolist()


@pytest.mark.parametrize(("array", "expected"), GOLDEN)
def test_a_value_hashes_as_in_every_release(array: pa.Array, expected: int) -> None:
    assert hashes(array) == [expected]


def test_mix64_is_the_finaliser_of_splitmix64() -> None:
    # The first outputs of splitmix64.c for the state 0: its increment, mixed.
    states = np.array([1, 2, 3], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(value) for value in hashing.mix64(states).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_several_columns_and_a_seed_hash_as_in_every_release() -> None:
    columns = [pa.array([7, 8]), pa.array(["seven", None])]
    assert hashing.hash_columns(columns, 42).tolist() == [18014459923454576885, 9465382530629749000]


def test_positions_hash_as_in_every_release() -> None:
    assert hashing.position_hash("day=1/part-0.parquet", 3, 10, 2).tolist() == [
        439541606114104103,
        5414164043182708787,
    ]


def test_a_sample_keeps_the_rows_of_every_release() -> None:
    drawn = hashing.keep_mask(hashing.hash_columns([pa.array(range(40))], 0), 7, 25)
    assert np.flatnonzero(drawn).tolist() == [2, 3, 8, 11, 12, 27, 29, 30, 39]


def test_buckets_are_those_of_every_release() -> None:
    ids = pa.array(["a", "b", "c", "d", None, ""])
    assert hashing.bucket_of(ids, 1, 1000).tolist() == [709, 199, 326, 69, 896, 273]


EQUAL = [
    pytest.param(pa.array([-1], pa.int8()), pa.array([-1], pa.int64()), id="int8 and int64"),
    pytest.param(pa.array([200], pa.uint8()), pa.array([200], pa.int16()), id="uint8 and int16"),
    pytest.param(pa.array([True]), pa.array([1], pa.int32()), id="true and 1"),
    pytest.param(pa.array(["é"]), pa.array(["é"], pa.large_string()), id="string and large_string"),
    pytest.param(pa.array(["é"]), pa.array(["é"], pa.string_view()), id="string and string_view"),
    pytest.param(
        pa.array(["é"]), pa.array(["é"]).dictionary_encode(), id="a string and its dictionary"
    ),
    pytest.param(
        pa.array([b"1234"]), pa.array([b"1234"], pa.binary(4)), id="binary and fixed size binary"
    ),
    pytest.param(
        pa.array([MORNING.date()], pa.date32()),
        pa.array([MORNING.date()], pa.date64()),
        id="date32 and date64",
    ),
    pytest.param(
        pa.array([MORNING], pa.timestamp("us")),
        pa.array([MORNING], pa.timestamp("us")).cast(pa.timestamp("ns")),
        id="microseconds and nanoseconds",
    ),
    pytest.param(
        pa.array([-1], pa.timestamp("s")),
        pa.array([-1_000], pa.timestamp("ms")),
        id="before 1970 in seconds and milliseconds",
    ),
    pytest.param(
        pa.array([MORNING], pa.timestamp("us")),
        pa.array([MORNING], pa.timestamp("us")).cast(pa.timestamp("us", "UTC")),
        id="with and without a time zone",
    ),
    pytest.param(
        pa.array([MORNING.time().replace(microsecond=0)], pa.time32("s")),
        pa.array([MORNING.time().replace(microsecond=0)], pa.time64("ns")),
        id="time32 and time64",
    ),
    pytest.param(pa.nulls(1, pa.int64()), pa.nulls(1, pa.string()), id="null of any type"),
    pytest.param(
        pa.nulls(1, pa.string()),
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([None], pa.string())),
        id="null in a dictionary's values",
    ),
    pytest.param(
        pa.array([5]), pa.RunEndEncodedArray.from_arrays([1], [5]), id="a run of one value"
    ),
]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_equal_values_hash_equal(left: pa.Array, right: pa.Array) -> None:
    assert hashes(left) == hashes(right)


DIFFERENT = [
    pytest.param([pa.array([1]), pa.array(["1"])], id="the number 1 and its text"),
    pytest.param([pa.array(["a"]), pa.array(["a\0"])], id="a text and the same with a zero byte"),
    pytest.param([pa.array([""]), pa.nulls(1, pa.string())], id="the empty text and null"),
    pytest.param([pa.array([1]), pa.array([1], pa.date32())], id="1 and day 1"),
    pytest.param([pa.array(["12345678ab"]), pa.array(["ab12345678"])], id="words in another order"),
]


@pytest.mark.parametrize("arrays", DIFFERENT)
def test_different_values_hash_differently(arrays: list[pa.Array]) -> None:
    assert hashes(arrays[0]) != hashes(arrays[1])


def test_the_order_of_columns_counts() -> None:
    left, right = pa.array([1]), pa.array([2])
    ahead, behind = hashing.hash_columns([left, right], 0), hashing.hash_columns([right, left], 0)
    assert ahead.tolist() != behind.tolist()


def test_another_seed_gives_other_hashes() -> None:
    assert hashes(pa.array([1]), 0) != hashes(pa.array([1]), 1)


@pytest.mark.parametrize("values", [range(300_000), [f"user-{i}" for i in range(200_000)]])
def test_distinct_values_do_not_collide(values: list[object]) -> None:
    array = pa.array(values)
    assert len(np.unique(hashing.hash_columns([array], 0))) == len(array)


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64(), pa.decimal128(10, 2)], ids=str)
def test_a_type_without_exact_equality_is_refused(data_type: pa.DataType) -> None:
    with pytest.raises(TypeError, match=re.escape(str(data_type))):
        hashing.hash_columns([pa.array([], data_type)], 0)


def test_lists_are_refused() -> None:
    with pytest.raises(TypeError, match="list"):
        hashing.hash_columns([pa.array([[1]])], 0)


def test_no_rows_give_no_hashes() -> None:
    assert hashing.hash_columns([pa.chunked_array([], pa.string())], 0).tolist() == []
    assert hashing.position_hash("a", 0, 0, 0).tolist() == []


def test_positions_differ_by_path_row_group_and_row() -> None:
    parts = [
        hashing.position_hash(path, row_group, first, 100)
        for path in ("a.parquet", "b.parquet")
        for row_group in (0, 1)
        for first in (0, 100)
    ]
    assert len(np.unique(np.concatenate(parts))) == 800


def test_positions_do_not_depend_on_where_a_block_starts() -> None:
    whole = hashing.position_hash("a", 2, 0, 10)
    assert whole[4:].tolist() == hashing.position_hash("a", 2, 4, 6).tolist()


VALUES = st.one_of(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)).map(lambda v: pa.array(v, pa.int64())),
    st.lists(st.none() | st.text(max_size=40)).map(lambda v: pa.array(v, pa.string())),
    st.lists(st.none() | st.booleans()).map(lambda v: pa.array(v, pa.bool_())),
    st.lists(st.none() | st.binary(min_size=3, max_size=3)).map(
        lambda v: pa.array(v, pa.binary(3))
    ),
    st.lists(st.none() | st.dates()).map(lambda v: pa.array(v, pa.date32())),
    st.lists(st.none() | st.sampled_from(["a", "b", ""])).map(
        lambda v: pa.array(v, pa.string()).dictionary_encode()
    ),
)


@given(array=VALUES, cut=st.integers(0, 10), seed=st.integers(0, 5))
def test_slices_and_chunks_do_not_change_a_hash(array: pa.Array, cut: int, seed: int) -> None:
    whole = hashes(array, seed)
    chunked = pa.chunked_array([array.slice(0, cut), array.slice(cut)], type=array.type)
    assert hashing.hash_columns([chunked], seed).tolist() == whole
    assert hashes(array.slice(cut), seed) == whole[cut:]


@given(data=st.data(), data_type=st.sampled_from(INT_TYPES))
def test_an_integer_hashes_by_its_value(data: st.DataObject, data_type: pa.DataType) -> None:
    low, high = (0, 127) if data_type == pa.uint64() else (-128 * ("u" not in str(data_type)), 127)
    values = data.draw(st.lists(st.none() | st.integers(low, high)))
    assert hashes(pa.array(values, data_type)) == hashes(pa.array(values, pa.int64()))


@pytest.mark.parametrize("keep_percent", [0, Fraction(1, 2), 1, 10, 50, 99, 100])
def test_a_sample_keeps_its_share(keep_percent: Fraction | int) -> None:
    num_rows = 100_000
    kept = hashing.keep_mask(hashing.hash_columns([pa.array(range(num_rows))], 0), 3, keep_percent)
    share = float(keep_percent) / 100
    spread = 5 * (num_rows * share * (1 - share)) ** 0.5  # five standard deviations
    assert abs(int(kept.sum()) - num_rows * share) <= spread


def test_a_smaller_sample_is_part_of_a_larger_one() -> None:
    rows = hashing.hash_columns([pa.array(range(10_000))], 0)
    small, large = hashing.keep_mask(rows, 3, 10), hashing.keep_mask(rows, 3, 60)
    assert not (small & ~large).any()


def test_buckets_are_evenly_filled() -> None:
    buckets = hashing.bucket_of(pa.array(range(100_000)), 0, 10)
    counts = np.bincount(buckets, minlength=10)
    assert len(counts) == 10
    assert abs(counts - 10_000).max() < 500  # five standard deviations of a binomial
