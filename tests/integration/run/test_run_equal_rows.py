"""The same rows reach the trainer whichever switch is off, in whatever blocks, order and ranks."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_support import CLICKS_PIPELINE, Clicks, Project, checksum_of, clicks_spec
from warm_lastmile import Lastmile

from pipeline_runtime import Pipeline

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


def clicks_pipeline(clicks: Clicks) -> Pipeline:
    return Pipeline(
        dataset={
            "parquet": {"uri": f"{clicks.root}/clicks/"},
            "where": "ts >= 2000",
            "rowKey": ["id"],
        },
        steps=tuple(CLICKS_PIPELINE),
    )


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_delivers_the_rows_of_a_run(shuffle: bool, clicks: Clicks) -> None:
    loader = clicks_pipeline(clicks).loader(
        100, ["id", "items"], shuffle=shuffle, storage_root=str(clicks.root)
    )
    rows = [row for batch in loader for row in batch["id"].tolist()]
    assert sorted(rows) == sorted(clicks.kept)
    assert shuffle or rows == clicks.kept
    expected = checksum_of(clicks.kept)
    assert list(loader.checksum.values()) == list(expected.values())


# What a user may run in a notebook. In a process of its own, since Ray starts and ends in it.
TRAIN_AND_LOAD = """
import json, sys
from pathlib import Path
from pipeline_runtime import Pipeline

root, output, steps = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
clicks = {"parquet": {"uri": "clicks/"}, "where": "ts >= 2000", "rowKey": ["id"]}
pipeline = Pipeline(dataset=clicks, steps=tuple(steps))
loader = pipeline.loader(128, ["id", "score", "label"], shuffle=True, storage_root=root)
rows = sum(len(batch["id"]) for batch in loader)
finished = pipeline.train(
    "clicks",
    storage_root=root,
    output=output,
    batch_size=128,
    columns=["id", "score", "label"],
    label_column="label",
)
assert finished.outcome.kind == "Complete", finished.outcome.error
assert loader.checksum["rows"] == rows == finished.summary.training.samples
assert loader.checksum == finished.summary.checksum.model_dump(by_alias=True)
"""


@pytest.mark.slow
def test_a_loop_over_a_loader_sees_the_rows_that_train_sees(clicks: Clicks, tmp_path: Path) -> None:
    output = str(tmp_path / "output")
    arguments = [str(clicks.root), output, json.dumps(CLICKS_PIPELINE)]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_LOAD, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
