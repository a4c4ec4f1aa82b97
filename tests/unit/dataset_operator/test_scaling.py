"""The law's number is carried out: pods are added by one patch, and drained before they go."""

import asyncio
import copy
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import SETTINGS, World, running

from dataset_operator.api import DATA_WORKERS
from dataset_operator.autoscaling.decision import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Counters, TrainerCounters, WorkerCounters
from dataset_operator.builders.merge import merge
from dataset_operator.cli.scale import build_patch
from dataset_operator.errors import KubeRefused
from dataset_operator.observed import Progress, format_time
from dataset_operator.plan import plan
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.draining import DRAIN_SECONDS, MAX_DRAINING
from dataset_operator.plan.scaling import build_sample
from dataset_operator.reconcile import Reconciler
from dataset_operator.status import find_condition
from pipeline_runtime.config import ExperimentStatus

BY_HAND = SETTINGS.model_copy(update={"autoscale": False})
BOUNDS = {"dataWorkers": {"minReplicas": 2, "maxReplicas": 40}}


@dataclass
class Trained:
    """A world whose trainers would take `demand` rows a second; two readers make 50 each."""

    world: World
    demand: float
    rows: float = 0.0
    loop: float = 0.0
    production: float = 0.0
    busy: float = 0.0
    blocked: float = 0.0
    missing: str = ""  # of the counters

    def run(self, seconds: float) -> None:
        """Pass after pass, a period apart."""
        for _ in range(round(seconds / PERIOD_SECONDS)):
            self.step()

    def step(self, seconds: float = PERIOD_SECONDS) -> None:
        if self.world.ray_cluster is None:
            self._pass(seconds)
            return
        workers = group_of(self.world)["replicas"]
        supply = 100.0 * workers
        rows = min(self.demand, supply) * seconds
        self.rows += rows
        self.loop += seconds
        self.production += seconds * max(0.0, 1.0 - supply / self.demand)
        self.busy += rows / 50.0
        self.blocked += 2 * workers * seconds - rows / 50.0
        counters = Counters(
            trainer=TrainerCounters(
                rows=self.rows,
                steps=self.rows / 10.0,
                loop_seconds=self.loop,
                production_seconds=self.production,
            ),
            workers=WorkerCounters(
                rows=self.rows,
                read_seconds=0.3 * self.busy,
                compute_seconds=0.7 * self.busy,
                blocked_seconds=self.blocked,
                idle_seconds=0.0,
            ),
            data_workers=float(workers),
            readers=2.0 * workers,
        )
        if self.missing:
            counters = replace(counters, **{self.missing: None})
        self.world.progress = Progress(ratio=0.5, counters=counters)
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.world.step(seconds)
        stored = json.dumps(self.world.status)
        ExperimentStatus.model_validate_json(stored, by_alias=True, by_name=False)


def trained(demand: float, replicas: int = 2, **spec: Any) -> Trained:
    world = running(SETTINGS, **(BOUNDS | spec))
    assert world.ray_cluster is not None
    group_of(world)["replicas"] = replicas
    return Trained(world, demand)


def group_of(world: World) -> dict[str, Any]:
    assert world.ray_cluster is not None
    groups = world.ray_cluster["spec"]["workerGroupSpecs"]
    return next(group for group in groups if group["groupName"] == DATA_WORKERS)


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


def test_spare_workers_are_drained_then_listed_then_forgotten() -> None:
    run = trained(demand=350.0, replicas=6)
    run.run(300)
    assert group_of(run.world)["replicas"] == 6
    run.run(60)
    world = run.world
    [drain, *_] = world.drains
    victims = {victim["name"] for victim in world.status["dataWorkers"]["draining"]}
    left = 6 - len(victims)
    assert 4 <= left < 6
    assert {f"ip-of-{name}" for name in victims} == set(drain.addresses)
    assert group_of(world)["replicas"] == 6  # until they have handed over what they hold
    world.drained |= set(drain.addresses)
    run.step()
    assert group_of(world)["replicas"] == left
    assert set(group_of(world)["scaleStrategy"]["workersToDelete"]) == victims
    run.step()
    assert "draining" not in world.status["dataWorkers"]
    assert not group_of(world)["scaleStrategy"]["workersToDelete"]
    assert {asked.submission_id for asked in world.drains} == {drain.submission_id}
    assert world.taken == []


def test_a_drain_that_does_not_end_is_cut_short_at_its_deadline() -> None:
    run = trained(demand=350.0, replicas=6)
    run.run(375)
    victims = run.world.status["dataWorkers"]["draining"]
    run.run(DRAIN_SECONDS)
    assert group_of(run.world)["replicas"] == 6 - len(victims)


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
    assert found["message"].endswith("(the driver's metrics: GET :9464/metrics: HTTP 404)")


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


def test_an_operator_that_begins_anew_goes_on_with_a_drain() -> None:
    run = trained(demand=350.0, replicas=6)
    run.run(375)
    drain = run.world.drains[-1]
    run.world.memory = None
    run.step()
    assert run.world.drains[-1] == drain
    run.world.drained |= set(drain.addresses)
    run.run(60)
    assert group_of(run.world)["replicas"] == 6 - len(drain.addresses)
    assert "draining" not in run.world.status["dataWorkers"]


def test_no_more_are_drained_at_a_time_than_a_status_holds() -> None:
    run = trained(100.0, replicas=400, dataWorkers={"minReplicas": 1, "maxReplicas": 500})
    run.run(375)
    assert len(run.world.status["dataWorkers"]["draining"]) == MAX_DRAINING


@pytest.mark.parametrize("missing", ["trainer", "workers", "data_workers", "readers"])
def test_counters_that_are_not_whole_scale_nothing(missing: str) -> None:
    run = trained(demand=350.0)
    run.missing = missing
    run.run(300)
    assert group_of(run.world)["replicas"] == 2
    assert run.world.condition("ScalingActive") == ("False", "MetricsUnknown")


def test_a_drain_that_was_begun_is_ended_whatever_is_wanted_meanwhile() -> None:
    run = trained(demand=350.0, replicas=6)
    run.run(375)
    world = run.world
    victims = world.drains[-1].addresses
    world.settings = BY_HAND
    world.drained |= set(victims)
    run.run(60)
    assert group_of(world)["replicas"] == 6 - len(victims)
    assert "draining" not in world.status["dataWorkers"]
    assert not group_of(world)["scaleStrategy"]["workersToDelete"]


def test_a_victim_that_goes_by_itself_is_not_replaced_for_good() -> None:
    run = trained(demand=350.0, replicas=6, dataWorkers={"minReplicas": 5, "maxReplicas": 40})
    run.run(375)
    world = run.world
    victims = {victim["name"] for victim in world.status["dataWorkers"]["draining"]}
    for name in victims:
        del world.workers[name]  # KubeRay makes others in their place
    stayed = set(world.workers)
    run.run(60)
    left = 6 - len(victims)
    assert (group_of(world)["replicas"], set(world.workers)) == (left, stayed)
    assert world.taken == []
    assert "draining" not in world.status["dataWorkers"]
    assert not group_of(world)["scaleStrategy"]["workersToDelete"]


def test_more_are_asked_for_while_others_are_on_their_way_out() -> None:
    run = trained(demand=350.0, replicas=6)
    while "draining" not in run.world.status["dataWorkers"]:
        run.step()
    world = run.world
    victims = {victim["name"] for victim in world.status["dataWorkers"]["draining"]}
    run.demand = 1500.0
    run.run(60)
    wanted = world.status["dataWorkers"]["drainingTo"]
    assert wanted > 6
    assert len(set(world.workers) - victims) == wanted  # at once
    world.drained |= {f"ip-of-{name}" for name in victims}
    run.run(60)
    assert group_of(world)["replicas"] >= wanted
    assert not victims & set(world.workers)
    assert world.taken == []
    assert "draining" not in world.status["dataWorkers"]


def draining() -> Trained:
    """A run of which data workers are on their way out: three of eight."""
    run = copy.deepcopy(_draining())
    assert len(run.world.status["dataWorkers"]["draining"]) == 3
    return run


@functools.cache
def _draining() -> Trained:
    run = trained(demand=350.0, replicas=8, backoffLimit=1000)
    while "draining" not in run.world.status["dataWorkers"]:
        run.step()
    return run


def victims_of(world: World) -> list[str]:
    return [victim["name"] for victim in world.status["dataWorkers"].get("draining", ())]


def listed(world: World) -> list[str]:
    return (group_of(world).get("scaleStrategy") or {}).get("workersToDelete") or []


def settle_by_hand(run: Trained, seconds: float) -> None:
    """The law is not asked any more."""
    run.world.settings = BY_HAND
    run.run(seconds)


def test_a_victim_stays_listed_until_its_pod_is_gone_also_on_a_node_that_is_lost() -> None:
    run = draining()
    world, victims = run.world, victims_of(run.world)
    lost = victims[0]
    run.world.settings = BY_HAND
    _drain(run)
    run.step()
    assert listed(world) == victims
    world.dead.add(lost)
    run.run(600)
    assert (listed(world), group_of(world)["replicas"]) == ([lost], 5)
    assert "draining" not in world.status["dataWorkers"]
    assert world.events.count("Warning NodeLost") == 1
    world.awaited.clear()  # a KubeRay that begins anew does not know whom it deleted
    run.run(60)
    assert (len(world.workers), world.taken) == (6, [])
    world.dead.clear()
    run.run(60)
    assert (len(world.workers), listed(world), world.taken) == (5, [], [])


def test_a_worker_on_a_lost_node_is_replaced_and_never_deleted() -> None:
    run = trained(demand=350.0, replicas=4)
    run.run(60)
    world, name = run.world, next(iter(run.world.workers))
    world.dead.add(name)
    world.end_worker(name)
    settle_by_hand(run, 60)
    assert len(world.workers) == 4  # its node may come back
    run.run(60)
    assert len(world.workers) == 5
    assert listed(world) == []
    assert world.events.count("Warning NodeLost") == 1
    scale_by_hand(world, 6)
    run.run(60)
    assert len(world.workers) == 7  # one of them there is not
    world.dead.clear()
    run.run(60)
    assert (len(world.workers), group_of(world)["replicas"]) == (6, 6)
    assert world.taken == []
    assert name not in world.workers


def test_at_the_most_a_worker_on_a_lost_node_is_replaced_too() -> None:
    run = trained(350.0, replicas=2, dataWorkers={"minReplicas": 2, "maxReplicas": 2})
    run.step()
    world, name = run.world, next(iter(run.world.workers))
    world.dead.add(name)
    world.end_worker(name)
    run.run(120)
    assert len(world.workers) == 3
    world.dead.clear()
    run.run(60)
    bounds = [group_of(world)[field] for field in ("minReplicas", "replicas", "maxReplicas")]
    assert (bounds, len(world.workers), world.taken) == ([2, 2, 2], 2, [])


@pytest.mark.parametrize("autoscale", [True, False])
def test_a_lower_maximum_is_come_to_by_a_drain(autoscale: bool) -> None:
    run = trained(demand=5000.0, replicas=6)
    run.run(15)
    world = run.world
    if not autoscale:
        world.settings = BY_HAND
    world.edit(dataWorkers={"minReplicas": 2, "maxReplicas": 4})
    run.run(30)
    victims = victims_of(world)
    assert len(victims) == 2
    assert group_of(world)["replicas"] == 6
    assert {f"ip-of-{name}" for name in victims} == set(world.drains[-1].addresses)
    run.run(30)
    assert len(world.workers) == 6  # they hand over what they hold
    _drain(run)
    run.run(60)
    bounds = [group_of(world)[field] for field in ("minReplicas", "replicas", "maxReplicas")]
    assert bounds == [2, 4, 4]
    assert (world.taken, set(victims) & set(world.workers)) == ([], set())
    assert [event for event in world.events if "Scaled" in event] == ["Normal Scaled"]


def test_a_lower_number_of_a_spec_that_has_one_is_come_to_by_a_drain() -> None:
    run = trained(350.0, replicas=6, dataWorkers={"minReplicas": 6, "maxReplicas": 6})
    run.step()
    run.world.edit(dataWorkers={"minReplicas": 4, "maxReplicas": 4})
    run.run(30)
    assert len(victims_of(run.world)) == 2
    _drain(run)
    run.run(60)
    assert len(run.world.workers) == group_of(run.world)["maxReplicas"] == 4
    assert run.world.taken == []
    assert run.world.events.count("Normal Scaled") == 1


@pytest.mark.parametrize("wanted", [6, 8, 9])  # fewer than are there, as many, more
def test_a_number_that_is_set_by_hand_while_others_leave_is_kept(wanted: int) -> None:
    run = draining()
    world, victims = run.world, set(victims_of(run.world))
    world.settings = BY_HAND
    scale_by_hand(world, wanted)
    run.run(3 * DRAIN_SECONDS)
    assert len(world.workers) == group_of(world)["replicas"] == wanted
    assert not victims & set(world.workers)
    assert world.taken == []
    assert "draining" not in world.status["dataWorkers"]


def test_a_number_that_is_written_without_a_list_is_kept_too() -> None:
    run = draining()
    run.world.settings = BY_HAND
    group_of(run.world)["replicas"] = 11
    run.run(3 * DRAIN_SECONDS)
    assert len(run.world.workers) == group_of(run.world)["replicas"] == 11
    assert run.world.taken == []


def test_pods_that_are_only_being_made_are_not_taken_for_refused() -> None:
    run = trained(demand=350.0)
    run.run(900)  # it was scaled long ago
    world, before = run.world, group_of(run.world)["replicas"]
    world.now += timedelta(seconds=PERIOD_SECONDS)
    group_of(world)["replicas"] = before + 4  # just now
    observed = world.observe()
    seen = tuple(p for p in observed.pods if p.role != DATA_WORKERS)[:2]
    few = (*seen, *(p for p in observed.pods if p.role == DATA_WORKERS))[: 2 + before]
    decision = plan(replace(observed, pods=few), SETTINGS, world.now, "")
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


def test_a_victim_that_has_no_address_yet_is_drained_once_it_has() -> None:
    run = draining()
    world, victims = run.world, victims_of(run.world)
    world.document["status"]["dataWorkers"]["draining"][0].pop("ip")  # as it was chosen
    run.step()
    assert set(world.drains[-1].addresses) == {f"ip-of-{name}" for name in victims}
    assert listed(world) == []


def test_of_a_cluster_that_is_lost_nobody_is_on_his_way_out() -> None:
    run = draining()
    run.world.lose_cluster()
    settle_by_hand(run, 60)
    assert len(run.world.workers) == group_of(run.world)["replicas"] == 5
    assert victims_of(run.world) == []
    assert run.world.num_made == 8 + 5


def test_victims_go_at_once_where_no_driver_gives_them_work() -> None:
    run = draining()
    world, victims = run.world, victims_of(run.world)
    world.settings = BY_HAND
    world.lose_head()
    run.run(45)
    assert not set(victims) & set(world.workers)
    assert len(world.workers) == group_of(world)["replicas"] == 5
    assert (victims_of(world), world.taken) == ([], [])


def test_what_was_to_stay_is_what_a_suspended_run_resumes_with() -> None:
    run = draining()
    run.world.edit(suspend=True)
    run.world.settle()
    assert run.world.status["dataWorkers"]["desiredReplicas"] == 5
    run.world.edit(suspend=False)
    run.world.settle()
    assert group_of(run.world)["replicas"] == 5


def test_another_run_on_the_same_cluster_ends_what_was_begun() -> None:
    run = draining()
    world, victims = run.world, victims_of(run.world)
    world.settings = BY_HAND
    world.edit(training={"batchSize": 7}, updatePolicy="Restart")
    run.run(120)
    assert world.status["run"] == 2
    assert not set(victims) & set(world.workers)
    assert len(world.workers) == group_of(world)["replicas"] == 5
    assert (victims_of(world), world.taken) == ([], [])


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


def _lose_a_node(run: Trained) -> None:
    """Its pods are told to end, and nobody there hears of it."""
    world = run.world
    name = next((name for name in world.workers if name not in world.dead), None)
    if name is not None and len(world.dead) < 4:
        world.dead.add(name)
        world.end_worker(name)


def scale_by_hand(world: World, wanted: int) -> None:
    """`lastmile scale`."""
    if world.ray_cluster is not None:
        patch, _ = build_patch(world.ray_cluster, wanted, world.document)
        world.ray_cluster = merge(world.ray_cluster, patch)


def _scale_up_by_hand(run: Trained) -> None:
    most = bounds_of(run.world)[1]
    if run.world.ray_cluster is not None and most >= len(run.world.workers):
        scale_by_hand(run.world, most)


def _unready_one(run: Trained) -> None:
    run.world.unwell |= set(list(run.world.workers)[:1])


def _crash(run: Trained, *, after_drain: bool) -> None:
    run.world.now += timedelta(seconds=PERIOD_SECONDS)
    run.world.crash(after_drain=after_drain)


def _drain(run: Trained) -> None:
    noted = run.world.status.get("dataWorkers", {}).get("draining", ())
    run.world.drained |= {f"ip-of-{victim['name']}" for victim in noted}


def _go(run: Trained) -> None:
    noted = run.world.status.get("dataWorkers", {}).get("draining", ())
    run.world.workers.pop(next((victim["name"] for victim in noted), ""), None)


EVENTS: dict[str, Callable[[Trained], Any]] = {
    "step": lambda run: None,
    "drained": _drain,
    "gone": _go,
    "more": lambda run: setattr(run, "demand", 1500.0),
    "less": lambda run: setattr(run, "demand", 100.0),
    "new operator": lambda run: setattr(run.world, "memory", None),
    "killed before it drains": lambda run: _crash(run, after_drain=False),
    "killed before it patches": lambda run: _crash(run, after_drain=True),
    "node lost": _lose_a_node,
    "nodes back": lambda run: run.world.dead.clear(),
    "unready": _unready_one,
    "ready": lambda run: run.world.unwell.clear(),
    "hand scale, all": _scale_up_by_hand,
    "hand scale, a few": lambda run: scale_by_hand(run.world, bounds_of(run.world)[0]),
    "bounds lowered": lambda run: run.world.edit(dataWorkers={"minReplicas": 2, "maxReplicas": 3}),
    "bounds raised": lambda run: run.world.edit(dataWorkers={"minReplicas": 9, "maxReplicas": 40}),
    "409": lambda run: setattr(run.world, "num_conflicts", run.world.num_conflicts + 1),
    "head lost": lambda run: run.world.lose_head(),
    "cluster lost": lambda run: run.world.lose_cluster(),
    "two minutes": lambda run: run.run(120),
}


def bounds_of(world: World) -> tuple[int, int]:
    workers = world.document["spec"]["dataWorkers"]
    return workers["minReplicas"], workers["maxReplicas"]


def count_wanted(world: World) -> int:
    workers = world.status["dataWorkers"]
    staying: int = workers.get("drainingTo", group_of(world)["replicas"])
    return staying


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
    asyncio.run(reconciler._say(observed, KubeRefused("no")))
    assert kube.reasons == ["ChildRefused"]


TAKES = "hand scale, a few"  # whom KubeRay likes


@given(
    events=st.lists(st.sampled_from(sorted(EVENTS.keys() - {TAKES})), max_size=20)
    | st.lists(st.sampled_from(sorted(EVENTS)), max_size=20)
)
@settings(max_examples=40, deadline=None)
def test_whatever_happens_a_drain_comes_to_its_end(events: list[str]) -> None:
    run = draining()
    world = run.world
    for event in events:
        EVENTS[event](run)
        run.step()
        if TAKES not in events:
            assert world.taken == []
        assert len(set(world.workers) - set(world.ending)) <= 40
    world.settings = BY_HAND
    run.run(3 * DRAIN_SECONDS)
    lowest, highest = bounds_of(world)
    assert lowest <= count_wanted(world) <= highest
    if not world.awaited:  # else KubeRay waits for one that it deleted, which went with its node
        assert len(set(world.workers) - world.dead) == count_wanted(world)
    world.dead.clear()
    run.run(2 * DRAIN_SECONDS)
    assert "draining" not in world.status["dataWorkers"]
    assert not (group_of(world).get("scaleStrategy") or {}).get("workersToDelete")
    assert len(world.workers) == group_of(world)["replicas"]
    assert lowest <= len(world.workers) <= highest == group_of(world)["maxReplicas"]
    if TAKES not in events:
        assert world.taken == []


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
        draft = Draft(
            observed=replace(observed, pods=pods), settings=SETTINGS, now=run.world.now, token=""
        )
        return build_sample(draft).pods.start_seconds

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
    draft = Draft(observed=replace(observed, pods=pods), settings=SETTINGS, now=world.now, token="")
    assert build_sample(draft).pods.stuck == 0
    assert before == group_of(world)["replicas"]


def test_bounds_that_are_edited_hold_for_a_drain_that_is_under_way() -> None:
    run = trained(demand=350.0, replicas=6)
    while "draining" not in run.world.status["dataWorkers"]:
        run.step()
    world = run.world
    world.edit(dataWorkers={"minReplicas": 8, "maxReplicas": 8})
    made = world.num_made
    run.run(2 * DRAIN_SECONDS)
    assert len(world.workers) == group_of(world)["replicas"] == 8
    assert world.num_made <= made + 4  # none is taken away and made again
    assert "draining" not in world.status["dataWorkers"]
