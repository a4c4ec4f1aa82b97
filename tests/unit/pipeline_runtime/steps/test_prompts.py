"""Prompt templates: their syntax, and how each type of value is written."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pipeline_runtime.config.texts.prompt_template import (
    TEMPLATE_PATTERN,
    TemplateError,
    parse_template,
)
from pipeline_runtime.errors import ManifestError
from pipeline_runtime.steps.generate.prompts import PromptTemplate


def render(template: str, **columns: Any) -> list[str | None]:
    table = pa.table(columns)
    texts: list[str | None] = PromptTemplate.bind(template, table.schema).render(table).to_pylist()
    return texts


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("Tag: {a}", "Tag: x"),
        ("{a}{b}", "x1"),
        ("{{{a}}}", "{x}"),
        ("{{a}} {a} }}{{", "{a} x }{"),
        ("line\n{a}\n", "line\nx\n"),
        ("{b} {a} {b}", "1 x 1"),
    ],
)
def test_columns_replace_their_names(template: str, expected: str) -> None:
    assert render(template, a=["x"], b=[1]) == [expected]


@pytest.mark.parametrize(
    "template", ["Tag", "", "{}", "{a", "a}", "{a{b}}", "{a}}", "{{a}}", "{{{a}}"]
)
def test_a_text_without_a_whole_column_is_refused(template: str) -> None:
    with pytest.raises(TemplateError):
        parse_template(template)
    assert not pa.compute.match_substring_regex(pa.array([template]), TEMPLATE_PATTERN)[0].as_py()


@pytest.mark.parametrize("template", ["{a}", "x {{ {a} }} {b c}\n", "{{{a}}}", "}}{a}{{"])
def test_the_pattern_of_the_crd_takes_templates(template: str) -> None:
    assert parse_template(template)
    assert pa.compute.match_substring_regex(pa.array([template]), TEMPLATE_PATTERN)[0].as_py()


def test_a_value_is_never_a_template() -> None:
    values = ["{b}", "{{", "}", "{b:>99}", "{a.__class__}", "%s {0}"]
    assert render("{a}|{b}", a=values, b=["secret"] * 6) == [f"{each}|secret" for each in values]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([2**63 - 1], pa.int64(), "9223372036854775807"),
        ([2**64 - 1], pa.uint64(), "18446744073709551615"),
        ([0.1], pa.float32(), "0.1"),
        ([1.0], pa.float64(), "1"),
        ([True], pa.bool_(), "true"),
        ([Decimal("1.50")], pa.decimal128(5, 2), "1.50"),
        ([dt.date(2026, 1, 8)], pa.date32(), "2026-01-08"),
        (["é 日"], pa.large_string(), "é 日"),
        (["x"], pa.string_view(), "x"),
        ([["a", None, '"']], pa.list_(pa.string()), '["a", null, "\\""]'),
        ([{"a": 1, "b": "ü"}], pa.struct({"a": pa.int8(), "b": pa.string()}), '{"a": 1, "b": "ü"}'),
        ([[dt.date(2026, 1, 8)]], pa.list_(pa.date32()), '["2026-01-08"]'),
        ([[]], pa.list_(pa.int64()), "[]"),
        ([[float("nan"), -float("inf"), 0.5]], pa.list_(pa.float64()), "[null, null, 0.5]"),
        ([[("k", float("nan"))]], pa.map_(pa.string(), pa.float32()), '[["k", null]]'),
    ],
)
def test_each_type_has_a_text(values: list[Any], kind: pa.DataType, expected: str) -> None:
    assert render("<{a}>", a=pa.array(values, kind)) == [f"<{expected}>"]
    padded = pa.chunked_array([pa.array([None, *values, None], kind)])[1:2]
    assert render("<{a}>", a=padded) == [f"<{expected}>"]


def test_dictionaries_are_decoded() -> None:
    values = pa.array(["x", None, "x"])
    assert render("{a}{b}", a=values.dictionary_encode(), b=[1, 2, 3]) == ["x1", "2", "x3"]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", "y"]))
    assert render("{a}", a=runs) == ["x", "x", "y"]


def test_a_null_is_empty_and_only_nulls_are_no_prompt() -> None:
    a, b = pa.array(["x", None, None]), pa.array([None, 2, None], pa.int64())
    assert render("{a}-{b}", a=a, b=b) == ["x-", "-2", None]


def test_no_rows_have_no_prompts() -> None:
    assert render("{a}", a=pa.array([], pa.int64())) == []
    assert render("{a}", a=pa.chunked_array([], pa.string())) == []


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary(2),
        pa.dictionary(pa.int32(), pa.binary()),
        pa.list_(pa.binary()),
        pa.struct({"b": pa.list_view(pa.binary_view())}),
        pa.map_(pa.string(), pa.binary()),
        pa.uuid(),
        pa.month_day_nano_interval(),
    ],
    ids=str,
)
def test_values_without_a_text_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(ManifestError, match="must have columns with a text, but 'a' has"):
        render("{a}", a=pa.nulls(1, kind))


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"did you mean 'title'\?"):
        render("{title1}", title=["x"])
