"""The built-in ranking model: what it learns, survives, refuses, and how exactly it resumes."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from facts import assert_told
from torch import nn

from pipeline_runtime.batches import ROW_WEIGHT, Batch, empty_batch, to_batch
from pipeline_runtime.errors import CheckpointError, TrainingError
from pipeline_runtime.training.ranking.features import choose_features, parse_config
from pipeline_runtime.training.ranking.network import RankingModel, look_up
from pipeline_runtime.training.ranking.trainer import step_seed, train_loop

NUM_TOPICS = 8
# Small tables and larger steps than the defaults, so that a test takes a second.
FAST: dict[str, Any] = {"hashSize": 64, "embeddingDim": 8, "hidden": [32], "learningRate": 0.02}
WITH_TARGET: dict[str, Any] = {"sequences": [{"column": "history", "target": "item"}]}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, which wait for one another on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_table(rows: int = 4096, *, seed: int = 0) -> pa.Table:
    """Labels that depend on a dense column, a category, and the item's share of the history."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal(rows).astype(np.float32)
    liked = rng.integers(0, NUM_TOPICS, rows)
    item = np.where(rng.random(rows) < 0.4, liked, rng.integers(0, NUM_TOPICS, rows))
    place = rng.integers(0, 4, rows)
    lengths = rng.integers(0, 12, rows)
    history = [
        np.where(rng.random(length) < 0.7, topic, rng.integers(0, NUM_TOPICS, length)).tolist()
        for length, topic in zip(lengths, liked, strict=True)
    ]
    is_liked = (item == liked) & (lengths > 0)
    logit = 1.0 * dense + 0.5 * (place - 1.5) + 3.0 * is_liked - 1.0
    clicked = rng.random(rows) < 1 / (1 + np.exp(-logit))
    return pa.table(
        {
            "dense": pa.array(dense, mask=rng.random(rows) < 0.05),
            "item": item,
            "place": pa.array(place, pa.int8()),
            "history": pa.array(history, pa.list_(pa.int64())),
            "clicked": clicked,
        }
    )


def make_batches(table: pa.Table, *, size: int = 256, weight: str | None = None) -> list[Batch]:
    starts = range(0, table.num_rows, size)
    return [
        to_batch(table.slice(start, size), weight_column=weight, label_column=None)
        for start in starts
    ]


class FakeContext:
    """A context of one rank over batches in memory; remembers what was reported."""

    def __init__(
        self,
        table: pa.Table,
        config: Mapping[str, Any],
        *,
        evaluation: pa.Table | None = None,
        num_epochs: int = 1,
        checkpoint_at: Sequence[int] = (),
        resume: Mapping[str, Any] | None = None,
        precision: torch.dtype | None = None,
        weight_column: str | None = None,
    ) -> None:
        self.config, self.schema, self.num_epochs = {**FAST, **config}, table.schema, num_epochs
        self.rank, self.world_size, self.seed = 0, 1, 3
        self.device = torch.device("cpu")
        self.label_column: str | None = "clicked"
        self.model: str | None = None
        self.request_columns: frozenset[str] = frozenset()
        self.weight_column = weight_column
        self.checkpoint = resume
        self.metrics: list[dict[str, float]] = []
        self.checkpoints: list[Mapping[str, Any]] = []
        self._batches = make_batches(table, weight=weight_column)
        self._evaluation = [] if evaluation is None else make_batches(evaluation)
        self._steps = 0 if resume is None else resume["step"]
        self._checkpoint_at, self._precision = checkpoint_at, precision

    def prepare(self, model: nn.Module) -> nn.Module:
        return model.to(self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", self._precision) if self._precision else nullcontext()

    def scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", enabled=False)

    def epochs(self) -> Iterator[int]:
        yield from range(self._steps // max(1, len(self._batches)), self.num_epochs)

    def batches(self) -> Iterator[Batch]:
        for batch in self._batches[self._steps % max(1, len(self._batches)) :]:
            self._steps += 1
            yield batch

    def evaluation_batches(self) -> Iterator[Batch]:
        yield from self._evaluation

    def record_evaluation(
        self,
        batch: Batch,
        predictions_B: torch.Tensor,
        losses_B: torch.Tensor,
        *,
        labels_B: torch.Tensor,
    ) -> None:
        assert len(predictions_B) == len(losses_B) == len(labels_B) == len(batch[ROW_WEIGHT])

    def weighted_mean(self, losses_B: torch.Tensor, batch: Batch) -> torch.Tensor:
        weight_B = batch[ROW_WEIGHT]
        return (losses_B * weight_B).sum() / weight_B.sum().clamp_min(1e-6)

    def reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def checkpoint_due(self) -> bool:
        return self._steps in self._checkpoint_at

    def report(
        self, metrics: Mapping[str, float], checkpoint: Mapping[str, Any] | None = None
    ) -> None:
        self.metrics.append(dict(metrics))
        if checkpoint is not None:
            self.checkpoints.append(copy.deepcopy(checkpoint))


def run(ctx: FakeContext) -> FakeContext:
    train_loop(ctx)  # type: ignore[arg-type]
    return ctx


def epoch_metrics(ctx: FakeContext, name: str) -> list[float]:
    return [metrics[name] for metrics in ctx.metrics if name in metrics]


def model_of(config: Mapping[str, Any], schema: pa.Schema) -> RankingModel:
    torch.manual_seed(0)
    parsed = parse_config({**FAST, **config})
    return RankingModel(choose_features(parsed, schema, label="clicked", weight=None), parsed)


def mean_loss(model: RankingModel, batch: Batch) -> torch.Tensor:
    losses_B = nn.functional.binary_cross_entropy_with_logits(
        model(batch), batch["clicked"].float(), reduction="none"
    )
    return (losses_B * batch[ROW_WEIGHT]).sum() / batch[ROW_WEIGHT].sum()


# --- learning -------------------------------------------------------------------------------------


def test_auc_rises_on_a_signal_and_the_base_rate_is_beaten() -> None:
    ctx = run(FakeContext(make_table(), WITH_TARGET, evaluation=make_table(seed=1), num_epochs=3))
    auc = epoch_metrics(ctx, "eval_auc")
    assert auc[-1] > max(auc[0], 0.82)
    assert epoch_metrics(ctx, "eval_loss")[-1] < epoch_metrics(ctx, "eval_base_rate_loss")[-1]
    assert epoch_metrics(ctx, "eval_normalized_entropy")[-1] < 0.9
    assert epoch_metrics(ctx, "train_auc")[-1] > 0.82
    losses = epoch_metrics(ctx, "loss")
    assert losses[-1] < losses[0]


def test_the_history_is_learned_through_its_target() -> None:
    columns: dict[str, Any] = {"dense": [], "categorical": []}
    ctx = FakeContext(
        make_table(), columns | WITH_TARGET, evaluation=make_table(seed=1), num_epochs=4
    )
    assert epoch_metrics(run(ctx), "eval_auc")[-1] > 0.72


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_both_optimizers_learn(optimizer: str) -> None:
    config = {"optimizer": optimizer, "learningRate": 0.05, "weightDecay": 1e-4}
    ctx = run(FakeContext(make_table(), config, evaluation=make_table(seed=1), num_epochs=2))
    assert epoch_metrics(ctx, "eval_auc")[-1] > 0.7


def test_mixed_precision_learns() -> None:
    ctx = FakeContext(
        make_table(), {}, evaluation=make_table(seed=1), num_epochs=2, precision=torch.bfloat16
    )
    assert epoch_metrics(run(ctx), "eval_auc")[-1] > 0.7


def test_nothing_is_said_of_an_evaluation_that_the_spec_has_not() -> None:
    ctx = run(FakeContext(make_table(512), {}))
    assert not [name for metrics in ctx.metrics for name in metrics if name.startswith("eval")]


def test_loss_is_reported_every_so_many_steps() -> None:
    ctx = run(FakeContext(make_table(256 * 5), {"reportEverySteps": 2}))
    assert ["loss" in metrics for metrics in ctx.metrics] == [True, True, True]  # 2, 4, epoch's end


# --- the same again -------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3, 16, 21], ids=["first epoch", "its last step", "second epoch"])
def test_a_resumed_run_ends_with_equal_weights(step: int) -> None:
    config = {"dropout": 0.2, "schedule": "cosine", "decaySteps": 40, **WITH_TARGET}
    table = make_table()
    whole = run(FakeContext(table, config, num_epochs=2, checkpoint_at=[step]))
    saved = next(state for state in whole.checkpoints if state["step"] == step)
    rest = run(FakeContext(table, config, num_epochs=2, resume=saved))
    assert_equal(whole.checkpoints[-1], rest.checkpoints[-1])


def assert_equal(left: Any, right: Any) -> None:
    if isinstance(left, Mapping):
        assert left.keys() == right.keys()
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    else:
        assert left == right


def test_the_gradient_of_a_lookup_is_the_same_whatever_the_threads() -> None:
    rows, items = torch.randint(0, 50, (5_000,)), torch.randint(0, 50, (5_000,))
    gradients = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        weight = torch.linspace(0, 1, 50 * 16).view(50, 16).requires_grad_()
        found, means = look_up(weight, rows, items, torch.tensor([0, 7, 5_000]))
        (found.square().sum() + means.square().sum()).backward()  # type: ignore[no-untyped-call]
        gradients.append(weight.grad)
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])


def test_seeds_differ_by_seed_rank_and_step() -> None:
    seeds = {step_seed(*key) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}
    assert len(seeds) == 4
    assert step_seed(7, 1, 2) == step_seed(7, 1, 2)


WRONG_STATES: dict[str, tuple[dict[str, Any], str]] = {
    "another version": (
        {"version": 0},
        "ranking model's version: … 0 … 1",
    ),
    "other columns": (
        {"features": {"label": "saves"}},
        "ranking model's features: … {'label': 'saves'} … 'clicked'",
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG_STATES.values(), ids=WRONG_STATES.keys())
def test_a_checkpoint_of_another_model_is_refused(change: dict[str, Any], message: str) -> None:
    table = make_table(256)
    saved = run(FakeContext(table, {})).checkpoints[-1]
    with pytest.raises(CheckpointError) as caught:
        run(FakeContext(table, {}, resume={**saved, **change}))
    assert_told(str(caught.value), message)


# --- rows that are odd ----------------------------------------------------------------------------


def test_missing_and_infinite_dense_values_give_finite_logits() -> None:
    table = make_table(256)
    odd = pa.array([math.nan, math.inf, -math.inf, 1e38] * 64, pa.float32())
    table = table.set_column(0, "dense", odd)
    ctx = run(FakeContext(table, {}, evaluation=table))
    assert all(math.isfinite(value) for metrics in ctx.metrics for value in metrics.values())


def test_rows_of_padding_change_nothing() -> None:
    table = make_table(64)
    model = model_of(WITH_TARGET, table.schema)
    batch = make_batches(table)[0]
    padded = concatenate(batch, empty_batch(table.schema))
    model.scaler.observe(batch, lambda tensor: tensor)
    moments = model.scaler.moments.clone()
    expected, got = (gradient_of(model, each) for each in (batch, padded))
    assert torch.allclose(got, expected, atol=1e-7)
    model.scaler.moments.zero_()
    model.scaler.observe(padded, lambda tensor: tensor)
    assert torch.equal(model.scaler.moments, moments)


def gradient_of(model: RankingModel, batch: Batch) -> torch.Tensor:
    model.zero_grad()
    mean_loss(model, batch).backward()  # type: ignore[no-untyped-call]
    assert model.weight_RD.grad is not None
    return model.weight_RD.grad.clone()


def concatenate(first: Batch, second: Batch) -> Batch:
    batch = {name: torch.cat([first[name], second[name]]) for name in first}
    shifted = second["history.offsets"][1:] + first["history.offsets"][-1]
    return batch | {"history.offsets": torch.cat([first["history.offsets"], shifted])}


def test_a_batch_of_one_row_without_weight_trains() -> None:
    table = make_table(1).append_column("w", pa.array([0.0]))
    ctx = run(FakeContext(table, WITH_TARGET, weight_column="w"))
    assert ctx.metrics == [{}]
    assert all(torch.isfinite(value).all() for value in ctx.checkpoints[-1]["model"].values())


def test_lists_of_fixed_size_and_of_any_size_are_the_same_to_the_model() -> None:
    table = make_table(128)
    rows = [[item + 1 for item in row] for row in table["history"].to_pylist()]  # 0 is padding
    padded = pa.array([row + [0] * (12 - len(row)) for row in rows], pa.list_(pa.int64(), 12))
    place = table.schema.get_field_index("history")
    tables = [
        table.set_column(place, "history", pa.array(rows, pa.list_(pa.int64()))),
        table.set_column(place, "history", padded),
    ]
    logits = [model_of(WITH_TARGET, each.schema)(make_batches(each)[0]) for each in tables]
    assert torch.equal(*logits)


def test_items_beyond_the_sequence_length_do_not_count() -> None:
    table = make_table(128)
    place = table.schema.get_field_index("history")
    short = pa.array([row[:3] for row in table["history"].to_pylist()], pa.list_(pa.int64()))
    cut = table.set_column(place, "history", short)
    config = {"sequenceLength": 3, **WITH_TARGET}
    logits = [model_of(config, each.schema)(make_batches(each)[0]) for each in (table, cut)]
    assert torch.equal(*logits)


def test_ids_out_of_range_are_hashed_by_default() -> None:
    table = pa.table({"item": [-1, 10**15], "clicked": [True, False]})
    assert epoch_metrics(run(FakeContext(table, {})), "train_loss")


BAD_ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "id beyond the table": (
        {"item": [0, 64, 65]},  # 63 is the last that fits
        {"outOfRange": "error"},
        "column 'item': … 63 … hashSize … 64 … 2",
    ),
    "negative id in a sequence": (
        {"item": [0, 1, 2], "history": [[1], [], [-5]]},
        {"outOfRange": "error"},
        "column 'history': … 63 … hashSize … -5 … 1",
    ),
    "label of more than two kinds": (
        {"item": [0, 1, 2], "clicked": [0, 1, 5]},
        {},
        "label column 'clicked': … 0 … 1",
    ),
    "loss that is not finite": (
        {"item": [0, 1, 2], "clicked": [0.0, 1.0, math.nan]},
        {},
        "loss: … nan … training.config.learningRate",
    ),
}


@pytest.mark.parametrize(("columns", "config", "message"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_rows_that_cannot_be_learned_from_are_refused(
    columns: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    table = pa.table({"clicked": [True, False, True], **columns})
    with pytest.raises(TrainingError) as caught:
        run(FakeContext(table, config))
    assert_told(str(caught.value), message)


def test_features_of_one_kind_are_enough() -> None:
    table = make_table(512)
    for kind in ("dense", "item", "history"):
        alone = table.select([kind, "clicked"])
        assert epoch_metrics(run(FakeContext(alone, {})), "train_auc")


def test_the_entrypoint_in_the_docs_trains_and_resumes() -> None:
    text = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    section = text.partition("\n## An entrypoint of your own\n")[2]
    exec(section.split("```python\n")[1].split("```")[0], namespace)
    table, config = make_table(1024), {"columns": ["dense"], "learningRate": 0.5}
    whole = FakeContext(table, config, num_epochs=2, checkpoint_at=[2])
    namespace["train"](whole)
    losses = epoch_metrics(whole, "loss")
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    rest = FakeContext(table, config, num_epochs=2, resume={**whole.checkpoints[0], "step": 2})
    namespace["train"](rest)
    assert_equal(whole.checkpoints[-1], rest.checkpoints[-1])
