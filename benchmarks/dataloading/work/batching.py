"""Turns pieces of any size into batches of exact size, and packs a piece into one buffer.

Loaders that work on row groups end with these functions: `to_tensors` in the trainer's process,
`pack` and `unpack` for a piece that is sent to another process, `cut` for the batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from benchmarks.dataloading.measuring.checksums import num_rows
from benchmarks.dataloading.work.row_groups import Array
from benchmarks.dataloading.workloads import ONCE
from pipeline_runtime.batches import OFFSETS_SUFFIX, REQUEST_INDEX, VALUES_SUFFIX, Batch

# Alignment of each array in a packed buffer: a multiple of all item sizes, and a cache line.
_ALIGNMENT_BYTES = 64

# A batch, or more, as numpy: a list column is two arrays, see `pipeline_runtime.batches`.
Arrays = dict[str, Array]
# name, dtype, shape, and where it starts in the buffer
Layout = tuple[tuple[str, str, tuple[int, ...], int], ...]


def to_tensors(arrays: Arrays) -> Batch:
    """Return arrays as tensors, without a copy."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def pack(arrays: Arrays) -> tuple[Layout, torch.Tensor]:
    """Pack all arrays in one buffer: one message, and one copy, from worker to trainer."""
    layout, size = [], 0
    for name, array in arrays.items():
        layout.append((name, array.dtype.str, array.shape, size))
        size += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    buffer = np.empty(size, dtype=np.uint8)
    for (_, dtype, shape, start), array in zip(layout, arrays.values(), strict=True):
        np.copyto(_view(buffer, dtype, shape, start), array)
    return tuple(layout), torch.from_numpy(buffer)


def unpack(layout: Layout, buffer: torch.Tensor) -> Batch:
    """Return the packed arrays as tensors, without a copy."""
    packed = buffer.numpy()
    return {
        name: torch.from_numpy(_view(packed, dtype, shape, start))
        for name, dtype, shape, start in layout
    }


def _view(buffer: Any, dtype: str, shape: tuple[int, ...], start: int) -> Any:
    return np.ndarray(shape, np.dtype(dtype), buffer, start)


def cut(pieces: Iterable[Batch], batch_size: int) -> Iterator[Batch]:
    """Yield batches of exact size from pieces of any size; the last one may be smaller."""
    cutter = _Cutter()
    for piece in pieces:
        cutter.add(piece)
        while cutter.rows >= batch_size:
            yield cutter.take(batch_size)
    if cutter.rows:
        yield cutter.take(cutter.rows)


@dataclass(slots=True)
class _Cutter:
    """Pieces that wait to be cut; the first one from row `offset` on."""

    rows: int = 0
    _pieces: list[Batch] = field(default_factory=list)
    _offset: int = 0

    def add(self, piece: Batch) -> None:
        self._pieces.append(piece)
        self.rows += num_rows(piece)

    def take(self, rows: int) -> Batch:
        """Return the next rows; there must be at least as many."""
        self.rows -= rows
        parts = []
        while rows:
            head = self._pieces[0]
            taken = min(rows, num_rows(head) - self._offset)
            if taken:
                parts.append(slice_rows(head, self._offset, self._offset + taken))
            self._offset += taken
            rows -= taken
            if self._offset == num_rows(head):
                self._pieces.pop(0)
                self._offset = 0
        return parts[0] if len(parts) == 1 else join(parts)


def slice_rows(piece: Batch, start: int, stop: int) -> Batch:
    """Return rows of a piece with their requests; views, except for offsets and indices."""
    if REQUEST_INDEX not in piece:
        return _slice(piece, start, stop)
    index_B = piece[REQUEST_INDEX][start:stop]
    first, last = int(index_B[0]), int(index_B[-1])
    once = {name: tensor for name, tensor in piece.items() if _is_once(name)}
    each = {n: t for n, t in piece.items() if n not in once and n != REQUEST_INDEX}
    batch = _slice(each, start, stop) | _slice(once, first, last + 1)
    return batch | {REQUEST_INDEX: index_B - first}


def _is_once(name: str) -> bool:
    return name.removesuffix(OFFSETS_SUFFIX).removesuffix(VALUES_SUFFIX) in ONCE


def _slice(piece: Batch, start: int, stop: int) -> Batch:
    batch: Batch = {}
    for name, tensor in piece.items():
        if name.endswith(OFFSETS_SUFFIX):
            offsets_B1 = tensor[start : stop + 1]
            batch[name] = offsets_B1 - offsets_B1[0]
        elif name.endswith(VALUES_SUFFIX):
            offsets = piece[name.removesuffix(VALUES_SUFFIX) + OFFSETS_SUFFIX]
            batch[name] = tensor[int(offsets[start]) : int(offsets[stop])]
        else:
            batch[name] = tensor[start:stop]
    return batch


def join(parts: list[Batch]) -> Batch:
    """Concatenate pieces by copying them."""
    return {name: _join_column(parts, name) for name in parts[0]}


def _join_column(parts: list[Batch], name: str) -> torch.Tensor:
    columns = [part[name] for part in parts]
    if name == REQUEST_INDEX:
        firsts = [0, *accumulate(int(column[-1]) + 1 for column in columns)]
        return torch.cat([column + first for column, first in zip(columns, firsts, strict=False)])
    if not name.endswith(OFFSETS_SUFFIX):
        return torch.cat(columns)
    lengths = torch.cat([column.diff() for column in columns])
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
