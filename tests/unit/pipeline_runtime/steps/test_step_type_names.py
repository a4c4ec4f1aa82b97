"""Type names of `cast` and `map`: every name that Arrow prints, and those that people write."""

from __future__ import annotations

import pyarrow as pa
import pytest
from facts import assert_told

from pipeline_runtime.steps.type_names import TypeNameError, parse_type

PRINTED = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.binary(16),
    pa.date32(),
    pa.date64(),
    pa.time32("ms"),
    pa.time64("us"),
    pa.duration("s"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.timestamp("us", "+01:00"),
    pa.decimal128(10, 2),
    pa.decimal256(50, 0),
    pa.list_(pa.int64()),
    pa.large_list(pa.list_(pa.string())),
    pa.list_(pa.float32(), 8),
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
    pa.map_(pa.string(), pa.int64()),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()),
]


@pytest.mark.parametrize("data_type", PRINTED, ids=str)
def test_a_type_is_parsed_from_the_name_that_arrow_prints(data_type: pa.DataType) -> None:
    assert parse_type(str(data_type)) == data_type


WRITTEN = [
    ("list<int64>", pa.list_(pa.int64())),
    (" list < int64 > ", pa.list_(pa.int64())),
    ("double", pa.float64()),
    ("float", pa.float32()),
    ("bigint", pa.int64()),
    ("date", pa.date32()),
    ("timestamp", pa.timestamp("us")),
    ("timestamp[us, UTC]", None),
    ("decimal128(10,2)", pa.decimal128(10, 2)),
    ("dictionary<string>", pa.dictionary(pa.int32(), pa.string())),
    ("dictionary<values=string>", pa.dictionary(pa.int32(), pa.string())),
    ("fixed_size_list<float>[4]", pa.list_(pa.float32(), 4)),
]


@pytest.mark.parametrize(("name", "expected"), WRITTEN, ids=lambda value: str(value))
def test_a_type_is_parsed_from_what_people_write(name: str, expected: pa.DataType | None) -> None:
    if expected is None:
        with pytest.raises(TypeNameError):
            parse_type(name)
    else:
        assert parse_type(name) == expected


WRONG = [
    ("", "…''"),
    ("in64", "… 'in64' … 'int64'"),
    ("list<itn64>", "… 'list<itn64>' … 'itn64' … 'int64'"),
    ("list<int64", "… 'list<int64' … '>'"),
    ("list", "… 'list' … '<'"),
    ("int64 x", "… 'int64 x' … 'x'"),
    ("timestamp[min]", "… 'timestamp[min]'"),
    ("decimal128(99, 2)", "… 'decimal128(99, 2)'"),
    ("decimal128(x)", "… 'decimal128(x)' … 'x'"),
    ("int64[3]", "… 'int64[3]' … 'int64'"),
    ("int;64", "… 'int;64' … ';'"),
    ("dictionary<indices=int8>", "… 'dictionary<indices=int8>' … values"),
    ("struct<a int64>", "… 'struct<a int64>' … ':' … 'int64'"),
    ("dictionary<string, indices=float>", "… 'dictionary<string, indices=float>'"),
]


@pytest.mark.parametrize(("name", "message"), WRONG, ids=lambda value: value)
def test_a_wrong_name_says_which_part(name: str, message: str) -> None:
    with pytest.raises(TypeNameError) as caught:
        parse_type(name)
    assert_told(str(caught.value), message)
