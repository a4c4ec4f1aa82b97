"""Step `derive`: add or replace columns by expressions over the step's input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.checks import Checks, parse_value, replace_types, set_column
from pipeline_runtime.steps.derive.model import DeriveStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Derive(BoundStep):
    """Adds columns by expressions, all of which use the columns from before the step.

    A column that is replaced keeps its place; new ones come last, in the manifest's order.
    """

    kind: ClassVar[str] = "derive"

    columns: tuple[tuple[str, expressions.Expression], ...]

    @classmethod
    def bind(
        cls, config: DeriveStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        columns: list[tuple[str, expressions.Expression]] = []
        types: dict[str, pa.DataType] = {}
        for index, column in enumerate(config.columns):
            with checks.at(f"columns[{index}].expression"):
                expression, types[column.name] = parse_value(column.expression, input_schema)
                columns.append((column.name, expression))
        checks.finish()
        return cls(
            columns=tuple(columns),
            inputs=frozenset().union(*(expression.columns for _, expression in columns)),
            outputs=frozenset(types),
            output_schema=replace_types(input_schema, types),
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        derived = table
        present = frozenset(table.schema.names)
        for name, expression in self.columns:
            if present.issuperset(expression.columns):
                derived = set_column(derived, name, expressions.evaluate(expression, table))
            elif name in present:
                # No later step uses the new value, or its inputs would be here. The old value must
                # not be taken for it.
                derived = derived.drop_columns([name])
        return derived
