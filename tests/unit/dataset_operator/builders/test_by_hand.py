"""Manual additions to an experiment's objects are removed again."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import World, merge_json, running

from dataset_operator.api import TRAINERS
from dataset_operator.builders.drift import DEFAULTS, build_merge_patch, is_same

ROOT = {"securityContext": {"privileged": True}}


def spec_of(world: World) -> dict[str, Any]:
    assert world.ray_cluster is not None
    spec: dict[str, Any] = world.ray_cluster["spec"]
    return spec


def head(world: World) -> dict[str, Any]:
    group: dict[str, Any] = spec_of(world)["headGroupSpec"]
    return group


def workers(world: World) -> dict[str, Any]:
    group: dict[str, Any] = spec_of(world)["workerGroupSpecs"][1]
    return group


def pod(group: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = group["template"]["spec"]
    return found


def ray(group: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod(group)["containers"][0]
    return found


ADDED: dict[str, Callable[[World], object]] = {
    "the host's network": lambda world: pod(workers(world)).update(hostNetwork=True),
    "the host's processes, in the head": lambda world: pod(head(world)).update(hostPID=True),
    "a volume": lambda world: pod(head(world)).setdefault("volumes", []).append({"name": "a"}),
    "privileges": lambda world: (
        ray(workers(world)).setdefault("securityContext", {}).update(privileged=True)
    ),
    "a command": lambda world: ray(workers(world)).update(command=["sh"]),
    "a hook": lambda world: ray(head(world)).update(lifecycle={"postStart": {"exec": {}}}),
    "a container": lambda world: pod(workers(world))["containers"].append({"name": "b", **ROOT}),
    "an ingress": lambda world: head(world).update(enableIngress=True),
    "a service": lambda world: head(world).update(headService={"spec": {"type": "NodePort"}}),
    "a parameter of Ray's": lambda world: workers(world)["rayStartParams"].update(block="false"),
    "a group's suspension": lambda world: workers(world).update(suspend=True),
    "a group": lambda world: spec_of(world)["workerGroupSpecs"].append(
        {**copy.deepcopy(workers(world)), "groupName": "mine"}
    ),
    "an autoscaler": lambda world: spec_of(world).update(enableInTreeAutoscaling=True),
}


@pytest.mark.parametrize("add", ADDED.values(), ids=ADDED.keys())
def test_what_was_added_to_a_cluster_is_taken_away(add: Callable[[World], object]) -> None:
    world = running()
    before = copy.deepcopy(spec_of(world))
    add(world)
    assert spec_of(world) != before
    world.settle()
    assert spec_of(world) == before
    assert world.status["attempt"] == 1


def test_it_is_taken_away_beside_what_a_queue_added() -> None:
    world = running()
    for group in (head(world), workers(world)):
        pod(group)["nodeSelector"] = {"pool": "reserved"}
        group["template"]["metadata"].setdefault("annotations", {})["podset"] = "a"
    spec_of(world)["managedBy"] = "kueue.x-k8s.io/multikueue"
    admitted = copy.deepcopy(spec_of(world))
    pod(head(world))["hostNetwork"] = True
    world.settle()
    assert spec_of(world) == admitted


def test_defaults_and_empty_fields_that_a_client_writes_back_are_no_drift() -> None:
    world = running()
    group = workers(world)
    group["template"]["metadata"]["creationTimestamp"] = None
    ray(group).update(env=[*ray(group).get("env", ())], stdin=None, volumeDevices=[])
    group["numOfHosts"] = 1
    pod(group)["schedulerName"] = ""
    assert world.step().patches == ()


POLICIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "everybody's namespaces": lambda spec: spec["ingress"][0]["from"][0].update(
        namespaceSelector={}
    ),
    "a range of ports": lambda spec: spec["ingress"][1]["ports"][0].update(endPort=65535),
    "no pod at all": lambda spec: spec["podSelector"]["matchLabels"].update(none="such"),
    "no pod, by an expression": lambda spec: spec["podSelector"].update(
        matchExpressions=[{"key": "none", "operator": "Exists"}]
    ),
    "few ports of its own": lambda spec: spec["ingress"][0].update(ports=[{"port": 1}]),
    "another rule": lambda spec: spec["ingress"].append({}),
    "a way out": lambda spec: spec.update(egress=[{}]),
}


@pytest.mark.parametrize("tamper", POLICIES.values(), ids=POLICIES.keys())
def test_what_was_added_to_a_policy_is_taken_away(
    tamper: Callable[[dict[str, Any]], object],
) -> None:
    world = running()
    policy = world.owner.network_policy
    good = copy.deepcopy(world.children[policy])
    tamper(world.children[policy]["spec"])
    assert world.children[policy] != good
    world.settle()
    assert world.children[policy] == good


def test_labels_of_guards_that_were_taken_away_are_put_back_and_others_labels_stay() -> None:
    world = running()
    good = dict(world.children)
    policy, budget = world.owner.network_policy, world.owner.disruption_budget(TRAINERS)
    for name, labels in ((policy, {}), (budget, {**good[budget]["metadata"]["labels"], "a": "b"})):
        metadata = {**good[name]["metadata"], "labels": labels}
        world.children[name] = {**good[name], "metadata": metadata}
    added = world.children[budget]
    world.settle()
    assert world.children == {**good, budget: added}


KEYS = st.sampled_from(["a", "b", "protocol", "ports"])
SCALARS = st.booleans() | st.integers(0, 2) | st.sampled_from(["", "TCP", "x"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=3)


@given(observed=DOCUMENTS, wanted=DOCUMENTS)
def test_the_patch_makes_of_anything_what_is_wanted_and_no_more(
    observed: dict[str, Any], wanted: dict[str, Any]
) -> None:
    mended = merge_json(observed, build_merge_patch(observed, wanted))
    assert is_same(mended, wanted)
    assert bare(mended) == bare(wanted)


def bare(value: Any) -> Any:
    """Without what a client or a schema may add."""
    if isinstance(value, list):
        return [bare(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: bare(item) for name, item in value.items() if item not in DEFAULTS.get(name, ())}
    return {name: item for name, item in kept.items() if item not in ("", [], {})}
