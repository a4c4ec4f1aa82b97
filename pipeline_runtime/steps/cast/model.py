"""The fields of the step `cast`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from pipeline_runtime.config.base import MAX_COLUMNS, check_unique_names
from pipeline_runtime.config.step_model import StepModel, TypedColumn, describe_columns


class CastStep(StepModel):
    """Convert columns to a type, named as Arrow names it (`int64`, `float32`, …)."""

    is_preprocessing: ClassVar[bool] = True

    columns: Annotated[
        tuple[TypedColumn, ...],
        Field(min_length=1, max_length=MAX_COLUMNS),
        AfterValidator(check_unique_names),
    ]
    """Columns to convert, by name."""

    def describe(self) -> str:
        return describe_columns(self.columns)

    def find_types(self) -> Iterator[tuple[str, str]]:
        for index, column in enumerate(self.columns):
            yield f"columns[{index}].type", column.type

    def find_inputs(self) -> Iterable[str]:
        return [column.name for column in self.columns]

    def find_outputs(self) -> frozenset[str]:
        return frozenset(self.find_inputs())
