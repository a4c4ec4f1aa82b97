"""Times of different units compare as instants, even beyond the range of one unit."""

import datetime as dt
from decimal import Decimal
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.expressions import evaluate, parse

TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
OPERATORS = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
INT64 = st.integers(-(2**63), 2**63 - 1)
# Near zero, both units have the instant; elsewhere, it is mostly beyond the range of one.
NUMBERS = st.one_of(st.integers(-3, 3), st.integers(-(10**10), 10**10), INT64)


def evaluated(text: str, table: pa.Table) -> list[Any]:
    return evaluate(parse(text), table).to_pylist()


@given(st.sampled_from([*TICKS]), st.sampled_from([*TICKS]), st.tuples(NUMBERS, NUMBERS))
def test_columns_of_any_two_units_compare_exactly(
    left_unit: str, right_unit: str, numbers: tuple[int, int]
) -> None:
    left, right = numbers
    table = pa.table(
        {
            "a": pa.array([left, None], pa.timestamp(left_unit)),
            "b": pa.array([right, 0], pa.timestamp(right_unit)),
        }
    )
    instants = left * TICKS["ns"] // TICKS[left_unit], right * TICKS["ns"] // TICKS[right_unit]
    for text, compare in OPERATORS.items():
        assert evaluated(f"a {text} b", table) == [compare(*instants), None]
    assert evaluated("a in (b)", table) == [instants[0] == instants[1], None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n < '2500-01-01'", [True, True, None]),
        ("n > '1500-01-01'", [True, True, None]),
        ("n = '2500-01-01'", [False, False, None]),
        ("n != '2500-01-01'", [True, True, None]),
        ("'2500-01-01' >= n", [True, True, None]),
        ("n between '1500-01-01' and '2500-01-01'", [True, True, None]),
        ("n in ('2500-01-01', '1970-01-01')", [True, False, None]),
        ("n not in ('2500-01-01')", [True, True, None]),
        ("n < d", [False, True, None]),
        ("n = d", [True, False, None]),
        ("d >= n", [True, True, None]),
        ("z < '2500-01-01'", [True, True, None]),
        ("z < d", [False, True, None]),
        ("case n when '2500-01-01' then 1 else 2 end", [2, 2, 2]),
    ],
)
def test_a_nanosecond_column_compares_with_dates_beyond_its_range(
    text: str, expected: list[Any]
) -> None:
    nanoseconds = pa.array([0, 10**18, None], pa.timestamp("ns"))
    table = pa.table(
        {
            "n": nanoseconds,
            "z": nanoseconds.cast(pa.timestamp("ns", "UTC")),
            "d": pa.array([dt.date(1970, 1, 1), dt.date(9999, 12, 31), None]),
        }
    )
    assert evaluated(text, table) == expected


def test_epoch_seconds_ignore_the_repeated_hour_of_autumn() -> None:
    instants = [1761437400, 1761441000, 1761444600]  # 2:10 comes twice in Berlin that night
    times = pa.array(instants, pa.timestamp("s")).cast(pa.timestamp("us", "Europe/Berlin"))
    assert evaluated("epoch_seconds(t)", pa.table({"t": times})) == instants


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ("99.99", pa.decimal128(4, 2), 100),
        ("-99.50", pa.decimal128(4, 2), -100),
        ("98.5", pa.decimal128(3, 1), 98),
        ("9.5", pa.decimal128(2, 1), 10),
        ("9" * 18 + ".9", pa.decimal128(38, 19), 10**18),
    ],
)
def test_a_decimal_rounds_to_one_more_digit(value: str, dtype: pa.DataType, expected: int) -> None:
    table = pa.table({"x": pa.array([Decimal(value), None], dtype)})
    assert evaluated("cast(x as int64)", table) == [expected, None]
