"""The fields of the step `filter`."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline_runtime.config.base import Expression
from pipeline_runtime.config.step_model import StepModel


class FilterStep(StepModel):
    """Keep the rows for which `where` is true (false and null are dropped)."""

    where: Expression
    """A boolean expression."""

    def describe(self) -> str:
        return self.where

    def find_expressions(self) -> Iterator[tuple[str, str]]:
        yield "where", self.where
