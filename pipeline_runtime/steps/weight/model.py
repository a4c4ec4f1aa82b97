"""The fields of the step `weight`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline_runtime.config.base import Column, Expression
from pipeline_runtime.config.step_model import StepModel


class WeightStep(StepModel):
    """Multiply a weight column, created as 1.0 if absent, by an expression (null counts as 0)."""

    column: Column
    """The weight column; created as 1.0 if absent."""
    by: Expression
    """A numeric expression."""

    def describe(self) -> str:
        return f"{self.column} × {self.by}"

    def find_expressions(self) -> Iterator[tuple[str, str]]:
        yield "by", self.by

    def find_inputs(self) -> Iterable[str]:
        return (self.column,)

    def find_outputs(self) -> frozenset[str]:
        return frozenset([self.column])
