"""The law's number is carried out: pods are added by one patch, and drained before they go."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from world import SETTINGS, World, running

from dataset_operator.api import DATA_WORKERS
from dataset_operator.autoscaling.decision import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Counters, TrainerCounters, WorkerCounters
from dataset_operator.observed import Progress
from dataset_operator.plan.scaling import DRAIN_SECONDS, MAX_DRAINING

AUTOSCALING = SETTINGS.model_copy(update={"autoscale": True})
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
            readers=2.0 * workers,
        )
        if self.missing:
            counters = replace(counters, **{self.missing: None})
        self.world.progress = Progress(ratio=0.5, counters=counters)
        self.world.step(seconds)


def trained(demand: float, replicas: int = 2, **spec: Any) -> Trained:
    world = running(AUTOSCALING, **(BOUNDS | spec))
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


def test_at_the_most_and_starved_it_warns() -> None:
    run = trained(5000.0, dataWorkers={"minReplicas": 2, "maxReplicas": 5})
    run.run(900)
    assert group_of(run.world)["replicas"] == 5
    assert run.world.condition("ScalingLimited") == ("True", "TooManyReplicas")
    assert "Warning TooManyReplicas" in run.world.events


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


@pytest.mark.parametrize("missing", ["trainer", "workers", "readers"])
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
    world.settings = SETTINGS  # without autoscaling
    world.drained |= set(victims)
    run.run(60)
    assert group_of(world)["replicas"] == 6 - len(victims)
    assert "draining" not in world.status["dataWorkers"]
    assert not group_of(world)["scaleStrategy"]["workersToDelete"]
