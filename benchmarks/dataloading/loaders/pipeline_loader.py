"""Lastmile in a user's own loop: `Pipeline.loader` in place of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.dataloading.workloads import Workload, build_pipeline
from pipeline_runtime.batches import ROW_WEIGHT, Batch


class PipelineLoader:
    """Epochs of a loader that the workload's pipeline opens."""

    def __init__(self, workload: Workload, device: str | None = None) -> None:
        self._weight_column = workload.weight_column
        self._ones = torch.ones(workload.batch_size, device=device)
        self._loader = build_pipeline(workload).loader(
            workload.batch_size,
            list(workload.columns),
            deduplicated=workload.is_deduplicated,
            device=device,
            storage_root=workload.root,
        )

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches, with the weights under the name that a run gives them."""
        for batch in self._loader:
            if self._weight_column is None:
                # `item_id` has a value for each row, also where a request's columns come once.
                batch[ROW_WEIGHT] = self._ones[: len(batch["item_id"])]
            else:
                batch[ROW_WEIGHT] = batch[self._weight_column].float()
            yield batch
