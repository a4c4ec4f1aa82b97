"""Nodes and tolerations that a queue such as Kueue adds to templates survive edits."""

import copy
from datetime import timedelta
from typing import Any

import pytest
from trained import group_of, trained
from world import SETTINGS, World, running

from dataset_operator.observed import Pod

SOON = timedelta(seconds=120)
OURS = [{"key": "gpu", "operator": "Exists"}]
THEIRS = [{"key": "reserved", "operator": "Exists"}]


def admit(world: World) -> list[dict[str, Any]]:
    """As Kueue does; returns the templates as they are then."""
    found = templates(world)
    for template in found:
        template["nodeSelector"] = {"pool": "reserved"}
        template["tolerations"] = [*THEIRS, *template.get("tolerations", ())]
    return copy.deepcopy(found)


def templates(world: World) -> list[dict[str, Any]]:
    assert world.ray_cluster is not None
    spec = world.ray_cluster["spec"]
    groups = (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    return [group["template"]["spec"] for group in groups]


@pytest.mark.parametrize("tolerations", [[], OURS], ids=["none of ours", "ours"])
def test_what_a_queue_added_is_neither_drift_nor_lost_by_an_edit(
    tolerations: list[dict[str, Any]],
) -> None:
    settings = SETTINGS.model_copy(update={"tolerations": tuple(tolerations)})
    world = running(settings, dataWorkers={"minReplicas": 1, "maxReplicas": 2})
    admitted = admit(world)
    assert world.step().patches == ()
    world.edit(dataWorkers={"minReplicas": 3, "maxReplicas": 4})
    world.step()
    assert group_of(world)["maxReplicas"] == 4
    assert templates(world) == admitted


def test_what_was_ours_is_put_back_beside_a_queues() -> None:
    world = trained(demand=100.0).world
    admit(world)
    before = copy.deepcopy(templates(world))
    templates(world)[0]["containers"][0]["image"] = "another"
    world.step()
    assert templates(world)[0]["containers"] == before[0]["containers"]
    assert templates(world)[1:] == before[1:]


def test_a_cluster_that_a_queue_holds_back_is_said_to_wait_for_it() -> None:
    world = running()
    assert world.ray_cluster is not None
    world.ray_cluster["spec"]["suspend"] = True
    world.ray_cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpus"
    world.unready |= {"head", "trainers", "data-workers"}
    decision = world.step()
    assert world.condition("ClusterReady") == ("False", "WaitingForQueue")
    assert all(event.type == "Normal" for event in decision.events)
    assert world.ray_cluster["spec"]["suspend"] is True


def suspend(world: World, *, suspended: bool) -> None:
    """As Kueue does."""
    assert world.ray_cluster is not None
    world.ray_cluster["spec"]["suspend"] = suspended


def evict(world: World) -> None:
    """The pods are gone, the head's driver with them."""
    world.is_evicted = True
    world.lose_head()


def readmit(world: World) -> None:
    world.is_evicted = False
    suspend(world, suspended=False)


@pytest.mark.parametrize("job", ["RUNNING", "FAILED"])
def test_what_a_queue_takes_back_while_it_trains_resumes_without_a_failure(job: str) -> None:
    world = running()
    suspend(world, suspended=True)
    world.end_job(job)  # trainers may end before the head
    world.step()
    assert world.condition("Training") == ("False", "WaitingForQueue")
    assert "submission" in world.status  # its driver may still be there
    assert world.finalizer

    evict(world)
    world.settle()
    assert world.condition("Training") == ("False", "WaitingForQueue")
    assert world.condition("ClusterReady") == ("False", "WaitingForQueue")
    assert "submission" not in world.status
    assert not world.finalizer

    readmit(world)
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    assert [submit.resume for submit in world.submitted] == [False, True]
    assert world.status.get("failures", 0) == 0
    assert world.num_clusters == 1


def test_an_operator_that_comes_late_still_finds_what_was_taken_back() -> None:
    world = running()
    suspend(world, suspended=True)
    evict(world)
    world.settle()
    readmit(world)
    world.settle()
    assert world.status.get("failures", 0) == 0
    assert len(world.submitted) == 2


def test_nothing_is_submitted_while_the_head_before_ends() -> None:
    world = running()
    suspend(world, suspended=True)
    world.step()
    uid = world.status["submission"]["headPodUid"]
    old = Pod(name="head-0", uid=uid, role="head", ready=False, ends=world.now + SOON)
    world.lose_head()
    world.lingering = (old,)
    readmit(world)
    for _ in range(3):
        world.step(seconds=10)
    assert len(world.submitted) == 1

    world.lingering = ()
    world.settle()
    assert len(world.submitted) == 2
    assert world.status.get("failures", 0) == 0


def test_what_is_admitted_again_before_anything_ended_trains_on() -> None:
    world = running()
    suspend(world, suspended=True)
    world.step()
    readmit(world)
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    assert len(world.submitted) == 1


def test_a_run_that_ended_well_before_it_was_taken_back_is_complete() -> None:
    world = running()
    suspend(world, suspended=True)
    world.end_job("SUCCEEDED")
    world.step()
    assert world.condition("Complete") == ("True", "Succeeded")
