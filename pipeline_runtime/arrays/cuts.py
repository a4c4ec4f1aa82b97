"""Cuts batches by rows, and joins them.

Readers convert a whole chunk and cut it into batches; the trainer joins the remaining rows of
several chunks. Cutting and joining keep the rows, but a request is stored once for each part.

Shapes: B rows of a batch, n of a cut, N items of all lists of a column, Q requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from pipeline_runtime.arrays.conversion import (
    OFFSETS_SUFFIX,
    REQUEST_INDEX,
    ROW_WEIGHT,
    VALUES_SUFFIX,
    Array,
    Arrays,
)


def num_rows_of(arrays: Arrays) -> int:
    """Return the number of rows, B."""
    return len(arrays[ROW_WEIGHT])


def cut_arrays(arrays: Arrays, start: int, rows: int, once: Collection[str] = ()) -> Arrays:
    """Return `rows` rows from `start` on: views, except offsets and request indices.

    Args:
        once: columns that stand once a request, if any do; requests without a row in the cut are
            left out.
    """
    return _cut_rows(arrays, _columns_of_rows(arrays, once), start, rows, once)


def split_parts(parts: Iterable[Arrays], rows: int, once: Collection[str] = ()) -> Iterator[Arrays]:
    """Yield cuts of `rows` rows over all parts; the last one has the remaining rows.

    One that lies in a single part is as `cut_arrays` makes it, any other is joined.
    """
    held: list[Arrays] = []
    missing = rows
    for part in parts:
        total, each = num_rows_of(part), _columns_of_rows(part, once)
        start = 0
        while start < total:
            taken = min(missing, total - start)
            held.append(_cut_rows(part, each, start, taken, once))
            start, missing = start + taken, missing - taken
            if not missing:
                yield join_arrays(held, once)
                held, missing = [], rows
    if held:
        yield join_arrays(held, once)


def join_arrays(parts: Sequence[Arrays], once: Collection[str] = ()) -> Arrays:
    """Return all rows of parts that have the same columns; there is at least one part."""
    if len(parts) == 1:
        return parts[0]
    joined: Arrays = {}
    for name in _columns_of(parts[0]):
        if name in parts[0]:
            joined[name] = np.concatenate([part[name] for part in parts])
            continue
        values, offsets = name + VALUES_SUFFIX, name + OFFSETS_SUFFIX
        joined[values] = np.concatenate([part[values] for part in parts])
        joined[offsets] = _join_offsets([part[offsets] for part in parts])
    if REQUEST_INDEX in joined:
        joined[REQUEST_INDEX] = _join_indices(parts, once)
    return joined


def _columns_of(arrays: Arrays) -> list[str]:
    """Return the names of the columns; one name for the two arrays of a list column."""
    names: dict[str, None] = {}
    for name in arrays:
        if not name.endswith((VALUES_SUFFIX, OFFSETS_SUFFIX)):
            names[name] = None
            continue
        suffix = VALUES_SUFFIX if name.endswith(VALUES_SUFFIX) else OFFSETS_SUFFIX
        column = name.removesuffix(suffix)
        is_ragged = column + VALUES_SUFFIX in arrays and column + OFFSETS_SUFFIX in arrays
        names[column if is_ragged and column != name else name] = None
    return list(names)


def _columns_of_rows(arrays: Arrays, once: Collection[str]) -> list[str]:
    """Return the names of the columns that have one value per row."""
    if REQUEST_INDEX not in arrays:
        return _columns_of(arrays)
    return [name for name in _columns_of(arrays) if name not in once and name != REQUEST_INDEX]


def _cut_rows(
    arrays: Arrays, each: Sequence[str], start: int, rows: int, once: Collection[str]
) -> Arrays:
    cut = _cut(arrays, each, start, rows)
    if REQUEST_INDEX not in arrays:
        return cut
    index_n = arrays[REQUEST_INDEX][start : start + rows]
    requests, cut[REQUEST_INDEX] = _used(arrays, once, index_n)
    return cut | requests


def _cut(arrays: Arrays, columns: Iterable[str], start: int, rows: int) -> Arrays:
    cut: Arrays = {}
    for name in columns:
        if name in arrays:
            cut[name] = arrays[name][start : start + rows]
            continue
        offsets_n1 = arrays[name + OFFSETS_SUFFIX][start : start + rows + 1]
        first, end = int(offsets_n1[0]), int(offsets_n1[-1])
        cut[name + VALUES_SUFFIX] = arrays[name + VALUES_SUFFIX][first:end]
        cut[name + OFFSETS_SUFFIX] = offsets_n1 - first
    return cut


def _used(arrays: Arrays, columns: Collection[str], index_n: Array) -> tuple[Arrays, Array]:
    """The requests that these rows use, and each row's place among them."""
    if len(index_n) == 0:
        return _cut(arrays, columns, 0, 0), index_n
    first, last = int(index_n.min()), int(index_n.max())
    requests, own_n = _cut(arrays, columns, first, last - first + 1), index_n - first
    is_used = np.zeros(last - first + 1, dtype=np.bool_)
    is_used[own_n] = True
    if is_used.all():  # views: a request's rows stand together, as they mostly do
        return requests, own_n
    return _take(requests, columns, is_used), (np.cumsum(is_used) - 1)[own_n]


def _take(arrays: Arrays, columns: Collection[str], is_taken_Q: Array) -> Arrays:
    taken: Arrays = {}
    for name in columns:
        if name in arrays:
            taken[name] = arrays[name][is_taken_Q]
            continue
        lengths_Q = np.diff(arrays[name + OFFSETS_SUFFIX])
        taken[name + VALUES_SUFFIX] = arrays[name + VALUES_SUFFIX][np.repeat(is_taken_Q, lengths_Q)]
        taken[name + OFFSETS_SUFFIX] = np.concatenate([[0], np.cumsum(lengths_Q[is_taken_Q])])
    return taken


def _join_offsets(parts: Sequence[Array]) -> Array:
    joined, base = [parts[0]], parts[0][-1]
    for offsets in parts[1:]:
        joined.append(offsets[1:] + base)
        base = base + offsets[-1]
    return np.concatenate(joined)


def _join_indices(parts: Sequence[Arrays], once: Collection[str]) -> Array:
    indices, base = [], 0
    for part in parts:
        indices.append(part[REQUEST_INDEX] + base)
        base += _num_requests(part, once)
    return np.concatenate(indices)


def _num_requests(arrays: Arrays, once: Collection[str]) -> int:
    name = next(iter(once))
    return len(arrays[name]) if name in arrays else len(arrays[name + OFFSETS_SUFFIX]) - 1
