"""The roofline: the batches of one workload in memory, handed on as they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from benchmarks.dataloading.jobs import Tuning
from benchmarks.dataloading.loaders.torch_loader import TorchLoader
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.batches import Batch


@lru_cache(maxsize=1)
def freeze(workload: Workload) -> list[Batch]:
    """A workload's batches, loaded once; those of another are let go."""
    batches = TorchLoader(workload, Tuning()).batches()
    return [{name: tensor.clone() for name, tensor in batch.items()} for batch in batches]


class Frozen:
    """Epochs that cost nothing to bring; the batches are made, by `freeze`, before the clock."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def batches(self) -> Iterator[Batch]:
        """The next epoch's batches."""
        return iter(freeze(self._workload))

    def profile(self) -> dict[str, float]:
        """Nothing is counted inside."""
        return {}
