"""Lightning modules that write down their rows, for processes that tests spawn."""

from __future__ import annotations

from pathlib import Path

import torch
from documented_code import run_documented
from pytorch_lightning import LightningModule
from torch import nn

from pipeline_runtime import Pipeline
from pipeline_runtime.batches import ROW_WEIGHT, Batch
from pipeline_runtime.loader import Loader


class RowsModule(LightningModule):
    """Trains on a loader, and appends the rows of each step to a file of its rank."""

    def __init__(self, pipeline: Pipeline, log: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self._pipeline = pipeline
        self._log = log

    def train_dataloader(self) -> Loader:
        return self._pipeline.loader(100, ["x"], shuffle=True)

    def val_dataloader(self) -> Loader:
        return self._pipeline.loader(100, ["x"])

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        weight = batch.get(ROW_WEIGHT, torch.ones(len(batch["x"])))
        rows = [int(x) for x in batch["x"][weight > 0]]
        with self._log.with_suffix(f".{self.global_rank}").open("a") as log:
            log.write(f"{rows}\n")
        losses = (self.linear(batch["x"][:, None] / 1000)[:, 0] - 1.0) ** 2
        return (losses * weight).sum()

    def validation_step(self, batch: Batch, index: int) -> None:
        weight = batch.get(ROW_WEIGHT, torch.ones(len(batch["x"])))
        self.log("num_rows", weight.sum(), reduce_fx="sum", sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


class CountingRowsModule(RowsModule):
    """The same with the documented hook, for a loader of unknown length."""

    on_save_checkpoint = run_documented("loader.md", "Lightning")["on_save_checkpoint"]
