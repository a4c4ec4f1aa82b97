"""The fields of the step `clip`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from pydantic import Field

from pipeline_runtime.config.base import CelRule, Columns
from pipeline_runtime.config.step_model import StepModel


class ClipStep(StepModel):
    """Replace numbers outside of a range by its nearest end."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            "(has(self.lowest) ? self.lowest : 0) <= self.highest",
            "must be at least lowest; raise it",
            "highest",
        ),
    )

    columns: Columns
    """Columns of integers."""
    highest: Annotated[int, Field(ge=-1000, le=1000)]
    """Largest value."""
    lowest: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """Smallest value."""

    def rules(self) -> Iterator[tuple[str, str]]:
        if self.highest < self.lowest:
            yield (
                "highest",
                f"must be at least lowest ({self.lowest}), got {self.highest}; raise it",
            )

    def describe(self) -> str:
        return f"{', '.join(self.columns)} to {self.lowest}..{self.highest}"

    def find_inputs(self) -> Iterable[str]:
        return self.columns

    def find_outputs(self) -> frozenset[str]:
        return frozenset(self.columns)
