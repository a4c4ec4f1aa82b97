"""The law's number is carried out: pods are added by one patch, and drained before they go."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import SETTINGS, World, running

from dataset_operator.api import DATA_WORKERS
from dataset_operator.autoscaling.decision import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Counters, TrainerCounters, WorkerCounters
from dataset_operator.observed import Pod, Progress
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.draining import DRAIN_SECONDS, MAX_DRAINING
from dataset_operator.plan.scaling import build_sample
from dataset_operator.status import find_condition

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
        self.world.step(seconds)


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


EVENTS = (
    *("step", "drained", "gone", "more", "less", "new operator"),
    *("killed before it drains", "killed before it patches"),
)


@given(events=st.lists(st.sampled_from(EVENTS)))
@settings(max_examples=50, deadline=None)
def test_whatever_happens_a_drain_comes_to_its_end(events: list[str]) -> None:
    run = trained(demand=350.0, replicas=8)
    run.run(375)
    world = run.world
    for event in events:
        victims = [victim["name"] for victim in world.status["dataWorkers"].get("draining", ())]
        match event:
            case "drained":
                world.drained |= {f"ip-of-{name}" for name in victims}
            case "gone":
                world.workers.pop(next(iter(victims), ""), None)
            case "more":
                run.demand = 1500.0
            case "less":
                run.demand = 100.0
            case "new operator":
                world.memory = None
            case "killed before it drains" | "killed before it patches":
                world.now += timedelta(seconds=PERIOD_SECONDS)
                world.crash(after_drain=event == "killed before it patches")
        run.step()
        assert world.taken == []
        assert 2 <= len(world.workers) <= 40
    world.settings = BY_HAND
    run.run(2 * DRAIN_SECONDS)
    assert "draining" not in world.status["dataWorkers"]
    assert not (group_of(world).get("scaleStrategy") or {}).get("workersToDelete")
    assert len(world.workers) == group_of(world)["replicas"]
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


def end_one(world: World) -> Pod:
    """A data worker that is told to end, as by a node that is drained; KubeRay counts it still."""
    name = next(iter(world.workers))
    made = world.workers.pop(name)
    ending = Pod(
        name=name,
        uid=name,
        role=DATA_WORKERS,
        ready=False,
        created=made,
        ends=world.now + timedelta(seconds=30),
    )
    world.lingering = (*world.lingering, ending)
    return ending


def test_a_worker_that_is_ending_takes_no_other_with_it() -> None:
    run = trained(demand=350.0)
    run.run(900)  # it was scaled long ago
    world, before = run.world, group_of(run.world)["replicas"]
    end_one(world)
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
