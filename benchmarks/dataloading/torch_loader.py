"""A torch DataLoader over row groups, as a good engineer writes it, in two variants.

    dataloader        workers read row groups, do the work and hand on batches of exact size
    dataloader-ship   workers hand on whole row groups, each packed in one buffer, and the trainer
                      slices them: fewer messages between processes

Each row group is one unit of work, shared out to the workers in turn; rows left over wait for the
next row group, so that all batches but each worker's (or the trainer's) last are full. Workers are
forked, as torch does by default on Linux.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.dataloading.arrow_work import Arrays, process
from benchmarks.dataloading.checksums import num_rows
from benchmarks.dataloading.workloads import BATCH_SIZE, SPAM_KEY, Workload
from pipeline_runtime.batches import OFFSETS_SUFFIX, VALUES_SUFFIX, Batch

# Batches, or row groups, that each worker makes ahead; torch's default is 2, and a row group is
# four batches.
_PREFETCH_BATCHES = 8
_PREFETCH_ROW_GROUPS = 2
# Where each array starts in a packed buffer: a multiple of every item size, and a cache line.
_ALIGNMENT_BYTES = 64

# name, dtype, shape, and where it starts in the buffer
Layout = tuple[tuple[str, str, tuple[int, ...], int], ...]


class TorchLoader:
    """One epoch by a DataLoader; `ships_row_groups` chooses the variant."""

    def __init__(self, workload: Workload, num_workers: int, *, ships_row_groups: bool) -> None:
        self._ships = ships_row_groups
        ahead = _PREFETCH_ROW_GROUPS if ships_row_groups else _PREFETCH_BATCHES
        self._loader: DataLoader[Any] = DataLoader(
            RowGroups(workload, ships=ships_row_groups),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=ahead if num_workers else None,
            multiprocessing_context="fork" if num_workers else None,
        )

    def batches(self) -> Iterator[Batch]:
        """The epoch's batches."""
        if self._ships:
            yield from cut(unpack(layout, buffer) for layout, buffer in self._loader)
        else:
            yield from self._loader

    def profile(self) -> dict[str, float]:
        """Nothing is counted inside."""
        return {}


def _as_it_is(value: Any) -> Any:
    return value


class RowGroups(IterableDataset[Any]):
    """This worker's share of a table's row groups, worked on."""

    def __init__(self, workload: Workload, *, ships: bool) -> None:
        self._workload = workload
        self._ships = ships
        files = pads.dataset(f"{workload.root}/impressions", format="parquet").files
        self._units = [(path, i) for path in files for i in range(_num_row_groups(path))]
        self._spam = None
        if workload.level != "none":
            table = pq.read_table(f"{workload.root}/spam_users", columns=[SPAM_KEY])
            self._spam = table.column(SPAM_KEY).combine_chunks()

    def __iter__(self) -> Iterator[Any]:
        if self._ships:
            return (pack(arrays) for arrays in self._row_groups())
        return cut(to_tensors(arrays) for arrays in self._row_groups())

    def _row_groups(self) -> Iterator[Arrays]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        columns = list(self._workload.read_columns)
        for path, row_group in self._units[first::step]:
            with pq.ParquetFile(path) as file:
                # Without workers pyarrow's own threads are the only parallel ones.
                table = file.read_row_group(row_group, columns, use_threads=worker is None)
            yield process(table, self._workload, self._spam)


def _num_row_groups(path: str) -> int:
    with pq.ParquetFile(path) as file:
        return int(file.num_row_groups)


def to_tensors(arrays: Arrays) -> Batch:
    """Arrays as tensors, without a copy."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def pack(arrays: Arrays) -> tuple[Layout, torch.Tensor]:
    """All arrays in one buffer: one message, and one copy, from worker to trainer."""
    layout, size = [], 0
    for name, array in arrays.items():
        layout.append((name, array.dtype.str, array.shape, size))
        size += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    buffer = np.empty(size, dtype=np.uint8)
    for (_, dtype, shape, start), array in zip(layout, arrays.values(), strict=True):
        np.copyto(_view(buffer, dtype, shape, start), array)
    return tuple(layout), torch.from_numpy(buffer)


def unpack(layout: Layout, buffer: torch.Tensor) -> Batch:
    """The packed arrays as tensors, without a copy."""
    packed = buffer.numpy()
    return {
        name: torch.from_numpy(_view(packed, dtype, shape, start))
        for name, dtype, shape, start in layout
    }


def _view(buffer: Any, dtype: str, shape: tuple[int, ...], start: int) -> Any:
    return np.ndarray(shape, np.dtype(dtype), buffer, start)


def cut(pieces: Iterable[Batch]) -> Iterator[Batch]:
    """Batches of exact size from pieces of any; the last one is what is left."""
    cutter = _Cutter()
    for piece in pieces:
        cutter.add(piece)
        while cutter.rows >= BATCH_SIZE:
            yield cutter.take(BATCH_SIZE)
    if cutter.rows:
        yield cutter.take(cutter.rows)


@dataclass(slots=True)
class _Cutter:
    """Pieces that wait to be cut, the first one from `offset` on."""

    rows: int = 0
    _pieces: list[Batch] = field(default_factory=list)
    _offset: int = 0

    def add(self, piece: Batch) -> None:
        self._pieces.append(piece)
        self.rows += num_rows(piece)

    def take(self, rows: int) -> Batch:
        """The next rows; `rows` is at most what is there."""
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
    """Rows of a piece; views, but for the offsets of lists."""
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
    """Pieces one after another, copied."""
    return {name: _join_column(parts, name) for name in parts[0]}


def _join_column(parts: list[Batch], name: str) -> torch.Tensor:
    columns = [part[name] for part in parts]
    if not name.endswith(OFFSETS_SUFFIX):
        return torch.cat(columns)
    lengths = torch.cat([column.diff() for column in columns])
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
