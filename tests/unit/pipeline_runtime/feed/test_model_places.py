"""The nodes and resources of inference workers, on a cluster of Lastmile's and on any other."""

from typing import Any

import pytest

from pipeline_runtime.config import InferenceWorkers
from pipeline_runtime.feed.over_ray.model_pool import Places

OWN = "lastmile-inference-large"


def place(*, is_cluster: bool, **group: Any) -> Places:
    workers = InferenceWorkers.model_validate({"name": "large", **group}, strict=False)
    return Places.of(workers, is_cluster=is_cluster)


FOUR_CPUS = {"resources": {"requests": {"cpu": "4"}}}
HERE = {"a": {"CPU": 8.0}}


@pytest.mark.parametrize(
    ("group", "is_cluster", "nodes", "expected"),
    [
        ({"maxReplicas": 4}, False, HERE, {"a": 4}),
        ({"maxReplicas": 40}, False, HERE, {"a": 8}),
        ({"maxReplicas": 4, **FOUR_CPUS}, False, HERE, {"a": 2}),
        # One process, however few CPUs there are.
        ({"maxReplicas": 4, **FOUR_CPUS}, False, {"a": {"CPU": 2.0}}, {"a": 1}),
        ({"maxReplicas": 4}, False, {"a": {"CPU": 8.0, "GPU": 1.0}, "b": {"CPU": 16.0}}, {"a": 1}),
        ({"maxReplicas": 1}, False, {"a": {"CPU": 1.0, "GPU": 1.0}, "b": {"CPU": 16.0}}, {"a": 1}),
        ({"maxReplicas": 3}, False, {"a": {"CPU": 2.0}, "b": {"CPU": 2.0}}, {"a": 1, "b": 2}),
        ({}, True, {"a": {"CPU": 8.0}, "b": {OWN: 4.0, "GPU": 4.0}}, {"b": 4}),
        ({}, True, {"b": {"lastmile-inference-other": 1.0}, "a": {"CPU": 8.0}}, {}),
        # A cluster that somebody else starts may have the resource too.
        ({"maxReplicas": 4}, False, {"a": {"CPU": 8.0}, "b": {OWN: 1.0}}, {"b": 1}),
    ],
)
def test_processes_are_placed_where_there_is_room(
    group: dict[str, Any],
    is_cluster: bool,
    nodes: dict[str, dict[str, float]],
    expected: dict[str, int],
) -> None:
    assert place(is_cluster=is_cluster, **group).count(nodes) == expected


@pytest.mark.parametrize(
    ("group", "has", "expected"),
    [
        ({}, {OWN: 4.0, "GPU": 4.0}, {"num_gpus": 1, "resources": {OWN: 1}}),
        ({"gpusPerReplica": 0}, {OWN: 1.0}, {"num_gpus": 0, "resources": {OWN: 1}}),
        ({"gpusPerReplica": 2}, {"CPU": 8.0, "GPU": 2.0}, {"num_gpus": 2}),
        ({"gpusPerReplica": 2}, {"CPU": 8.0, "GPU": 1.0}, {}),
        ({"gpusPerReplica": 0}, {"CPU": 8.0, "GPU": 1.0}, {}),
    ],
)
def test_processes_hold_their_gpus(
    group: dict[str, Any], has: dict[str, float], expected: dict[str, Any]
) -> None:
    options = place(is_cluster=False, **group).build_options("a", {"a": has})
    assert options == {"num_cpus": 0, **expected}


@pytest.mark.parametrize(
    ("group", "is_cluster", "cpus"),
    [
        ({}, False, 1),
        ({}, True, 4),
        ({"gpusPerReplica": 4}, True, 1),
        ({"gpusPerReplica": 2, "resources": {"limits": {"cpu": "16"}}}, True, 8),
        ({"gpusPerReplica": 0, "resources": {"requests": {"cpu": "1500m"}}}, True, 2),
    ],
)
def test_processes_of_a_pod_share_its_cpus(
    group: dict[str, Any], is_cluster: bool, cpus: int
) -> None:
    assert place(is_cluster=is_cluster, **group).cpus == cpus
