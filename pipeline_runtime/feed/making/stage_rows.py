"""The rows of a chunk in a stage: a column is copied when a step reads it, or at the end.

Columns that are equal within a request are stored once per request, as rows of their own in
`requests`; each row knows its request's place among them. A step that reads no other column runs on
the requests. For any other step, and at the end, the columns are repeated.

A step gets the remaining rows with only those columns that it reads. The other columns, mostly wide
lists, stay as they were read until the last step has decided which rows remain; then they are
copied once. With fusion off, a stage has one step, and the rows are copied after each: the result
is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline_runtime.plan.model import PlannedStep
from pipeline_runtime.plan.sharing import is_of_requests
from pipeline_runtime.sources.gather import (
    Int64s,
    count_column_bytes,
    one_chunk,
    take_rows,
    take_takeable,
)
from pipeline_runtime.sources.rows import RequestRows, SourceRows
from pipeline_runtime.steps.base import (
    INTERNAL_PREFIX,
    REQUEST_COLUMN,
    Matches,
    Transform,
    is_internal,
)

# The row's number among those that a step was given, while the step drops or repeats rows.
_PLACE = INTERNAL_PREFIX + "place"


@dataclass(slots=True, eq=False)
class _Matched:
    """The rows of a join's columns that the rows that are left have."""

    places: Int64s


@dataclass(slots=True)
class _Column:
    """A column as it was read and as it is now; one of them at least."""

    field: pa.Field
    read: pa.ChunkedArray | None  # of all rows of the chunk; None of what a step made
    now: pa.ChunkedArray | None  # of the rows that are left; None until something needs it
    matched: _Matched | None = None  # of a column of a join, whose `read` has rows of its own
    _sized: pa.ChunkedArray | None = None
    _num_bytes: int = 0

    def num_bytes(self, num_rows: int) -> int:
        """Return Arrow bytes of the remaining rows; estimated until they are copied."""
        array: Any = self.read if self.now is None else self.now
        if self._sized is not array:
            self._sized, self._num_bytes = array, count_column_bytes(array)
        if self.now is not None:
            return self._num_bytes
        return int(self._num_bytes * num_rows / max(1, len(array)))


@dataclass(slots=True)
class Rows:
    """The rows of one chunk that are left, and their columns; begin with `Rows.of`."""

    num_rows: int
    columns: dict[str, _Column]
    metadata: dict[bytes, bytes] | None  # of the table's schema
    kernels: bool
    kept: Int64s | None = None  # which of the rows that were read are left; None: all of them
    requests: Rows | None = None  # columns that stand once a request
    codes: Int64s | None = None  # each row's request among them

    @classmethod
    def of(cls, table: SourceRows, *, kernels: bool = True) -> Rows:
        """All rows of a table; `kernels` as in `take_rows`."""
        if isinstance(table, RequestRows):
            rows = cls.of(table.impressions, kernels=kernels)
            if table.requests.num_columns:
                rows.requests = cls.of(table.requests, kernels=kernels)
                rows.codes = table.codes
            return rows
        pairs = zip(table.schema, table.columns, strict=True)
        return cls(
            num_rows=table.num_rows,
            columns={field.name: _Column(field, column, column) for field, column in pairs},
            metadata=table.schema.metadata,
            kernels=kernels,
        )

    def has(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        in_requests = self.requests is not None and name in self.requests.columns
        return name in self.columns or in_requests

    def add_read(self, part: SourceRows, names: Collection[str]) -> None:
        """Take over columns that were read of the rows that are left.

        Args:
            part: steps that keep a row's place have run since its rows were given to `of`.
            names: of the columns to take.
        """
        if isinstance(part, pa.Table):
            self._add_columns(part, names)
            return
        self._add_columns(part.impressions, names)
        if not set(names) & set(part.requests.schema.names):
            return
        if self.requests is None:
            metadata, num_rows = part.requests.schema.metadata, len(part.counts)
            self.requests = Rows(
                num_rows=num_rows, columns={}, metadata=metadata, kernels=self.kernels
            )
            self.codes = part.codes
        else:
            self._forget_requests()
        self.requests._add_columns(part.requests, names)

    def _add_columns(self, table: pa.Table, names: Collection[str]) -> None:
        for field, column in zip(table.schema, table.columns, strict=True):
            if field.name in names:
                read = column if self.kept is None else None
                self.columns[field.name] = _Column(field, read, column)

    def add_empty(self, schema: pa.Schema, names: Collection[str]) -> None:
        """The same where no row is left, so that nothing has to be read."""
        assert self.num_rows == 0
        empty = schema.empty_table()
        for name in names:
            self.columns[name] = _Column(schema.field(name), None, empty.column(name))

    @property
    def num_bytes(self) -> int:
        """Arrow bytes of the rows that are left; their share of a column's while not copied.

        What stands once a request counts as often as it is repeated.
        """
        num_bytes = sum(column.num_bytes(self.num_rows) for column in self.columns.values())
        if self.requests is None:
            return num_bytes
        return num_bytes + self.requests.num_bytes * self.num_rows // max(1, self.requests.num_rows)

    def run(self, step: PlannedStep, *, observes: bool = True) -> bytes | None:
        """Run a step, and let go of the columns that nothing after it uses.

        Args:
            observes: False for rows that were observed before.

        Returns the observations of a step that observes rows.
        """
        transform = step.transform
        observed = None
        shared = self.requests.columns.keys() if self.requests else set()
        if transform.observes and not observes and not transform.outputs:
            pass  # it only measures
        elif transform.observes and observes:
            made, observed = transform.observe(self.view(transform.inputs))
            self._add(made, transform.outputs)
        elif is_of_requests(transform, shared):
            self._run_on_requests(transform)
        elif transform.is_columnwise and shared & transform.inputs:
            self._run_on_both(transform)
        else:
            self._run(transform)
        names = [name for name in transform.output_schema.names if name in step.live]
        self._let_go([*names, *(name for name in self.columns if is_internal(name))])
        return observed

    def view(self, names: frozenset[str]) -> pa.Table:
        """The rows that are left with these columns and Lastmile's own."""
        wanted = [name for name in self.columns if name in names or is_internal(name)]
        fields = [self.columns[name].field for name in wanted]
        arrays = [self._copied(self.columns[name]) for name in wanted]
        if self.requests is not None:
            assert self.codes is not None
            shared = self.requests.view(names)
            fields += shared.schema
            arrays += [take_rows(c, self.codes, kernels=self.kernels) for c in shared.columns]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, self.metadata))

    def table(self) -> pa.Table:
        """The rows that are left, all columns copied."""
        shared = self.requests.columns if self.requests else {}
        return self.view(frozenset([*self.columns, *shared]))

    def table_by_request(self, names: Sequence[str]) -> pa.Table:
        """The rows that are left, these columns once a request, together as `REQUEST_COLUMN`.

        Requests stand in the order of their first rows. Where rows do not share the columns, since
        that did not pay, each row is a request of its own.
        """
        shared = self.requests.columns if self.requests else {}
        if shared.keys() >= set(names):
            once, codes = self._requests_in_order(names)
            table = self.view(frozenset([*self.columns, *shared]) - frozenset(names))
        else:
            table = self.table()
            once, codes = table.select(list(names)), np.arange(self.num_rows)
        arrays = [one_chunk(column) for column in once.columns]
        values = pa.StructArray.from_arrays(arrays, fields=list(once.schema))
        column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), values)
        each = [name for name in table.schema.names if name not in names]
        return table.select(each).append_column(REQUEST_COLUMN, column)

    def _requests_in_order(self, names: Sequence[str]) -> tuple[pa.Table, Int64s]:
        """Return these columns of the requests in row order, and each row's request."""
        assert self.requests is not None
        assert self.codes is not None
        order = _in_first_order(self.codes)
        if not _are_all(order, self.requests.num_rows):
            places = np.zeros(self.requests.num_rows, dtype=np.int64)
            places[order] = np.arange(len(order))
            self.requests.pick(order)
            self.codes = places[self.codes]
        return self.requests.view(frozenset(names)).select(list(names)), self.codes

    def pick(self, places: Int64s) -> None:
        """Leave of the rows that are left those at `places`, in that order."""
        if _are_all(places, self.num_rows):
            return
        self.kept = places if self.kept is None else self.kept[places]
        self.num_rows = len(places)
        for matched in {c.matched for c in self.columns.values() if c.matched is not None}:
            matched.places = matched.places[places]
        for column in self.columns.values():
            if column.read is None:
                column.now = take_rows(column.now, places, kernels=self.kernels)
            else:
                column.now = None
        if self.codes is not None:
            self.codes = self.codes[places]

    def _run_on_requests(self, transform: Transform) -> None:
        assert self.requests is not None
        assert self.codes is not None
        self._forget_requests()
        if transform.is_filter:
            mask = transform.mask(self.requests.view(transform.inputs))
            self._narrow(np.asarray(mask)[self.codes])
            return
        self.requests._run(transform)
        for name in transform.outputs:
            self.columns.pop(name, None)

    def _run_on_both(self, transform: Transform) -> None:
        """Run a step that knows no column of another: each where it stands."""
        assert self.requests is not None
        self._forget_requests()
        shared = transform.inputs & self.requests.columns.keys()
        own = transform.inputs - shared
        self.requests._add(transform(self.requests.view(shared)), shared)
        self._add(transform(self.view(own)), own)

    def _forget_requests(self) -> None:
        """Leave out the requests of which no row is left: a step must not see them."""
        assert self.requests is not None
        is_left = np.zeros(self.requests.num_rows, dtype=np.bool_)
        is_left[self.codes] = True
        if not is_left.all():
            self.requests.pick(np.flatnonzero(is_left))
            self.codes = (np.cumsum(is_left) - 1)[self.codes]

    def _run(self, transform: Transform) -> None:
        if (made := self._run_on_read(transform)) is not None:
            self._add(made, transform.outputs)
        elif transform.is_filter:
            self._narrow(transform.mask(self.view(transform.inputs)))
        elif (found := transform.match(view := self.view(transform.inputs))) is not None:
            self._join(found, transform)
        elif transform.changes_rows:
            self._replace(transform, view)
        else:
            self._add(transform(view), transform.outputs)

    def _join(self, found: Matches, transform: Transform) -> None:
        """Leave the rows that a join found, with its columns, which are copied later."""
        if found.rows is not None:
            self.pick(found.rows)
        matched = _Matched(found.places)
        fields = [field for field in transform.output_schema if field.name in transform.outputs]
        for field, column in zip(fields, found.columns, strict=True):
            self.columns[field.name] = _Column(field, column, None, matched)

    def _run_on_read(self, transform: Transform) -> pa.Table | None:
        """Run a step that picks the rows that are left by itself, out of columns as they were read.

        So what it would be given is not copied. None if the step cannot, or a column was copied.
        """
        if not transform.picks_rows or self.kept is None:
            return None
        columns = [self.columns.get(name) for name in transform.inputs]
        read = {
            c.field.name: c.read
            for c in columns
            if c is not None and c.now is None and c.matched is None
        }
        if len(read) < len(columns):
            return None
        return transform.of_rows(pa.table(read), self.kept)

    def _let_go(self, names: Sequence[str]) -> None:
        """Keep these columns, in this order."""
        self.columns = {name: self.columns[name] for name in names if name in self.columns}
        if self.requests is not None:
            self.requests._let_go(names)
            if not self.requests.columns:
                self.requests = self.codes = None

    def _narrow(self, mask: Any) -> None:
        kept = np.asarray(mask)
        if not kept.all():
            self.pick(np.flatnonzero(kept))

    def _add(self, result: pa.Table, outputs: frozenset[str]) -> None:
        """Take over the columns that a step made; one that it did not make is gone."""
        for name in outputs:
            self.columns.pop(name, None)
            if self.requests is not None:
                self.requests.columns.pop(name, None)
        for field, column in zip(result.schema, result.columns, strict=True):
            if field.name in outputs:
                self.columns[field.name] = _Column(field, None, column)

    def _replace(self, transform: Transform, view: pa.Table) -> None:
        """Run a step that drops, repeats or adds rows."""
        if transform.outputs.issuperset(transform.output_schema.names):
            rows = Rows.of(transform(view), kernels=self.kernels)  # nothing passes through
            self.num_rows, self.columns, self.kept = rows.num_rows, rows.columns, None
            self.requests = self.codes = None
            return
        internal = frozenset(name for name in view.schema.names if is_internal(name))
        result = transform(view.append_column(_PLACE, pa.array(np.arange(self.num_rows))))
        self.pick(result.column(_PLACE).to_numpy())
        self._add(result.drop_columns([_PLACE]), transform.outputs | internal)

    def _copied(self, column: _Column) -> pa.ChunkedArray:
        if column.now is None:
            if column.matched is not None:
                places = column.matched.places
                column.now = take_takeable(column.read, places, column.field.type)
            else:
                assert self.kept is not None  # else it is as it was read
                column.now = take_rows(column.read, self.kept, kernels=self.kernels)
        return column.now


def _are_all(places: Int64s, num_rows: int) -> bool:
    """Return whether these are the places of all rows, in order."""
    return len(places) == num_rows and np.array_equal(places, np.arange(num_rows))


def _in_first_order(codes: Int64s) -> Int64s:
    """Every code once, in the order in which they come first."""
    is_new = np.ones(len(codes), dtype=np.bool_)
    is_new[1:] = codes[1:] != codes[:-1]
    runs = codes[is_new]
    if (runs[1:] > runs[:-1]).all():  # as rows were read: sorting would take longer than the rest
        return runs
    present, first = np.unique(codes, return_index=True)
    return np.asarray(present[np.argsort(first)])
