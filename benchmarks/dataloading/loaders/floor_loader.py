"""The decode floor: row groups read by pyarrow on so many threads, and nothing done with them.

No reader of these files that leaves all columns in use to pyarrow can be faster. It is the
calibration before each round too. What it hands on are the rows' identities, views of what was
decoded, which say that every row was read.
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
        """Identities of the row groups' rows."""
        return map(_identities, in_threads(self._read, self._units, self.num_threads))

    def _read(self, unit: Unit) -> Columns:
        return read_unit(unit, self._workload, self._footers)

    def profile(self) -> dict[str, float]:
        """Nothing is counted inside."""
        return {}


class OneThreadFloor(FloorLoader):
    """The same on one thread."""

    num_threads = 1


def _identities(columns: Columns) -> Batch:
    batch = {}
    for name in ROW_ID_COLUMNS:
        values, places = to_numpy(columns.arrays[name]), columns.places(name, None)
        batch[name] = torch.from_numpy(values if places is None else values[places])
    return batch | {ROW_WEIGHT: torch.ones(columns.num_rows)}
