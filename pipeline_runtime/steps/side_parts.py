"""Indices of the parts of side tables, within a bound of memory, for all threads of a process.

A join by bucket reads a part of its side table when the first row needs it. The indices that were
not used for longest make room for the next. A part whose rows exceed the bound keeps its keys only,
and reads the other columns of the matching rows for each batch.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa

from pipeline_runtime.bucketing import NO_BUCKET, bucket
from pipeline_runtime.sources.gather import Int64s, to_takeable
from pipeline_runtime.steps.base import ROW_COLUMN, UNIT_COLUMN, SideParts, SideTable
from pipeline_runtime.steps.side_tables import KeyIndex, RowKeys, build_index, index_of

# Runs of rows of one part that are looked up as they stand; beyond it, rows are sorted by part.
# Readers mix rows of eight buckets or a few more, so most chunks have fewer.
_MAX_RUNS = 64

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartIndex:
    """The index of a part, or of a whole side table, and the way to its other columns.

    Attributes:
        gather: reads columns of rows that are not in memory; None if they are.
        is_kept: in memory as long as the process, so that a chunk may hold on to it.
    """

    keys: KeyIndex
    gather: Callable[[pa.Table, Sequence[str]], pa.Table] | None = None
    is_kept: bool = False

    def gather_columns(
        self, rows: Int64s, columns: Sequence[str]
    ) -> tuple[Sequence[pa.ChunkedArray], Int64s]:
        """Return columns, as `to_takeable` makes them, that have the rows, and their places there.

        Rows of sorted tables repeat a key, so equal neighbours are gathered once.

        Args:
            rows: numbers of rows; −1, and then the place −1, stands for nulls.
        """
        table = self.keys.takeable
        if self.is_kept or (self.gather is None and len(table) <= len(rows)):
            return table.select(columns).columns, rows
        is_first = np.ones(len(rows), dtype=np.bool_)
        np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
        is_first &= rows >= 0
        wanted, places = rows[is_first], np.cumsum(is_first) - 1
        places[rows < 0] = -1
        if self.gather is None:
            return table.select(columns).take(pa.array(wanted)).columns, places
        numbers = table.select([UNIT_COLUMN, ROW_COLUMN]).take(pa.array(wanted))
        return [to_takeable(column) for column in self.gather(numbers, columns).columns], places


def map_parts(
    side: SideTable,
    keys: Sequence[str],
    max_bytes: int,
    rows: RowKeys,
    function: Callable[[RowKeys, PartIndex | None], Result],
    *,
    kernels: bool = True,
) -> list[tuple[slice | Int64s, Result]]:
    """Call a function with the rows of each part and its index; return its results.

    Args:
        keys: the key's columns in the side table.
        rows: the keys of the rows that are joined.
        function: gets the keys of some rows, and the index of their part; None for rows without a
            key, which are in no part.
        kernels: False hashes by numpy.

    Returns:
        For each call the numbers of its rows, ascending, and its result. One call has all rows if
        the side table has no parts.
    """
    if side.parts is None:
        index = PartIndex(keys=index_of(side, keys, max_bytes), is_kept=True)
        return [(slice(0, len(rows)), function(rows, index))]
    indices = _indices_of(side, keys)
    results = []
    buckets = bucket(rows.columns[side.parts.key], side.parts.num_parts, kernels=kernels)
    for part, numbers in _split_rows(buckets):
        chosen = rows.pick(numbers)
        if part == NO_BUCKET:
            results.append((numbers, function(chosen, None)))
            continue
        with indices.pin(part) as index:
            results.append((numbers, function(chosen, index)))
    return results


def _split_rows(parts: np.ndarray) -> Iterator[tuple[int, slice | Int64s]]:
    """Yield each part and its rows: runs as they stand, or all at once if there are many runs."""
    cuts = np.flatnonzero(parts[1:] != parts[:-1]) + 1
    if len(cuts) < _MAX_RUNS:
        for start, stop in pairwise([0, *cuts.tolist(), len(parts)] if len(parts) else []):
            yield int(parts[start]), slice(start, stop)
        return
    order = np.argsort(parts, kind="stable")
    values, firsts = np.unique(parts[order], return_index=True)
    for value, rows in zip(values, np.split(order, firsts[1:]), strict=True):
        yield int(value), rows


@dataclass(slots=True)
class _Held:
    """A part's index, or its place while it is loaded."""

    num_bytes: int
    index: PartIndex | None = None
    num_pins: int = 1


@dataclass(slots=True)
class PartIndices:
    """The indices of one side table's parts by one key, within their bound of memory."""

    parts: SideParts
    keys: tuple[str, ...]
    digest: str
    num_loads: int = 0  # since the process began, to see what is read twice
    _held: OrderedDict[int, _Held] = field(default_factory=OrderedDict)  # least recently used first
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def pin(self, part: int) -> Iterator[PartIndex]:
        """Keep a part's index in memory, loaded first if need be; other parts are not blocked.

        A thread holds one at a time: it may wait here for room that others hold.

        Raises:
            SourceError: the part cannot be read, or even its keys exceed the bound.
        """
        held = self._enter(part)
        try:
            if held.index is None:
                self._load(part, held)
            assert held.index is not None
            yield held.index
        finally:
            with self._changed:
                held.num_pins -= 1
                if held.index is None:  # it could not be loaded; the next thread tries again
                    del self._held[part]
                self._changed.notify_all()

    @property
    def num_bytes(self) -> int:
        """Bytes of all indices that are held."""
        return sum(held.num_bytes for held in self._held.values())

    def _enter(self, part: int) -> _Held:
        """Return the part's entry, pinned; without an index if this thread has to load it."""
        with self._changed:
            while True:
                held = self._held.get(part)
                if held is None:
                    expected = min(self.parts.estimate_bytes(part), self.parts.max_bytes)
                    if self._make_room(expected):
                        self._held[part] = held = _Held(num_bytes=expected)
                        return held
                elif held.index is not None:
                    held.num_pins += 1
                    self._held.move_to_end(part)
                    return held
                self._changed.wait()

    def _load(self, part: int, held: _Held) -> None:
        table = None
        if self.parts.estimate_bytes(part) <= self.parts.max_bytes:
            table = self.parts.load(part)
        index = None if table is None else PartIndex(keys=build_index(table, self.keys))
        if index is None or index.keys.num_bytes > self.parts.max_bytes:
            index = table = None  # free its memory before the keys are read
            keys = self.parts.load_keys(part)
            gather = partial(self.parts.gather, part)
            index = PartIndex(keys=build_index(keys, self.keys), gather=gather)
        with self._changed:
            held.index, held.num_bytes = index, index.keys.num_bytes
            self.num_loads += 1
            self._make_room(0)
            self._changed.notify_all()

    def _make_room(self, num_bytes: int) -> bool:
        """Drop indices that no thread uses, oldest first; return whether there is room now."""
        for part, held in list(self._held.items()):
            if self.num_bytes + num_bytes <= self.parts.max_bytes:
                return True
            if held.num_pins == 0:
                del self._held[part]
        return self.num_bytes + num_bytes <= self.parts.max_bytes


_lock = threading.Lock()
_kept: dict[tuple[str, tuple[str, ...]], PartIndices] = {}


def _indices_of(side: SideTable, keys: Sequence[str]) -> PartIndices:
    """Return the indices of a side table in this process, of its newest version alone."""
    assert side.parts is not None
    place = (side.place or side.digest, tuple(keys))
    with _lock:
        kept = _kept.get(place)
        if kept is None or kept.digest != side.digest:
            kept = _kept[place] = PartIndices(
                parts=side.parts, keys=tuple(keys), digest=side.digest
            )
        return kept


def kept_parts() -> list[PartIndices]:
    """Return the indices of all side tables in parts that this process keeps."""
    with _lock:
        return list(_kept.values())


def clear_parts() -> None:
    """Drop all indices of parts of this process, to free their memory."""
    with _lock:
        _kept.clear()
