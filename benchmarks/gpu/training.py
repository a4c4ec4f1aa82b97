"""A process that trains a model on batches that come in one way, an epoch for each request.

`python -m benchmarks.gpu.training WAY ROOT DEVICE` answers the requests of `__main__`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.dataloading.loaders.pipeline_loader import PipelineLoader
from benchmarks.dataloading.loaders.row_groups import RowGroups, cut
from benchmarks.dataloading.workloads import DENSE, HASHED, NUM_BUCKETS, SEQUENCE, Workload
from benchmarks.harness.machine import describe_machine, num_cores
from benchmarks.harness.serving import serve
from pipeline_runtime.batches import ROW_WEIGHT, Batch

LASTMILE: Final = "Pipeline.loader"  # the other way is a DataLoader
BATCH_SIZE: Final = 16_384
_SEED: Final = 7  # of the first weights, equal for every way
_EMBEDDING_DIM: Final = 64
_HIDDEN: Final = 1024


class Model(nn.Module):
    """A small ranking model: embeddings, the mean of those of the sequence, and three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = nn.Embedding(NUM_BUCKETS, _EMBEDDING_DIM)
        self.items = nn.EmbeddingBag(NUM_BUCKETS, _EMBEDDING_DIM)
        width = len(DENSE) + (len(HASHED) + 1) * _EMBEDDING_DIM
        self.layers = nn.Sequential(
            *(nn.Linear(width, _HIDDEN), nn.ReLU()),
            *(nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU()),
            nn.Linear(_HIDDEN, 1),
        )

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the logits [B]."""
        dense_BD = torch.stack([batch[name] for name in DENSE], 1).nan_to_num()
        ids_BC = torch.stack([batch[name] for name in HASHED], 1)
        embedded = [self.ids(ids_BC).flatten(1), self.items(batch[SEQUENCE] % NUM_BUCKETS)]
        logits_B: torch.Tensor = self.layers(torch.cat([dense_BD, *embedded], 1)).squeeze(1)
        return logits_B


class WorkerBatches(IterableDataset[Any]):
    """Batches that a worker makes of its row groups."""

    def __init__(self, workload: Workload) -> None:
        self._groups = RowGroups(workload)

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        assert worker is not None
        mine = range(worker.id, len(self._groups), worker.num_workers)
        return cut((self._groups.make(index) for index in mine), BATCH_SIZE)


def open_way(way: str, workload: Workload, device: torch.device) -> Callable[[], Iterable[Batch]]:
    """Return the function that begins an epoch of batches on the device, as users write it."""
    if way == LASTMILE:
        return PipelineLoader(workload, str(device)).batches
    loader = DataLoader(
        WorkerBatches(workload),
        batch_size=None,
        num_workers=num_cores(),
        pin_memory=device.type == "cuda",
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    return lambda: (
        {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        for batch in loader
    )


def open_training(way: str, root: str, name: str) -> tuple[str, Callable[[Any], Any]]:
    """Return the device's name, and the function that trains an epoch."""
    # Batches are only read here, so their memory may be read-only.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    torch.manual_seed(_SEED)
    device = torch.device(name)
    open_epoch = open_way(way, Workload(level="heavy", root=root, batch_size=BATCH_SIZE), device)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    is_gpu = device.type == "cuda"
    title = torch.cuda.get_device_name() if is_gpu else f"{describe_machine()['processor']} (CPU)"
    return title, lambda _: train_epoch(open_epoch, model, optimizer)


def train_epoch(
    open_epoch: Callable[[], Iterable[Batch]], model: Model, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Train one epoch; return its metrics, and a checksum of the rows that reached the device."""
    rows, waited, checksum = 0, 0.0, torch.zeros((), dtype=torch.int64)
    started = asked = time.perf_counter()
    for batch in open_epoch():
        waited += time.perf_counter() - asked
        losses_B = F.binary_cross_entropy_with_logits(
            model(batch), batch["label"].float(), reduction="none"
        )
        optimizer.zero_grad()
        (losses_B * batch[ROW_WEIGHT]).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        rows += len(losses_B)
        names = ("request_id", "position", SEQUENCE, *HASHED)
        checksum = checksum + sum(n * batch[name].sum() for n, name in enumerate(names, 1))
        asked = time.perf_counter()
    total = int(checksum)  # waits for the device
    seconds = time.perf_counter() - started
    values = {"samplesPerSecond": rows / seconds, "waitedShare": waited / seconds}
    return {"values": values, "checksum": {"rows": rows, "ids": total}}


if __name__ == "__main__":
    serve(lambda: open_training(*sys.argv[1:]))
