"""The fields of the step `derive`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from pipeline_runtime.config.base import (
    MAX_COLUMNS,
    Column,
    Expression,
    SpecModel,
    check_unique_names,
)
from pipeline_runtime.config.step_model import StepModel, describe_columns


class DerivedColumn(SpecModel):
    """A column and the expression that gives its values."""

    name: Column
    """Name of the column, which is added or replaced."""
    expression: Expression
    """Expression over the step's input columns."""


class DeriveStep(StepModel):
    """Add or replace columns, each from an expression over the step's input columns."""

    is_preprocessing: ClassVar[bool] = True

    columns: Annotated[
        tuple[DerivedColumn, ...],
        Field(min_length=1, max_length=MAX_COLUMNS),
        AfterValidator(check_unique_names),
    ]
    """Columns to add or replace, by name."""

    def describe(self) -> str:
        return describe_columns(self.columns)

    def find_expressions(self) -> Iterator[tuple[str, str]]:
        for index, column in enumerate(self.columns):
            yield f"columns[{index}].expression", column.expression

    def find_outputs(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns)
