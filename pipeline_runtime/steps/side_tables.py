"""Indices of side tables by key, built once per process and looked up for many batches.

The index holds 64-bit key hashes in buckets. A row of a batch looks at one bucket, and its matches
are compared by their real key values. NumPy and Arrow do all of it; no Python code runs per row.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.errors import StepError
from pipeline_runtime.hashing import U64, hash_columns, split_instants
from pipeline_runtime.kernels import select
from pipeline_runtime.sources.gather import one_chunk
from pipeline_runtime.steps.base import SideTable
from pipeline_runtime.steps.list_columns import Bools, Int64s, decode, item_indices

# Buckets per distinct key: with 2, most buckets have no key or one, at 16 bytes per key.
_BUCKETS_PER_KEY = 2
_KEY_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndex:
    """The rows of a side table by key; rows with a null in the key are not in it.

    `rows` are grouped by key hash, in the table's order within a group; group g spans
    group_starts[g] to group_starts[g + 1] and has the hash group_hashes[g]. Bucket b (the hash's
    upper bits) holds the groups from bucket_starts[b] to bucket_starts[b + 1].
    """

    table: pa.Table
    keys: tuple[str, ...]
    rows: Int64s
    group_hashes: U64
    group_starts: Int64s
    bucket_starts: Int64s
    bucket_shift: int

    @property
    def has_unique_hashes(self) -> bool:
        """True if each group has one row."""
        return len(self.rows) == len(self.group_hashes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the table and of the arrays over it."""
        arrays = (self.rows, self.group_hashes, self.group_starts, self.bucket_starts)
        return int(self.table.nbytes + sum(array.nbytes for array in arrays))

    def find(
        self, columns: Sequence[pa.ChunkedArray], *, kernels: bool = True
    ) -> tuple[Int64s, Int64s]:
        """Return pairs (row of the columns, row of the table) with equal keys.

        They are ordered by the columns' row, then by the table's, as in SQL's join without a sort.
        """
        left, groups = self._candidates(columns, kernels)
        starts = self.group_starts[groups]
        if self.has_unique_hashes:
            right = self.rows[starts]
        else:
            lengths = self.group_starts[groups + 1] - starts
            left = np.repeat(left, lengths)
            right = self.rows[item_indices(starts, lengths)]
        equal = self._equal(columns, left, right)
        return (left, right) if equal.all() else (left[equal], right[equal])

    def contains(self, columns: Sequence[pa.ChunkedArray], *, kernels: bool = True) -> Bools:
        """Return whether the key of each row is in the table; a null key is in no table."""
        found = np.zeros(len(columns[0]), dtype=np.bool_)
        left, groups = self._candidates(columns, kernels)
        first = self.rows[self.group_starts[groups]]
        equal = self._equal(columns, left, first)
        found[left[equal]] = True
        if not equal.all():  # two keys share a hash, so compare all rows of the group
            found[self.find(columns, kernels=kernels)[0]] = True
        return found

    def _candidates(
        self, columns: Sequence[pa.ChunkedArray], wants_kernels: bool
    ) -> tuple[Int64s, Int64s]:
        """Return pairs (row of the columns, group) with equal hashes."""
        kernels = select(wants_kernels, len(columns[0]))
        hashes = hash_columns(columns, _KEY_SEED, kernels)
        null = has_null(columns)
        if kernels is not None:
            found = np.empty(len(hashes), dtype=np.int64)
            shift = np.uint64(self.bucket_shift)
            kernels.find_groups(hashes, shift, self.bucket_starts, self.group_hashes, found)
            found[null] = -1
            left = np.flatnonzero(found >= 0)
            return left, found[left]
        bucket = (hashes >> np.uint64(self.bucket_shift)).view(np.int64)
        starts = self.bucket_starts[bucket]
        lengths = self.bucket_starts[bucket + 1] - starts
        lengths[null] = 0
        looking = np.flatnonzero(lengths)
        left = np.repeat(looking, lengths[looking])
        groups = item_indices(starts[looking], lengths[looking])
        same = self.group_hashes[groups] == hashes[left]
        return left[same], groups[same]

    def _equal(self, columns: Sequence[pa.ChunkedArray], left: Int64s, right: Int64s) -> Bools:
        equal = np.ones(len(left), dtype=np.bool_)
        if len(left) == 0:
            return equal
        for column, key in zip(columns, self.keys, strict=True):
            is_whole = len(left) == len(column) and left[0] == 0 and (np.diff(left) == 1).all()
            ours = column if is_whole else column.take(pa.array(left))
            theirs = self.table.column(key).take(pa.array(right))
            equal &= equal_values(ours, theirs)
        return equal


def build_index(table: pa.Table, keys: Sequence[str]) -> KeyIndex:
    """Return an index of the table's rows by the key columns."""
    table = table.combine_chunks()  # rows of one chunk are gathered faster
    columns = [table.column(key) for key in keys]
    hashes = hash_columns(columns, _KEY_SEED)
    candidates = np.flatnonzero(~has_null(columns))
    order = candidates[np.argsort(hashes[candidates], kind="stable")]
    ordered = hashes[order]
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    firsts = np.flatnonzero(is_first)
    bits = max(1, (_BUCKETS_PER_KEY * len(firsts)).bit_length())
    shift = 64 - bits
    edges = np.arange(1 << bits, dtype=np.uint64) << np.uint64(shift)
    bucket_starts = np.append(np.searchsorted(ordered[firsts], edges), len(firsts))
    return KeyIndex(
        table=table,
        keys=tuple(keys),
        rows=order,
        group_hashes=ordered[firsts],
        group_starts=np.append(firsts, len(ordered)).astype(np.int64),
        bucket_starts=bucket_starts.astype(np.int64),
        bucket_shift=shift,
    )


def has_null(columns: Sequence[pa.ChunkedArray]) -> Bools:
    """Return whether each row has a null in any of the columns."""
    null = np.zeros(len(columns[0]), dtype=np.bool_)
    for column in columns:
        if column.null_count or pa.types.is_dictionary(column.type):
            null |= np.asarray(_decoded(column).is_null().to_numpy(zero_copy_only=False))
    return null


def equal_values(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Bools:
    """Return whether each row of two columns of comparable types, without nulls, is equal."""
    ours, theirs = _comparable(_decoded(left)), _comparable(_decoded(right))
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return np.asarray(
            np.logical_and.reduce([a == b for a, b in zip(ours, theirs, strict=True)])
        )
    return np.asarray(pc.equal(ours, theirs).to_numpy(zero_copy_only=False))


def _decoded(column: pa.ChunkedArray) -> pa.Array:
    return decode(one_chunk(column))


def _comparable(array: pa.Array) -> pa.Array | tuple[npt.NDArray[np.generic], ...]:
    """Return a form in which equal values are equal, independent of their width or unit."""
    if isinstance(array, pa.ExtensionArray):
        return _comparable(array.storage)
    if pa.types.is_integer(array.type):
        values = array.to_numpy(zero_copy_only=False)
        negative = values < 0
        signed = values.dtype.kind == "i"
        words = values.astype(np.int64).view(np.uint64) if signed else values.astype(np.uint64)
        return words, negative
    if pa.types.is_timestamp(array.type) or pa.types.is_duration(array.type):
        return split_instants(array)
    for accepts, common in _COMMON_TYPES:
        if accepts(array.type):
            return array.cast(common)
    return array


_COMMON_TYPES: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_string, pa.large_string()),
    (pa.types.is_string_view, pa.large_string()),
    (pa.types.is_binary, pa.large_binary()),
    (pa.types.is_binary_view, pa.large_binary()),
    (pa.types.is_fixed_size_binary, pa.large_binary()),
    (pa.types.is_date, pa.date32()),
    (pa.types.is_time, pa.time64("ns")),
)


@dataclass(slots=True)
class _Kept:
    """The index of one side table by one key, and the lock that its loading holds."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    digest: str | None = None
    index: KeyIndex | None = None


_lock = threading.Lock()
_kept: dict[tuple[str, tuple[str, ...]], _Kept] = {}


def index_of(side_table: SideTable, keys: Sequence[str], max_bytes: int | None = None) -> KeyIndex:
    """Return the side table's index, loaded by the first caller in this process and kept.

    The index of a table that was rewritten takes the place of the older one.

    Raises:
        StepError: the rows take more than `max_bytes` in memory.
    """
    with _lock:
        kept = _kept.setdefault((side_table.place or side_table.digest, tuple(keys)), _Kept())
    with kept.lock:
        if kept.index is None or kept.digest != side_table.digest:
            kept.index = None  # free its memory before the next index is loaded
            table = side_table.load()
            if max_bytes is not None and table.nbytes > max_bytes:
                raise StepError(too_large(side_table.description, table.nbytes, max_bytes))
            kept.index, kept.digest = build_index(table, keys), side_table.digest
        return kept.index


def kept_indices() -> list[KeyIndex]:
    """Return all indices that this process keeps."""
    with _lock:
        return [kept.index for kept in _kept.values() if kept.index is not None]


def too_large(description: str, num_bytes: int, max_bytes: int) -> str:
    return (
        f"must hold the side table in maxBytes ({max_bytes} bytes), got {num_bytes} bytes of "
        f"{description}; name fewer columns, add where, or raise maxBytes"
    )


def clear_indices() -> None:
    """Drop all indices of this process, to free their memory."""
    with _lock:
        _kept.clear()


def side_table_of(table: pa.Table, description: str = "table in memory") -> SideTable:
    """Return a side table of rows that are in memory already, for notebooks and tests."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return SideTable(
        digest=hashlib.sha256(sink.getvalue()).hexdigest(),
        description=description,
        schema=table.schema,
        num_rows=table.num_rows,
        num_bytes=table.nbytes,
        load=partial(_same, table),
    )


def _same(table: pa.Table) -> pa.Table:
    return table
