"""Step `filter`: keep the rows for which a condition is true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.steps.base import BindContext, BoundStep
from pipeline_runtime.steps.checks import Checks, parse_condition
from pipeline_runtime.steps.filter.model import FilterStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(BoundStep):
    """Keeps the rows for which `where` is true; drops false and null, as SQL's WHERE does."""

    kind: ClassVar[str] = "filter"
    changes_rows: bool = True

    where: expressions.Expression

    @classmethod
    def bind(
        cls, config: FilterStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        with checks.at("where"):
            where = parse_condition(config.where, input_schema)
        checks.finish()
        return cls(where=where, inputs=frozenset(where.columns), output_schema=input_schema)

    @property
    def predicate(self) -> expressions.Expression | None:
        return self.where

    @property
    def is_filter(self) -> bool:
        return True

    def mask(self, table: pa.Table) -> pa.BooleanArray:
        """Return true for the rows that are kept, without nulls."""
        return expressions.mask(self.where, table)

    def __call__(self, table: pa.Table) -> pa.Table:
        return table.filter(self.mask(table))
