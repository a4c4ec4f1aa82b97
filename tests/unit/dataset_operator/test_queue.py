"""What a queue such as Kueue adds to templates, nodes and tolerations, stays whatever is edited."""

import copy
from typing import Any

import pytest
from trained import group_of, trained
from world import SETTINGS, World, running

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
