"""What can be said of a spec's expressions and types without the table: syntax and names.

`lastmile validate` asks here; columns and their types are checked when the plan is built.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline_runtime import expressions
from pipeline_runtime.config import ExperimentSpec
from pipeline_runtime.errors import ExpressionError, Problem
from pipeline_runtime.grammar import find_expressions
from pipeline_runtime.steps.type_names import TypeNameError, parse_type


def check_syntax(spec: ExperimentSpec) -> list[Problem]:
    """A problem for every expression or type that no table could make right, at its field."""
    problems = list(_wrong_types(spec))
    for path, text in find_expressions(spec):
        try:
            expressions.check_calls(expressions.parse(text))
        except ExpressionError as error:
            problems.append(Problem(path=path, message=str(error)))
    return problems


def _wrong_types(spec: ExperimentSpec) -> Iterator[Problem]:
    for index, step in enumerate(spec.pipeline):
        for field, name in step.config.find_types():
            try:
                parse_type(name)
            except TypeNameError as error:
                path = f"spec.pipeline[{index}].{step.kind}.{field}"
                yield Problem(path=path, message=str(error))
