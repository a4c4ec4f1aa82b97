"""Ray Data as an expert would set it up: a task reads row groups, does the work, and packs.

Each difference from `stock_loader` avoids a measured cost:

- `range` and one `map_batches` that reads: raw rows pass the object store once less;
- one block per row group, in one buffer, without slicing: blocks are copied once and never cut;
- several row groups per task, tuned: each block costs the executor milliseconds;
- batches are cut by hand from views of shared memory: `iter_torch_batches` would convert and copy.

The rest is Ray Data: its executor, its back-pressure, its recovery of lost tasks.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray
import ray.data
import torch

from benchmarks.dataloading.jobs import Tuning
from benchmarks.dataloading.work.arrow_work import make_piece
from benchmarks.dataloading.work.batching import cut, pack, unpack
from benchmarks.dataloading.work.row_groups import Footers, Unit, list_units, read_spam
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.batches import Batch

_LAYOUT, _BUFFER = "layout", "buffer"
# Blocks that are fetched ahead, so that the trainer does not wait for the executor.
_BLOCKS_AHEAD = 4
_FOOTERS = Footers()  # per process: a worker of Ray keeps them between tasks


class RayTunedLoader:
    """Epochs by Ray Data, tuned."""

    def __init__(self, workload: Workload, tuning: Tuning) -> None:
        self._batch_size = workload.batch_size
        units = list_units(workload, Footers())
        shares = [units[i : i + tuning.groups] for i in range(0, len(units), tuning.groups)]
        held = ray.put((workload, shares, read_spam(workload)))

        def read(block: pa.Table) -> Iterator[pa.Table]:
            work, all_shares, spam = ray.get(held)
            for task in block.column("id").to_pylist():
                yield from _make_blocks(work, all_shares[task], spam)

        dataset = ray.data.range(len(shares), override_num_blocks=len(shares))
        self._dataset = dataset.map_batches(
            read, batch_size=None, batch_format="pyarrow", zero_copy_batch=True
        )
        _configure(self._dataset.context)

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        blocks = self._dataset.iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=_BLOCKS_AHEAD
        )
        return cut((piece for block in blocks for piece in _pieces(block)), self._batch_size)


def _configure(context: ray.data.DataContext) -> None:
    context.target_max_block_size = None  # no block is ever sliced
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False
    context.enable_get_object_locations_for_metrics = False
    context.memory_usage_poll_interval_s = None  # no thread that watches each task's memory
    context.execution_options.preserve_order = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def _make_blocks(
    workload: Workload, units: Sequence[Unit], spam: pa.Array | None
) -> Iterator[pa.Table]:
    for unit in units:
        layout, buffer = pack(make_piece(unit, workload, spam, _FOOTERS))
        yield pa.table(
            {
                _LAYOUT: pa.array([pickle.dumps(layout)], pa.binary()),
                _BUFFER: _as_one_value(buffer.numpy()),
            }
        )


def _as_one_value(buffer: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the buffer as the only value of a column, without a copy."""
    offsets = np.array([0, len(buffer)], dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    return pa.Array.from_buffers(pa.large_binary(), 1, buffers)


def _pieces(block: pa.Table) -> Iterator[Batch]:
    for layout, packed in zip(block.column(_LAYOUT), block.column(_BUFFER), strict=True):
        buffer = np.frombuffer(packed.as_buffer(), np.uint8)
        yield unpack(pickle.loads(layout.as_py()), torch.from_numpy(buffer))
