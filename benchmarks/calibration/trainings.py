"""Click logs from a seed, and trainings of the built-in model on them, within this process.

A training is one epoch of `train_loop`, the built-in entrypoint, with its own initial weights,
order of rows and dropout from its seed. Only the context is another one: its batches come from
memory, so that a training takes a fraction of a second.

Legend: N rows, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import nn

from pipeline_runtime.batches import ROW_WEIGHT, Batch, to_batch
from pipeline_runtime.training.context import TrainContext
from pipeline_runtime.training.ranking.features import choose_features, parse_config
from pipeline_runtime.training.ranking.network import RankingModel
from pipeline_runtime.training.ranking.trainer import train_loop

ROWS_PER_USER = 10
BATCH_SIZE = 128
NUM_ITEMS = 50
LABEL = "clicked"
CONFIG: dict[str, Any] = {
    "dense": ["age", "price"],
    "categorical": ["item", "topic"],
    "hashSize": 64,
    "embeddingDim": 8,
    "hidden": [32],
    "dropout": 0.1,
    "learningRate": 0.01,
}

Floats = npt.NDArray[np.float32]
Scores = tuple[Floats, Floats]  # a model's predictions and losses for the evaluation rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A click log: the rows to train on, and those to evaluate on, of other users."""

    training: pa.Table
    evaluation: pa.Table
    user_N: npt.NDArray[np.int64]  # of the evaluation rows


def make_log(seed: int, num_rows: int) -> Log:
    """Draw a log of fresh users, with as many rows to train on as to evaluate on."""
    random = np.random.default_rng([seed, 1])
    # Items are the same in all logs.
    appeal = np.random.default_rng(17).standard_normal(NUM_ITEMS)
    users = np.repeat(np.arange(2 * num_rows // ROWS_PER_USER), ROWS_PER_USER)
    taste, age = random.standard_normal((2, len(users) // ROWS_PER_USER))
    item = random.integers(0, NUM_ITEMS, len(users))
    price = random.standard_normal(len(users))
    logit = taste[users] + appeal[item] + 0.6 * age[users] * (item % 2) - 0.4 * price - 1.5
    clicked = random.random(len(users)) < 1 / (1 + np.exp(-logit))
    table = pa.table(
        {
            "age": age[users].astype(np.float32),
            "price": price.astype(np.float32),
            "item": item,
            "topic": item % 7,
            LABEL: clicked.astype(np.float32),
        }
    )
    half = len(users) // 2
    return Log(
        training=table.slice(0, half),
        evaluation=table.slice(half),
        user_N=users[half:] - users[half],
    )


def train(log: Log, seed: int, *, kept_share: float = 1.0) -> Scores:
    """Train a model, and score the evaluation rows.

    Args:
        kept_share: share of the training rows to train on, the first ones.
    """
    context = _Context(log.training.slice(0, round(kept_share * log.training.num_rows)), seed)
    train_loop(cast(TrainContext, context))
    config = parse_config(CONFIG)
    features = choose_features(config, log.training.schema, label=LABEL, weight=None)
    model = RankingModel(features, config)
    model.load_state_dict(context.state)
    batch = to_batch(log.evaluation, weight_column=None, label_column=LABEL)
    with torch.no_grad():
        logits_N = model.eval()(batch).float()
    losses_N = F.binary_cross_entropy_with_logits(logits_N, batch[LABEL], reduction="none")
    return torch.sigmoid(logits_N).numpy(), losses_N.numpy()


class _Context:
    """The part of a context that `train_loop` uses, with one rank and batches in memory.

    `state` is the last state of the model that the loop reported.
    """

    rank, world_size = 0, 1
    device = torch.device("cpu")
    label_column = LABEL
    weight_column = None
    request_columns: frozenset[str] = frozenset()
    checkpoint = None
    model = None  # the built-in one

    def __init__(self, table: pa.Table, seed: int) -> None:
        self.seed, self.schema, self.config = seed, table.schema, CONFIG
        self.state: Mapping[str, Any] = {}
        self._rows = to_batch(table, weight_column=None, label_column=LABEL)
        order_N = np.random.default_rng([seed, 2]).permutation(table.num_rows)
        self._order_N = torch.from_numpy(order_N)

    def prepare(self, model: nn.Module) -> nn.Module:
        return model

    def autocast(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", enabled=False)

    def epochs(self) -> Iterator[int]:
        yield 0

    def batches(self) -> Iterator[Batch]:
        for place_B in torch.split(self._order_N, BATCH_SIZE):
            yield {name: tensor[place_B] for name, tensor in self._rows.items()}

    def evaluation_batches(self) -> Iterator[Batch]:
        yield from ()

    def weighted_mean(self, losses_B: torch.Tensor, batch: Batch) -> torch.Tensor:
        weight_B = batch[ROW_WEIGHT]
        return (losses_B * weight_B).sum() / weight_B.sum()

    def reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def checkpoint_due(self) -> bool:
        return False

    def report(
        self, metrics: Mapping[str, float], checkpoint: Mapping[str, Any] | None = None
    ) -> None:
        if checkpoint is not None:
            self.state = checkpoint["model"]
