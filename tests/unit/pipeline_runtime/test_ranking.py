"""The built-in ranking model: what it learns, survives, refuses, and how exactly it resumes."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from pipeline_runtime.batches import ROW_WEIGHT, Batch, empty_batch, to_batch
from pipeline_runtime.errors import CheckpointError, LastmileError, ManifestError, TrainingError
from pipeline_runtime.training.ranking import (
    DenseScaler,
    RankingModel,
    ScoreMeter,
    area_under_curve,
    attend,
    check_config,
    choose_features,
    learning_rate,
    look_up,
    parse_config,
    step_seed,
    train_loop,
)

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
    assert gradients[0] is not None and gradients[1] is not None
    assert torch.equal(gradients[0], gradients[1])


def test_seeds_differ_by_seed_rank_and_step() -> None:
    seeds = {step_seed(*key) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}
    assert len(seeds) == 4
    assert step_seed(7, 1, 2) == step_seed(7, 1, 2)


WRONG_STATES: dict[str, tuple[dict[str, Any], str]] = {
    "another version": (
        {"version": 0},
        "ranking model's version: must be this run's, got 0, this run has 1; start anew",
    ),
    "other columns": (
        {"features": {"label": "saves"}},
        "ranking model's features: must be this run's, got {'label': 'saves'}, this run has ",
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG_STATES.values(), ids=WRONG_STATES.keys())
def test_a_checkpoint_of_another_model_is_refused(change: dict[str, Any], message: str) -> None:
    table = make_table(256)
    saved = run(FakeContext(table, {})).checkpoints[-1]
    with pytest.raises(CheckpointError) as caught:
        run(FakeContext(table, {}, resume={**saved, **change}))
    assert str(caught.value).startswith(message)


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
        "column 'item': must hold ids from 0 to 63 (hashSize), got 64 (one of 2 in this batch); "
        "raise hashSize, hashBucket the column, or set outOfRange: hash",
    ),
    "negative id in a sequence": (
        {"item": [0, 1, 2], "history": [[1], [], [-5]]},
        {"outOfRange": "error"},
        "column 'history': must hold ids from 0 to 63 (hashSize), got -5 (one of 1 in this batch); "
        "raise hashSize, hashBucket the column, or set outOfRange: hash",
    ),
    "label of more than two kinds": (
        {"item": [0, 1, 2], "clicked": [0, 1, 5]},
        {},
        "label column 'clicked': must be from 0 to 1, got 1 others; derive one that is",
    ),
    "loss that is not finite": (
        {"item": [0, 1, 2], "clicked": [0.0, 1.0, math.nan]},
        {},
        "loss: must be finite, got nan in the steps up to 1; lower training.config.learningRate",
    ),
}


@pytest.mark.parametrize(("columns", "config", "message"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_rows_that_cannot_be_learned_from_are_refused(
    columns: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    table = pa.table({"clicked": [True, False, True], **columns})
    with pytest.raises(TrainingError) as caught:
        run(FakeContext(table, config))
    assert str(caught.value) == message


# --- config ---------------------------------------------------------------------------------------

FIELD = "spec.training.config"
SCHEMA = pa.schema(
    {
        "dense": pa.float32(),
        "is_new": pa.bool_(),
        "item": pa.int64(),
        "history": pa.list_(pa.int64()),
        "scores": pa.list_(pa.float32()),
        "at": pa.timestamp("us"),
        "clicked": pa.bool_(),
        "sample_weight": pa.float32(),
    }
)
WRONG_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt field": (
        {"hashsize": 8},
        f"{FIELD}.hashsize: unknown field; did you mean hashSize?",
    ),
    "misspelt field of a sequence": (
        {"sequences": [{"column": "history", "targt": "item"}]},
        f"{FIELD}.sequences[0].targt: unknown field; did you mean target?",
    ),
    "unknown field": (
        {"sequences": [{"column": "history", "x": 1}]},
        f"{FIELD}.sequences[0].x: unknown field; the fields here are column, paddingId, target",
    ),
    "wrong type": (
        {"embeddingDim": "16"},
        f"{FIELD}.embeddingDim: must be an integer, got '16' (a string); remove the quotes",
    ),
    "out of bounds": (
        {"hashSize": 0},
        f"{FIELD}.hashSize: must be ≥ 1, got 0; raise it",
    ),
    "a size of hidden layers": (
        {"hidden": [64, 0]},
        f"{FIELD}.hidden[1]: must be ≥ 1, got 0; raise it",
    ),
    "unknown choice": (
        {"optimizer": "adma"},
        f"{FIELD}.optimizer: must be one of adam, adagrad, got 'adma'; did you mean adam?",
    ),
    "schedule without an end": (
        {"schedule": "cosine", "warmupSteps": 10},
        f"{FIELD}.decaySteps: must be above warmupSteps (10) for schedule cosine, got none; give "
        "the number of steps of the run",
    ),
    "end without a schedule": (
        {"decaySteps": 10},
        f"{FIELD}.decaySteps: must come with schedule linear or cosine, got constant; remove it",
    ),
    "a column twice": (
        {"dense": ["dense", "dense"]},
        f"{FIELD}.dense: must not repeat an item, got 'dense' twice; remove one",
    ),
    "a sequence twice": (
        {"sequences": [{"column": "history"}, {"column": "history", "target": "item"}]},
        f"{FIELD}.sequences: must not repeat an item, got 'history' twice; remove one",
    ),
    "two errors at once": (
        {"hashSize": 0, "hiden": [1]},
        f"{FIELD}.hiden: unknown field; did you mean hidden?\n"
        f"{FIELD}.hashSize: must be ≥ 1, got 0; raise it",
    ),
    "misspelt column": (
        {"dense": ["dens"]},
        f"{FIELD}.dense[0]: must be a column of the batches, got 'dens'; did you mean dense?",
    ),
    "column that is not there": (
        {"categorical": ["qqq"]},
        f"{FIELD}.categorical[0]: must be a column of the batches, got 'qqq'; add it to the "
        "pipeline or training.columns",
    ),
    "number as category": (
        {"categorical": ["dense"]},
        f"{FIELD}.categorical[0]: must be an integer, got 'dense' of type float; cast it",
    ),
    "list as number": (
        {"dense": ["scores"]},
        f"{FIELD}.dense[0]: must be a number or a boolean, got 'scores' of type "
        "list<item: float>; cast it",
    ),
    "list of numbers as sequence": (
        {"sequences": [{"column": "scores", "target": "dense"}]},
        f"{FIELD}.sequences[0].column: must be a list of integers, got 'scores' of type "
        f"list<item: float>; cast it\n"
        f"{FIELD}.sequences[0].target: must be an integer, got 'dense' of type float; cast it",
    ),
    "unknown label": (
        {"label": "click"},
        f"{FIELD}.label: must be a column of the batches, got 'click'; did you mean clicked?",
    ),
    "nothing to learn from": (
        {"dense": [], "categorical": [], "sequences": []},
        f"{FIELD}: must leave a column to learn from, got only the label; add one",
    ),
}


@pytest.mark.parametrize(("config", "message"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS.keys())
def test_each_wrong_config_has_its_message(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        check_config(config, SCHEMA, label="clicked", weight="sample_weight")
    assert str(caught.value) == message


def test_columns_are_chosen_by_type_without_label_and_weight() -> None:
    features = choose_features(parse_config({}), SCHEMA, label="clicked", weight="sample_weight")
    assert (features.label, features.dense) == ("clicked", ("dense", "is_new"))
    assert features.categorical == ("item",)
    assert [sequence.column for sequence in features.sequences] == ["history"]


def test_the_label_is_the_configs_or_the_runs_or_clicked() -> None:
    labels = [
        choose_features(parse_config(config), SCHEMA, label=label, weight=None).label
        for config, label in (({"label": "is_new"}, "item"), ({}, "item"), ({}, None))
    ]
    assert labels == ["is_new", "item", "clicked"]


def test_a_target_is_looked_up_even_if_no_category() -> None:
    config = parse_config({"categorical": [], **WITH_TARGET})
    assert choose_features(config, SCHEMA, label=None, weight=None).categorical == ("item",)


def test_a_missing_default_label_is_an_error() -> None:
    with pytest.raises(LastmileError, match=r"spec\.training\.config\.label: must be a column"):
        choose_features(parse_config({}), pa.schema({"a": pa.int64()}), label=None, weight=None)


RATES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "constant": ({}, [1, 1, 1, 1, 1, 1]),
    "warm-up": ({"warmupSteps": 3}, [0.25, 0.5, 0.75, 1, 1, 1]),
    "linear": ({"schedule": "linear", "decaySteps": 4}, [1, 0.75, 0.5, 0.25, 0, 0]),
    "cosine": ({"schedule": "cosine", "decaySteps": 2}, [1, 0.5, 0, 0, 0, 0]),
    "warm-up, then linear": (
        {"schedule": "linear", "warmupSteps": 1, "decaySteps": 5},
        [0.5, 1, 0.75, 0.5, 0.25, 0],
    ),
}


@pytest.mark.parametrize(("config", "rates"), RATES.values(), ids=RATES.keys())
def test_the_learning_rate_follows_the_schedule(config: dict[str, Any], rates: list[float]) -> None:
    parsed = parse_config({"learningRate": 1.0, **config})
    assert [learning_rate(parsed, step) for step in range(6)] == pytest.approx(rates)


# --- parts ----------------------------------------------------------------------------------------


def pairwise_auc(scores: Any, labels: Any, weights: Any) -> float:
    """AUC by its definition, over all pairs."""
    better = (scores[:, None] > scores[None]) + 0.5 * (scores[:, None] == scores[None])
    pairs = (labels * weights)[:, None] * ((1 - labels) * weights)[None]
    return float((better * pairs).sum() / pairs.sum())


@pytest.mark.parametrize("num_scores", [2, 40], ids=["mostly ties", "few ties"])
def test_auc_equals_its_definition_over_pairs(num_scores: int) -> None:
    rng = np.random.default_rng(5)
    scores = rng.integers(-num_scores // 2, num_scores // 2, 300) / 4
    labels = (rng.random(300) < 0.3).astype(np.float64)
    weights = rng.integers(0, 4, 300).astype(np.float64)
    meter = ScoreMeter(torch.device("cpu"))
    for part in (slice(0, 100), slice(100, None)):
        columns = [torch.tensor(each[part]) for each in (scores, labels, labels, weights)]
        meter.add(*columns)
    metrics = meter.metrics("x", lambda tensor: tensor)
    assert metrics["x_auc"] == pytest.approx(pairwise_auc(scores, labels, weights), abs=1e-12)
    assert metrics["x_loss"] == pytest.approx((labels * weights).sum() / weights.sum())


@pytest.mark.parametrize("score", [-1e30, -20.0, 20.0, math.inf], ids=str)
def test_scores_beyond_the_bins_tie_at_the_end(score: float) -> None:
    meter = ScoreMeter(torch.device("cpu"))
    ones = torch.ones(2)
    meter.add(torch.tensor([score, score]), torch.tensor([0.0, 1.0]), ones, ones)
    assert area_under_curve(meter.histogram) == 0.5


def test_one_class_has_a_loss_but_no_auc() -> None:
    meter = ScoreMeter(torch.device("cpu"))
    ones = torch.ones(2)
    meter.add(torch.zeros(2), ones, ones, ones)
    assert meter.metrics("x", lambda tensor: tensor) == {"x_loss": 1.0}


def test_lookup_has_torchs_gradient() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(50, 7, requires_grad=True)]
    weights.append(weights[0].detach().clone().requires_grad_())
    rows, items = torch.randint(0, 50, (20_000,)), torch.randint(0, 50, (9_000,))
    starts = torch.tensor([0, 10, 10, 4_000, 9_000])  # an empty bag among them
    mine = look_up(weights[0], rows, items, starts)
    torchs = (
        nn.functional.embedding(rows, weights[1]),
        nn.functional.embedding_bag(
            items, weights[1], starts, mode="mean", include_last_offset=True
        ),
    )
    for parts in (mine, torchs):
        sum((part.square() * part).sum() for part in parts).backward()  # type: ignore[union-attr]
    assert all(torch.equal(a, b) for a, b in zip(mine, torchs, strict=True))
    assert weights[0].grad is not None and weights[1].grad is not None
    assert torch.allclose(weights[0].grad, weights[1].grad, rtol=1e-4, atol=1e-2)


def test_attention_weighs_items_and_gives_zero_without_any() -> None:
    query, keys = torch.tensor([[2.0, 0.0]] * 2), torch.tensor([[[1.0, 0.0], [0.0, 3.0]]] * 2)
    found = attend(query, keys, torch.tensor([[True, True], [False, False]]))
    share = 1 / (1 + math.exp(-2 / math.sqrt(2)))  # softmax of (2/√2, 0)
    assert found[0].tolist() == pytest.approx([share, 3 * (1 - share)])
    assert found[1].tolist() == [0.0, 0.0]


def test_dense_statistics_are_those_of_all_rows_of_all_ranks() -> None:
    rng = np.random.default_rng(0)
    values = rng.lognormal(2, 1, (2, 3, 100)).astype(np.float32)  # ranks, steps, rows
    values[:, :, ::7] = math.nan
    batches = [[make_dense(step) for step in rank] for rank in values]
    scalers = [DenseScaler(["a"]), DenseScaler(["a"])]
    for step in range(3):
        observe_together(scalers, [rank[step] for rank in batches])
    known = values[np.isfinite(values)].astype(np.float64)
    count, mean, squares = scalers[0].moments[:, 0].tolist()
    assert count == known.size
    assert mean == pytest.approx(known.mean())
    assert squares / count == pytest.approx(known.var())
    assert torch.equal(scalers[0].moments, scalers[1].moments)


def make_dense(values: Any) -> Batch:
    return {"a": torch.from_numpy(values), ROW_WEIGHT: torch.ones(len(values))}


def observe_together(scalers: list[DenseScaler], batches: list[Batch]) -> None:
    """What the ranks do at once: each waits for the others wherever it sums."""
    barrier, parts = threading.Barrier(len(scalers)), dict[int, torch.Tensor]()

    def reduce_sum(rank: int, tensor: torch.Tensor) -> torch.Tensor:
        parts[rank] = tensor
        barrier.wait()
        total = parts[0] + parts[1]
        barrier.wait()
        return total

    with ThreadPoolExecutor(len(scalers)) as pool:
        for rank, (scaler, batch) in enumerate(zip(scalers, batches, strict=True)):
            pool.submit(scaler.observe, batch, partial(reduce_sum, rank))


def test_dense_columns_of_any_scale_come_out_near_one() -> None:
    values = np.array([1.7e9, 1.7e9 + 10, 1.7e9 + 20, np.nan])  # seconds since 1970
    batch = make_dense(values)
    scaler = DenseScaler(["a"])
    scaler.observe(batch, lambda tensor: tensor)
    scaled = scaler(batch)
    assert scaled[:, 0].tolist() == pytest.approx([-1.2247, 0, 1.2247, 0], abs=1e-3)
    assert scaled[:, 2].tolist() == [0, 0, 0, 1]  # the flag for missing


def test_features_of_one_kind_are_enough() -> None:
    table = make_table(512)
    for kind in ("dense", "item", "history"):
        alone = table.select([kind, "clicked"])
        assert epoch_metrics(run(FakeContext(alone, {})), "train_auc")
