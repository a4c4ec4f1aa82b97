"""What is done with each batch: take it, train on it, or prove what is in it.

A consumer is made anew for every epoch, before the clock starts, and gives at the end the sums of
`checksums` over all it took.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.nn.functional as F

from benchmarks.dataloading.checksums import Sums, add_sums, identities_of, proof_of
from benchmarks.dataloading.workloads import MODEL_CONFIG, Workload, build_experiment
from pipeline_runtime.batches import ROW_WEIGHT, Batch

_SEED = 7  # of the model's first weights, equal for every loader


class Consumer(Protocol):
    """Takes an epoch's batches one after another."""

    sums: Sums

    def take(self, batch: Batch) -> None:
        """Do the work on one batch."""
        ...


class Summing:
    """Adds up a function of each batch.

    With `identities_of` it only counts rows and adds up who they are, so that what is timed ends at
    the tensors; with `proof_of` it reads every value.
    """

    def __init__(self, sums_of: Callable[[Batch], Sums]) -> None:
        self.sums: Sums = {}
        self._sums_of = sums_of

    def take(self, batch: Batch) -> None:
        """See Consumer."""
        self.sums = add_sums(self.sums, self._sums_of(batch))


class Training:
    """One optimiser step of the built-in ranking model a batch, as its `train_loop` makes it."""

    def __init__(self, workload: Workload) -> None:
        # Imported here: the time from a process' start to a first batch is measured without them.
        from pipeline_runtime.plan import build_plan
        from pipeline_runtime.training.ranking_config import choose_features, parse_config
        from pipeline_runtime.training.ranking_model import RankingModel

        torch.manual_seed(_SEED)
        self.sums: Sums = {}
        config = parse_config(MODEL_CONFIG)
        schema = build_plan(build_experiment(workload), workload.root).training.output_schema
        features = choose_features(
            config, schema, label=workload.label_column, weight=workload.weight_column
        )
        self._label = features.label
        self._model = RankingModel(features, config)
        parameters = list(self._model.parameters())
        self._optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, fused=True)

    def take(self, batch: Batch) -> None:
        """See Consumer."""
        self._model.scaler.observe(batch, _same)
        labels_B, weight_B = batch[self._label].float(), batch[ROW_WEIGHT]
        losses_B = F.binary_cross_entropy_with_logits(
            self._model(batch), labels_B, reduction="none"
        )
        loss = (losses_B * weight_B).sum() / weight_B.sum()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.sums = add_sums(self.sums, identities_of(batch))


def _same(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over one rank."""
    return tensor


CONSUMERS: Mapping[str, Callable[[Workload], Consumer]] = {
    "take": lambda workload: Summing(identities_of),
    "train": Training,
    "prove": lambda workload: Summing(proof_of),
}
