"""Groups of inference workers: their pods, and what they used."""

import json
from datetime import timedelta
from typing import Any

import pytest
from world import World, build_document, running

from dataset_operator.builders.children import build_network_policy
from dataset_operator.builders.frozen import hash_cluster_side
from dataset_operator.builders.pod_templates import ClusterInput
from dataset_operator.builders.raycluster import build_ray_cluster
from dataset_operator.groups import resolve_groups
from dataset_operator.names import Owner
from dataset_operator.observed import Pod
from dataset_operator.settings import parse_settings
from pipeline_runtime.config import (
    MAX_INFERENCE_GROUPS,
    ExperimentSpec,
    ExperimentStatus,
    InferenceWorkerStatus,
)

OWNER = Owner(name="scores", namespace="team", uid="0f3c6c1e-1111-2222-3333-444455556666")
LARGE, SMALL = "inference-large", "inference-small"
GROUPS: list[dict[str, Any]] = [
    {"name": "large", "minReplicas": 2, "maxReplicas": 6, "gpusPerReplica": 4},
    {"name": "small", "gpusPerReplica": 0, "resources": {"requests": {"cpu": "2"}}},
]


def model(group: str) -> dict[str, Any]:
    outputs = [{"name": f"y_{group}", "type": "float32"}]
    return {"name": group, "onnx": {"uri": "m"}, "outputs": outputs, "workerGroup": group}


SPEC: dict[str, Any] = {
    "pipeline": [{"predict": {"models": [model("large"), model("small")]}}],
    "output": {"parquet": {"uri": "scores/"}},
    "inferenceWorkers": GROUPS,
}


def parse(**spec: Any) -> ExperimentSpec:
    return ExperimentSpec.model_validate_json(json.dumps(build_document(**SPEC | spec)["spec"]))


def build(settings: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    parsed = parse_settings({"runtimeImage": "runtime:1", **(settings or {})})
    cluster = build_ray_cluster(ClusterInput(owner=OWNER, spec=parse(**spec), settings=parsed))
    return {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}


def test_groups_run_only_the_processes_that_ask_for_their_resource() -> None:
    found = build()
    assert list(found) == ["data-workers", LARGE, SMALL]
    large, small = found[LARGE], found[SMALL]
    assert [large[f] for f in ("minReplicas", "replicas", "maxReplicas")] == [2, 2, 6]
    for group, number in ((large, 4), (small, 1)):
        assert group["rayStartParams"]["num-cpus"] == "0"
        text = group["rayStartParams"]["resources"]
        name = group["groupName"].removeprefix("inference-")
        assert json.loads(text.strip("'")) == {f"lastmile-inference-{name}": number}
        assert group["labels"] == {"ray-subcluster": "inference"}
    assert "resources" not in found["data-workers"]["rayStartParams"]


def test_pods_have_resources_of_their_own_and_are_restricted() -> None:
    defaults = {"resources": {"inferenceWorkers": {"requests": {"cpu": "7"}}}}
    found = build(defaults)
    [large], [small] = ([*found[role]["template"]["spec"]["containers"]] for role in (LARGE, SMALL))
    assert large["resources"]["requests"] == {"cpu": "7", "nvidia.com/gpu": "4"}
    assert small["resources"]["requests"] == {"cpu": "2"}
    [data] = found["data-workers"]["template"]["spec"]["containers"]
    for container in (large, small):
        assert container["securityContext"] == data["securityContext"]
        assert container["envFrom"] == data["envFrom"]
    pod, other = (found[role]["template"]["spec"] for role in (LARGE, "data-workers"))
    assert pod["securityContext"] == other["securityContext"]
    assert pod["serviceAccountName"] == other["serviceAccountName"]


def test_the_network_policy_covers_all_pods_of_the_cluster() -> None:
    policy = build_network_policy(OWNER, parse_settings({"runtimeImage": "r"}).network)
    [labels] = policy["spec"]["podSelector"].values()
    assert list(labels) == ["ray.io/cluster"]


@pytest.mark.parametrize(
    ("edit", "is_same"),
    [({"minReplicas": 3}, True), ({"gpusPerReplica": 1}, False), ({"name": "tall"}, False)],
)
def test_only_numbers_of_pods_change_while_a_cluster_runs(
    edit: dict[str, Any], is_same: bool
) -> None:
    changed = GROUPS[0] | edit
    models = [model(changed["name"]), model("small")]
    spec = parse(pipeline=[{"predict": {"models": models}}], inferenceWorkers=[changed, GROUPS[1]])
    assert (hash_cluster_side(spec) == hash_cluster_side(parse())) is is_same


def pod(world: World, role: str, index: int) -> Pod:
    name = f"{role}-held-{index}"
    return Pod(name=name, uid=name, role=role, ready=True, scheduled=world.now)


def test_groups_are_counted_until_their_pods_are_gone() -> None:
    world = running(**SPEC)
    world.lingering = tuple(pod(world, role, index) for role, index in ((LARGE, 0), (LARGE, 1)))
    world.lingering += (pod(world, SMALL, 0),)
    before = world.status.get("usage", {})
    assert not before.get("gpuSeconds")
    world.step(60)
    usage = world.status["usage"]
    assert usage["inferenceWorkerSeconds"] == 3 * 60
    assert usage["gpuSeconds"] == 2 * 4 * 60
    assert usage["gpuMeasuredSeconds"] == 0
    assert usage["accounted"]["groups"] == [
        {"name": LARGE, "replicas": 2, "gpusPerReplica": 4},
        {"name": SMALL, "replicas": 1, "gpusPerReplica": 0},
    ]
    # One of the large group is gone without a word; the pass that its end triggers counts it.
    world.lingering = world.lingering[1:]
    world.step(10)
    usage = world.status["usage"]
    assert usage["inferenceWorkerSeconds"] == 3 * 70
    assert usage["gpuSeconds"] == 2 * 4 * 70
    assert usage["accounted"]["groups"][0]["replicas"] == 1


def test_a_group_of_a_deleted_cluster_keeps_its_gpus() -> None:
    world = running(**SPEC)
    world.lingering = (pod(world, LARGE, 0),)
    world.step(60)
    edited = [GROUPS[0] | {"gpusPerReplica": 1}, GROUPS[1]]
    world.edit(inferenceWorkers=edited, updatePolicy="Restart")
    began = world.now - timedelta(seconds=60)
    for _ in range(4):
        world.step(10)  # stopped, given back; the pod is still there
    world.step(60)
    until = world.now - began
    assert world.status["usage"]["gpuSeconds"] == 4 * until.total_seconds()


def test_a_renamed_group_is_counted_until_its_pods_are_gone() -> None:
    world = running(**SPEC)
    world.lingering = (pod(world, LARGE, 0),)
    world.step(60)
    models = [model("large") | {"workerGroup": "tall"}, model("small")]
    renamed = [GROUPS[0] | {"name": "tall"}, GROUPS[1]]
    world.edit(inferenceWorkers=renamed, pipeline=[{"predict": {"models": models}}])
    world.step(60)
    world.step(60)
    usage = world.status["usage"]
    assert usage["gpuSeconds"] == 4 * 180
    assert usage["inferenceWorkerSeconds"] == 180
    assert {"name": LARGE, "replicas": 1, "gpusPerReplica": 4} in usage["accounted"]["groups"]
    world.lingering = ()
    world.step(60)
    world.step(60)
    assert world.status["usage"]["gpuSeconds"] == 4 * 240


def test_groups_that_the_spec_no_longer_has_make_room_in_the_status() -> None:
    old = [InferenceWorkerStatus(name=f"old-{index}") for index in range(MAX_INFERENCE_GROUPS)]
    status = ExperimentStatus(inference_workers=tuple(old))
    group = next(group for group in resolve_groups(parse()) if group.role == LARGE)
    fields = group.write_numbers(status, InferenceWorkerStatus(name="large"))
    [numbers] = fields.values()
    assert [one.name for one in numbers] == ["old-1", "old-2", "old-3", "large"]  # type: ignore[attr-defined]


def test_the_status_has_the_numbers_of_each_group() -> None:
    world = running(**SPEC)
    world.step(60)
    found = {group["name"]: group for group in world.status["inferenceWorkers"]}
    assert found["large"]["desiredReplicas"] == found["large"]["readyReplicas"] == 2
    assert found["small"]["desiredReplicas"] == 1
