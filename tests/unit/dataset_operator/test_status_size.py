"""The status stays small and valid for the CRD, however long messages of others are."""

from collections.abc import Callable
from typing import Any

import pytest
from stored_status import check_is_stored, num_bytes
from world import World, build_document, running

from dataset_operator.observed import CatalogTables, Progress, Refusal
from dataset_operator.plan.composing import compose_decision
from dataset_operator.plan.draining import MAX_DRAINING
from dataset_operator.plan.inference_workers import (
    MAX_MESSAGE_CHARS as MAX_MESSAGE_CHARS_OF_GROUP,
)
from dataset_operator.plan.scaling_log import MAX_DECISIONS, MAX_MESSAGE_CHARS, MAX_MESSAGES
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import set_condition
from dataset_operator.ray.runtime_metrics import MAX_METRIC_NAME_CHARS, MAX_METRICS
from dataset_operator.status import (
    MAX_MESSAGE_BYTES,
    MAX_SHORT_BYTES,
    find_condition,
    fit_message,
)
from pipeline_runtime.config import (
    MAX_INFERENCE_GROUPS,
    MAX_STATUS_MODELS,
    MAX_STATUS_SNAPSHOTS,
    MaterializationStatus,
    ModelStatus,
    SnapshotStatus,
    clean,
)

KINDS = (
    *("Accepted", "ClusterReady", "Training", "Materialized", "ScalingActive"),
    *("ScalingLimited", "Suspended", "Complete", "Failed"),
)
SHORT_KINDS = ("Materialized", "ScalingActive", "ScalingLimited")
LONGEST_URI = "s3://bucket/".ljust(1024, "x")
LONGEST_METRICS = {
    f"{index:0>{MAX_METRIC_NAME_CHARS}}": -1.23456789e-300 for index in range(MAX_METRICS)
}
# Names as long as a table's may be; fewer fit than may be reported.
LONGEST_TABLES = CatalogTables(
    snapshots=tuple(
        SnapshotStatus(catalog="c" * 63, table=f"d.{n:0>510}", snapshot_id=str(2**63 - 1))
        for n in range(MAX_STATUS_SNAPSHOTS)
    ),
    models=tuple(
        ModelStatus(experiment="e" * 63, run="r" * 128, file=f"{n:0>128}", sha256=f"{n:0>64}")
        for n in range(MAX_STATUS_MODELS)
    ),
    materialization=MaterializationStatus(
        catalog="c" * 63,
        table=f"d.{'t' * 510}",
        state="Partial",
        partitions=2**31 - 1,
        complete_partitions=2**31 - 1,
        snapshot_id=str(2**63 - 1),
    ),
)
WHEN = "2026-01-01T00:00:00Z"
# The form of the latest decisions, and of older stored ones.
LONGEST_DECISIONS = [
    {"time": WHEN, "before": 1000, "after": 1000, "reason": "ScaleDownStabilized", "attempt": 100}
    | (
        {
            "message": "m" * MAX_MESSAGE_CHARS,
            "inputs": [
                {"name": n, "value": "0.1234"} for n in ("gpuUtilization", "productionShare")
            ],
        }
        if index >= MAX_DECISIONS - MAX_MESSAGES
        else {}
    )
    for index in range(MAX_DECISIONS)
]
LONGEST_USAGE = {
    **dict.fromkeys(
        ("gpuSeconds", "gpuMeasuredSeconds", "gpuIdleSeconds", "dataWorkerSeconds"), 10**11
    ),
    "cost": "123456789.12",
    "currency": "U" * 16,
    "accounted": {
        "time": WHEN,
        "trainers": 1000,
        "gpusPerTrainer": 16,
        "dataWorkers": 1000,
        "gpuIdleRemainderSeconds": "0.999",
    },
}


# The policy by GPU utilization has only one input.
GPU_DECISIONS = [
    decision
    | ({"inputs": [{"name": "gpuUtilization", "value": "0.1234"}]} if "inputs" in decision else {})
    for decision in LONGEST_DECISIONS
]
LONGEST_FAILURE = {"replicas": 1000, "count": 100, "untilTime": WHEN}
LONGEST_GPU_LAW = {
    "attempt": 1000,
    "sharePercent": 100,
    "probe": {"time": WHEN, "before": 1000, "after": 1000, "utilization": "0.1234"},
    "failedUp": LONGEST_FAILURE,
    "failedDown": LONGEST_FAILURE,
}


def fill_conditions(world: World, letter: str) -> dict[str, Any]:
    """Return the status of a pass that sets every condition with a long message."""
    situation = Situation.begin(world.observe(), world.now)
    for kind in KINDS:
        long = set_condition(kind, False, "PreRunningDeadlineExceeded", letter * 100_000)
        situation = situation.after(long)
    return compose_decision(situation).status.to_document()


@pytest.mark.parametrize(
    "scaling",
    [
        pytest.param({"decisions": LONGEST_DECISIONS}, id="by rows"),
        pytest.param({"gpu": LONGEST_GPU_LAW, "decisions": GPU_DECISIONS}, id="by GPUs"),
    ],
)
@pytest.mark.parametrize("letter", ["x", "ы", "🐘", "\x1b", '"'])
def test_whole_messages_fit_the_bound(letter: str, scaling: dict[str, Any]) -> None:
    world = running(storage={"root": LONGEST_URI}, artifacts={"uri": "y" * 1024})
    world.progress = Progress(ratio=0.5, remaining_seconds=1e12, metrics=LONGEST_METRICS)
    world.step()
    world.status["scaling"] = {"sinceTime": WHEN, **scaling}
    world.status["usage"] = LONGEST_USAGE
    world.status["acceptedDigests"] = ["0" * 64, "f" * 64]
    status = fill_conditions(world, letter)

    assert len(status["trainer"]["metrics"]) == MAX_METRICS
    check_is_stored(status)
    for condition in status["conditions"]:
        assert condition["message"].endswith(f"{clean(letter)}…")
        most = MAX_SHORT_BYTES if condition["type"] in SHORT_KINDS else MAX_MESSAGE_BYTES
        assert most - 8 <= num_bytes(condition["message"]) - 2 <= most


@pytest.mark.parametrize("letter", ["x", "ы", "🐘", "\x1b", '"'])
def test_the_largest_status_fits_its_bound(letter: str) -> None:
    world = running(storage={"root": LONGEST_URI}, artifacts={"uri": "y" * 1024})
    world.progress = Progress(
        ratio=0.5, remaining_seconds=1e12, metrics=LONGEST_METRICS, tables=LONGEST_TABLES
    )
    world.step()
    world.status["scaling"] = {"sinceTime": WHEN, "decisions": LONGEST_DECISIONS}
    world.status["usage"] = LONGEST_USAGE
    world.status["acceptedDigests"] = ["0" * 64, "f" * 64]
    world.status["dataWorkers"]["draining"] = [
        {"name": f"{index:0>63}", "ip": f"{index:0>39}", "time": WHEN, "lost": True}
        for index in range(MAX_DRAINING)
    ]
    world.status["inferenceWorkers"] = [
        {
            "name": f"{index:0>24}",
            "desiredReplicas": 512,
            "currentReplicas": 512,
            "readyReplicas": 512,
            "lastScaleTime": WHEN,
            "reason": "ScaleDownStabilized",
            "message": "m" * MAX_MESSAGE_CHARS_OF_GROUP,
        }
        for index in range(MAX_INFERENCE_GROUPS)
    ]
    for _ in range(3):
        before, world.document["status"] = world.status, fill_conditions(world, letter)
        check_is_stored(world.status)
        assert len(world.status["snapshots"]) == 3
        for condition in world.status["conditions"]:
            assert condition["message"].startswith(clean(letter) * 16)
    assert world.status == before  # otherwise every pass would write it again


def test_a_message_that_fits_is_not_cut() -> None:
    longest = "ы" * (MAX_MESSAGE_BYTES // 2)
    assert fit_message(longest) == longest


ENDLESS = Refusal(message="n" * 50_000, is_invalid=False)


def refuse_edit(world: World) -> None:
    world.edit(env=[{"name": "A", "value": "b"}], updatePolicy="Restart")
    world.refused = ENDLESS


# the target of an endless refusal, and the condition that reports it
STORIES: dict[str, tuple[Callable[[], World], Callable[[World], Any], str]] = {
    "a cluster": (
        lambda: World(build_document()),
        lambda world: setattr(world, "refused", ENDLESS),
        "ClusterReady",
    ),
    "an edit of a running one": (running, refuse_edit, "Accepted"),
    "a pod": (
        lambda: World(build_document()),
        lambda world: (world.unready.add("trainers"), setattr(world, "waiting", "n" * 50_000)),
        "ClusterReady",
    ),
}


@pytest.mark.parametrize(("build", "befall", "kind"), STORIES.values(), ids=STORIES)
def test_an_endless_refusal_is_cut(
    build: Callable[[], World], befall: Callable[[World], Any], kind: str
) -> None:
    world = build()
    befall(world)
    world.settle()
    check_is_stored(world.status)
    found = find_condition(world.status, kind)
    assert found is not None
    assert found["message"].endswith("nn…")
