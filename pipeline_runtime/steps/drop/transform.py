"""Step `drop`: leave columns out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import pyarrow as pa

from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.checks import Checks, find_field
from pipeline_runtime.steps.drop.model import DropStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(BoundStep):
    """Keeps all columns but the named ones."""

    kind: ClassVar[str] = "drop"

    columns: tuple[str, ...]

    @classmethod
    def bind(
        cls, config: DropStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        for index, name in enumerate(config.columns):
            with checks.at(f"columns[{index}]"):
                find_field(input_schema, name)
        fields = [field for field in input_schema if field.name not in config.columns]
        if not fields:
            checks.add("columns", f"must leave at least one column, got all {len(input_schema)}")
        checks.finish()
        return cls(columns=config.columns, output_schema=pa.schema(fields))

    def __call__(self, table: pa.Table) -> pa.Table:
        return table.select([name for name in table.schema.names if name not in self.columns])
