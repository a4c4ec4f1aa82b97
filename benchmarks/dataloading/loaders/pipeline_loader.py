"""Lastmile in a user's own loop: `Pipeline.loader` in place of a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.dataloading.workloads import Workload, build_dataset, build_options, build_steps
from pipeline_runtime import Pipeline
from pipeline_runtime.batches import ROW_WEIGHT, Batch

ROW_COLUMN = "item_id"  # has a value for each row, also where a request's columns come once


class PipelineLoader:
    """Epochs of a loader that the workload's pipeline opens."""

    def __init__(self, workload: Workload, device: str | None = None) -> None:
        self._weight_column = workload.weight_column
        self._ones = torch.ones(workload.batch_size, device=device)
        pipeline = Pipeline(
            dataset=build_dataset(workload),
            steps=tuple(build_steps(workload)),
            options=build_options(workload),
        )
        self._loader = pipeline.loader(
            workload.batch_size,
            list(workload.columns),
            shuffle=workload.shuffle,
            deduplicated=workload.is_deduplicated,
            device=device,
            storage_root=workload.root,
        )

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches, with the weights under the name that the model needs."""
        for batch in self._loader:
            if self._weight_column is None:
                batch[ROW_WEIGHT] = self._ones[: len(batch[ROW_COLUMN])]
            else:
                batch[ROW_WEIGHT] = batch[self._weight_column].float()
            yield batch
