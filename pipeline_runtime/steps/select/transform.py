"""Step `select`: keep these columns, in this order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import pyarrow as pa

from pipeline_runtime.steps.base import BindContext, BoundStep, is_internal
from pipeline_runtime.steps.checks import Checks, find_field
from pipeline_runtime.steps.select.model import SelectStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(BoundStep):
    """Keeps the named columns, in the manifest's order; reads no value."""

    kind: ClassVar[str] = "select"

    columns: tuple[str, ...]

    @classmethod
    def bind(
        cls, config: SelectStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        fields: list[pa.Field] = []
        for index, name in enumerate(config.columns):
            with checks.at(f"columns[{index}]"):
                fields.append(find_field(input_schema, name))
        checks.finish()
        return cls(columns=config.columns, output_schema=pa.schema(fields))

    def __call__(self, table: pa.Table) -> pa.Table:
        present = table.schema.names
        internal = [name for name in present if is_internal(name) and name not in self.columns]
        return table.select([name for name in self.columns if name in present] + internal)
