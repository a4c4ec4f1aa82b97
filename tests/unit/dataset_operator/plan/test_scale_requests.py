"""`lastmile scale`: an annotation of the experiment, carried out once and within bounds."""

from typing import Any

import pytest
from world import World, build_document, running

from dataset_operator.api import DATA_WORKERS, SCALE_ANNOTATION
from dataset_operator.cli.scale import build_request
from pipeline_runtime.config import parse_stored

WORKERS = {"dataWorkers": {"minReplicas": 2, "maxReplicas": 8}}


def ask(world: World, text: Any) -> None:
    world.document["metadata"]["annotations"] = {SCALE_ANNOTATION: text}


def request(world: World, number: int) -> None:
    ask(world, build_request(number)["metadata"]["annotations"][SCALE_ANNOTATION])


def replicas(world: World) -> int:
    assert world.ray_cluster is not None
    groups = world.ray_cluster["spec"]["workerGroupSpecs"]
    [number] = [group["replicas"] for group in groups if group["groupName"] == DATA_WORKERS]
    return int(number)


def outcome(world: World) -> str | None:
    state: str | None = (world.status.get("scaleRequest") or {}).get("state")
    return state


def test_more_workers_are_created_and_the_request_is_recorded() -> None:
    world = running(**WORKERS)
    request(world, 6)
    world.settle()
    assert (replicas(world), outcome(world)) == (6, "Applied")
    assert world.status["dataWorkers"]["desiredReplicas"] == 6
    assert world.events.count("Normal Scaled") == 1
    parse_stored(world.document)


def test_removed_workers_are_drained_first() -> None:
    world = running(**WORKERS)
    request(world, 6)
    world.settle()
    request(world, 3)
    world.step()
    assert replicas(world) == 6
    assert world.drains
    for _ in range(40):
        world.step(seconds=10)
    assert (replicas(world), outcome(world), world.taken) == (3, "Applied", [])


def test_a_request_is_carried_out_once() -> None:
    world = running(**WORKERS)
    request(world, 6)
    world.settle()
    assert world.ray_cluster is not None
    world.ray_cluster["spec"]["workerGroupSpecs"][1]["replicas"] = 4  # another number by hand
    world.settle()
    assert replicas(world) == 4
    world.edit(training={"batchSize": 7}, updatePolicy="Restart")
    world.settle()
    assert world.status["run"] == 2
    assert replicas(world) != 6


def test_the_same_number_can_be_requested_again() -> None:
    world = running(**WORKERS)
    for number in (6, 3, 6):
        request(world, number)
        for _ in range(40):
            world.step(seconds=10)
        assert replicas(world) == number


NO_REQUESTS = {
    "empty": "",
    "no id": "6",
    "a slash": "/",
    "too few": "1/a",
    "too many": "9/a",
    "far too many": "9999999/a",
    "a word": "six/a",
    "negative": "-3/a",
    "a space": "6/a b",
    "a long id": "6/" + "a" * 65,
    "other digits": "٦/a",
    "other letters": "6/é",
    "huge": "6" * 200_000,
    "a control character": "\x00",
    "two lines": "6/a\n",
}


@pytest.mark.parametrize("text", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_an_invalid_request_is_refused_once(text: str) -> None:
    world = running(**WORKERS)
    before = replicas(world)
    ask(world, text)
    world.settle()
    for _ in range(3):
        world.step(seconds=60)
    assert (replicas(world), outcome(world)) == (before, "Refused")
    assert world.events.count("Warning ScaleRefused") == 1
    assert len(str(world.status["scaleRequest"])) < 500
    parse_stored(world.document)


def test_a_request_waits_for_a_cluster() -> None:
    world = World(build_document(suspend=True, **WORKERS))
    world.settle()
    request(world, 5)
    world.settle()
    assert outcome(world) is None
    world.edit(suspend=False)
    world.settle()
    assert (replicas(world), outcome(world)) == (5, "Applied")


def test_a_request_survives_a_write_conflict() -> None:
    world = running(**WORKERS)
    request(world, 6)
    world.num_conflicts = 2
    for _ in range(4):
        world.step(seconds=5)
    assert (replicas(world), outcome(world)) == (6, "Applied")
