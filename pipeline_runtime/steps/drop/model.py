"""The fields of the step `drop`."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline_runtime.config.base import Columns
from pipeline_runtime.config.step_model import StepModel


class DropStep(StepModel):
    """Drop these columns."""

    columns: Columns
    """The columns to drop."""

    def find_inputs(self) -> Iterable[str]:
        return self.columns
