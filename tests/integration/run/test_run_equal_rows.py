"""The same rows reach the trainer whichever switch is off, in whatever blocks, order and ranks."""

from collections.abc import Callable
from typing import Any

import pytest
from run_support import Clicks, Project, checksum_of, clicks_spec
from warm_lastmile import Lastmile

TWO_RANKS = {"trainers": {"replicas": 2, "gpusPerReplica": 0}}


@pytest.mark.parametrize(
    ("options", "training", "spec"),
    [
        pytest.param(
            {"feed": "RayData", "rowsPerBlock": 170},
            {"epochs": 2},
            TWO_RANKS,
            id="over Ray Data",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"rowsPerBlock": 170, "preserveOrder": True},
            {"epochs": 2},
            TWO_RANKS,
            id="over readers in order, two ranks, two epochs",
        ),
        pytest.param(
            {"debug": {"pushdown": False, "batchedCalls": False, "sharedMemory": False}},
            {"shuffle": {"unit": "Row", "windowRows": 1700}},
            {},
            id="pushdown, batched calls and shared memory off, windows over several row groups",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"debug": {"projection": False}, "preserveOrder": True, "rowsPerBlock": 130},
            {"shuffle": {"unit": "None"}},
            {},
            id="projection off, no shuffle, order kept, small blocks",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"debug": {"fusion": False}},
            {"epochs": 2},
            TWO_RANKS,
            id="fusion off, two ranks, two epochs",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"debug": {"broadcast": False}, "preserveOrder": True},
            {},
            TWO_RANKS,
            id="broadcast off, order kept, two ranks",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_same_rows_reach_the_trainer(
    options: dict[str, Any],
    training: dict[str, Any],
    spec: dict[str, Any],
    clicks: Clicks,
    project: Callable[..., Project],
    on_cluster: Lastmile,
) -> None:
    run = project()
    run.write(clicks_spec(run, options=options, training=training, **spec))

    ended = on_cluster.run(*run.args("--address", "auto"))

    assert ended.code == 0, str(ended)
    epochs = training.get("epochs", 1)
    ranks = spec.get("trainers", {}).get("replicas", 1)
    summary = run.summary
    assert summary.checksum.model_dump() == checksum_of(clicks.kept, times=epochs)
    assert summary.training.samples == epochs * len(clicks.kept)
    assert summary.training.world_size == ranks
    read, *steps = [flow.rows_out for flow in summary.steps]
    is_pruned = options.get("debug", {}).get("pushdown", True)
    assert read == epochs * (clicks.counts[0] if is_pruned else 12_000)
    assert steps == [epochs * rows for rows in clicks.counts[1:]]
    seen = sorted(row for rank in range(ranks) for row in run.attempts(rank)[0].ids)
    assert seen == sorted(clicks.kept * epochs)
