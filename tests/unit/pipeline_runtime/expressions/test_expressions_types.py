"""Typing against a schema, before any row is read."""

import pyarrow as pa
import pytest
from facts import assert_told

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.expressions import check_boolean, infer_type, parse

SCHEMA = pa.schema(
    {
        "i8": pa.int8(),
        "i32": pa.int32(),
        "i64": pa.int64(),
        "u32": pa.uint32(),
        "u64": pa.uint64(),
        "f16": pa.float16(),
        "f32": pa.float32(),
        "f64": pa.float64(),
        "dec": pa.decimal128(10, 2),
        "text": pa.string(),
        "big": pa.large_string(),
        "view": pa.string_view(),
        "label": pa.dictionary(pa.int8(), pa.string()),
        "flag": pa.bool_(),
        "day": pa.date32(),
        "day64": pa.date64(),
        "ts": pa.timestamp("ms"),
        "tsn": pa.timestamp("ns"),
        "tz": pa.timestamp("us", "Europe/Paris"),
        "clicks": pa.list_(pa.int32()),
        "vector": pa.list_(pa.float32(), 2),
        "user": pa.struct({"age": pa.int16(), "label": pa.dictionary(pa.int8(), pa.string())}),
        "a.b": pa.int8(),
        "none": pa.null(),
        "raw": pa.binary(),
    }
)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        pytest.param("1", pa.int64(), id="an int literal alone"),
        pytest.param("18446744073709551615", pa.uint64(), id="a literal beyond int64"),
        pytest.param("1.0", pa.float64(), id="a float literal alone"),
        pytest.param("null", pa.null(), id="null alone"),
        pytest.param("timestamp '2026-01-01'", pa.timestamp("us"), id="timestamp literal"),
        pytest.param("label", pa.string(), id="a dictionary is its values"),
        pytest.param("view", pa.string(), id="a view is a string"),
        pytest.param("big", pa.large_string(), id="a large string stays large"),
        pytest.param("f16", pa.float32(), id="half floats are read as float32"),
        pytest.param("day64", pa.date32(), id="date64 is read as date32"),
        pytest.param("vector", pa.list_(pa.float32()), id="fixed lists are lists"),
        pytest.param("user.age", pa.int16(), id="a field"),
        pytest.param("user.label", pa.string(), id="a field of a dictionary type"),
        pytest.param("i8 + i8", pa.int64(), id="integer arithmetic is int64"),
        pytest.param("u64 % 100", pa.uint64(), id="uint64 beside a positive literal stays"),
        pytest.param("u64 + u32", pa.uint64(), id="unsigned with uint64 stays"),
        pytest.param("u64 + i8", pa.int64(), id="uint64 beside a signed number is int64"),
        pytest.param("i32 / i32", pa.float64(), id="division is true"),
        pytest.param("f32 * 2.5", pa.float32(), id="a literal takes float32"),
        pytest.param("f32 / 2", pa.float32(), id="division of float32 by a literal"),
        pytest.param("f32 * i8", pa.float64(), id="float32 with an integer column widens"),
        pytest.param("dec + 1", pa.float64(), id="decimal arithmetic is float64"),
        pytest.param("-u32", pa.int64(), id="negation is int64"),
        pytest.param("-f32", pa.float32(), id="negation keeps floats"),
        pytest.param("text || big", pa.large_string(), id="large wins"),
        pytest.param("coalesce(i8, 0)", pa.int8(), id="a literal that fits adapts"),
        pytest.param("coalesce(i8, 128)", pa.int64(), id="a literal that does not fit widens"),
        pytest.param("coalesce(i8, u32)", pa.int64(), id="mixed signs widen"),
        pytest.param("coalesce(i64, u64)", pa.decimal128(20, 0), id="nothing smaller holds both"),
        pytest.param("coalesce(day, ts)", pa.timestamp("ms"), id="a date widens to a timestamp"),
        pytest.param("coalesce(ts, tsn)", pa.timestamp("ns"), id="the finer unit"),
        pytest.param("coalesce(day, '2026-01-01')", pa.date32(), id="a string as a date"),
        pytest.param("if(flag, null, dec)", pa.decimal128(10, 2), id="null takes any type"),
        pytest.param("if(flag, dec, 1.125)", pa.decimal128(11, 3), id="decimals stay exact"),
        pytest.param("case when flag then 1 end", pa.int64(), id="case without else"),
        pytest.param("none + 1", pa.int64(), id="a null column counts as a number"),
        pytest.param("none = none", pa.bool_(), id="comparing nulls is boolean"),
        pytest.param("list_slice(vector, 1)", pa.list_(pa.float32()), id="list_slice"),
        pytest.param("list_sum(clicks)", pa.int64(), id="list_sum widens"),
        pytest.param("list_max(clicks)", pa.int32(), id="list_max does not"),
        pytest.param("cast(i64 as decimal(12,2))", pa.decimal128(12, 2), id="cast to decimal"),
        pytest.param("cast(text as timestamp_ns)", pa.timestamp("ns"), id="cast to timestamp"),
        pytest.param("raw = raw", pa.bool_(), id="binary compares with binary"),
    ],
)
def test_type(text: str, dtype: pa.DataType) -> None:
    assert infer_type(parse(text), SCHEMA) == dtype


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        pytest.param("i46 > 1", "'i46' … 'i64'", "i46", id="a typing error"),
        pytest.param("TEXT = 'a'", "'TEXT'", "TEXT", id="case matters"),
        pytest.param('text = "de"', "'de'", '"de"', id="wrong quotes"),
        pytest.param(
            "lenght(text)",
            "'lenght' … 'length'",
            "lenght",
            id="fn",
        ),
        pytest.param(
            "lower(text, 1)",
            "lower … 1 … 2 … lower(s)",
            "lower(text, 1)",
            id="too many arguments",
        ),
        pytest.param(
            "substr(text)",
            "substr … 2 … 3 … 1 … substr(s, start[, length])",
            "substr(text)",
            id="too few arguments",
        ),
        pytest.param("i8 = 'x'", "`=` … int8 … string", "i8 = 'x'", id="int and string"),
        pytest.param(
            "text > day",
            "string … date32",
            None,
            id="str, date",
        ),
        pytest.param("ts < tz", "timestamp[ms] … timestamp[us, tz=", None, id="zones"),
        pytest.param("flag = 1", "bool … int64", None, id="bool and int"),
        pytest.param("clicks = clicks", "`=` … list", None, id="lists"),
        pytest.param("i8 in (1, 'a')", "`in` … int8 … string", None, id="in"),
        pytest.param("i8 and flag", "`and` … int8", "i8", id="and of int"),
        pytest.param("flag or not text", "`not` … string", "text", id="not of a string"),
        pytest.param("text + 1", "||", "text", id="sum of strings"),
        pytest.param("day - ts", "date_diff_days(a, b)", "day", id="difference of dates"),
        pytest.param("-flag", "`-` … bool", "flag", id="minus a boolean"),
        pytest.param("day > 'soon'", "'2026-01-31'", "'soon'", id="no date"),
        pytest.param("day between '2026-01-01' and 'x'", "'x'", "'x'", id="no date in between"),
        pytest.param("day in ('2026-01-01', 'x')", "'x'", "'x'", id="no date in a list"),
        pytest.param(
            "least(tsn, '9999-01-01')", "9999-01-01 … timestamp[ns]", "'9999-01-01'", id="beyond ns"
        ),
        pytest.param("lower(i8)", "1 … lower … string … int8", "i8", id="argument type"),
        pytest.param(
            "contains(text, text)",
            "2 … contains … string literal",
            None,
            id="lit",
        ),
        pytest.param("substr(text, 0)", "2 … substr … 1", "0", id="substr 0"),
        pytest.param("substr(text, 18446744073709551615)", "integer literal", None, id="huge"),
        pytest.param("round(f64, 19)", "-18 … 18 … 19", "19", id="digits"),
        pytest.param("list_element(clicks, u64)", "int64 … uint64", "u64", id="index"),
        pytest.param("regexp_match(text, '(')", "RE2 … '('", "'('", id="regex"),
        pytest.param("text like text", "`like` … literal", None, id="like a column"),
        pytest.param("hour(day)", "1 … hour … timestamp", "day", id="hour"),
        pytest.param("year('x')", "1 … year … date", "'x'", id="year of text"),
        pytest.param("greatest(flag, true)", "greatest … bool", None, id="greatest of bool"),
        pytest.param("coalesce(i8, text)", "coalesce … int8 … string", None, id="mix"),
        pytest.param("if(i8, 1, 2)", "boolean … int8", "i8", id="condition"),
        pytest.param("if(flag, 1, 'a')", "int64 … string", None, id="branches"),
        pytest.param("list_length(text)", "list … string", "text", id="not a list"),
        pytest.param("list_contains(clicks, 'a')", "list_contains", "'a'", id="items"),
        pytest.param("user.name", "'name'", "user.name", id="no field"),
        pytest.param("a.b > 1", '"a.b"', "a.b", id="a name with a point"),
        pytest.param("i8.x", "struct … int8", "i8.x", id="no struct"),
        pytest.param("cast(i8 as int)", "int32 … int64", "int", id="unclear type"),
        pytest.param("cast(i8 as money)", "cast … int64", "money", id="unknown type"),
        pytest.param("cast(day as int64)", "epoch_seconds", None, id="no such cast"),
        pytest.param("cast(clicks as string)", "cast … list", None, id="a list as text"),
    ],
)
def test_a_broken_type_rule_is_shown_with_its_place(
    text: str, message: str, place: str | None
) -> None:
    with pytest.raises(ExpressionError) as caught:
        infer_type(parse(text), SCHEMA)
    error = caught.value
    assert_told(error.message, f"… {message}")
    if place is not None:
        assert text[error.offset : error.offset + error.length] == place


def test_a_filter_must_be_boolean() -> None:
    check_boolean(parse("i8 > 1"), SCHEMA)
    with pytest.raises(ExpressionError, match=r"boolean.*int64"):
        check_boolean(parse("i8 + 1"), SCHEMA)


def test_a_column_that_occurs_twice_is_refused() -> None:
    schema = pa.schema([("a", pa.int8()), ("a", pa.int8()), ("b", pa.int8())])
    assert infer_type(parse("b > 1"), schema) == pa.bool_()
    with pytest.raises(ExpressionError, match="'a'"):
        infer_type(parse("b > a"), schema)
