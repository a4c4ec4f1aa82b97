"""One step of the built-in ranking model on one device, as in its `train_loop`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.dataloading.workloads import MODEL_CONFIG, Workload, build_experiment
from pipeline_runtime.batches import ROW_WEIGHT, Batch
from pipeline_runtime.plan import build_plan
from pipeline_runtime.training.ranking.features import choose_features, parse_config
from pipeline_runtime.training.ranking.network import RankingModel

_SEED = 7  # of the model's first weights, equal for every loader


class TrainingStep:
    """A model for a workload's batches, and its optimizer.

    Args:
        config: of the model; its columns are delivered at every level of work.
        device: of the model and of the batches.
    """

    def __init__(
        self,
        workload: Workload,
        config: Mapping[str, Any] = MODEL_CONFIG,
        device: str | torch.device = "cpu",
    ) -> None:
        torch.manual_seed(_SEED)
        parsed = parse_config(config)
        stream = build_plan(build_experiment(workload), workload.root).training
        features = choose_features(
            parsed,
            stream.output_schema,
            label=workload.label_column,
            weight=workload.weight_column,
        )
        self._label = features.label
        self._model = RankingModel(features, parsed, stream.request_columns).to(device)
        parameters = list(self._model.parameters())
        self._optimizer = torch.optim.AdamW(parameters, lr=parsed.learning_rate, fused=True)

    def take(self, batch: Batch) -> None:
        """Train on one batch."""
        batch = self._model.by_row(batch)
        self._model.scaler.observe(batch, _same)
        labels_B, weight_B = batch[self._label].float(), batch[ROW_WEIGHT]
        losses_B = F.binary_cross_entropy_with_logits(
            self._model(batch), labels_B, reduction="none"
        )
        loss = (losses_B * weight_B).sum() / weight_B.sum()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    """Return the value: the sum over a single rank."""
    return tensor
