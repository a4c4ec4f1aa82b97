"""The expressions of a spec, each with its field, and whether they are expressions at all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

from pipeline_runtime.config import ExperimentSpec
from pipeline_runtime.errors import ExpressionError, Problem
from pipeline_runtime.grammar.calls import check_names
from pipeline_runtime.grammar.parser import parse_tree

# An operator asks of the same specs all the time; a text has at most 16 KiB.
_NUM_TEXTS_KEPT = 512


def check_grammar(spec: ExperimentSpec, *, max_chars: int | None = None) -> Iterator[Problem]:
    """A problem for every expression that does not parse, at its field.

    Functions, columns and their types are not looked at: `check_expressions` and the plan do.

    Args:
        max_chars: of the expressions, in order, so many characters are looked at; None: all.
    """
    num_chars = 0
    for path, text in find_expressions(spec):
        num_chars += len(text)
        if max_chars is not None and num_chars > max_chars:
            return
        if error := _find_error(text):
            yield Problem(path=path, message=error)


@lru_cache(maxsize=_NUM_TEXTS_KEPT)
def _find_error(text: str) -> str | None:
    try:
        parse_tree(text)
    except ExpressionError as error:
        return str(error)
    return None


def check_expressions(spec: ExperimentSpec) -> Iterator[Problem]:
    """Yield a problem for every expression that no table could make right, at its field.

    Functions, their numbers of arguments and the types of casts are checked too.
    """
    for path, text in find_expressions(spec):
        try:
            check_names(parse_tree(text), text)
        except ExpressionError as error:
            yield Problem(path=path, message=str(error))


def find_expressions(spec: ExperimentSpec) -> Iterator[tuple[str, str]]:
    """Every expression of a spec: the path of its field, its text."""
    if spec.dataset.where:
        yield "spec.dataset.where", spec.dataset.where
    for index, step in enumerate(spec.pipeline):
        config = step.config
        for field, text in chain(config.find_expressions(), config.find_side_expressions()):
            yield f"spec.pipeline[{index}].{step.kind}.{field}", text
    evaluation = spec.training.evaluation
    if evaluation and evaluation.where:
        yield "spec.training.evaluation.where", evaluation.where
