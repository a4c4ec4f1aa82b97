"""Step `truncate`: cut lists to a length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from pipeline_runtime.sources.gather import cut_lists
from pipeline_runtime.steps.base import BindContext, BoundStep, wants_kernels
from pipeline_runtime.steps.checks import Checks, broken, find_field, set_column
from pipeline_runtime.steps.list_columns import (
    is_list,
    item_indices,
    join_lists,
    map_chunks,
    split_lists,
)
from pipeline_runtime.steps.truncate.model import TruncateStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate(BoundStep):
    """Cuts lists to their first (head) or last (tail) items; keeps shorter and null lists."""

    kind: ClassVar[str] = "truncate"
    is_columnwise: ClassVar[bool] = True

    columns: tuple[str, ...]
    length: int
    keep: Literal["Head", "Tail"]
    kernels: bool = True  # pipelineOptions.debug.kernels

    @classmethod
    def bind(
        cls, config: TruncateStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        for index, name in enumerate(config.columns):
            with checks.at(f"columns[{index}]"):
                data_type = find_field(input_schema, name).type
                if not is_list(data_type):
                    raise broken(f"must be a column of lists, got {name!r} of type {data_type}")
        checks.finish()
        return cls(
            columns=config.columns,
            length=config.length,
            keep=config.keep,
            kernels=wants_kernels(context),
            inputs=frozenset(config.columns),
            outputs=frozenset(config.columns),
            output_schema=input_schema,
        )

    @property
    def way(self) -> str:
        if self.kernels:
            return "lists of numbers copied whole, others item by item"
        return "lists copied item by item, since pipelineOptions.debug.kernels is false"

    def __call__(self, table: pa.Table) -> pa.Table:
        for name in self.columns:
            if name in table.schema.names:
                column = table.column(name)
                table = set_column(table, name, map_chunks(column, column.type, self._cut))
        return table

    def _cut(self, array: pa.Array) -> pa.Array:
        ragged = split_lists(array)
        lengths = np.minimum(ragged.lengths, self.length)
        surplus = ragged.lengths - lengths
        if not surplus.any():
            return array
        starts = ragged.starts + surplus if self.keep == "Tail" else ragged.starts
        cut = cut_lists(array, starts, lengths) if self.kernels else None
        if cut is not None:
            return cut
        return join_lists(array.type, ragged, item_indices(starts, lengths), lengths)
