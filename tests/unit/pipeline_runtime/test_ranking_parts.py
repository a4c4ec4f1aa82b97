"""Parts of the ranking model: AUC by its definition, lookups, attention, running statistics."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipeline_runtime.batches import ROW_WEIGHT, Batch
from pipeline_runtime.training.ranking.network import DenseScaler, attend, look_up
from pipeline_runtime.training.ranking.quality import ScoreMeter, area_under_curve


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
    assert weights[0].grad is not None
    assert weights[1].grad is not None
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
    """Observe batches on all ranks concurrently; each waits for the others at every sum."""
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
