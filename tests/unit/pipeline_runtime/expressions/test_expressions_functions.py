"""The result of each operator and function, value by value."""

import datetime as dt
import re
from decimal import Decimal

import pyarrow as pa
import pytest
from facts import assert_told

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.expressions import evaluate, infer_type, parse
from pipeline_runtime.expressions.functions import FUNCTIONS

NAN = float("nan")

BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 500_000)

TABLE = pa.table(
    {
        "i": pa.array([7, -7, None], pa.int32()),
        "zero": pa.array([0, 2, None], pa.int8()),
        "hash": pa.array([2**64 - 1, 5, None], pa.uint64()),
        "f": pa.array([2.5, -1.5, None]),
        "nan": pa.array([NAN, 1.0, None]),
        "f4": pa.array([0.1, 2.0, None], pa.float32()),
        "dec": pa.array([Decimal("1.10"), Decimal("-2.00"), None], pa.decimal128(10, 2)),
        "s": ["Añb", " x%_", None],
        "lab": pa.array(["de", "fr", None]).dictionary_encode(),
        "b": [True, False, None],
        "d": [dt.date(2026, 1, 31), dt.date(1969, 12, 28), None],
        "ts": pa.array(
            [
                dt.datetime(2026, 1, 31, 23, 30),
                dt.datetime(1969, 12, 31, 23, 59, 59, 500_000),
                None,
            ],
            pa.timestamp("us"),
        ),
        "tz": pa.array(
            [dt.datetime(2026, 1, 31, 23, 30), dt.datetime(1970, 1, 1), None],
            pa.timestamp("ms", "Europe/Paris"),
        ),
        "l": pa.array([[3, None, 1], [], None], pa.list_(pa.int16())),
        "lf": pa.array([[1.5, NAN], [None], None], pa.large_list(pa.float32())),
        "user": [{"age": 30}, {"age": None}, None],
    }
)

CASES = [
    # Arithmetic: / is true division, % has the sign of its left side, and both by zero are null.
    ("i / 2", [3.5, -3.5, None]),
    ("i / zero", [None, -3.5, None]),
    ("f / 0", [None, None, None]),
    ("i % 3", [1, -1, None]),
    ("i % zero", [None, -1, None]),
    ("f % 1", [0.5, -0.5, None]),
    ("10 % i", [3, 3, None]),
    ("hash % 100", [15, 5, None]),
    ("(-9223372036854775807 - 1) % -1", [0, 0, 0]),
    ("-i + 1", [-6, 8, None]),
    ("i + null", [None, None, None]),
    ("dec * 2", [2.2, -4.0, None]),
    # Comparison: a literal takes the column's type, exactly for decimals.
    ("f4 = 0.1", [True, False, None]),
    ("dec = 1.1", [True, False, None]),
    ("dec < 1.101", [True, True, None]),
    ("i < 2.5", [False, True, None]),
    ("hash > i", [True, True, None]),
    ("hash = 18446744073709551615", [True, False, None]),
    ("nan = nan", [False, True, None]),
    ("nan != nan", [True, False, None]),
    ("s = null", [None, None, None]),
    ("b = true", [True, False, None]),
    ("lab >= 'e'", [False, True, None]),
    ("d >= '2026-01-31'", [True, False, None]),
    ("d >= '2026-01-31 00:00:01'", [False, False, None]),
    ("ts < '1970-01-01'", [False, True, None]),
    ("ts > d", [True, True, None]),
    # A literal without an offset is local time in the column's zone, one with an offset is not.
    ("tz = '2026-02-01 00:30'", [True, False, None]),
    ("tz = '2026-01-31 23:30Z'", [True, False, None]),
    ("tz > d", [True, True, None]),
    # Logic: Kleene.
    ("b and null", [None, False, None]),
    ("b or null", [True, None, None]),
    ("b and true and not b", [False, False, None]),
    ("not b", [False, True, None]),
    ("i is null", [False, False, True]),
    ("nan is not null", [True, True, False]),
    # Sets and ranges: with a null member, a value that is not found is unknown.
    ("i in (7, 8)", [True, False, None]),
    ("i in (7, null)", [True, None, None]),
    ("i not in (7, null)", [False, None, None]),
    ("i in (7.0, 1.5)", [True, False, None]),
    ("i in (zero, 7)", [True, False, None]),
    ("f - f in (0.0, 1.0)", [True, True, None]),
    ("-0.0 * f in (0.0)", [True, True, None]),
    ("lab in ('de')", [True, False, None]),
    ("d in ('2026-01-31', date '2020-01-01')", [True, False, None]),
    ("i between -7 and 0", [False, True, None]),
    ("i between null and 0", [False, None, None]),
    ("i not between 0 and 7", [False, True, None]),
    # Patterns: no escape character; _ is one character, not one byte.
    ("s like 'A_b'", [True, False, None]),
    ("s like '%'", [True, True, None]),
    ("s like ''", [False, False, None]),
    ("s like 'A%'", [True, False, None]),
    ("s like '%b'", [True, False, None]),
    ("s like '%%ñ%'", [True, False, None]),
    ("s like 'a%'", [False, False, None]),
    ("s like ' x%_'", [False, True, None]),
    ("s not like '%\\%'", [True, True, None]),
    ("lab like 'd_'", [True, False, None]),
    # Choice: a null condition counts as false.
    ("case when b then 'yes' when not b then 'no' end", ["yes", "no", None]),
    ("case when b then 1 else 2 end", [1, 2, 2]),
    (
        "case i when 7 then 'a' when null then 'b' else 'c' end",
        ["a", "c", "c"],
    ),
    ("user.age", [30, None, None]),
    # Text.
    ("lower(s)", ["añb", " x%_", None]),
    ("upper(s)", ["AÑB", " X%_", None]),
    ("trim(s)", ["Añb", "x%_", None]),
    ("length(s)", [3, 4, None]),
    ("contains(s, 'ñ')", [True, False, None]),
    ("contains(s, '')", [True, True, None]),
    ("starts_with(s, 'A')", [True, False, None]),
    ("ends_with(s, '_')", [False, True, None]),
    ("regexp_match(s, '^A.b$')", [True, False, None]),
    ("regexp_match(s, 'ñ')", [True, False, None]),
    ("substr(s, 2)", ["ñb", "x%_", None]),
    ("substr(s, 2, 1)", ["ñ", "x", None]),
    ("substr(s, -2, 1)", ["ñ", "%", None]),
    ("substr(s, 1, 0)", ["", "", None]),
    ("substr(s, 9)", ["", "", None]),
    ("concat(s, '-', lab)", ["Añb-de", " x%_-fr", "-"]),
    ("s || '-' || lab", ["Añb-de", " x%_-fr", None]),
    ("lower(null)", [None, None, None]),
    # Numbers.
    ("abs(i)", [7, 7, None]),
    ("abs(dec)", [1.1, 2.0, None]),
    ("round(f)", [3.0, -2.0, None]),
    ("round(1.25, 1)", [1.3, 1.3, 1.3]),
    ("round(1250.0, -2)", [1300.0] * 3),
    ("round(i)", [7, -7, None]),
    ("floor(f)", [2.0, -2.0, None]),
    ("ceil(f)", [3.0, -1.0, None]),
    ("sqrt(f + 1.5)", [2.0, 0.0, None]),
    ("sqrt(i - 7)", [0.0, None, None]),
    ("ln(i - 6)", [0.0, None, None]),
    ("ln(0)", [None, None, None]),
    ("log1p(zero - 1)", [None, 0.6931471805599453, None]),
    ("exp(zero)", [1.0, 7.38905609893065, None]),
    ("greatest(i, f, null)", [7.0, -1.5, None]),
    ("greatest(i, 0)", [7, 0, 0]),
    ("greatest(nan, 0.5)", [0.5, 1.0, 0.5]),
    ("least(lab, 'e')", ["de", "e", "e"]),
    ("least(tz, '2026-01-01') = tz", [False, True, None]),
    ("least(d, '2000-01-01')", [dt.date(2000, 1, 1), dt.date(1969, 12, 28), dt.date(2000, 1, 1)]),
    # Any type.
    ("coalesce(i, 0)", [7, -7, 0]),
    ("coalesce(null, lab, 'none')", ["de", "fr", "none"]),
    ("nullif(i, 7)", [None, -7, None]),
    ("if(i > 0, lab, 'low')", ["de", "low", "low"]),
    # Time: weeks begin on Monday, which is 0; a zoned timestamp is read in its zone.
    ("year(d) * 100 + month(d)", [202601, 196912, None]),
    ("day(d)", [31, 28, None]),
    ("day_of_week(d)", [5, 6, None]),
    ("hour(ts) * 60 + minute(ts)", [1410, 1439, None]),
    ("hour(tz)", [0, 1, None]),
    ("date(tz)", [dt.date(2026, 2, 1), dt.date(1970, 1, 1), None]),
    ("date(ts) = d", [True, False, None]),
    ("date_diff_days(d, '2026-02-01 00:01:00')", [1, 20489, None]),
    ("epoch_seconds(ts)", [1769902200, -1, None]),
    ("epoch_seconds(tz)", [1769902200, 0, None]),
    ("epoch_seconds(d)", [1769817600, -345600, None]),
    # Lists count from 0, and from -1 at the end.
    ("list_length(l)", [3, 0, None]),
    ("list_element(l, 0)", [3, None, None]),
    ("list_element(l, -1)", [1, None, None]),
    ("list_element(l, i - 4)", [None, None, None]),
    ("list_element(l, zero)", [3, None, None]),
    ("list_slice(l, 1)", [[None, 1], [], None]),
    ("list_slice(l, -2, -1)", [[None], [], None]),
    ("list_slice(l, 0, 99)", [[3, None, 1], [], None]),
    ("list_slice(lf, -1)", [[NAN], [None], None]),
    ("list_contains(l, 3)", [True, False, None]),
    ("list_contains(l, 4)", [False, False, None]),
    ("list_contains(l, null)", [None, None, None]),
    ("list_contains(l, i - 4)", [True, False, None]),
    ("list_contains(lf, 1.5)", [True, False, None]),
    ("list_sum(l)", [4, None, None]),
    ("list_sum(lf)", [NAN, None, None]),
    ("list_min(l)", [1, None, None]),
    ("list_max(lf)", [1.5, None, None]),
    # Casts: to integers the nearest, halves to the even one; strings may have spaces around.
    ("cast(f as int64)", [2, -2, None]),
    ("cast(dec as int8)", [1, -2, None]),
    ("cast(b as int8)", [1, 0, None]),
    ("cast(zero as bool)", [False, True, None]),
    ("cast(' 12 ' as int16)", [12, 12, 12]),
    ("cast(i as string) || '!'", ["7!", "-7!", None]),
    ("cast(hash as float64)", [1.8446744073709552e19, 5.0, None]),
    ("cast('2026-01-31' as date) = d", [True, False, None]),
    ("cast(tz as timestamp) = '2026-02-01 00:30:00'", [True, False, None]),
    ("epoch_seconds(cast(ts as timestamp_s))", [1769902200, -1, None]),
    ("year(cast(i as timestamp_s))", [1970, 1969, None]),
    ("cast(1.25 as decimal(5, 1))", [Decimal("1.2")] * 3),
    ("cast(zero as decimal(4, 2))", [Decimal("0.00"), Decimal("2.00"), None]),
    ("cast(b as decimal(4, 2))", [Decimal("1.00"), Decimal("0.00"), None]),
    ("cast(dec - dec as bool) or cast(dec as bool)", [True, True, None]),
    ("cast(null as float32)", [None, None, None]),
]


@pytest.mark.parametrize(("text", "values"), CASES, ids=[text for text, _ in CASES])
def test_value(text: str, values: list[object]) -> None:
    expr = parse(text)
    result = evaluate(expr, TABLE)
    assert repr(result.to_pylist()) == repr(values)
    assert result.type == infer_type(expr, TABLE.schema)


def test_every_function_has_a_case() -> None:
    tried = {name for text, _ in CASES for name in re.findall(r"(\w+)\(", text)}
    assert set(FUNCTIONS) - tried == set()


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        pytest.param("i + 9223372036854775807", "`+` … int64", None, id="plus"),
        pytest.param("hash - 6", "`-` … uint64", None, id="below zero"),
        pytest.param("1 + i * 9223372036854775807", "`*`", "i * 9223372036854775807", id="*"),
        pytest.param("hash + i", "uint64", "hash", id="uint64 and signed"),
        pytest.param("abs(cast(zero - 128 as int8))", "`abs` … int8", None, id="abs"),
        pytest.param("cast(i as uint8)", "uint8 … -7", None, id="cast"),
        pytest.param("cast(i as decimal(2, 2))", "decimal", None, id="decimal"),
        pytest.param("1 + cast(s as int64)", "int64", "cast(s as int64)", id="text"),
        pytest.param("cast(nan as int64)", "int64 … nan", None, id="NaN"),
        pytest.param("cast(1e300 as int64)", "10000000000000000525", None, id="large"),
        pytest.param("list_sum(list_slice(big, 0))", "int64", None, id="sum"),
        pytest.param(
            "coalesce(far, cast(ts as timestamp_ns))",
            "timestamp",
            "far",
            id="beyond nanoseconds",
        ),
    ],
)
def test_a_value_without_a_result_is_an_error_with_its_place(
    text: str, message: str, place: str | None
) -> None:
    table = TABLE.append_column("big", pa.array([[2**63 - 1, 1], [], None]))
    table = table.append_column("far", pa.array([dt.datetime(9999, 1, 1)] * 3))
    with pytest.raises(ExpressionError) as caught:
        evaluate(parse(text), table)
    error = caught.value
    assert_told(error.message, f"… {message}")
    assert text[error.offset : error.offset + error.length] == (place or text)


def test_a_sum_at_the_bound_of_int64_is_exact() -> None:
    table = pa.table({"l": [[2**63 - 1, 1, -1], [2**62, 2**62 - 1]]})
    assert evaluate(parse("list_sum(l)"), table).to_pylist() == [2**63 - 1] * 2
