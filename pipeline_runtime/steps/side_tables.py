"""Indices of side tables by key, built once per process and looked up for many batches.

The index holds 64-bit key hashes in buckets. A row of a batch looks at one bucket, and its matches
are compared by their real key values. NumPy and Arrow do all of it; no Python code runs per row.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.errors import StepError
from pipeline_runtime.hashing import U64, hash_columns, primitive_values, split_instants
from pipeline_runtime.kernels import Kernels, select
from pipeline_runtime.sources.gather import one_chunk, to_takeable
from pipeline_runtime.steps.base import SideTable
from pipeline_runtime.steps.list_columns import Bools, Int64s, decode, item_indices

# Buckets per distinct key: with 2, most buckets have no key or one, at 16 bytes per key.
_BUCKETS_PER_KEY = 2
_KEY_SEED = 0
_OFFSET_BYTES = 8  # of a list in `KeyIndex.takeable`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """The values of a column of fixed width, anything where they are null, and their type."""

    array: npt.NDArray[np.generic]
    type: pa.DataType

    def compares_with(self, other: _Values) -> bool:
        """Return whether equal numbers are equal values."""
        are_integers = pa.types.is_integer(self.type) and pa.types.is_integer(other.type)
        return bool(are_integers or self.type == other.type)

    def is_hashed_whole(self, other: _Values) -> bool:
        """Return whether values of both columns are equal if their hashes are.

        The hash of a number of 64 bits is a bijection, and the sign gets lost.
        """
        return all(pa.types.is_signed_integer(each.type) for each in (self, other))


def _values_of(column: pa.ChunkedArray) -> _Values | None:
    """Return the numbers that stand for a column's values; None if there are no such numbers."""
    array = _decoded(column)
    for accepts in _NUMBERS:
        if accepts(array.type):
            number = pa.int32() if array.type.bit_width == 32 else pa.int64()
            plain = array if pa.types.is_integer(array.type) else array.view(number)
            return _Values(array=primitive_values(plain), type=array.type)
    return None


_NUMBERS = (
    pa.types.is_integer,
    pa.types.is_date32,  # a date64 has a time of day, which is no part of the date
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKeys:
    """The keys of the rows that are joined, hashed once for all parts of a side table.

    Attributes:
        values: of each column, what `_values_of` returns.
        is_null: whether a column of the key is null; None if none is.
    """

    columns: tuple[pa.ChunkedArray, ...]
    values: tuple[_Values | None, ...]
    hashes: U64
    is_null: Bools | None

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray], *, kernels: bool = True) -> RowKeys:
        """Return the keys in these columns."""
        chosen = select(kernels, len(columns[0]))
        null = has_null(columns)
        return cls(
            columns=tuple(columns),
            values=tuple(map(_values_of, columns)),
            hashes=hash_columns(columns, _KEY_SEED, chosen),
            is_null=null if null.any() else None,
        )

    def __len__(self) -> int:
        return len(self.hashes)

    def pick(self, rows: slice | Int64s) -> RowKeys:
        """Return the keys of some of the rows."""
        if isinstance(rows, slice):
            columns = [column.slice(rows.start, rows.stop - rows.start) for column in self.columns]
        else:
            columns = [column.take(pa.array(rows)) for column in self.columns]
        return RowKeys(
            columns=tuple(columns),
            values=tuple(
                None if v is None else replace(v, array=v.array[rows]) for v in self.values
            ),
            hashes=self.hashes[rows],
            is_null=None if self.is_null is None else self.is_null[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndex:
    """The rows of a side table by key; rows with a null in the key are not in it.

    `rows` are grouped by key hash, in the table's order within a group; group g spans
    group_starts[g] to group_starts[g + 1] and has the hash group_hashes[g]. Bucket b (the hash's
    upper bits) holds the groups from bucket_starts[b] to bucket_starts[b + 1].

    Attributes:
        takeable: the columns of the table, for `take_takeable`.
        values: of each key column, what `_values_of` returns.
    """

    table: pa.Table
    takeable: pa.Table
    keys: tuple[str, ...]
    values: tuple[_Values | None, ...]
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
        offsets = sum(
            _OFFSET_BYTES * self.table.num_rows
            for name in self.table.column_names
            if self.takeable.column(name).type != self.table.column(name).type
        )
        return int(self.table.nbytes + offsets + sum(array.nbytes for array in arrays))

    def find_each(self, keys: RowKeys, *, kernels: bool = True) -> Int64s | None:
        """Return the table's row for each key, or −1; None if a key may have several."""
        if not self.has_unique_hashes:
            return None
        groups = self._find_groups(keys, select(kernels, len(keys)))
        left = np.flatnonzero(groups >= 0)
        has_all = len(left) == len(groups)
        right = self.rows[groups if has_all else groups[left]]
        right[~self._equal(keys, None if has_all else left, right)] = -1
        if has_all:
            return right
        found = np.full(len(keys), -1)
        found[left] = right
        return found

    def find(
        self, columns: Sequence[pa.ChunkedArray], *, kernels: bool = True
    ) -> tuple[Int64s, Int64s]:
        """Return pairs (row of the columns, row of the table) with equal keys.

        They are ordered by the columns' row, then by the table's, as in SQL's join without a sort.
        """
        return self.find_pairs(RowKeys.of(columns, kernels=kernels), kernels=kernels)

    def find_pairs(self, keys: RowKeys, *, kernels: bool = True) -> tuple[Int64s, Int64s]:
        """Return the pairs of `find`."""
        groups = self._find_groups(keys, select(kernels, len(keys)))
        left = np.flatnonzero(groups >= 0)
        groups = groups[left]
        starts = self.group_starts[groups]
        if self.has_unique_hashes:
            right = self.rows[starts]
        else:
            lengths = self.group_starts[groups + 1] - starts
            left = np.repeat(left, lengths)
            right = self.rows[item_indices(starts, lengths)]
        equal = self._equal(keys, left, right)
        return (left, right) if equal.all() else (left[equal], right[equal])

    def contains(self, keys: RowKeys, *, kernels: bool = True) -> Bools:
        """Return whether each key is in the table; a null key is in no table."""
        if (each := self.find_each(keys, kernels=kernels)) is not None:
            return np.asarray(each >= 0)
        found = np.zeros(len(keys), dtype=np.bool_)
        found[self.find_pairs(keys, kernels=kernels)[0]] = True
        return found

    def _find_groups(self, keys: RowKeys, kernels: Kernels | None) -> Int64s:
        """Return the group with the hash of each key; −1 if there is none, or the key is null."""
        found = np.full(len(keys), -1, dtype=np.int64)
        if kernels is not None:
            shift = np.uint64(self.bucket_shift)
            kernels.find_groups(keys.hashes, shift, self.bucket_starts, self.group_hashes, found)
        else:
            bucket = (keys.hashes >> np.uint64(self.bucket_shift)).view(np.int64)
            starts = self.bucket_starts[bucket]
            lengths = self.bucket_starts[bucket + 1] - starts
            looking = np.flatnonzero(lengths)
            left = np.repeat(looking, lengths[looking])
            groups = item_indices(starts[looking], lengths[looking])
            same = self.group_hashes[groups] == keys.hashes[left]
            found[left[same]] = groups[same]
        if keys.is_null is not None:
            found[keys.is_null] = -1
        return found

    def _equal(self, keys: RowKeys, left: Int64s | None, right: Int64s) -> Bools:
        """Return whether the keys of pairs are equal; `left` None stands for all rows, once."""
        equal = np.ones(len(right), dtype=np.bool_)
        if len(right) == 0:
            return equal
        for number, name in enumerate(self.keys):
            ours, theirs = keys.values[number], self.values[number]
            if ours is not None and theirs is not None and ours.compares_with(theirs):
                if len(self.keys) > 1 or not ours.is_hashed_whole(theirs):
                    chosen = ours.array if left is None else ours.array[left]
                    equal &= chosen == theirs.array[right]
                continue
            column = keys.columns[number]
            column = column if left is None else column.take(pa.array(left))
            equal &= equal_values(column, self.table.column(name).take(pa.array(right)))
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
        takeable=pa.table({name: to_takeable(table.column(name)) for name in table.column_names}),
        keys=tuple(keys),
        values=tuple(map(_values_of, columns)),
        rows=order,
        group_hashes=ordered[firsts],
        group_starts=np.append(firsts, len(ordered)).astype(np.int64),
        bucket_starts=bucket_starts.astype(np.int64),
        bucket_shift=shift,
    )


def describe_repeated(index: KeyIndex) -> str | None:
    """Return how many rows of a table share their key, with an example; None if none does."""
    if index.has_unique_hashes:
        return None
    left, right = index.find([index.table.column(key) for key in index.keys])
    repeated = left[left != right]
    if not len(repeated):
        return None
    example = {key: index.table.column(key)[int(repeated[0])].as_py() for key in index.keys}
    texts = {k: repr(v) if isinstance(v, str | bytes) else str(v) for k, v in example.items()}
    shown = ", ".join(f"{name}={text}" for name, text in texts.items())
    return f"{len(np.unique(repeated)):,} rows share theirs with another, such as {shown}"


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
