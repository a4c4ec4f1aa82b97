"""A new step that declares no capability is planned in the safe way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from pipeline_runtime.steps.base import BoundStep, Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(BoundStep):
    """Repeats each row, or leaves the table as it is."""

    def __call__(self, table: pa.Table) -> pa.Table:
        if not self.changes_rows:
            return table
        return table.take(pa.array(np.repeat(np.arange(table.num_rows), 2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep(Plain):
    """A filter that keeps all rows."""

    @property
    def is_filter(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("step", "keeps_places"),
    [
        (Plain(output_schema=pa.schema([])), True),
        (Plain(output_schema=pa.schema([]), changes_rows=True), False),
        (Keep(output_schema=pa.schema([]), changes_rows=True), True),
    ],
)
def test_columns_are_read_late_only_after_steps_that_repeat_no_row(
    step: Transform, keeps_places: bool
) -> None:
    assert step.keeps_places is keeps_places


def test_a_plain_step_has_no_capability() -> None:
    step: Transform = Plain(output_schema=pa.schema([]), changes_rows=True)
    assert isinstance(step, Transform)
    assert (step.is_filter, step.picks_rows, step.predicate, step.draws_by) == (
        False,
        False,
        None,
        None,
    )
