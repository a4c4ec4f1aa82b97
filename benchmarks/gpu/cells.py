"""The sizes of the models, the ways to feed them, and the amount of work on a GPU and on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.dataloading.workloads import MODEL_CONFIG

FROZEN: Final = "frozen batches"
LOADER: Final = "Pipeline.loader"
LOADER_UNPINNED: Final = "Pipeline.loader, not pinned"
DATALOADER: Final = "DataLoader"
DATALOADER_UNPINNED: Final = "DataLoader, not pinned"
WAYS: Final = (FROZEN, LOADER, LOADER_UNPINNED, DATALOADER, DATALOADER_UNPINNED)
SIZES: Final = ("small", "medium", "large")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The number of rows and the time of a measurement.

    Attributes:
        rows: of the table.
        files: of the table, each written by a process.
        batch_size: rows of a batch.
        divisor: the factor by which the model's layers are narrower than on a GPU.
        hash_size: rows of each embedding table.
        workers: of a DataLoader, the best of which is compared.
        rounds: of each cell, if there is time for them.
        warm_seconds: of each measurement, before its clock starts.
        max_seconds: of each measurement, by its clock.
        traced_steps: of each cell.
        frozen_batches: in the device's memory.
        has_kernels: compiled kernels do Lastmile's work; compiling takes longer than a small run.
    """

    rows: int
    files: int
    batch_size: int
    divisor: int
    hash_size: int
    workers: tuple[int, ...]
    rounds: int
    warm_seconds: float
    max_seconds: float
    traced_steps: int
    frozen_batches: int
    has_kernels: bool

    def model_config(self, size: str) -> Mapping[str, Any]:
        """Return `spec.training.config` of a model."""
        embedding_dim, hidden = _LAYERS[size]
        return MODEL_CONFIG | {
            "embeddingDim": max(4, embedding_dim // self.divisor),
            "hidden": [max(4, width // self.divisor) for width in hidden],
            "hashSize": self.hash_size,
        }


# Embedding and hidden layers: the default model, and larger ones.
_LAYERS: Final[Mapping[str, tuple[int, tuple[int, ...]]]] = {
    "small": (16, (128, 64)),
    "medium": (64, (1024, 512, 256)),
    "large": (128, (4096, 2048, 1024)),
}
ON_GPU: Final = Scale(
    rows=8_000_000,
    files=16,
    batch_size=16_384,
    divisor=1,
    hash_size=32_768,
    workers=(0, 1, 2, 4, 8, 12, 16),
    rounds=3,
    warm_seconds=0.6,
    max_seconds=4.0,
    traced_steps=40,
    frozen_batches=32,
    has_kernels=True,
)
# On a CPU the benchmark only shows that it works: its figures do not apply to a GPU.
ON_CPU: Final = Scale(
    rows=10_000,
    files=1,
    batch_size=256,
    divisor=64,
    hash_size=64,
    workers=(0, 1),
    rounds=1,
    warm_seconds=0.0,
    max_seconds=0.0,  # a measurement takes two steps
    traced_steps=1,
    frozen_batches=2,
    has_kernels=False,
)


def find_scale(device: str) -> Scale:
    """Return the scale of a measurement on a type of device."""
    return ON_GPU if device == "cuda" else ON_CPU
