"""Step `weight`: multiply a weight column by an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime import expressions
from pipeline_runtime.errors import StepError
from pipeline_runtime.sources.gather import one_chunk
from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.checks import (
    Checks,
    broken,
    check_weight,
    parse_value,
    replace_types,
    set_column,
)
from pipeline_runtime.steps.weight.model import WeightStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight(BoundStep):
    """Multiplies a weight column, 1.0 (float32) if absent, by an expression; null counts as 0.

    A weight that is negative, NaN or infinite raises `StepError`.
    """

    kind: ClassVar[str] = "weight"

    column: str
    by: expressions.Expression

    @classmethod
    def bind(
        cls, config: WeightStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        with checks.at("column"):
            check_weight(input_schema, config.column)
        with checks.at("by"):
            by = _parse_factor(config.by, input_schema)
        checks.finish()
        known = config.column in input_schema.names
        own = {} if known else {config.column: pa.float32()}
        return cls(
            column=config.column,
            by=by,
            inputs=frozenset(by.columns) | ({config.column} if known else set()),
            outputs=frozenset([config.column]),
            output_schema=replace_types(input_schema, own),
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        present = frozenset(table.schema.names)
        if not present.issuperset(self.inputs):  # nothing downstream wants the weight
            return table.drop_columns([self.column]) if self.column in present else table
        data_type = self.output_schema.field(self.column).type
        weights = _to_doubles(expressions.evaluate(self.by, table))
        if self.column in present:
            weights = weights * _to_doubles(table.column(self.column))
        with np.errstate(over="ignore"):  # an overflow is infinite, which the check refuses
            weights = weights.astype(data_type.to_pandas_dtype())
        self._check(weights)
        return set_column(table, self.column, pa.array(weights, data_type))

    def _check(self, weights: npt.NDArray[np.float64]) -> None:
        wrong = ~(np.isfinite(weights) & (weights >= 0))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise StepError(
                f"weight.by: a weight must be finite and not negative, got {float(weights[row])!r} "
                f"for {self.column!r} = {self.by.text}; filter those rows or guard the expression"
            )


def _parse_factor(text: str, schema: pa.Schema) -> expressions.Expression:
    by, data_type = parse_value(text, schema)
    numeric = pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
    if not (numeric or pa.types.is_decimal(data_type)):
        raise broken(f"must be a number, got {text!r} of type {data_type}; use case to make one")
    return by


def _to_doubles(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.float64]:
    if isinstance(values, pa.ChunkedArray):
        values = one_chunk(values)
    doubles = pc.fill_null(pc.cast(values, pa.float64(), safe=False), 0.0)
    return np.asarray(doubles.to_numpy(zero_copy_only=False))
