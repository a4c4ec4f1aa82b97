"""The stand-in, for the rows that evaluate a model, of a step that is for the training alone.

The planner puts it in the place of the step, so that the evaluation has the same steps as the
training, and all variants of a sample are evaluated on the same rows with the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from pipeline_runtime.steps.base import BoundStep
from pipeline_runtime.steps.checks import set_column


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOnly(BoundStep):
    """Keeps all rows and their weights.

    Attributes:
        weight_column: the column that the step would create; None if it creates none.
    """

    kind: ClassVar[str] = "trainingOnly"

    weight_column: str | None = None

    def __call__(self, table: pa.Table) -> pa.Table:
        if self.weight_column is None:
            return table
        ones = pa.array(np.ones(table.num_rows, dtype=np.float32))
        return set_column(table, self.weight_column, ones)


def keep_for_evaluation(output_schema: pa.Schema, created: str | None = None) -> TrainingOnly:
    """Return the stand-in of a step.

    Args:
        output_schema: of the step.
        created: the weight column that the step creates, if any.
    """
    return TrainingOnly(
        output_schema=output_schema,
        outputs=frozenset([created] if created else []),
        weight_column=created,
    )
