"""Checks of a spec's expressions and types that need no table: syntax and names.

`lastmile validate` and `explain` call it; columns and their types are checked when the plan is
built.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline_runtime.config import ExperimentSpec
from pipeline_runtime.errors import Problem
from pipeline_runtime.grammar import check_expressions
from pipeline_runtime.steps.type_names import TypeNameError, parse_type


def check_syntax(spec: ExperimentSpec) -> list[Problem]:
    """Return a problem for every expression or type that no table could make right."""
    return [*check_types(spec), *check_expressions(spec)]


def check_types(spec: ExperimentSpec) -> Iterator[Problem]:
    """Yield a problem for every type of a cast step that Arrow does not have, at its field."""
    for index, step in enumerate(spec.pipeline):
        for field, name in step.config.find_types():
            try:
                parse_type(name)
            except TypeNameError as error:
                path = f"spec.pipeline[{index}].{step.kind}.{field}"
                yield Problem(path=path, message=str(error))
