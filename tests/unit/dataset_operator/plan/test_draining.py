"""Data workers go so that nobody else does: drained first, then listed, then forgotten."""

import pytest
from trained import (
    BY_HAND,
    draining,
    finish_draining,
    group_of,
    listed,
    scale_by_hand,
    settle_by_hand,
    trained,
    victims_of,
)
from world import GRACE_SECONDS

from dataset_operator.plan.draining import DRAIN_SECONDS, MAX_DRAINING


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
    for name in victims_of(run.world):
        del run.world.workers[name]  # KubeRay makes as many others
    settle_by_hand(run, 60)
    assert len(run.world.workers) == group_of(run.world)["replicas"] == 400 - MAX_DRAINING


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


def test_a_victim_stays_listed_until_its_pod_is_gone_also_on_a_node_that_is_lost() -> None:
    run = draining()
    world, victims = run.world, victims_of(run.world)
    lost = victims[0]
    run.world.settings = BY_HAND
    finish_draining(run)
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


def test_a_victim_that_outlives_its_grace_period_is_not_listed() -> None:
    run = draining()
    world, victims = run.world, victims_of(run.world)
    world.dead.add(victims[0])
    world.end_worker(victims[0])
    run.world.settings = BY_HAND
    run.run(GRACE_SECONDS)
    finish_draining(run)
    run.step()
    assert (listed(world), group_of(world)["replicas"]) == (victims[1:], 6)
    run.run(90)
    assert world.events.count("Warning NodeLost") == 1
    scale_by_hand(world, 7)  # KubeRay waits for nothing
    run.run(60)
    assert len(set(world.workers) - world.dead) == 7
    world.dead.clear()
    run.run(60)
    assert (len(world.workers), group_of(world)["replicas"]) == (7, 7)
    assert (listed(world), world.taken) == ([], [])


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
    finish_draining(run)
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
    finish_draining(run)
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
