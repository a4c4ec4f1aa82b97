"""However much is wrong with a document, it is said in a little, and soon."""

import re
from typing import Any

import pytest

from pipeline_runtime.config import API_VERSION, KIND, ManifestError, parse_experiment
from pipeline_runtime.config.reading.validation import judge, parse_stored
from pipeline_runtime.config.reading.wording import MAX_PROBLEMS
from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.grammar import parse_tree


def build(**spec: Any) -> dict[str, Any]:
    whole = {"dataset": {"parquet": {"uri": "t/"}}, **spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "a"}, "spec": whole}


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"a": value}
    return value


FREE = {
    "spec.training.config": lambda value: {"training": {"config": value}},
    "spec.pipeline[0].map.options": lambda value: {
        "pipeline": [{"map": {"function": "a:b", "options": value}}]
    },
    "spec.head.template": lambda value: {"head": {"template": {"spec": value}}},
    "spec.dataWorkers.template": lambda value: {"dataWorkers": {"template": {"spec": value}}},
}


@pytest.mark.parametrize("depth", [70, 150, 250, 5_000])
@pytest.mark.parametrize("path", FREE)
def test_what_is_nested_deep_is_refused(path: str, depth: int) -> None:
    document = build(**FREE[path](nested(depth)))
    for parse in (parse_experiment, parse_stored):
        with pytest.raises(ManifestError, match="64") as error:
            parse(document)
        [problem] = error.value.problems
        assert problem.path.startswith("spec")


@pytest.mark.parametrize("path", FREE)
def test_what_is_nested_a_little_is_taken(path: str) -> None:
    assert judge(build(**FREE[path](nested(40)))).experiment is not None


def test_of_many_problems_the_first_are_told_and_how_many_follow() -> None:
    found = judge(build(training={"columns": [1] * 4_000})).found
    assert len(found) == MAX_PROBLEMS + 1
    assert re.search(r"\b3,9\d\d\b", found[-1][1])


def test_a_template_that_breaks_one_rule_often_is_judged_soon() -> None:
    template = {f"k{index}": 1 for index in range(4_000)}
    found = judge(build(head={"template": template})).found
    assert len(found) == MAX_PROBLEMS + 1


def test_every_unknown_field_is_left_out_however_many_there_are() -> None:
    many = {f"k{index}": 1 for index in range(MAX_PROBLEMS * 3)}
    experiment, unknown = parse_stored(build(training={"epochs": 2, **many}))
    assert experiment.spec.training.epochs == 2
    assert len(unknown) == len(many)


def test_a_key_is_told_in_one_short_line() -> None:
    [(path, _), *_] = judge(build(**{"x\x1b[31m" + "y" * 10_000: 1})).found
    with pytest.raises(ManifestError) as error:
        parse_experiment(build(**{"x\x1b[31m" + "y" * 10_000: 1}))
    said = str(error.value)
    assert path[-1] != said
    assert "\x1b" not in said
    assert len(said) < 1_500


def test_a_long_expression_is_shown_around_the_place_that_is_wrong() -> None:
    with pytest.raises(ExpressionError) as error:
        parse_tree("a + " * 2_000 + "\x1b @ " + "b + " * 2_000 + "c")
    _, line, caret = str(error.value).splitlines()
    assert len(line) < 150
    assert line[caret.index("^")] == "\ufffd"
