"""The accepted spec outlives a killed operator, and no other one can be put in its place."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples
from world import SEAL, UID, World, running

from dataset_operator.api import SEAL_ANNOTATION
from dataset_operator.documents import Document
from dataset_operator.sealing import VALID

BAD_EDIT = {"backoffLimit": -1}


def head(cpus: int) -> dict[str, Any]:
    return {"head": {"resources": {"limits": {"cpu": str(cpus)}}}}


def accepted_of(world: World) -> Document:
    return copy.deepcopy(world.children[world.owner.accepted])


def remove_seal(config_map: Document) -> Document:
    config_map["metadata"]["annotations"].pop(SEAL_ANNOTATION)
    return config_map


def forge(config_map: Document) -> Document:
    """Another valid spec of the same run, without a seal."""
    config = json.loads(config_map["data"]["experiment.json"])
    config["spec"] |= head(7)
    data = {**config_map["data"], "experiment.json": json.dumps(config)}
    return remove_seal({**config_map, "data": data})


def put(world: World, config_map: Document) -> None:
    """Leave this ConfigMap alone of those that hold a spec of the run."""
    kept = {n: child for n, child in world.children.items() if child["kind"] != "ConfigMap"}
    world.children = {**kept, world.owner.accepted: config_map}


def wait(world: World) -> None:
    """Wait for as long as the next cluster and attempt may take."""
    for _ in range(4):
        world.step(seconds=60)


def rebuild_cluster(world: World) -> None:
    world.lose_cluster()
    wait(world)


# --- other specs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [copy.deepcopy, remove_seal, forge])
def test_no_other_spec_is_taken_for_the_accepted_one(
    change: Callable[[Document], Document],
) -> None:
    world = running(**head(1))
    earlier = change(accepted_of(world))
    world.edit(**head(2))
    world.settle()
    world.edit(**BAD_EDIT)
    put(world, earlier)
    rebuild_cluster(world)
    assert world.ray_cluster is None
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.owner.accepted in world.status["conditions"][0]["message"]

    world.edit(backoffLimit=3)
    wait(world)
    assert world.condition("Training") == ("True", "Running")
    assert SEAL.judge(accepted_of(world), UID) == VALID
    assert world.status["run"] == 1


def test_the_accepted_spec_is_found_again_where_a_replayed_one_was_put() -> None:
    world = running(**head(1))
    earlier = accepted_of(world)
    world.edit(**head(2))
    world.settle()
    put(world, earlier)
    world.settle()
    world.edit(**BAD_EDIT)
    rebuild_cluster(world)
    assert world.ray_cluster is not None
    assert world.observe().accepted == json.loads(accepted_of(world)["data"]["experiment.json"])


def test_a_replayed_spec_stays_refused_while_the_operator_is_killed() -> None:
    world = running(backoffLimit=1)
    earlier = accepted_of(world)
    for limit in (2, 3):
        world.edit(backoffLimit=limit)
        world.settle()
    put(world, earlier)
    world.crash()
    put(world, earlier)
    assert world.observe().accepted is None


# --- older releases -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_run_of_an_older_release_without_a_digest_goes_on(is_sealed: bool) -> None:
    world = running()
    del world.status["acceptedDigests"]
    put(world, accepted_of(world) if is_sealed else remove_seal(accepted_of(world)))
    world.edit(**BAD_EDIT)
    rebuild_cluster(world)
    assert world.ray_cluster is not None
    assert "acceptedDigests" not in world.status
    world.edit(backoffLimit=3)
    world.settle()
    assert len(world.status["acceptedDigests"]) == 1


# --- an operator that is killed -------------------------------------------------------------------

PASSES: dict[str, Callable[[World], Any]] = {
    "a pass": lambda world: world.step(),
    "killed after the status": lambda world: world.crash(),
    "killed after the ConfigMap": lambda world: world.crash(after_apply=True),
}


@settings(max_examples=examples(30), deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(6, 9), st.lists(st.sampled_from(sorted(PASSES)), max_size=2)),
        max_size=3,
    ),
    is_older=st.booleans(),
)
def test_a_run_goes_on_as_accepted_whenever_the_operator_is_killed(
    edits: list[tuple[int, list[str]]], is_older: bool
) -> None:
    world = copy.deepcopy(TRAINS)
    if is_older:
        del world.status["acceptedDigests"]
    seen = [5]  # limits that a pass found in the spec
    for limit, passes in edits:
        world.edit(backoffLimit=limit)
        for name in passes:
            PASSES[name](world)
        seen += [limit] if passes else []
    world.edit(**BAD_EDIT)
    for name in sorted(PASSES):
        PASSES[name](world)
    rebuild_cluster(world)
    assert (world.status["run"], world.num_clusters) == (1, 2)
    accepted = world.observe().accepted
    assert accepted is not None
    assert accepted["spec"]["backoffLimit"] in seen

    world.edit(backoffLimit=10)
    world.settle()
    assert len(world.status["acceptedDigests"]) == 1
    assert world.status["run"] == 1


def test_a_run_that_begins_is_remembered_though_the_operator_is_killed() -> None:
    world = running()
    world.edit(training={"epochs": 7}, updatePolicy="Restart")
    for _ in range(12):
        world.crash()
        world.step()
    world.edit(**BAD_EDIT)
    rebuild_cluster(world)
    assert world.ray_cluster is not None
    assert world.status["run"] == 2
    accepted = world.observe().accepted
    assert accepted is not None
    assert accepted["spec"]["training"]["epochs"] == 7


TRAINS = running(backoffLimit=5)
