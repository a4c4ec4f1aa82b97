"""The ways to bring a workload's batches to the device, epoch after epoch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.utils.data import DataLoader

from benchmarks.dataloading.jobs import Tuning
from benchmarks.dataloading.loaders.pipeline_loader import PipelineLoader
from benchmarks.dataloading.loaders.torch_loader import TorchLoader
from benchmarks.dataloading.workloads import Workload
from benchmarks.gpu.cells import DATALOADER, FROZEN, LOADER, LOADER_UNPINNED
from pipeline_runtime.batches import Batch, to_device


class PinnedTorchLoader(TorchLoader):
    """A DataLoader whose thread copies what the workers send to pinned memory."""

    dataloader = partial(DataLoader, pin_memory=True)


def open_source(
    way: str, workload: Workload, tuning: Tuning, device: torch.device, num_frozen: int
) -> Iterator[Batch]:
    """Return batches on the device, without an end; each way as its users would write it.

    - `Pipeline.loader`: with `device`, which packs a batch in pinned memory and copies it ahead.
    - not pinned: batches in the process' own memory, which the loop copies.
    - `DataLoader`: with `pin_memory`, and copies that the loop does not wait for.
    """
    if way == FROZEN:
        batches = PipelineLoader(workload, str(device)).batches()
        return itertools.cycle(list(itertools.islice(batches, num_frozen)))
    if way == LOADER:
        return _repeat(PipelineLoader(workload, str(device)).batches)
    if way == LOADER_UNPINNED:
        batches = _repeat(PipelineLoader(workload).batches)
        return (to_device(batch, device) for batch in batches)
    if way == DATALOADER:
        batches = _repeat(PinnedTorchLoader(workload, tuning).batches)
        return (_send(batch, device) for batch in batches)
    batches = _repeat(TorchLoader(workload, tuning).batches)
    return (to_device(batch, device) for batch in batches)


def _repeat(open_epoch: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
    while True:
        yield from open_epoch()


def _send(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
