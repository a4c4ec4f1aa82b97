"""Step `antiJoin`: drop the rows whose key is in a side table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from pipeline_runtime.steps.anti_join.model import AntiJoinStep
from pipeline_runtime.steps.base import BindContext, BoundStep, SideTable, wants_kernels
from pipeline_runtime.steps.checks import Checks
from pipeline_runtime.steps.join.keys import check_keys, open_side_table
from pipeline_runtime.steps.list_columns import Bools
from pipeline_runtime.steps.side_parts import PartIndex, map_parts
from pipeline_runtime.steps.side_tables import RowKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class AntiJoin(BoundStep):
    """Drops the rows whose key is in the side table, as SQL's NOT EXISTS does; keeps null keys."""

    kind: ClassVar[str] = "antiJoin"
    changes_rows: bool = True

    side_table: SideTable
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    max_bytes: int
    kernels: bool = True

    @classmethod
    def bind(
        cls, config: AntiJoinStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        side = open_side_table(checks, config, config.right_keys, context)
        check_keys(checks, config, input_schema, side)
        checks.finish()
        assert side is not None  # else a problem was noted
        return cls(
            side_table=side,
            left_keys=config.left_keys,
            right_keys=config.right_keys,
            max_bytes=config.max_bytes,
            kernels=wants_kernels(context),
            inputs=frozenset(config.left_keys),
            output_schema=input_schema,
        )

    @property
    def is_filter(self) -> bool:
        return True

    def mask(self, table: pa.Table) -> pa.BooleanArray:
        """Return true for the rows that are kept."""
        keys = RowKeys.of([table.column(key) for key in self.left_keys], kernels=self.kernels)
        kept = np.ones(table.num_rows, dtype=np.bool_)
        for rows, is_found in map_parts(
            self.side_table,
            self.right_keys,
            self.max_bytes,
            keys,
            self._contains,
            kernels=self.kernels,
        ):
            kept[rows] = ~is_found
        return pa.array(kept)

    def _contains(self, keys: RowKeys, index: PartIndex | None) -> Bools:
        if index is None:
            return np.zeros(len(keys), dtype=np.bool_)
        return index.keys.contains(keys, kernels=self.kernels)

    def __call__(self, table: pa.Table) -> pa.Table:
        return table.filter(self.mask(table))
