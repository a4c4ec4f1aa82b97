"""The fields of the step `fillNull`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from pipeline_runtime.config.base import MAX_COLUMNS, Column, SpecModel, check_unique_names
from pipeline_runtime.config.decimals import Constant
from pipeline_runtime.config.step_model import StepModel, describe_columns


class FilledColumn(SpecModel):
    """A column and the constant that replaces its nulls."""

    name: Column
    """Name of the column."""
    value: Constant
    """Constant that replaces nulls: a boolean, an integer or a text. A number with a point is
    written as a text, such as `"0.5"`."""


class FillNullStep(StepModel):
    """Replace nulls of columns by a constant."""

    is_preprocessing: ClassVar[bool] = True

    columns: Annotated[
        tuple[FilledColumn, ...],
        Field(min_length=1, max_length=MAX_COLUMNS),
        AfterValidator(check_unique_names),
    ]
    """Columns whose nulls are replaced, by name."""

    def describe(self) -> str:
        return describe_columns(self.columns)

    def find_inputs(self) -> Iterable[str]:
        return [column.name for column in self.columns]

    def find_outputs(self) -> frozenset[str]:
        return frozenset(self.find_inputs())
