"""YAML is read as kubectl reads it, with places, and refused where JSON could not say it."""

from typing import Any

import pytest
from facts import assert_all_told, assert_told

from pipeline_runtime.config.texts.yaml_documents import format_path, read_documents, read_value

SCALARS: list[tuple[str, Any]] = [
    ("", None),
    ("~", None),
    ("null", None),
    ("true", True),
    ("yes", True),
    ("off", False),
    ("y", "y"),  # PyYAML and we: a text; kubectl: a boolean, hence the warning
    ("12", 12),
    ("-12", -12),
    ("1_000", 1000),
    ("0x10", 16),
    ("010", 8),  # YAML 1.1's octal, as kubectl has it
    ("0b11", 3),
    ("1e-3", 0.001),  # PyYAML alone would say a text
    (".5", 0.5),
    ("5.", 5.0),
    ("2026-01-01", "2026-01-01"),
    ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
    ("1:30", "1:30"),  # no base 60
    ("0x_", "0x_"),
    ("label = 0", "label = 0"),
    ("a: b", "a: b"),
    ("'12'", "12"),
    ('"a\\n"', "a\n"),
    ("[1, a]", [1, "a"]),
    ('{"a": null}', {"a": None}),
]


@pytest.mark.parametrize(("text", "value"), SCALARS, ids=[text or "empty" for text, _ in SCALARS])
def test_a_value_is_read_as(text: str, value: Any) -> None:
    got = read_value(text)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize("text", ["[1", "{a", "[1] a", ".inf", "-.INF", ".nan", "1e999"])
def test_a_value_that_json_cannot_say_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_value(text)


def test_every_field_has_its_place() -> None:
    (document,) = read_documents("a:\n  b: [1, {c: 2}]\n")
    assert document.place_of(("a", "b")) == (2, 3)
    assert document.place_of(("a", "b", 1, "c")) == (2, 11)
    assert document.place_of(("a", "b", 1, "absent")) == (2, 10)
    assert format_path(("a", "b", 1, "c")) == "a.b[1].c"


def test_anchors_and_merge_keys_work() -> None:
    (document,) = read_documents("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: {<<: [*x, {c: 4}]}\n")
    assert document.problems == ()
    assert document.value == {
        "x": {"a": 1, "b": 2},
        "y": {"a": 1, "b": 3},
        "z": {"a": 1, "b": 2, "c": 4},
    }


def test_a_pair_of_escapes_is_one_character() -> None:
    (document,) = read_documents('{"a": "\\ud83d\\ude00"}')
    assert document.value == {"a": "\N{GRINNING FACE}"}


def test_an_explicit_string_tag_quotes() -> None:
    (document,) = read_documents("a: !!str 12\n")
    assert document.value == {"a": "12"}


def test_a_bare_on_is_a_key_and_warned_of() -> None:
    (document,) = read_documents("on: [user_id]\ncountry: no\n", "m.yaml")
    assert document.value == {"on": ["user_id"], "country": False}
    told = [str(warning) for warning in document.warnings]
    assert_all_told(told, ["m.yaml:1:1: on: … boolean", "m.yaml:2:10: country: … no … boolean"])


def test_a_quoted_on_is_not_warned_of() -> None:
    (document,) = read_documents('"on": ["no"]\n')
    assert (document.value, document.warnings) == ({"on": ["no"]}, ())


def test_documents_before_a_broken_one_are_kept() -> None:
    good, broken = read_documents("a: 1\n---\nb: [1\n", "m.yaml")
    assert good.value == {"a": 1}
    assert_all_told([str(problem) for problem in broken.problems], ["m.yaml:3:4: … YAML"])


REFUSED = {
    "larger than 1 MiB": ("a: " + "x" * (1 << 20), "1,048,576"),
    "nested too deep": ("[" * 80 + "]" * 80, "64"),
    "nested too deep by aliases": (
        "\n".join(
            f"a{i}: &a{i} {'[' * 30}{f'*a{i - 1}' if i else 'x'}{']' * 30}" for i in range(9)
        ),
        "64",
    ),
    "half a surrogate pair": ('a: "\\ud800"', "surrogate"),
    "a control character": ("a: \x01", "U+0001"),
    "a list as a key": ("? [a]\n: 1", "key"),
    "a template's braces": ("a: {{ .Values.x }}", "key"),
    "a reserved character": ("a: @b", "'@'"),
    "a key without a colon": ("a: 1\nb\nc: 2", "YAML"),
    "a value that never comes": ("a: [", "YAML … end"),
    "a merge of a text": ("a: {<<: b}", "merge … mapping"),
    "binary": ("a: !!binary aGk=", "!!binary"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_a_text_that_is_no_plain_yaml_is_refused(text: str, words: str) -> None:
    problems = [problem for document in read_documents(text) for problem in document.problems]
    assert_told("\n".join(map(str, problems)), f"… {words}")
