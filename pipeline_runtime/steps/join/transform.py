"""Step `join`: add columns of a side table to the rows whose key is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from pipeline_runtime.sources.gather import Int64s, concat_takeable, take_takeable
from pipeline_runtime.steps.base import (
    BindContext,
    BoundStep,
    Matches,
    SideTable,
    is_internal,
    wants_kernels,
)
from pipeline_runtime.steps.checks import Checks, unknown_column
from pipeline_runtime.steps.join.keys import check_keys, open_side_table
from pipeline_runtime.steps.join.model import JoinStep
from pipeline_runtime.steps.side_parts import PartIndex, map_parts
from pipeline_runtime.steps.side_tables import KeyIndex, RowKeys

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

    def match(self, table: pa.Table) -> Matches:
        """See Transform."""
        keys = RowKeys.of([table.column(key) for key in self.left_keys], kernels=self.kernels)
        found = map_parts(
            self.side_table,
            self.right_keys,
            self.max_bytes,
            keys,
            self._match,
            kernels=self.kernels,
        )
        num_gathered, lefts, places = 0, [_NO_ROWS], [_NO_ROWS]
        for rows, (left, columns, right) in found:
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            lefts.append(numbers if left is None else numbers[left])
            places.append(np.where(right < 0, -1, right + num_gathered))
            num_gathered += len(columns[0]) if columns else 0
        left, place = np.concatenate(lefts), np.concatenate(places)
        if (left[1:] < left[:-1]).any():
            order = np.argsort(left, kind="stable")
            left, place = left[order], place[order]
        parts = [columns for _, (_, columns, _) in found]
        columns = parts[0] if len(parts) == 1 else concat_takeable(parts, self._payload_schema)
        # A left join has each row at least once.
        unchanged = self.how == "Left" and len(left) == table.num_rows
        return Matches(rows=None if unchanged else left, columns=columns, places=place)

    def __call__(self, table: pa.Table) -> pa.Table:
        found = self.match(table)
        joined = table if found.rows is None else table.take(pa.array(found.rows))
        for field, column in zip(self._payload_schema, found.columns, strict=True):
            joined = joined.append_column(field, take_takeable(column, found.places, field.type))
        return joined

    def _match(
        self, keys: RowKeys, index: PartIndex | None
    ) -> tuple[Int64s | None, Sequence[pa.ChunkedArray], Int64s]:
        """Return the numbers of the rows, repeated for each match, and the places in columns.

        The numbers are None if each row is there once, in order.
        """
        if index is None:
            count = len(keys) if self.how == "Left" else 0
            none = [pa.chunked_array([], field.type) for field in self._payload_schema]
            return np.arange(count), none, np.full(count, -1)
        left, right = self._find(keys, index.keys)
        columns, places = index.gather_columns(right, self.columns)
        return left, columns, places

    def _find(self, keys: RowKeys, index: KeyIndex) -> tuple[Int64s | None, Int64s]:
        """Return the numbers of the rows, as `_match` does, and of the side table's rows."""
        right = index.find_each(keys, kernels=self.kernels)
        if right is None:
            left, right = index.find_pairs(keys, kernels=self.kernels)
            if self.how == "Left":
                return _with_unmatched(left, right, len(keys))
            return left, right
        if self.how == "Left":
            return None, right
        left = np.flatnonzero(right >= 0)
        return left, right[left]

    @property
    def _payload_schema(self) -> pa.Schema:
        return pa.schema([self.output_schema.field(name) for name in self.columns])


def _with_unmatched(left: Int64s, right: Int64s, num_rows: int) -> tuple[Int64s, Int64s]:
    """Return the pairs with unmatched left rows in their places, which have no row (−1)."""
    counts = np.bincount(left, minlength=num_rows)
    rows = np.repeat(np.arange(num_rows), np.maximum(counts, 1))
    matched = np.full(len(rows), -1)
    matched[counts[rows] > 0] = right
    return rows, matched


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
