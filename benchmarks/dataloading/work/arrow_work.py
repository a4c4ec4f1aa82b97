"""The work of each level on one row group, as a good engineer writes it without Lastmile.

It computes the mask from the small columns first, and then gathers the remaining rows once, in
their final form: with vectorised numpy, or with numba if it is installed. Columns that batches
carry once per request are gathered once per request. Peers that read by themselves call it on row
groups, peers with an engine on the engine's output.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.dataloading.work.row_group_columns import Array, Columns, Int64s, requests_of
from benchmarks.dataloading.workloads import (
    CONVERSION_WEIGHT,
    DOWNSAMPLE_SEED,
    HASH_SEED,
    HASHED,
    KEEP_PERCENT,
    KEPT_COLUMNS,
    NUM_BUCKETS,
    ONCE,
    ROW_KEY,
    SEQUENCE,
    SEQUENCE_LENGTH,
    SPAM_KEY,
    TEXTS,
    UNKNOWN_TEXT,
    Workload,
)
from pipeline_runtime import hashing
from pipeline_runtime.batches import OFFSETS_SUFFIX, REQUEST_INDEX, ROW_WEIGHT, VALUES_SUFFIX

try:
    from benchmarks.dataloading.work import numba_work
except ModuleNotFoundError:
    numba_work = None  # type: ignore[assignment]

Bools = npt.NDArray[np.bool_]
# A batch, or more, as numpy: a list column is two arrays, see `pipeline_runtime.batches`.
Arrays = dict[str, Array]

# Rows padded at a time, so that their index matrix stays in the second-level cache.
_PAD_ROWS = 2048


def process(columns: Columns, workload: Workload, spam: pa.Array | None) -> Arrays:
    """Return the remaining rows of a row group as arrays.

    Args:
        columns: the columns in use.
        workload: its level defines the work.
        spam: the ids of spam users; None if their rows are removed already, or stay.
    """
    if workload.level == "heavy":
        return _process_heavy(columns, spam, is_once=workload.is_deduplicated)
    rows = None if spam is None else np.flatnonzero(~_is_spam(columns, spam))
    picked = _Picked(columns, rows, is_once=workload.is_deduplicated)
    arrays = picked.index()
    for name in workload.columns:
        arrays.update(_convert(name, columns.arrays[name], picked.places(name)))
    num_rows = columns.num_rows if rows is None else len(rows)
    arrays[ROW_WEIGHT] = np.ones(num_rows, dtype=np.float32)
    return arrays


class _Picked:
    """The remaining rows, and the place of their values in each column."""

    def __init__(self, columns: Columns, rows: Int64s | None, *, is_once: bool) -> None:
        self._columns, self._rows = columns, rows
        self._requests: tuple[Int64s, Int64s] | None = None
        if is_once:
            self._requests = requests_of(columns, rows)

    def places(self, name: str) -> Any:
        """Return places in the column's array: one per row, or per request if it is carried once.

        None means all places in order; only if no row was removed.
        """
        if self._requests is None or name not in ONCE:
            return self._columns.places(name, self._rows)
        if self._rows is None and self._columns.first_of is None:
            return None  # all requests, as they are stored
        return self._columns.places_once(self._requests[0])

    def index(self) -> Arrays:
        """The request of each row, if batches carry requests."""
        return {} if self._requests is None else {REQUEST_INDEX: self._requests[1]}


def _process_heavy(columns: Columns, spam: pa.Array | None, *, is_once: bool) -> Arrays:
    saves = pc.fill_null(columns.arrays["saves"], 0)
    label = to_numpy(columns.arrays["clicked"]) | (to_numpy(saves) > 0)
    kept = label | is_drawn(columns.arrays[ROW_KEY])
    if spam is not None:
        kept &= ~_is_spam(columns, spam)
    rows = np.flatnonzero(kept)
    picked = _Picked(columns, rows, is_once=is_once)
    arrays = picked.index()
    for name in KEPT_COLUMNS:
        arrays[name] = to_numpy(columns.arrays[name])[picked.places(name)]
    arrays[SEQUENCE] = pad_rows(columns.arrays[SEQUENCE], picked.places(SEQUENCE))
    for name in HASHED:
        arrays[name] = _hash_column(columns, name, picked.places(name))
    arrays["label"] = label = label[rows]
    is_conversion = to_numpy(columns.arrays["conversion_delay_hours"].is_valid())[rows]
    arrays["sample_weight"] = arrays[ROW_WEIGHT] = weigh(label, is_conversion)
    return arrays


def _is_spam(columns: Columns, spam: pa.Array) -> Bools:
    is_spam = to_numpy(pc.is_in(columns.arrays[SPAM_KEY], value_set=spam))
    places = columns.places(SPAM_KEY, None)
    return is_spam if places is None else is_spam[places]


def _hash_column(columns: Columns, name: str, places: Int64s) -> Int64s:
    """Hash the remaining values; values that a request has once are hashed once."""
    values = columns.arrays[name]
    if name in columns.once:
        return hash_ids(fill(name, values))[places]
    return hash_ids(fill(name, values.take(pa.array(places))))


def is_drawn(row_keys: pa.Array) -> Bools:
    """Return whether each row stays if it is a negative, by Lastmile's kernel."""
    if numba_work is not None:
        return numba_work.is_drawn(to_numpy(row_keys), DOWNSAMPLE_SEED, KEEP_PERCENT)
    return hashing.keep_mask(hashing.hash_columns([row_keys], 0), DOWNSAMPLE_SEED, KEEP_PERCENT)


def hash_ids(values: pa.Array) -> Int64s:
    """Hash ids without nulls to buckets, by Lastmile's kernel."""
    if numba_work is not None and pa.types.is_integer(values.type):
        return numba_work.hash_ids(to_numpy(values), HASH_SEED, NUM_BUCKETS)
    return hashing.bucket_of(values, HASH_SEED, NUM_BUCKETS)


def fill(name: str, values: pa.Array) -> pa.Array:
    """Fill the nulls of categorical values."""
    return pc.fill_null(values, UNKNOWN_TEXT if name in TEXTS else 0)


def weigh(label: Bools, is_conversion: Bools) -> npt.NDArray[np.float32]:
    """Return sample weights: a kept negative counts four times, a conversion twice."""
    weights = np.where(label, 1.0, 100 / KEEP_PERCENT)
    weights *= np.where(is_conversion, CONVERSION_WEIGHT, 1.0)
    return weights.astype(np.float32)


def pad_rows(lists: pa.ListArray, rows: Int64s) -> Int64s:
    """Return the rows' lists, cut or padded with zeros to `SEQUENCE_LENGTH` [rows, length]."""
    values, offsets = _values_and_offsets(lists)
    if numba_work is not None:
        return numba_work.pad_rows(values, offsets, rows, SEQUENCE_LENGTH)
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    padded = np.empty((len(rows), SEQUENCE_LENGTH), dtype=np.int64)
    places = np.arange(SEQUENCE_LENGTH)
    for first in range(0, len(rows), _PAD_ROWS):
        block = slice(first, first + _PAD_ROWS)
        np.take(values, starts[block, None] + places, mode="clip", out=padded[block])
        padded[block][places >= lengths[block, None]] = 0
    return padded


def take_lists(lists: pa.ListArray, rows: Int64s) -> tuple[Array, Int64s]:
    """Return the rows' lists as values [items] and offsets [rows + 1]."""
    values, offsets = _values_and_offsets(lists)
    if numba_work is not None:
        return numba_work.take_lists(values, offsets, rows)
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    items = np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths)
    return values[items], ends


def _values_and_offsets(lists: pa.ListArray) -> tuple[Array, Int64s]:
    return to_numpy(lists.values), to_numpy(lists.offsets).astype(np.int64)


def to_numpy(array: pa.Array) -> Array:
    """Return an array's values, as a view if possible. Null floats become NaN."""
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _convert(name: str, array: pa.Array, places: Int64s | None) -> Arrays:
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        values = to_numpy(array)
        return {name: values if places is None else values[places]}
    if places is None:
        values, offsets = _values_and_offsets(array)
        values, offsets = values[offsets[0] : offsets[-1]], offsets - offsets[0]
    else:
        values, offsets = take_lists(array, places)
    return {name + VALUES_SUFFIX: values, name + OFFSETS_SUFFIX: offsets}
