"""Models of steps from mappings, as the fluent API takes them."""

from collections.abc import Mapping
from typing import Any

from pipeline_runtime.config.step_model import TypedColumn
from pipeline_runtime.steps.cast.model import CastStep
from pipeline_runtime.steps.derive.model import DerivedColumn, DeriveStep
from pipeline_runtime.steps.fill_null.model import FilledColumn, FillNullStep
from pipeline_runtime.steps.rename.model import RenamedColumn, RenameStep


def derive(columns: Mapping[str, str]) -> DeriveStep:
    """Return the model of a step that derives columns, each from its expression."""
    return DeriveStep(
        columns=tuple(DerivedColumn(name=n, expression=e) for n, e in columns.items())
    )


def rename(columns: Mapping[str, str]) -> RenameStep:
    """Return the model of a step that gives columns new names."""
    return RenameStep(columns=tuple(RenamedColumn(name=n, new_name=m) for n, m in columns.items()))


def typed(columns: Mapping[str, str]) -> tuple[TypedColumn, ...]:
    """Return columns with their types."""
    return tuple(TypedColumn(name=name, type=type_) for name, type_ in columns.items())


def cast(columns: Mapping[str, str]) -> CastStep:
    """Return the model of a step that converts columns to types."""
    return CastStep(columns=typed(columns))


def fill_null(columns: Mapping[str, Any]) -> FillNullStep:
    """Return the model of a step that replaces nulls of columns by constants."""
    return FillNullStep(columns=tuple(FilledColumn(name=n, value=v) for n, v in columns.items()))
