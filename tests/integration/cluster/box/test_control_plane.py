"""The cluster in a box is a Kubernetes: upstream's controllers and KubeRay work on kwok's nodes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tools.cluster.binaries import KUBERNETES_MODULE
from tools.cluster.box import Box, KubectlError
from tools.cluster.components import Layout
from tools.cluster.control_plane import COMPONENTS, ControlPlane

WAIT = "--timeout=120s"  # each is there within a second or two on an idle machine
NUM_WORKERS = 2
RAY_RESOURCES = {"cpu": "4", "memory": "8Gi"}


@pytest.fixture
def own_box(box: Box) -> ControlPlane:
    """The shared box, where it is one that was started here."""
    if not isinstance(box, ControlPlane):
        pytest.skip("on an existing cluster")
    return box


def build_pod_template(resources: Mapping[str, str]) -> dict[str, Any]:
    container = {"name": "ray", "image": "example.com/ray:none", "resources": {"limits": resources}}
    return {"spec": {"containers": [container]}}


def build_ray_cluster(name: str, worker_resources: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": build_pod_template(RAY_RESOURCES)},
            "workerGroupSpecs": [
                {
                    "groupName": "workers",
                    "replicas": NUM_WORKERS,
                    "minReplicas": NUM_WORKERS,
                    "maxReplicas": NUM_WORKERS,
                    "rayStartParams": {},
                    "template": build_pod_template(worker_resources),
                }
            ],
        },
    }


def create_ready_ray_cluster(box: Box, namespace: str, resources: Mapping[str, str]) -> None:
    manifest = json.dumps(build_ray_cluster("rays", resources))
    box.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin=manifest)
    ready = "--for=jsonpath={.status.state}=ready"
    box.kubectl("wait", ready, WAIT, "-n", namespace, "raycluster/rays")


def names(box: Box, namespace: str, kind: str) -> list[str]:
    return box.kubectl("get", kind, "-n", namespace, "-o", "name").split()


def test_the_api_server_is_of_the_pinned_version(own_box: ControlPlane) -> None:
    versions = json.loads(own_box.kubectl("version", "-o", "json"))

    found = {versions[side]["gitVersion"] for side in ("clientVersion", "serverVersion")}
    assert found == {KUBERNETES_MODULE.version}


def test_every_component_runs_and_has_a_log(own_box: ControlPlane) -> None:
    assert None not in own_box.processes().values()
    assert all((own_box.layout.logs / f"{name}.log").exists() for name in COMPONENTS)


def test_only_its_owner_can_read_its_folder_and_keys(own_box: ControlPlane) -> None:
    layout = Layout(folder=own_box.layout.folder)
    for path in (layout.folder, layout.kubeconfig, layout.pki / "service-accounts.key"):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    "resources",
    [
        pytest.param({"cpu": "16", "memory": "64Gi"}, id="with workers that have CPUs alone"),
        pytest.param(
            {"cpu": "8", "nvidia.com/gpu": "8"},
            id="with workers that have GPUs",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_ray_cluster_becomes_ready(
    played: Box, namespace: str, resources: dict[str, str]
) -> None:
    create_ready_ray_cluster(played, namespace, resources)

    pods = json.loads(played.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
    assert [pod["status"]["phase"] for pod in pods] == ["Running"] * (1 + NUM_WORKERS)


@pytest.mark.slow
def test_what_a_deleted_ray_cluster_owned_is_collected(played: Box, namespace: str) -> None:
    create_ready_ray_cluster(played, namespace, RAY_RESOURCES)
    assert names(played, namespace, "pods")
    assert names(played, namespace, "services")

    # Foreground: the object itself goes only after the garbage collector has taken the rest.
    delete = ("delete", "--cascade=foreground", WAIT, "-n", namespace)
    played.kubectl(*delete, "raycluster/rays")

    assert names(played, namespace, "pods,services") == []


@pytest.mark.slow
def test_a_deleted_namespace_goes_with_all_that_is_in_it(played: Box, namespace: str) -> None:
    create_ready_ray_cluster(played, namespace, RAY_RESOURCES)

    played.kubectl("delete", "namespace", namespace, WAIT)

    assert names(played, namespace, "pods,services,rayclusters") == []


@pytest.mark.slow
def test_a_stage_of_the_test_decides_how_its_pods_fare(played: Box, namespace: str) -> None:
    stage = {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": f"{namespace}-fails"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {
                "matchLabels": {"fails": namespace},
                "matchExpressions": [
                    {"key": ".status.phase", "operator": "In", "values": ["Running"]}
                ],
            },
            "next": {"statusTemplate": "phase: Failed\nreason: Evicted\n"},
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "doomed", "labels": {"fails": namespace}},
        "spec": {"containers": [{"name": "main", "image": "example.com/none"}]},
    }
    played.kubectl("create", "-f", "-", stdin=json.dumps(stage))
    played.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(pod))

    failed = "--for=jsonpath={.status.phase}=Failed"
    played.kubectl("wait", failed, WAIT, "-n", namespace, "pod/doomed")
    reason = ("-o", "jsonpath={.status.reason}")
    assert played.kubectl("get", "-n", namespace, "pod/doomed", *reason) == "Evicted"
    played.kubectl("delete", "stage", f"{namespace}-fails")


def test_what_kubectl_refuses_is_told_in_its_words(box: Box) -> None:
    with pytest.raises(KubectlError, match=r'namespaces "no-such-namespace" not found'):
        box.kubectl("get", "namespace", "no-such-namespace")


def test_its_kubeconfig_can_be_copied(own_box: ControlPlane, tmp_path: Path) -> None:
    copy = tmp_path / "kubeconfig"
    copy.write_bytes(own_box.kubeconfig.read_bytes())

    assert own_box.kubectl(f"--kubeconfig={copy}", "auth", "can-i", "*", "*").strip() == "yes"
