"""The fields of the step `select`."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline_runtime.config.base import Columns
from pipeline_runtime.config.step_model import StepModel


class SelectStep(StepModel):
    """Keep these columns, in this order."""

    columns: Columns
    """The columns to keep, in this order."""

    def find_inputs(self) -> Iterable[str]:
        return self.columns
