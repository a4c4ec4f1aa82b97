"""The law's number is carried out, and told once it is."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, cast

import pytest
from trained import (
    group_of,
    trained,
)
from world import SETTINGS, World

from dataset_operator.api import DATA_WORKERS
from dataset_operator.autoscaling import Sample
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.documents import format_time
from dataset_operator.errors import KubeRefused
from dataset_operator.observed import Observed
from dataset_operator.plan import decide
from dataset_operator.plan.data_workers.scaling import build_sample
from dataset_operator.plan.ending import refuse_invalid
from dataset_operator.plan.situation import Situation
from dataset_operator.reconcile import Reconciler
from dataset_operator.status import find_condition


def sample_of(observed: Observed, now: datetime) -> Sample:
    """Return the policy's input of a pass."""
    situation = Situation.begin(observed, now)
    return build_sample(situation.after(refuse_invalid(situation)))


def test_a_starved_trainer_gets_workers_and_it_is_told_why() -> None:
    run = trained(demand=350.0)
    run.run(300)
    assert group_of(run.world)["replicas"] == 4
    assert run.world.condition("ScalingActive") == ("True", "ValidMetricFound")
    assert run.world.events.count("Normal Scaled") == 1
    assert run.world.status["lastScaleTime"]
    assert run.world.status["dataWorkers"]["desiredReplicas"] == 4


def test_the_status_is_not_written_where_nothing_changes() -> None:
    run = trained(demand=350.0)
    run.run(600)
    before = {**run.world.status, "trainer": None}
    run.run(1200)
    assert {**run.world.status, "trainer": None} == before


def test_a_spec_with_one_number_is_not_scaled() -> None:
    run = trained(350.0, dataWorkers={"minReplicas": 2, "maxReplicas": 2})
    run.run(300)
    assert group_of(run.world)["replicas"] == 2
    assert run.world.condition("ScalingActive") == ("False", "ScalingDisabled")


def test_metrics_that_are_gone_change_nothing_and_are_told_after_three_scrapes() -> None:
    run = trained(demand=350.0, replicas=4)
    run.run(300)
    world, asked = run.world, group_of(run.world)["replicas"]
    for index in range(20):
        world.progress = None
        world.step(PERIOD_SECONDS)
        known = world.condition("ScalingActive") == ("True", "ValidMetricFound")
        assert known == (index < 3)
        assert group_of(world)["replicas"] == asked
    assert world.condition("ScalingActive") == ("False", "MetricsUnknown")


def test_why_metrics_are_not_known_is_told() -> None:
    run = trained(demand=350.0)
    run.missing = "trainer"
    run.world.unknown = "the driver's metrics: GET :9464/metrics: HTTP 404"
    run.run(300)
    found = find_condition(run.world.status, "ScalingActive")
    assert found is not None
    assert run.world.unknown in found["message"]


def test_at_the_most_and_starved_it_warns() -> None:
    run = trained(5000.0, dataWorkers={"minReplicas": 2, "maxReplicas": 5})
    run.run(900)
    assert group_of(run.world)["replicas"] == 5
    assert run.world.condition("ScalingLimited") == ("True", "TooManyReplicas")
    assert [event for event in run.world.events if "Scaled" in event] == [
        "Normal Scaled",
        "Warning Scaled",  # at the most, which does not do
    ]


def test_an_event_is_told_only_when_the_number_changes() -> None:
    run = trained(demand=350.0, replicas=6)
    before = len(run.world.events)
    run.run(270)  # fewer are recommended, which is held back
    assert run.world.condition("ScalingLimited") == ("True", "ScaleDownStabilized")
    assert run.world.events[before:] == []


@pytest.mark.parametrize("missing", ["trainer", "workers", "data_workers", "readers"])
def test_counters_that_are_not_whole_scale_nothing(missing: str) -> None:
    run = trained(demand=350.0)
    run.missing = missing
    run.run(300)
    assert group_of(run.world)["replicas"] == 2
    assert run.world.condition("ScalingActive") == ("False", "MetricsUnknown")


def test_pods_that_are_only_being_made_are_not_taken_for_refused() -> None:
    run = trained(demand=350.0)
    run.run(900)  # it was scaled long ago
    world, before = run.world, group_of(run.world)["replicas"]
    world.now += timedelta(seconds=PERIOD_SECONDS)
    group_of(world)["replicas"] = before + 4  # just now
    observed = world.observe()
    seen = tuple(p for p in observed.pods if p.role != DATA_WORKERS)[:2]
    few = (*seen, *(p for p in observed.pods if p.role == DATA_WORKERS))[: 2 + before]
    decision = decide(replace(observed, pods=few), world.now)
    assert decision.patches == ()
    assert not any(event.reason == "Scaled" for event in decision.events)


def refuse_pods(world: World) -> None:
    """KubeRay cannot make them, as it says."""
    assert world.ray_cluster is not None
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    since = format_time(world.now)
    world.ray_cluster["status"] = {"conditions": [{**failure, "lastTransitionTime": since}]}


def test_pods_that_a_quota_refuses_for_long_are_asked_for_no_more() -> None:
    run = trained(demand=350.0)
    run.run(900)
    world, before = run.world, group_of(run.world)["replicas"]
    world.quota = before
    refuse_pods(world)
    run.demand = 5000.0
    while group_of(world)["replicas"] == before:
        run.step()
    run.run(270)
    assert group_of(world)["replicas"] > before
    run.run(60)
    assert group_of(world)["replicas"] == before
    assert world.condition("ScalingLimited") == ("True", "Unschedulable")


def test_a_scaling_that_a_conflict_refused_is_told_once_when_it_is_done() -> None:
    run = trained(demand=350.0)
    while group_of(run.world)["replicas"] == 2:
        run.world.num_conflicts = 1 if run.world.num_conflicts == 0 else run.world.num_conflicts
        before = run.world.num_conflicts
        run.step()
        if run.world.num_conflicts < before:  # it was refused
            assert "Normal Scaled" not in run.world.events
            run.run(60)
            break
    assert group_of(run.world)["replicas"] == 4
    assert run.world.events.count("Normal Scaled") == 1


class Recording:
    """An API server that takes every write, and has the experiment as it is."""

    def __init__(self, world: World) -> None:
        self.world, self.reasons = world, list[str]()

    async def get(self, kind: str, namespace: str, name: str) -> Any:
        return self.world.document

    async def create(self, document: Any) -> None:
        self.reasons.append(document["reason"])

    async def write_status(self, document: Any, status: Any) -> None: ...

    async def write_finalizers(self, document: Any, names: Any) -> None: ...


def test_a_scaling_that_is_refused_is_not_told_as_done() -> None:
    run = trained(demand=350.0)
    world, nobody = run.world, cast(Any, None)
    world.num_conflicts, before = 1, world.memory
    for _ in range(20):
        before = world.memory
        run.step()
        if world.num_conflicts == 0:
            break
    observed = world.observe()
    observed = replace(observed, scaling=replace(observed.scaling, memory=before))
    kube = Recording(world)
    reconciler = Reconciler(
        kube=cast(Any, kube),
        connect=nobody,
        source=nobody,
        settings=SETTINGS,
        now=lambda: world.now,
    )
    asyncio.run(reconciler._report(observed, KubeRefused("no")))
    assert kube.reasons == ["OwnedObjectRefused"]


def test_in_an_outage_the_law_is_asked_once_a_period_all_the_same() -> None:
    run = trained(demand=350.0, replicas=4)
    run.run(300)
    world = run.world
    world.progress = None
    asked = [world.step(1.0).memory is not None for _ in range(60)]
    assert sum(asked) == 60 // PERIOD_SECONDS


def test_what_keeps_the_number_is_told_anew_once_it_has_lasted() -> None:
    run = trained(demand=350.0, replicas=6)
    run.run(300)
    told = []
    for index in range(40):
        run.demand = 350.0 if index % 3 else 550.0  # now this, now that
        run.step()
        told.append(run.world.condition("ScalingLimited"))
    assert sum(a != b for a, b in pairwise(told)) <= 2


def test_a_pod_that_was_ready_before_says_nothing_of_a_start() -> None:
    made = datetime(2026, 1, 1, tzinfo=UTC)

    def sample(ready_after: float) -> float | None:
        run = trained(demand=350.0, replicas=2)
        run.run(15)
        observed = run.world.observe()
        pods = tuple(
            replace(
                pod,
                created=made,
                started=made + timedelta(seconds=20),
                ready_since=made + timedelta(seconds=ready_after),
            )
            for pod in observed.pods
        )
        return sample_of(replace(observed, pods=pods), run.world.now).pods.start_seconds

    assert sample(ready_after=35.0) == 35.0
    assert sample(ready_after=3600.0) is None


def test_a_worker_that_is_ending_takes_no_other_with_it() -> None:
    run = trained(demand=350.0)
    run.run(900)  # it was scaled long ago
    world, before = run.world, group_of(run.world)["replicas"]
    world.end_worker(next(iter(world.workers)))  # as by a node that is drained
    run.run(120)
    assert group_of(world)["replicas"] == before
    assert "Warning Scaled" not in world.events


def test_a_worker_that_is_not_ready_for_a_moment_is_not_stuck() -> None:
    run = trained(demand=350.0)
    run.run(900)
    world, before = run.world, group_of(run.world)["replicas"]
    observed = world.observe()
    pods = tuple(
        replace(pod, ready=False, unready_since=world.now - timedelta(seconds=20))
        if pod.role == DATA_WORKERS
        else pod
        for pod in observed.pods
    )
    assert sample_of(replace(observed, pods=pods), world.now).pods.stuck == 0
    assert before == group_of(world)["replicas"]
