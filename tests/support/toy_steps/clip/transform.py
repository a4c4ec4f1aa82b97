"""Step `clip`: replace numbers outside of a range by its nearest end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc
from toy_steps.clip.model import ClipStep

from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.checks import Checks, broken, find_field, set_column


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip(BoundStep):
    """Integers within a range; null stays null."""

    kind: ClassVar[str] = "clip"
    is_columnwise: ClassVar[bool] = True

    lowest: int
    highest: int

    @classmethod
    def bind(
        cls, config: ClipStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        for index, name in enumerate(config.columns):
            with checks.at(f"columns[{index}]"):
                data_type = find_field(input_schema, name).type
                if not pa.types.is_integer(data_type):
                    raise broken(f"must be a column of integers, got {name!r} of type {data_type}")
        checks.finish()
        return cls(
            lowest=config.lowest,
            highest=config.highest,
            inputs=frozenset(config.columns),
            outputs=frozenset(config.columns),
            output_schema=input_schema,
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        for name in self.inputs.intersection(table.schema.names):
            raised = pc.max_element_wise(table[name], self.lowest, skip_nulls=False)
            clipped = pc.min_element_wise(raised, self.highest, skip_nulls=False)
            table = set_column(table, name, clipped.cast(table[name].type))
        return table
