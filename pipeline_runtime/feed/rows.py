"""Rows on their way through a stage: a column is copied when a step reads it, or at the end.

A step is asked for its rows with just the columns that it reads, over the rows that are left then.
What it only passes through (the wide lists, mostly) stays where it was read until the last step has
said which rows are left, and is copied once. With fusion off a stage holds one step, and every
step's rows are copied: the rows are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline_runtime.plan.model import PlannedStep
from pipeline_runtime.steps.base import INTERNAL_PREFIX, Transform, is_internal
from pipeline_runtime.steps.gather import Int64s, take_rows

# The row's number among those that a step was given, while the step drops or repeats rows.
_PLACE = INTERNAL_PREFIX + "place"


@dataclass(slots=True)
class _Column:
    """A column as it was read and as it is now; one of them at least."""

    field: pa.Field
    read: pa.ChunkedArray | None  # of all rows of the piece; None of what a step made
    now: pa.ChunkedArray | None  # of the rows that are left; None until something needs it


@dataclass(slots=True)
class Rows:
    """The rows of one piece that are left, and their columns; begin with `Rows.of`."""

    num_rows: int
    columns: dict[str, _Column]
    metadata: dict[bytes, bytes] | None  # of the table's schema
    kernels: bool
    kept: Int64s | None = None  # which of the rows that were read are left; None: all of them

    @classmethod
    def of(cls, table: pa.Table, *, kernels: bool = True) -> Rows:
        """All rows of a table; `kernels` as in `take_rows`."""
        pairs = zip(table.schema, table.columns, strict=True)
        return cls(
            num_rows=table.num_rows,
            columns={field.name: _Column(field, column, column) for field, column in pairs},
            metadata=table.schema.metadata,
            kernels=kernels,
        )

    @property
    def num_bytes(self) -> int:
        """Arrow bytes of the rows that are left; their share of a column's while not copied."""
        return sum(self._bytes_of(column) for column in self.columns.values())

    def run(self, step: PlannedStep) -> None:
        """Run a step, and let go of the columns that nothing after it uses."""
        transform = step.transform
        mask_of = getattr(transform, "mask", None)
        view = self.view(transform.inputs)
        if mask_of is not None and not transform.outputs:
            self._narrow(mask_of(view))
        elif transform.changes_rows:
            self._replace(transform, view)
        else:
            self._add(transform(view), transform.outputs)
        names = [name for name in transform.output_schema.names if name in step.live]
        names += [name for name in self.columns if is_internal(name)]
        self.columns = {name: self.columns[name] for name in names if name in self.columns}

    def view(self, names: frozenset[str]) -> pa.Table:
        """The rows that are left with these columns and Lastmile's own."""
        wanted = [name for name in self.columns if name in names or is_internal(name)]
        fields = [self.columns[name].field for name in wanted]
        arrays = [self._copied(self.columns[name]) for name in wanted]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, self.metadata))

    def table(self) -> pa.Table:
        """The rows that are left, all columns copied."""
        return self.view(frozenset(self.columns))

    def pick(self, places: Int64s) -> None:
        """Leave of the rows that are left those at `places`, in that order."""
        if len(places) == self.num_rows and np.array_equal(places, np.arange(self.num_rows)):
            return
        self.kept = places if self.kept is None else self.kept[places]
        self.num_rows = len(places)
        for column in self.columns.values():
            if column.read is None:
                column.now = take_rows(column.now, places, kernels=self.kernels)
            else:
                column.now = None

    def _narrow(self, mask: Any) -> None:
        kept = np.asarray(mask)
        if not kept.all():
            self.pick(np.flatnonzero(kept))

    def _add(self, result: pa.Table, outputs: frozenset[str]) -> None:
        """Take over the columns that a step made; one that it did not make is gone."""
        for name in outputs:
            self.columns.pop(name, None)
        for field, column in zip(result.schema, result.columns, strict=True):
            if field.name in outputs:
                self.columns[field.name] = _Column(field, None, column)

    def _replace(self, transform: Transform, view: pa.Table) -> None:
        """Run a step that drops, repeats or adds rows."""
        if transform.outputs.issuperset(transform.output_schema.names):
            rows = Rows.of(transform(view), kernels=self.kernels)  # nothing passes through
            self.num_rows, self.columns, self.kept = rows.num_rows, rows.columns, None
            return
        internal = frozenset(name for name in view.schema.names if is_internal(name))
        result = transform(view.append_column(_PLACE, pa.array(np.arange(self.num_rows))))
        self.pick(result.column(_PLACE).to_numpy())
        self._add(result.drop_columns([_PLACE]), transform.outputs | internal)

    def _copied(self, column: _Column) -> pa.ChunkedArray:
        if column.now is None:
            assert self.kept is not None  # else it is as it was read
            column.now = take_rows(column.read, self.kept, kernels=self.kernels)
        return column.now

    def _bytes_of(self, column: _Column) -> int:
        if column.now is not None:
            return int(column.now.nbytes)
        assert column.read is not None
        return int(column.read.nbytes * self.num_rows / max(1, len(column.read)))
