"""The fields of the step `truncate`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pipeline_runtime.config.base import Columns
from pipeline_runtime.config.step_model import StepModel


class TruncateStep(StepModel):
    """Cut lists of the columns to at most `length` items, from their head or their tail."""

    is_preprocessing: ClassVar[bool] = True

    columns: Columns
    """List columns."""
    length: Annotated[int, Field(ge=0, le=1_000_000)]
    """Largest number of items to keep."""
    keep: Literal["Head", "Tail"] = "Head"
    """The end to keep."""

    def describe(self) -> str:
        return f"{', '.join(self.columns)} to {self.length}"

    def find_inputs(self) -> Iterable[str]:
        return self.columns

    def find_outputs(self) -> frozenset[str]:
        return frozenset(self.columns)
