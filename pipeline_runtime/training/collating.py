"""Tables to batches on the device; the next one is made while the trainer works on this one.

Only what no other rank has a say in is done ahead: rows of a piece that has arrived are converted,
and pinned where a GPU copies them. Which rows a step consumes is decided when it is taken.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import torch

from pipeline_runtime.batches import Batch, pin, to_batch, to_device
from pipeline_runtime.feed.base import Waited


class Collator:
    """Makes one stream's batches.

    Args:
        device: of the batches.
        weight_column, label_column: as `to_batch` takes them.
        ahead: whether the next batch is begun before it is asked for.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        weight_column: str | None,
        label_column: str | None,
        ahead: bool,
    ) -> None:
        self._device = device
        self._weight_column, self._label_column = weight_column, label_column
        self._thread = ThreadPoolExecutor(1, "lastmile-collate") if ahead else None
        self._begun: tuple[pa.Table, Future[Batch]] | None = None

    def make(self, table: pa.Table, following: pa.Table | None, waited: Waited) -> Batch:
        """The batch of a table; the time that it took, or was waited for, goes to `waited`.

        Args:
            following: what the next call will ask for, where that is known.

        Raises TrainingError as `to_batch` does.
        """
        started = time.perf_counter()
        begun, self._begun = self._begun, None
        batch = begun[1].result() if begun and begun[0] is table else self._collate(table)
        if self._thread is not None and following is not None:
            self._begun = (following, self._thread.submit(self._collate, following))
        collated = time.perf_counter()
        waited.collate += collated - started
        batch = to_device(batch, self._device)
        waited.transfer += time.perf_counter() - collated
        return batch

    def _collate(self, table: pa.Table) -> Batch:
        batch = to_batch(
            table,
            weight_column=self._weight_column,
            label_column=self._label_column,
            writable=self._device.type == "cpu",  # else the copy to the device is the user's
        )
        return pin(batch) if self._device.type == "cuda" else batch
