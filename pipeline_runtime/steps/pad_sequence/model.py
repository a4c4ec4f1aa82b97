"""The fields of the step `padSequence`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import Field

from pipeline_runtime.config.base import Columns
from pipeline_runtime.config.decimals import Number
from pipeline_runtime.config.step_model import StepModel


class PadSequenceStep(StepModel):
    """Make every list of the columns exactly `length` long: cut its end, or pad it with `value`."""

    is_preprocessing: ClassVar[bool] = True

    columns: Columns
    """List columns."""
    length: Annotated[int, Field(ge=1, le=1_000_000)]
    """Length of every list: longer ones lose their end, shorter ones are padded."""
    value: Number = 0
    """Value that pads the lists: an integer, or a number as a text, such as `"0.5"`."""

    def describe(self) -> str:
        return f"{', '.join(self.columns)} to {self.length}"

    def find_inputs(self) -> Iterable[str]:
        return self.columns

    def find_outputs(self) -> frozenset[str]:
        return frozenset(self.columns)
