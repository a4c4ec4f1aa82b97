"""The work of each level on one row group, as a good engineer writes it without Lastmile.

It computes the mask from the small columns first, and then gathers the remaining rows once, in
their final form, with numpy and with kernels that numba compiles. Columns that batches carry once
per request are gathered once per request. Peers that read by themselves call it on row groups,
peers with an engine on the engine's output: an engine scans, projects and drops spam users, and
makes the next chunks with its threads meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.dataloading.work import numba_work
from benchmarks.dataloading.work.batching import Arrays, cut, to_tensors
from benchmarks.dataloading.work.numba_work import take_lists
from benchmarks.dataloading.work.row_groups import (
    Array,
    Columns,
    Footers,
    Int64s,
    Unit,
    flat_columns,
    read_unit,
)
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
from pipeline_runtime.batches import (
    OFFSETS_SUFFIX,
    REQUEST_INDEX,
    ROW_WEIGHT,
    VALUES_SUFFIX,
    Batch,
)

Bools = npt.NDArray[np.bool_]

# Rows of an engine's chunk, as many as in a row group: few enough to wait for, many enough for
# vectorised work.
CHUNK_ROWS: Final = 16_384


def make_piece(
    unit: Unit,
    workload: Workload,
    spam: pa.Array | None,
    footers: Footers,
    *,
    threads: bool = False,
) -> Arrays:
    """Return the remaining rows of a row group in their final form."""
    return process(read_unit(unit, workload, footers, threads=threads), workload, spam)


def batches_of(chunks: Iterable[pa.Table], workload: Workload) -> Iterator[Batch]:
    """Yield batches of an engine's chunks, which have no rows of spam users."""
    pieces = (to_tensors(process(flat_columns(_plain(c)), workload, None)) for c in chunks)
    return cut(pieces, workload.batch_size)


def _plain(table: pa.Table) -> pa.Table:
    """Convert string views to strings: Arrow cannot fill nulls of views."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            text = table.column(index).cast(pa.large_string())
            table = table.set_column(index, field.name, text)
    return table


def process(columns: Columns, workload: Workload, spam: pa.Array | None) -> Arrays:
    """Return the remaining rows of a row group as arrays.

    Args:
        columns: the columns in use.
        workload: its level defines the work.
        spam: the ids of spam users; None if their rows are removed already, or stay.
    """
    if workload.level == "heavy":
        return _process_heavy(columns, spam, is_once=workload.is_deduplicated)
    picked = _Picked(columns, None, is_once=workload.is_deduplicated)
    arrays = picked.index
    for name in workload.columns:
        arrays.update(_convert(name, columns.arrays[name], picked.places(name)))
    return arrays | {ROW_WEIGHT: np.ones(columns.num_rows, dtype=np.float32)}


class _Picked:
    """The remaining rows (None: all), and the place of their values in each column."""

    def __init__(self, columns: Columns, rows: Int64s | None, *, is_once: bool) -> None:
        self._columns, self._rows, self._is_once = columns, rows, is_once
        self.index: Arrays = {}  # the request of each row, if batches carry requests
        if is_once:
            self._requests, self.index[REQUEST_INDEX] = columns.requests_of(rows)

    def places(self, name: str) -> Any:
        """Return places in the column's array: one per row, or per request if it is carried once.

        None means all places in order; only if no row was removed.
        """
        if not self._is_once or name not in ONCE:
            return self._columns.places(name, self._rows)
        if self._columns.first_of is not None:
            return self._columns.first_of[self._requests]
        return None if self._rows is None else self._requests


def _process_heavy(columns: Columns, spam: pa.Array | None, *, is_once: bool) -> Arrays:
    saves = pc.fill_null(columns.arrays["saves"], 0)
    label = to_numpy(columns.arrays["clicked"]) | (to_numpy(saves) > 0)
    kept = label | is_drawn(columns.arrays[ROW_KEY])
    if spam is not None:
        kept &= ~_is_spam(columns, spam)
    rows = np.flatnonzero(kept)
    picked = _Picked(columns, rows, is_once=is_once)
    arrays = picked.index
    for name in KEPT_COLUMNS:
        arrays[name] = to_numpy(columns.arrays[name])[picked.places(name)]
    values, offsets = _values_and_offsets(columns.arrays[SEQUENCE])
    arrays[SEQUENCE] = numba_work.pad_rows(
        values, offsets, picked.places(SEQUENCE), SEQUENCE_LENGTH
    )
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
    """Return whether each row stays if it is a negative, by Lastmile's hash."""
    return numba_work.is_drawn(to_numpy(row_keys), DOWNSAMPLE_SEED, KEEP_PERCENT)


def hash_ids(values: pa.Array) -> Int64s:
    """Hash ids without nulls to buckets, by Lastmile's hash."""
    if pa.types.is_integer(values.type):
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
    values, offsets = _values_and_offsets(array)
    if places is None:
        values, offsets = values[offsets[0] : offsets[-1]], offsets - offsets[0]
    else:
        values, offsets = take_lists(values, offsets, places)
    return {name + VALUES_SUFFIX: values, name + OFFSETS_SUFFIX: offsets}
