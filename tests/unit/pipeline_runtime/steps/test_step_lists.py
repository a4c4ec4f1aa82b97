"""`padSequence`, `truncate` and `hashBucket` against plain loops over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from facts import assert_all_told
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_runtime.errors import ManifestError
from pipeline_runtime.hashing import bucket_of
from pipeline_runtime.kernels import warm
from pipeline_runtime.steps.hash_bucket.model import HashBucketStep
from pipeline_runtime.steps.hash_bucket.transform import HashBucket
from pipeline_runtime.steps.pad_sequence.model import PadSequenceStep
from pipeline_runtime.steps.pad_sequence.transform import PadSequence
from pipeline_runtime.steps.truncate.model import TruncateStep
from pipeline_runtime.steps.truncate.transform import Truncate

LIST_TYPES: list[Callable[[pa.DataType], pa.DataType]] = [pa.list_, pa.large_list]
NUMBERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
]
Lists = list[list[Any] | None]


def column_of(values: Lists, data_type: pa.DataType, cut: int, chunk: int) -> pa.ChunkedArray:
    """The values from row `cut` on, as a slice of their buffers, in two chunks."""
    array = pa.array(values, data_type).slice(cut)
    return pa.chunked_array([array.slice(0, chunk), array.slice(chunk)], type=data_type)


LISTS = st.lists(st.none() | st.lists(st.none() | st.integers(0, 100), max_size=6), max_size=8)
CUTS = st.integers(0, 3)


@settings(deadline=None)
@given(
    values=LISTS,
    list_type=st.sampled_from(LIST_TYPES),
    item_type=st.sampled_from(NUMBERS),
    length=st.integers(1, 8),
    fill=st.integers(0, 3),
    cut=CUTS,
    chunk=CUTS,
    data=st.data(),
)
def test_padding_is_the_plain_loop(
    values: Lists,
    list_type: Callable[[pa.DataType], pa.DataType],
    item_type: pa.DataType,
    length: int,
    fill: int,
    cut: int,
    chunk: int,
    data: st.DataObject,
) -> None:
    table = pa.table({"v": column_of(values, list_type(item_type), cut, chunk)})
    config = PadSequenceStep(columns=("v",), length=length, value=fill)
    step = PadSequence.bind(config, table.schema)
    padded = step(table)["v"]
    expected = [
        ([fill if item is None else item for item in row or []] + [fill] * length)[:length]
        for row in values[cut:]
    ]
    assert padded.to_pylist() == expected
    assert padded.type == pa.list_(item_type, length)
    places = data.draw(
        st.lists(st.integers(0, len(expected) - 1), max_size=9) if expected else st.just([])
    )
    if warm():
        picked = step.of_rows(table, np.array(places, dtype=np.int64))
        assert picked is not None
        assert picked["v"].to_pylist() == [expected[place] for place in places]
        assert picked["v"].type == padded.type


@settings(deadline=None)
@given(
    values=st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=6), max_size=8),
    list_type=st.sampled_from(LIST_TYPES),
    length=st.integers(0, 7),
    keep=st.sampled_from(["Head", "Tail"]),
    cut=CUTS,
    chunk=CUTS,
)
def test_truncation_is_the_plain_loop(
    values: Lists,
    list_type: Callable[[pa.DataType], pa.DataType],
    length: int,
    keep: Any,
    cut: int,
    chunk: int,
) -> None:
    table = pa.table({"v": column_of(values, list_type(pa.string()), cut, chunk)})
    config = TruncateStep(columns=("v",), length=length, keep=keep)
    bound = Truncate.bind(config, table.schema)
    out = bound(table)

    def truncated(row: list[Any]) -> list[Any]:
        return row[:length] if keep == "Head" else row[max(0, len(row) - length) :]

    expected = [None if row is None else truncated(row) for row in values[cut:]]
    assert out["v"].to_pylist() == expected
    assert out.schema == bound.output_schema == table.schema


def test_truncation_of_short_lists_copies_nothing() -> None:
    table = pa.table({"v": [[1, 2], None]})
    out = Truncate.bind(TruncateStep(columns=("v",), length=2), table.schema)(table)
    assert out["v"].chunk(0).buffers()[1].address == table["v"].chunk(0).buffers()[1].address


def test_truncation_works_on_items_of_any_type() -> None:
    table = pa.table({"v": [[{"a": [1, 2]}, {"a": None}], [None]]})
    out = Truncate.bind(TruncateStep(columns=("v",), length=1, keep="Tail"), table.schema)(table)
    assert out["v"].to_pylist() == [[{"a": None}], [None]]


def test_padding_takes_lists_of_a_fixed_size() -> None:
    array = pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.int32(), 2))
    table = pa.table({"v": array}).slice(1)
    config = PadSequenceStep(columns=("v",), length=3, value=-1)
    padded = PadSequence.bind(config, table.schema)(table)["v"]
    assert padded.to_pylist() == [[-1, -1, -1], [3, -1, -1], [4, 5, -1]]


def test_padding_of_no_rows_has_the_padded_type() -> None:
    table = pa.table({"v": pa.chunked_array([], pa.list_(pa.int64()))})
    padded = PadSequence.bind(PadSequenceStep(columns=("v",), length=4), table.schema)(table)
    assert padded["v"].type == pa.list_(pa.int64(), 4)


def test_long_columns_are_padded_in_blocks() -> None:
    values = [[row, row + 1] for row in range(2_000)]
    table = pa.table({"v": values})
    config = PadSequenceStep(columns=("v",), length=300)
    padded = PadSequence.bind(config, table.schema)(table)["v"].to_pylist()
    assert [row[:3] for row in padded] == [[row, row + 1, 0] for row in range(2_000)]


IDS = st.one_of(
    st.tuples(
        st.lists(st.none() | st.integers(0, 100), max_size=8),
        st.sampled_from(
            [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64()]
        ),
    ),
    st.tuples(
        st.lists(st.none() | st.text(max_size=12), max_size=8),
        st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]),
    ),
)


def bucket(value: int | str | None, buckets: int, seed: int) -> int | None:
    if value is None:
        return None
    return int(bucket_of(pa.array([value]), seed, buckets)[0])


def encode(values: list[Any], data_type: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(data_type):
        return pa.array(values, pa.string()).dictionary_encode().cast(data_type)
    return pa.array(values, data_type)


@settings(deadline=None)
@given(ids=IDS, buckets=st.integers(1, 2**31 - 1), seed=st.integers(0, 3), cut=CUTS)
def test_buckets_of_ids_depend_on_nothing_but_the_value(
    ids: tuple[list[Any], pa.DataType], buckets: int, seed: int, cut: int
) -> None:
    values, data_type = ids
    table = pa.table({"v": encode(values, data_type)}).slice(cut)
    config = HashBucketStep(columns=("v",), buckets=buckets, seed=seed)
    hashed = HashBucket.bind(config, table.schema)(table)["v"]
    assert hashed.type == pa.int64()
    assert hashed.to_pylist() == [bucket(value, buckets, seed) for value in values[cut:]]
    assert all(value is None or 0 <= value < buckets for value in hashed.to_pylist())


@settings(deadline=None)
@given(
    values=LISTS,
    data_type=st.sampled_from([pa.list_(pa.int64()), pa.large_list(pa.int32())]),
    cut=CUTS,
)
def test_buckets_of_lists_keep_the_lists(values: Lists, data_type: pa.DataType, cut: int) -> None:
    table = pa.table({"v": pa.array(values, data_type)}).slice(cut)
    bound = HashBucket.bind(HashBucketStep(columns=("v",), buckets=50), table.schema)
    hashed = bound(table)["v"]
    assert hashed.type == bound.output_schema.field("v").type
    assert hashed.to_pylist() == [
        None if row is None else [bucket(item, 50, 0) for item in row] for row in values[cut:]
    ]


def test_buckets_of_fixed_size_and_nested_lists_keep_the_lists() -> None:
    fixed = pa.array([[1, 2], None, [None, 4]], pa.list_(pa.int64(), 2))
    nested = pa.array([[["a"], None], [], None])
    table = pa.table({"fixed": fixed, "nested": nested}).slice(1)
    bound = HashBucket.bind(HashBucketStep(columns=("fixed", "nested"), buckets=9), table.schema)
    out = bound(table)
    assert out.schema == bound.output_schema
    assert out["fixed"].to_pylist() == [None, [None, bucket(4, 9, 0)]]
    assert out["nested"].to_pylist() == [[], None]
    whole = pa.table({"fixed": fixed, "nested": nested})
    assert bound(whole)["nested"].to_pylist()[0] == [[bucket("a", 9, 0)], None]


def test_a_null_inside_a_dictionary_stays_null() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    table = pa.table({"v": array})
    hashed = HashBucket.bind(HashBucketStep(columns=("v",), buckets=9), table.schema)(table)
    assert hashed["v"].to_pylist() == [bucket("a", 9, 0), None, None]


SCHEMA = pa.schema([("x", pa.float64()), ("i", pa.list_(pa.int8())), ("s", pa.list_(pa.string()))])
BROKEN = [
    pytest.param(
        PadSequence,
        PadSequenceStep(columns=("x", "s", "l"), length=2),
        [
            "padSequence.columns[0]: … 'x' … double",
            "padSequence.columns[1]: … 's' … list<item: string>",
            "padSequence.columns[2]: … 'l' … x, i, s",
        ],
        id="padding of what is no list of numbers",
    ),
    pytest.param(
        PadSequence,
        PadSequenceStep(columns=("i",), length=2, value=300),
        [
            "padSequence.columns[0]: … value … int8 … 300 … 'i'",
        ],
        id="padding with a value that does not fit",
    ),
    pytest.param(
        Truncate,
        TruncateStep(columns=("x",), length=2),
        ["truncate.columns[0]: … 'x' … double"],
        id="truncating a number",
    ),
    pytest.param(
        HashBucket,
        HashBucketStep(columns=("x",), buckets=2),
        [
            "hashBucket.columns[0]: … 'x' … double",
        ],
        id="hashing a float",
    ),
]


@pytest.mark.parametrize(("kind", "config", "expected"), BROKEN)
def test_a_broken_list_step_reports_every_problem(
    kind: Any, config: Any, expected: list[str]
) -> None:
    with pytest.raises(ManifestError) as caught:
        kind.bind(config, SCHEMA)
    assert_all_told([str(problem) for problem in caught.value.problems], expected)
