"""A spec is parsed and hashed once per generation; running specs over the size bound continue."""

from typing import Any

import pytest
from counted_calls import Calls, counting
from world import UID, World, build_document

from dataset_operator.builders.frozen import hash_cluster_side
from dataset_operator.names import Owner
from dataset_operator.readings import Readings
from pipeline_runtime.config import RuleSet
from pipeline_runtime.config.identity.run_hash import hash_config
from pipeline_runtime.config.reading.validation import _validate

LARGE = {"config": {"a": "x" * 70_000}}
COUNTED = (_validate, hash_config, hash_cluster_side)
ONCE_EACH = {"_validate": 1, "hash_config": 1, "hash_cluster_side": 1}


def small(**spec: Any) -> World:
    return World(build_document(**spec), readings=Readings())


def counted(calls: Calls) -> dict[str, int]:
    return dict(calls.by_name)


def test_a_spec_is_parsed_and_hashed_once_per_generation() -> None:
    world = small(training={"config": {"a": [[]] * 1_000}})
    with counting(*COUNTED) as calls:
        world.settle()
        for _ in range(20):
            world.step(15)
    assert counted(calls) == ONCE_EACH
    with counting(*COUNTED) as calls:
        world.edit(backoffLimit=5)
        for _ in range(20):
            world.step(15)
    # The previous spec is read from the ConfigMap until the ConfigMap has the edited spec.
    assert counted(calls) == {name: 2 if name != "hash_cluster_side" else 1 for name in ONCE_EACH}


def test_waiting_for_a_cluster_computes_no_hash() -> None:
    world = small()
    world.settle()
    world.edit(head={"resources": {"limits": {"cpu": "2"}}})
    world.step()
    with counting(*COUNTED) as calls:
        for _ in range(10):
            world.step(15)
    assert counted(calls).get("hash_cluster_side", 0) == 0
    assert counted(calls).get("_validate", 0) == 0


def test_an_invalid_edit_is_checked_once() -> None:
    world = small()
    world.settle()
    world.edit(trainers={"replicas": 0})
    world.step()
    with counting(*COUNTED) as calls:
        for _ in range(10):
            world.step(15)
    assert counted(calls) == {}


def test_kept_readings_are_bounded() -> None:
    readings = Readings(max_bytes=200_000)

    def read(uid: int, num_lists: int = 1) -> Any:
        document = build_document(training={"config": {"a": [[]] * num_lists}})
        document["metadata"]["uid"] = str(uid)
        return readings.read_wanted(document)

    for uid in range(100):
        read(uid)
        assert readings.num_bytes <= readings.max_bytes
    with counting(*COUNTED) as calls:
        read(99)  # the latest
    assert counted(calls) == {}
    with counting(*COUNTED) as calls:
        read(0)  # dropped long ago
    assert counted(calls) == {"_validate": 1}
    large = read(101, 20_000)  # alone over the bound: kept until the next one comes
    assert read(101, 20_000) is large
    assert readings.num_bytes == large.num_bytes
    read(102)
    assert readings.num_bytes <= readings.max_bytes


def test_changed_metadata_keeps_the_reading() -> None:
    readings, document = Readings(), build_document()
    first = readings.read_wanted(document)
    document["metadata"] |= {"labels": {"a": "b"}, "resourceVersion": "7"}
    document["status"] = {"phase": "Running"}
    assert readings.read_wanted(document) is first
    document["metadata"]["generation"] += 1
    assert readings.read_wanted(document) is not first


@pytest.mark.parametrize("deep", [3, 300, 9_000])
def test_an_invalid_accepted_spec_is_read_as_refused(deep: int) -> None:
    value: Any = 0
    for _ in range(deep):
        value = [value]
    document = build_document(training={"config": value})
    owner = Owner.of(build_document())
    found = Readings().read_accepted(document, owner, RuleSet.NONE)
    assert found.experiment is None


# --- specs that were accepted before the bound existed ------------------------------------------


def accepted_before() -> World:
    """Build a training experiment whose spec is larger than the bound for new specs."""
    document = build_document(training=LARGE)
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": "ValidSpec",
        "message": "it is valid",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    world = World({**document, "status": {"conditions": [condition]}}, readings=Readings())
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    return world


def test_a_large_spec_is_refused_if_it_is_new() -> None:
    world = small(training=LARGE)
    world.step()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.ray_cluster is None


def test_a_running_large_spec_continues() -> None:
    world = accepted_before()
    for _ in range(3):
        world.step(15)
    assert world.condition("Accepted") == ("True", "ValidSpec")
    world.end_job("FAILED", message="a node was lost")
    world.settle()
    world.step(120)
    world.settle()
    assert (world.status["run"], world.status["attempt"]) == (1, 2)
    assert world.condition("Training") == ("True", "Running")


def test_a_large_edit_is_refused_and_the_run_continues() -> None:
    world = accepted_before()
    world.edit(training={"config": {"a": "y" * 70_000}})
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    assert world.condition("Training") == ("True", "Running")
    assert (world.status["run"], world.status["attempt"]) == (1, 1)
    world.edit(training=LARGE)
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert world.status["run"] == 1


def test_other_fields_of_a_large_spec_can_be_edited() -> None:
    world = accepted_before()
    world.edit(suspend=True)
    world.settle()
    assert world.condition("Suspended") == ("True", "SuspendedBySpec")
    world.edit(suspend=False)
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    assert world.status["run"] == 1


def test_a_large_spec_continues_without_its_config_map() -> None:
    world = accepted_before()
    for name in [name for name, child in world.children.items() if child["kind"] == "ConfigMap"]:
        del world.children[name]
    world.settle()
    assert world.condition("Accepted") == ("True", "ValidSpec")
    assert world.owner.accepted in world.children
    assert world.document["metadata"]["uid"] == UID
