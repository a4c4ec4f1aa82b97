"""Step `join`: add columns of a side table to the rows whose key is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from pipeline_runtime.steps.base import (
    BindContext,
    BoundStep,
    SideTable,
    is_internal,
    wants_kernels,
)
from pipeline_runtime.steps.checks import Checks, unknown_column
from pipeline_runtime.steps.join.keys import check_keys, open_side_table
from pipeline_runtime.steps.join.model import JoinStep
from pipeline_runtime.steps.list_columns import Int64s
from pipeline_runtime.steps.side_parts import PartIndex, map_parts

_NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(BoundStep):
    """SQL's join: repeats a row for each match, in the side table's order; null matches nothing.

    `Inner` drops rows without a match, `Left` gives them nulls. Left rows keep their order.
    """

    kind: ClassVar[str] = "join"
    changes_rows: bool = True

    side_table: SideTable
    left_keys: tuple[str, ...]
    right_keys: tuple[str, ...]
    how: Literal["Inner", "Left"]
    columns: tuple[str, ...]
    max_bytes: int
    kernels: bool = True

    @classmethod
    def bind(
        cls, config: JoinStep, input_schema: pa.Schema, context: BindContext | None = None
    ) -> Self:
        checks = Checks(cls.kind)
        side = open_side_table(checks, config, _wanted(config), context)
        check_keys(checks, config, input_schema, side)
        fields = _payload(checks, config, input_schema, side) if side is not None else []
        checks.finish()
        assert side is not None  # else a problem was noted
        names = tuple(field.name for field in fields)
        return cls(
            side_table=side,
            left_keys=config.left_keys,
            right_keys=config.right_keys,
            how=config.how,
            columns=names,
            max_bytes=config.max_bytes,
            kernels=wants_kernels(context),
            inputs=frozenset(config.left_keys),
            outputs=frozenset(names),
            output_schema=pa.schema([*input_schema, *fields]),
        )

    def __call__(self, table: pa.Table) -> pa.Table:
        keys = [table.column(key) for key in self.left_keys]
        found = map_parts(self.side_table, self.right_keys, self.max_bytes, keys, self._match)
        left = np.concatenate([_NO_ROWS, *(rows[places] for rows, (places, _) in found)])
        matches = pa.concat_tables(
            [self._payload_schema.empty_table(), *(m for _, (_, m) in found)]
        )
        if (left[1:] < left[:-1]).any():
            order = np.argsort(left, kind="stable")
            left, matches = left[order], matches.take(pa.array(order))
        # A left join has each row at least once.
        unchanged = self.how == "Left" and len(left) == table.num_rows
        joined = table if unchanged else table.take(pa.array(left))
        for name in self.columns:
            joined = joined.append_column(self.output_schema.field(name), matches.column(name))
        return joined

    def _match(
        self, keys: Sequence[pa.ChunkedArray], index: PartIndex | None
    ) -> tuple[Int64s, pa.Table]:
        """Return the numbers of the rows, repeated for each match, and the side's columns."""
        num_rows = len(keys[0])
        left = right = _NO_ROWS
        if index is not None:
            left, right = index.keys.find(keys, kernels=self.kernels)
        missing = None
        if self.how == "Left":
            left, right, missing = _with_unmatched(left, right, num_rows)
        if index is None:
            nulls = [pa.nulls(len(left), field.type) for field in self._payload_schema]
            return left, pa.Table.from_arrays(nulls, schema=self._payload_schema)
        found = index.take(pa.array(right, mask=missing), self.columns)
        return left, pa.Table.from_arrays(found.columns, schema=self._payload_schema)

    @property
    def _payload_schema(self) -> pa.Schema:
        return pa.schema([self.output_schema.field(name) for name in self.columns])


def _with_unmatched(
    left: Int64s, right: Int64s, num_rows: int
) -> tuple[Int64s, Int64s, np.ndarray]:
    """Return the pairs with unmatched left rows in their places, and the mask of unmatched rows."""
    counts = np.bincount(left, minlength=num_rows)
    times = np.maximum(counts, 1)
    rows = np.repeat(np.arange(num_rows), times)
    missing = np.repeat(counts == 0, times)
    matched = np.zeros(len(rows), dtype=np.int64)
    matched[~missing] = right
    return rows, matched, missing


def _wanted(config: JoinStep) -> list[str] | None:
    if config.columns is None:
        return None
    return list(dict.fromkeys((*config.right_keys, *config.columns)))


def _payload(
    checks: Checks, config: JoinStep, input_schema: pa.Schema, side: SideTable
) -> list[pa.Field]:
    """Return the side table's fields to add: the named ones, or all but keys and Lastmile's own."""
    if config.columns is None:
        names = [n for n in side.schema.names if n not in config.right_keys and not is_internal(n)]
    else:
        names = list(config.columns)
    fields = []
    for index, name in enumerate(names):
        field = f"columns[{index}]" if config.columns else "columns"
        if name in input_schema.names:
            checks.add(
                field,
                f"must not clash with the input's columns, got {name!r} on both sides; name in "
                "columns what to add, or rename the input's column before this step",
            )
        elif name not in side.schema.names:
            where = f"the side table {side.description}"
            checks.add(field, unknown_column(name, side.schema.names, where))
        else:
            fields.append(side.schema.field(name).with_nullable(True))
    return fields
