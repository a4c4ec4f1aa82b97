"""The built-in entrypoint: trains a model that predicts a label, the built-in one or the user's.

This module owns the training loop, its optimizer and its checkpoints. It takes batches from the
context, and reports metrics and states to it. `user_module` builds a user's model; the built-in one
reads dense, categorical and list columns:

    dense         standardised by statistics of all rows so far, with a flag for missing values
    categorical   an embedding per column, ids modulo `hashSize`
    sequences     a vector of the items' embeddings; with a `target` also attention by the candidate

The relation of a row's categories to its sequences is a product, which layers on top of both learn
slowly. So every category's embedding is multiplied by every vector of a sequence, as in a
factorization machine (Rendle 2010). Attention is that of Deep Interest Networks (Zhou et al. 2018).

Shapes: B rows, F dense columns, C looked-up columns, K first items of a sequence, D embedding,
R rows of all embedding tables, N items of all sequences of a batch, G sequences of a batch,
M rows looked up one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import nn

from pipeline_runtime.batches import (
    ROW_WEIGHT,
    Batch,
)
from pipeline_runtime.errors import CheckpointError, TrainingError
from pipeline_runtime.steps.base import public_schema
from pipeline_runtime.training.entrypoint import MODEL_FIELD
from pipeline_runtime.training.ranking.features import (
    LoopConfig,
    choose_features,
    parse_config,
    parse_loop_config,
)
from pipeline_runtime.training.ranking.network import RankingModel
from pipeline_runtime.training.ranking.quality import ScoreMeter
from pipeline_runtime.training.ranking.user_module import build_module, check_logits

if TYPE_CHECKING:
    from pipeline_runtime.training.context import TrainContext

CHECKPOINT_VERSION = 1


def train_loop(ctx: TrainContext) -> None:
    """Train the model for the remaining epochs; the default of `spec.training.entrypoint`.

    The model is that of `spec.training.model`, or the built-in ranking model.

    Raises:
        ManifestError: `spec.training.config` is wrong, or does not fit the columns.
        TrainingError: an id is out of range, a label is not from 0 to 1, or the loss is not finite.
        CheckpointError: the checkpoint has another version, or its model has other columns.
    """
    run = _Run(ctx)
    if ctx.checkpoint is not None:
        run.restore(ctx.checkpoint)
    for _ in ctx.epochs():
        run.train_epoch()


def check_config(
    training_config: Mapping[str, Any], schema: pa.Schema, *, label: str | None, weight: str | None
) -> None:
    """Raise the ManifestError that `train_loop` would raise, before anything runs."""
    choose_features(parse_config(training_config), schema, label=label, weight=weight)


def step_seed(seed: int, rank: int, step: int) -> int:
    """Return the seed of a step, from the run's seed and the rank; all randomness uses it."""
    return int(np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)[0])


def learning_rate(config: LoopConfig, step: int) -> float:
    """Return the learning rate of a step, counted from 0: rising in `warmupSteps`, then falling."""
    warmup = min(1.0, (step + 1) / (config.warmup_steps + 1))
    if config.decay_steps is None:
        return config.learning_rate * warmup
    steps = config.decay_steps - config.warmup_steps
    done = min(1.0, max(0.0, (step - config.warmup_steps) / steps))
    left = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.learning_rate * warmup * left


class _Run:
    """The live objects of one rank's training."""

    def __init__(self, ctx: TrainContext) -> None:
        self.ctx = ctx
        torch.manual_seed(step_seed(ctx.seed, 0, 0))  # every rank begins with the same weights
        self.config, self.label, self.module = _build_model(ctx)
        self.ranking = self.module if isinstance(self.module, RankingModel) else None
        self.model = ctx.prepare(self.module)
        self.optimizer = _build_optimizer(self.module, self.config)
        self.scaler = ctx.scaler()
        self.step = 0
        self.window = torch.zeros(3, dtype=torch.float64, device=ctx.device)

    def train_epoch(self) -> None:
        """Train on the remaining batches of an epoch, then evaluate, then save a checkpoint."""
        meter = ScoreMeter(self.ctx.device)
        self.model.train()
        for batch in self.ctx.batches():
            self._train_step(self._by_row(batch), meter)
            is_due = self.ctx.checkpoint_due()
            if is_due or self.step % self.config.report_every_steps == 0:
                self.ctx.report(self._flush_window(), self.state() if is_due else None)
        metrics = self._flush_window() | meter.metrics("train", self.ctx.reduce_sum)
        self.ctx.report(metrics | self._evaluate(), self.state())

    def _train_step(self, batch: Batch, meter: ScoreMeter) -> None:
        torch.manual_seed(step_seed(self.ctx.seed, self.ctx.rank, self.step + 1))  # for dropout
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step)
        if self.ranking is not None:
            self.ranking.scaler.observe(batch, self.ctx.reduce_sum)
            if self.step == 0:
                self.ranking.begin_at(self._base_rate(batch))
        logits_B, losses_B = self._losses(self.model, batch)
        loss = self.ctx.weighted_mean(losses_B, batch)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step += 1
        label_B = batch[self.label]
        self.window += meter.add(logits_B, label_B, losses_B, batch[ROW_WEIGHT])

    def _by_row(self, batch: Batch) -> Batch:
        return batch if self.ranking is None else self.ranking.by_row(batch)

    def _base_rate(self, batch: Batch) -> float:
        """Return the weighted share of positive labels of all ranks; 0 without weight."""
        weight_B = batch[ROW_WEIGHT].double()
        sums = torch.stack([(weight_B * batch[self.label]).sum(), weight_B.sum()])
        positive, weight = self.ctx.reduce_sum(sums).tolist()
        return positive / weight if weight else 0.0

    def _losses(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [B], and their unweighted cross-entropy with the labels [B] in nats."""
        with self.ctx.autocast():
            logits_B = model(batch)
        if self.ranking is None:
            logits_B = check_logits(logits_B, batch, f"{MODEL_FIELD}: {self.ctx.model}")
        labels_B = batch[self.label].float()
        logits_B = logits_B.float()
        return logits_B, F.binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        meter = ScoreMeter(self.ctx.device)
        self.module.eval()
        for given in self.ctx.evaluation_batches():
            batch = self._by_row(given)
            # Without DistributedDataParallel, which would wait for ranks that have no batch.
            logits_B, losses_B = self._losses(self.module, batch)
            meter.add(logits_B, batch[self.label], losses_B, batch[ROW_WEIGHT])
            self.ctx.record_evaluation(
                batch, torch.sigmoid(logits_B), losses_B, labels_B=batch[self.label]
            )
        return meter.metrics("eval", self.ctx.reduce_sum)

    def _flush_window(self) -> dict[str, float]:
        """Return the mean loss since the last flush; all ranks call this at the same step."""
        loss_sum, weight, num_wrong = self.ctx.reduce_sum(self.window).tolist()
        self.window.zero_()
        if num_wrong:
            rule = f"label column {self.label!r}: must be from 0 to 1"
            raise TrainingError(f"{rule}, got {num_wrong:.0f} others; derive one that is")
        if not math.isfinite(loss_sum):
            got = f"got {loss_sum} in the steps up to {self.step}"
            raise TrainingError(f"loss: must be finite, {got}; lower training.config.learningRate")
        return {"loss": loss_sum / weight} if weight else {}

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; the learning rate follows from the step.

        `pipeline_runtime.models` builds the model again from it, and from the header's config.
        """
        return {
            **self._fixed(),
            "schema": write_schema(self.ctx.schema),
            "step": self.step,
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def _fixed(self) -> dict[str, Any]:
        """Return the part of the state in which a resumed run must equal its checkpoint."""
        if self.ranking is None:
            return {"version": CHECKPOINT_VERSION}
        return {"version": CHECKPOINT_VERSION, "features": asdict(self.ranking.features)}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        name = "model" if self.ranking is None else "ranking model"
        for key, mine in self._fixed().items():
            if checkpoint.get(key) != mine:
                got = f"got {checkpoint.get(key)!r}, this run has {mine!r}"
                raise CheckpointError(f"{name}'s {key}: must be this run's, {got}; start anew")
        self.step = checkpoint["step"]
        self.module.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scaler.load_state_dict(checkpoint["scaler"])


def _build_model(ctx: TrainContext) -> tuple[LoopConfig, str, nn.Module]:
    """Return the loop's settings, the label column, and the module, of the user or built-in."""
    if ctx.model is not None:
        assert ctx.label_column is not None  # the spec's rule
        module = build_module(
            ctx.model, ctx.config, ctx.schema, label=ctx.label_column, weight=ctx.weight_column
        )
        return parse_loop_config(ctx.config), ctx.label_column, module
    config = parse_config(ctx.config)
    features = choose_features(config, ctx.schema, label=ctx.label_column, weight=ctx.weight_column)
    return config, features.label, RankingModel(features, config, ctx.request_columns)


def write_schema(schema: pa.Schema) -> bytes:
    """Return the schema of batches, without Lastmile's own columns, as Arrow writes it."""
    serialized: bytes = public_schema(schema).remove_metadata().serialize().to_pybytes()
    return serialized


def _build_optimizer(module: nn.Module, config: LoopConfig) -> torch.optim.Optimizer:
    decay = config.weight_decay
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if config.optimizer == "adam":
        return torch.optim.AdamW(parameters, weight_decay=decay, fused=True)
    fused = parameters[0].device.type == "cpu"  # torch has no fused Adagrad for GPUs
    return torch.optim.Adagrad(parameters, weight_decay=decay, fused=fused)
