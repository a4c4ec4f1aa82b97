"""Groups of inference workers are scaled by their policy, and drained before their pods go."""

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from property_tests import examples
from scored import (
    LARGE,
    SMALL,
    Scored,
    edit_group,
    finish_draining,
    group_of,
    numbers_of,
    pods_of,
    scored,
    victims_of,
)
from world import SETTINGS, World

from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.cli.workers import explain_workers
from dataset_operator.documents import format_time
from dataset_operator.plan.draining import DRAIN_SECONDS
from dataset_operator.shapes import parse_status

MINUTE = 60.0
ONE = {"name": LARGE, "minReplicas": 1, "maxReplicas": 6}
BY_HAND = SETTINGS.model_copy(update={"autoscale": False})


def condition(world: World, kind: str) -> dict[str, Any]:
    return next(found for found in world.status["conditions"] if found["type"] == kind)


def test_pods_are_added_while_requests_wait() -> None:
    run = scored(ONE)
    run.supply = 380.0
    run.run(12 * MINUTE)
    # 380 rows per second keep 4 busy; 1, 2, 3 and then half as many again.
    assert len(pods_of(run.world, LARGE)) == group_of(run.world, LARGE)["replicas"] == 5
    numbers = numbers_of(run.world, LARGE)
    assert numbers["desiredReplicas"] == 5
    assert numbers["reason"] == "DesiredWithinRange"
    assert "requests wait" in numbers["message"]
    assert numbers["lastScaleTime"] < format_time(run.world.now)
    assert run.world.events.count("Normal Scaled") >= 2


def test_spare_pods_are_drained_then_listed_then_forgotten() -> None:
    run = scored(ONE, replicas=[4])
    run.supply = 100.0
    world = run.world
    while not victims_of(world, LARGE):
        run.step()
    [victim] = victims_of(world, LARGE)
    assert world.drains[-1].addresses == (f"ip-of-{victim}",)
    assert "inference worker" in world.drains[-1].why
    assert group_of(world, LARGE)["replicas"] == 4
    assert victim in pods_of(world, LARGE)
    finish_draining(world)
    run.step()
    assert group_of(world, LARGE)["replicas"] == 3
    assert group_of(world, LARGE)["scaleStrategy"]["workersToDelete"] == [victim]
    run.run(MINUTE)
    assert victim not in pods_of(world, LARGE)
    assert not victims_of(world, LARGE)
    assert not group_of(world, LARGE)["scaleStrategy"]["workersToDelete"]
    assert world.taken == []


def test_describe_explains_the_number_and_who_leaves() -> None:
    run = draining()
    status = parse_status(run.world.status)
    shown = list(explain_workers(run.world.document, status, run.world.now))
    labels = [label for label, _ in shown]
    assert labels.count("  leaving") == 2
    large = labels.index("Inference workers large")
    assert shown[large][1] == "4 of 4 ready, may be 1 to 2"
    assert shown[large + 1] == ("  why", "inferenceWorkers[large].maxReplicas is 2 now")
    assert shown[large + 2] == ("  leaving", "2 answer their requests, and end; 2 stay")
    assert labels[large + 3] == "  changed"


def test_a_target_takes_as_many_pods_as_it_needs() -> None:
    run = scored(ONE | {"targetCompletionSeconds": 3600}, total=1e6)
    run.run(10 * MINUTE)
    # 1,000,000 rows in 3,600 s at 100 rows per second of a pod.
    assert group_of(run.world, LARGE)["replicas"] == 3
    assert "pods meet the target" in numbers_of(run.world, LARGE)["message"]
    assert "Warning ScalingLimited" not in run.world.events


def test_a_target_that_will_be_missed_is_a_warning() -> None:
    run = scored(ONE | {"maxReplicas": 2, "targetCompletionSeconds": 1800}, total=1e6)
    run.supply = 1000.0
    run.run(6 * MINUTE)
    numbers = numbers_of(run.world, LARGE)
    assert numbers["reason"] == "TooManyReplicas"
    assert "inferenceWorkers[large].maxReplicas is 2" in numbers["message"]
    assert "raise maxReplicas or targetCompletionSeconds" in numbers["message"]
    assert [event for event in run.world.events if event.startswith("Warning")] == [
        "Warning Scaled"
    ]
    edit_group(run.world, LARGE, maxReplicas=6)
    run.run(5 * MINUTE)
    assert group_of(run.world, LARGE)["replicas"] > 2


def test_a_target_that_begins_to_be_missed_is_a_warning_too() -> None:
    run = scored(ONE | {"maxReplicas": 2, "targetCompletionSeconds": 3600}, total=6e5)
    run.supply = 1000.0
    run.run(10 * MINUTE)
    assert group_of(run.world, LARGE)["replicas"] == 2
    assert not [event for event in run.world.events if event.startswith("Warning")]
    run.total *= 3
    run.run(5 * MINUTE)
    assert run.world.events.count("Warning ScalingLimited") == 1


def test_groups_are_scaled_apart_from_each_other() -> None:
    run = scored(ONE, ONE | {"name": SMALL}, replicas=[4, 4])
    run.supply = 100.0
    for _ in range(80):
        run.step()
        finish_draining(run.world)
    assert [group_of(run.world, name)["replicas"] for name in (LARGE, SMALL)] == [2, 2]
    assert run.world.taken == []


def test_a_fixed_number_is_not_scaled() -> None:
    run = scored({"name": LARGE, "minReplicas": 2, "maxReplicas": 2})
    run.run(6 * MINUTE)
    assert group_of(run.world, LARGE)["replicas"] == 2
    numbers = numbers_of(run.world, LARGE)
    assert numbers["reason"] == "ScalingDisabled"
    assert numbers["message"] == "inferenceWorkers[large].minReplicas and maxReplicas are both 2"


def test_data_workers_are_not_added_while_inference_workers_are_the_bottleneck() -> None:
    run = scored({"name": LARGE, "minReplicas": 1, "maxReplicas": 1})
    run.run(10 * MINUTE)
    assert len(run.world.workers) == 2
    limited = condition(run.world, "ScalingLimited")
    assert (limited["status"], limited["reason"]) == ("True", "BottleneckElsewhere")
    assert "Inference: inference workers large are 100% busy" in limited["message"]


def test_data_workers_are_added_while_inference_workers_wait_for_rows() -> None:
    run = scored({"name": LARGE, "minReplicas": 10, "maxReplicas": 10})
    run.run(20 * MINUTE)
    assert len(run.world.workers) > 4


def test_unknown_metrics_keep_the_number() -> None:
    run = scored(ONE, replicas=[3])
    for _ in range(25):
        run.world.progress = None
        run.world.step(PERIOD_SECONDS)
    assert group_of(run.world, LARGE)["replicas"] == 3
    assert numbers_of(run.world, LARGE)["reason"] == "MetricsUnknown"


def test_settings_without_autoscaling_keep_the_number() -> None:
    run = scored(ONE, replicas=[3])
    run.world.settings = BY_HAND
    run.supply = 10.0
    run.run(6 * MINUTE)
    assert group_of(run.world, LARGE)["replicas"] == 3
    assert numbers_of(run.world, LARGE)["reason"] == "ScalingDisabled"


@pytest.mark.parametrize("autoscale", [True, False])
def test_a_lower_maximum_is_reached_by_a_drain(autoscale: bool) -> None:
    run = scored(ONE | {"targetCompletionSeconds": 10**6}, replicas=[4])
    world = run.world
    if not autoscale:
        world.settings = BY_HAND
    run.run(MINUTE)
    edit_group(world, LARGE, maxReplicas=2)
    run.run(30)
    victims = victims_of(world, LARGE)
    assert len(victims) == 2
    assert set(victims) <= pods_of(world, LARGE)
    assert world.num_clusters == 1
    finish_draining(world)
    run.run(MINUTE)
    bounds = [group_of(world, LARGE)[field] for field in ("minReplicas", "replicas", "maxReplicas")]
    assert bounds == [1, 2, 2]
    assert (world.taken, set(victims) & pods_of(world, LARGE)) == ([], set())
    assert "Normal Scaled" in world.events
    assert "Warning Scaled" not in world.events


def test_pods_that_a_quota_refuses_do_no_harm() -> None:
    run = scored(ONE)
    run.world.quota = 2
    run.run(10 * MINUTE)
    assert len(pods_of(run.world, LARGE)) == 2
    run.supply = 20.0
    for _ in range(80):
        run.step()
        finish_draining(run.world)
    assert run.world.taken == []
    assert pods_of(run.world, LARGE)


def test_pods_that_a_quota_refuses_for_long_are_requested_later() -> None:
    run = scored(ONE)
    run.supply, world = 1000.0, run.world
    world.quota = 2
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    since = format_time(world.now)
    assert world.ray_cluster is not None
    world.ray_cluster["status"] = {"conditions": [{**failure, "lastTransitionTime": since}]}
    run.run(5 * MINUTE)
    # KubeRay changes no group behind one whose pods it cannot create.
    assert group_of(world, LARGE)["replicas"] == 3
    run.run(5 * MINUTE)
    assert group_of(world, LARGE)["replicas"] == 2
    assert numbers_of(world, LARGE)["reason"] == "Unschedulable"
    assert "1 of 3 pods cannot be created" in numbers_of(world, LARGE)["message"]
    assert world.events.count("Warning Scaled") == 1
    run.run(10 * MINUTE)
    assert group_of(world, LARGE)["replicas"] == 2
    del world.ray_cluster["status"]
    world.quota = 10
    run.run(10 * MINUTE)
    assert group_of(world, LARGE)["replicas"] > 3


def test_the_next_cluster_begins_with_the_last_number() -> None:
    run = scored(ONE, replicas=[4])
    run.run(MINUTE)
    run.world.edit(suspend=True)
    run.world.settle()
    numbers = numbers_of(run.world, LARGE)
    assert (numbers["desiredReplicas"], numbers["currentReplicas"]) == (4, 0)
    assert "reason" not in numbers
    run.world.edit(suspend=False)
    run.world.settle()
    assert group_of(run.world, LARGE)["replicas"] == 4


def test_a_cluster_that_is_lost_leaves_the_staying_number() -> None:
    run = draining()
    run.world.settings = BY_HAND
    run.world.lose_cluster()
    run.run(MINUTE)
    assert not victims_of(run.world, LARGE)
    assert group_of(run.world, LARGE)["replicas"] == 2


@pytest.mark.parametrize(("is_draining", "replicas"), [(False, 6), (True, 2)])
def test_a_renamed_group_keeps_its_pods_until_the_next_cluster(
    is_draining: bool, replicas: int
) -> None:
    run = draining() if is_draining else scored(ONE, ONE | {"name": SMALL}, replicas=[4, 4])
    world = run.world
    run.run(MINUTE)
    before = pods_of(world, SMALL)
    spec = copy.deepcopy(world.document["spec"])
    spec["inferenceWorkers"][1]["name"] = "other"
    spec["pipeline"][0]["predict"]["models"][1]["workerGroup"] = "other"
    world.edit(inferenceWorkers=spec["inferenceWorkers"], pipeline=spec["pipeline"])
    run.run(5 * MINUTE)
    assert condition(world, "Accepted")["reason"] == "ChangePending"
    assert (world.num_clusters, world.taken) == (1, [])
    assert len(before) == 4
    assert pods_of(world, SMALL) == before
    # The other group is still scaled, and so are data workers.
    assert condition(world, "ClusterReady")["status"] == "True"
    assert len(world.workers) > 2
    world.end_job("FAILED", world.status["submission"]["id"])
    for _ in range(12):
        world.step(PERIOD_SECONDS)
    assert world.num_clusters == 2
    assert [group_of(world, name)["replicas"] for name in (LARGE, "other")] == [replicas, 1]


# --- an operator that is killed at any step -------------------------------------------------------


def draining() -> Scored:
    """Build a run of which two groups and the data workers are being drained."""
    run = scored(ONE, ONE | {"name": SMALL}, replicas=[4, 4], backoffLimit=1000)
    run.run(2 * PERIOD_SECONDS)
    for name in (LARGE, SMALL):
        edit_group(run.world, name, maxReplicas=2)
    run.run(3 * PERIOD_SECONDS)
    assert [len(victims_of(run.world, name)) for name in (LARGE, SMALL)] == [2, 2]
    return run


def crash(run: Scored, *, after_drain: bool) -> None:
    run.world.now += timedelta(seconds=PERIOD_SECONDS)
    run.world.crash(after_drain=after_drain)


def lose_node(run: Scored) -> None:
    """Lose the node of a pod of each group: the pods are deleted, but never end."""
    for name in (LARGE, SMALL):
        alive = sorted(pods_of(run.world, name) - run.world.dead)
        if alive and len(run.world.dead) < 3:
            run.world.dead.add(alive[0])
            run.world.end_worker(alive[0])


def lose_victim(run: Scored) -> None:
    for role, pods in run.world.models.items():
        for name in victims_of(run.world, role.removeprefix("inference-"))[:1]:
            pods.pop(name, None)


EVENTS: dict[str, Callable[[Scored], Any]] = {
    "step": lambda run: None,
    "drained": lambda run: finish_draining(run.world),
    "killed before it drains": lambda run: crash(run, after_drain=False),
    "killed before it patches": lambda run: crash(run, after_drain=True),
    "new operator": lambda run: run.world.forget(),
    "conflict": lambda run: setattr(run.world, "num_conflicts", run.world.num_conflicts + 1),
    "victim gone": lose_victim,
    "node lost": lose_node,
    "nodes back": lambda run: run.world.dead.clear(),
    "raised": lambda run: edit_group(run.world, LARGE, minReplicas=3, maxReplicas=5),
    "lowered": lambda run: edit_group(run.world, LARGE, minReplicas=1, maxReplicas=1),
    "data workers lowered": lambda run: run.world.edit(
        dataWorkers={"minReplicas": 1, "maxReplicas": 1}
    ),
    "idle": lambda run: setattr(run, "supply", 10.0),
    "busy": lambda run: setattr(run, "supply", 1000.0),
    "head lost": lambda run: run.world.lose_head(),
    "two minutes": lambda run: run.run(120),
}


@example(events=["killed before it drains", "killed before it patches", "drained", "step"])
@example(
    events=["drained", "killed before it patches", "conflict", "lowered", "data workers lowered"]
)
@given(events=st.lists(st.sampled_from(sorted(EVENTS)), max_size=14))
@settings(max_examples=examples(4), deadline=None)
def test_every_drain_of_every_group_ends(events: list[str]) -> None:
    run = draining()
    world = run.world
    for event in events:
        EVENTS[event](run)
        run.step()
        assert world.taken == []  # KubeRay never chooses by itself
    world.settings = BY_HAND
    world.dead.clear()
    for _ in range(4):
        run.run(DRAIN_SECONDS + 4 * PERIOD_SECONDS)
    spec = {group["name"]: group for group in world.document["spec"]["inferenceWorkers"]}
    for name in (LARGE, SMALL):
        number = group_of(world, name)["replicas"]
        assert not victims_of(world, name)
        assert not (group_of(world, name).get("scaleStrategy") or {}).get("workersToDelete")
        assert len(pods_of(world, name)) == number
        assert spec[name]["minReplicas"] <= number <= spec[name]["maxReplicas"]
    most = world.document["spec"]["dataWorkers"]["maxReplicas"]
    assert len(world.workers) <= most
    assert "draining" not in world.status["dataWorkers"]
    assert world.taken == []
