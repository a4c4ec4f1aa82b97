"""Iceberg's buckets: the vectors of its specification, and PyIceberg's own values."""

from __future__ import annotations

import datetime
import uuid
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from facts import assert_told
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples
from pyiceberg import types as iceberg
from pyiceberg.transforms import BucketTransform

from pipeline_runtime import kernels
from pipeline_runtime.bucketing import bucket

# The specification lists hashes. A bucket of so many is the hash without its sign bit.
ALL_HASHES = 2**31 - 1
SECOND = datetime.datetime(2017, 11, 16, 22, 31, 8)
MICROSECOND = SECOND.replace(microsecond=1)
NANOSECONDS = int(SECOND.replace(tzinfo=datetime.UTC).timestamp()) * 10**9 + 1_001
ID = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")

VECTORS = [
    pytest.param(pa.array([34], pa.int32()), 2017239379, id="int"),
    pytest.param(pa.array([34], pa.int64()), 2017239379, id="long"),
    pytest.param(pa.array([34], pa.int8()), 2017239379, id="a narrower integer"),
    pytest.param(pa.array([Decimal("14.20")], pa.decimal128(9, 2)), -500754589, id="decimal"),
    pytest.param(pa.array([Decimal("14.20")], pa.decimal64(9, 2)), -500754589, id="decimal64"),
    pytest.param(pa.array([Decimal("14.20")], pa.decimal256(9, 2)), -500754589, id="decimal256"),
    # mmh3.hash(b"\x80"): one byte holds the sign too.
    pytest.param(
        pa.array([Decimal("-1.28")], pa.decimal128(9, 2)), 267099677, id="a byte with its sign"
    ),
    pytest.param(pa.array([SECOND.date()], pa.date32()), -653330422, id="date"),
    pytest.param(pa.array([SECOND.date()], pa.date64()), -653330422, id="date64"),
    pytest.param(pa.array([SECOND.time()], pa.time64("us")), -662762989, id="time"),
    pytest.param(pa.array([SECOND.time()], pa.time32("s")), -662762989, id="time in seconds"),
    pytest.param(pa.array([SECOND.time()], pa.time64("ns")), -662762989, id="time in nanoseconds"),
    pytest.param(pa.array([SECOND], pa.timestamp("us")), -2047944441, id="timestamp"),
    pytest.param(pa.array([SECOND], pa.timestamp("us", "UTC")), -2047944441, id="timestamptz"),
    pytest.param(pa.array([SECOND], pa.timestamp("s")), -2047944441, id="timestamp in seconds"),
    pytest.param(pa.array([MICROSECOND], pa.timestamp("us")), -1207196810, id="a microsecond"),
    pytest.param(pa.array([NANOSECONDS], pa.timestamp("ns")), -1207196810, id="timestamp_ns"),
    pytest.param(pa.array(["iceberg"]), 1210000089, id="string"),
    pytest.param(pa.array(["iceberg"], pa.string_view()), 1210000089, id="string_view"),
    pytest.param(pa.array([ID.bytes], pa.binary(16)), 1488055340, id="uuid"),
    pytest.param(
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([ID.bytes], pa.binary(16))),
        1488055340,
        id="uuid as Arrow's extension",
    ),
    pytest.param(pa.array([b"\0\1\2\3"], pa.binary(4)), -188683207, id="fixed"),
    pytest.param(pa.array([b"\0\1\2\3"], pa.binary()), -188683207, id="binary"),
    pytest.param(pa.array(["iceberg"]).dictionary_encode(), 1210000089, id="a dictionary"),
    pytest.param(
        pa.RunEndEncodedArray.from_arrays([1], ["iceberg"]), 1210000089, id="a run of one value"
    ),
]


@pytest.fixture(scope="module", params=[True, False], ids=["kernels", "numpy"])
def compiled(request: pytest.FixtureRequest) -> bool:
    if request.param:
        assert kernels.warm()
    return bool(request.param)


@pytest.mark.parametrize(("array", "expected"), VECTORS)
def test_hashes_are_those_of_the_specification(
    array: pa.Array, expected: int, compiled: bool
) -> None:
    assert bucket(array, ALL_HASHES, kernels=compiled).tolist() == [expected & ALL_HASHES]


DECIMAL = iceberg.DecimalType(38, 3)
WIDE = Context(prec=38)
# PyIceberg hashes these with a byte more than Java's BigInteger, and so Spark, does.
WIDER_IN_PYICEBERG = {-(2 ** (8 * width - 1)) for width in range(1, 17)}
TYPES: dict[str, tuple[pa.DataType, iceberg.IcebergType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), iceberg.LongType(), st.integers(-(2**63), 2**63 - 1)),
    "string": (pa.string(), iceberg.StringType(), st.text(max_size=17)),
    "binary": (pa.large_binary(), iceberg.BinaryType(), st.binary(max_size=17)),
    "decimal": (
        pa.decimal128(38, 3),
        DECIMAL,
        st.integers(1 - 10**38, 10**38 - 1)
        .filter(lambda value: value not in WIDER_IN_PYICEBERG)
        .map(lambda value: Decimal(value).scaleb(-3, WIDE)),
    ),
    "date": (pa.date32(), iceberg.DateType(), st.dates()),
    "time": (pa.time64("us"), iceberg.TimeType(), st.times()),
    "timestamp": (pa.timestamp("us"), iceberg.TimestampType(), st.datetimes()),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, iceberg.IcebergType, list[Any]]:
    """A slice of an array with nulls, its type in Iceberg, and its values as PyIceberg hashes."""
    arrow, kind, values = TYPES[draw(st.sampled_from(sorted(TYPES)))]
    drawn = draw(st.lists(st.none() | values, max_size=8))
    array = pa.array(drawn, arrow)
    first = draw(st.integers(0, 3))
    encoded = array.dictionary_encode() if draw(st.booleans()) and kind != DECIMAL else array
    return encoded.slice(first), kind, drawn[first:]


@settings(deadline=None, max_examples=examples(40))
@given(column=columns(), num_buckets=st.integers(1, 5_000))
def test_buckets_are_those_of_pyiceberg(
    compiled: bool, column: tuple[pa.Array, iceberg.IcebergType, list[Any]], num_buckets: int
) -> None:
    array, kind, values = column
    transform = BucketTransform(num_buckets).transform(kind)
    expected = [-1 if value is None else transform(value) for value in values]
    chunked = pa.chunked_array([array.slice(0, 2), array.slice(2)])
    assert bucket(chunked, num_buckets, kernels=compiled).tolist() == expected


def test_nulls_have_no_bucket(compiled: bool) -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    assert bucket(encoded, 4, kernels=compiled).tolist()[1:] == [-1, -1]
    assert bucket(pa.nulls(2), 4, kernels=compiled).tolist() == [-1, -1]
    assert bucket(pa.chunked_array([], pa.int64()), 4, kernels=compiled).tolist() == []


@pytest.mark.parametrize("data_type", [pa.bool_(), pa.float64(), pa.list_(pa.int64())], ids=str)
def test_types_without_buckets_are_refused(data_type: pa.DataType) -> None:
    with pytest.raises(TypeError) as caught:
        bucket(pa.nulls(1, data_type), 4)
    assert_told(str(caught.value), f"… {data_type} …")
