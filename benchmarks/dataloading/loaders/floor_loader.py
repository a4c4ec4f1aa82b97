"""The decode floor: pyarrow reads row groups on several threads, and nothing else is done.

No loader that decodes the same columns with pyarrow can be faster. The floor is also the
calibration before each round. It returns the identities of the rows, views of the decoded columns,
which prove that every row was read.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.dataloading.work.ahead import in_threads
from benchmarks.dataloading.work.arrow_work import to_numpy
from benchmarks.dataloading.work.row_group_columns import Columns
from benchmarks.dataloading.work.row_groups import Footers, Unit, list_units, read_unit
from benchmarks.dataloading.workloads import ROW_ID_COLUMNS, Workload
from pipeline_runtime.batches import ROW_WEIGHT, Batch


class FloorLoader:
    """Epochs of decoding alone."""

    num_threads = 2

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._footers = Footers()
        self._units = list_units(workload, self._footers)

    def batches(self) -> Iterator[Batch]:
        """Yield the identities of the rows, row group by row group."""
        return map(_identities, in_threads(self._read, self._units, self.num_threads))

    def _read(self, unit: Unit) -> Columns:
        return read_unit(unit, self._workload, self._footers)

    def profile(self) -> dict[str, float]:
        """Return nothing: this loader counts no seconds."""
        return {}


class OneThreadFloor(FloorLoader):
    """Epochs of decoding alone, on one thread."""

    num_threads = 1


def _identities(columns: Columns) -> Batch:
    batch = {}
    for name in ROW_ID_COLUMNS:
        values, places = to_numpy(columns.arrays[name]), columns.places(name, None)
        batch[name] = torch.from_numpy(values if places is None else values[places])
    return batch | {ROW_WEIGHT: torch.ones(columns.num_rows)}
