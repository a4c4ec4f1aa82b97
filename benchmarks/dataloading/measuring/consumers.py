"""Consumers of batches: take each one, train on it, or prove its content.

A new consumer is made for every epoch, before the clock starts. At the end it returns the sums of
`checksums` over all batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from benchmarks.dataloading.measuring.checksums import Sums, add_sums, identities_of, proof_of
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.batches import Batch


class Consumer(Protocol):
    """Takes an epoch's batches one after another."""

    sums: Sums

    def take(self, batch: Batch) -> None:
        """Do the work on one batch."""
        ...


class Summing:
    """Adds up a function of each batch.

    `identities_of` only counts rows and adds up their ids, so that the measured time ends at the
    tensors. `proof_of` reads every value.
    """

    def __init__(self, sums_of: Callable[[Batch], Sums]) -> None:
        self.sums: Sums = {}
        self._sums_of = sums_of

    def take(self, batch: Batch) -> None:
        """See Consumer."""
        self.sums = add_sums(self.sums, self._sums_of(batch))


class Training:
    """Takes one optimiser step of the built-in ranking model per batch."""

    def __init__(self, workload: Workload) -> None:
        # Imported here: the time from a process' start to a first batch is measured without it.
        from benchmarks.dataloading.measuring.training_step import TrainingStep

        self.sums: Sums = {}
        self._step = TrainingStep(workload)

    def take(self, batch: Batch) -> None:
        """See Consumer."""
        self._step.take(batch)
        self.sums = add_sums(self.sums, identities_of(batch))


CONSUMERS: Mapping[str, Callable[[Workload], Consumer]] = {
    "take": lambda workload: Summing(identities_of),
    "train": Training,
    "prove": lambda workload: Summing(proof_of),
}
