"""The split of rows into training and evaluation, as the first transform after `dataset.where`.

By a predicate (rows for which it is true are evaluated on) or by a hash of a key, so that the same
rows are held out whatever the order, layout or number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime import expressions, hashing
from pipeline_runtime.config import Evaluation
from pipeline_runtime.config.decimals import parse_percent
from pipeline_runtime.expressions import Expression
from pipeline_runtime.steps.base import ROW_HASH_COLUMN, BoundStep

# Keeps the holdout apart from a downsample step of the same seed, which hashes the same identity.
_HOLDOUT_SALT = 0x68_6F_6C_64  # "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(BoundStep):
    """Keep the rows of one role."""

    kind: ClassVar[str] = "split"

    changes_rows: bool = True
    evaluation: Evaluation
    expression: Expression | None
    role: str
    # Rows of the evaluation have a smaller identity hash than this; None: they may have any.
    bound: int | None = None

    @classmethod
    def bind(cls, evaluation: Evaluation, schema: pa.Schema, role: str) -> Self:
        """Check the split against the table. Raises ExpressionError, or KeyError for a `by`
        column.
        """
        expression = None
        if evaluation.where is not None:
            expression = expressions.parse(evaluation.where)
            expressions.check_boolean(expression, schema)
        for name in evaluation.by or ():
            schema.field(name)
        read = frozenset(evaluation.by or ()) | (expression.columns if expression else frozenset())
        return cls(
            evaluation=evaluation,
            expression=expression,
            role=role,
            inputs=read,
            output_schema=schema,
        )

    @property
    def needs_row_hash(self) -> bool:
        is_drawn = self.evaluation.where is None and not self.evaluation.by
        return is_drawn or self.bound is not None

    @property
    def is_filter(self) -> bool:
        return True

    def mask(self, table: pa.Table) -> pa.Array | pa.ChunkedArray:
        """True for the rows of this role, without null."""
        held_out = self._held_out(table)
        if self.role != "evaluation":
            return pc.invert(held_out)
        if self.bound is None:
            return held_out
        hashes = table.column(ROW_HASH_COLUMN).to_numpy()
        return pc.and_(held_out, pa.array(hashes < np.uint64(self.bound)))

    def __call__(self, table: pa.Table) -> pa.Table:
        return table.filter(self.mask(table))

    def _held_out(self, table: pa.Table) -> pa.Array | pa.ChunkedArray:
        if self.expression is not None:
            return expressions.mask(self.expression, table)
        seed = self.evaluation.seed ^ _HOLDOUT_SALT
        percent = parse_percent(self.evaluation.holdout_percent or 0)
        if self.evaluation.by:
            hashes = hashing.hash_columns([table.column(n) for n in self.evaluation.by], seed=0)
        else:
            hashes = table.column(ROW_HASH_COLUMN).to_numpy()
        return pa.array(hashing.keep_mask(hashes, seed, percent))
