"""Allowed connections to an experiment's pods, by the policies in the API server.

The policies are judged, not enforced: the test on the full node knocks at real doors.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from network_policies import Network, Place
from reconcile_stage import SETTINGS, Stage, stage_of

from dataset_operator.api import (
    DASHBOARD_PORT,
    RAY_CLUSTER_LABEL,
    RAY_METRICS_PORT,
    ROLE_LABEL,
    RUNTIME_METRICS_PORT,
)
from dataset_operator.settings import NetworkSettings
from tools.cluster.box import Box, KubectlError

GCS_PORT, SSH_PORT = 6379, 22  # Ray's own, and one that nobody speaks of
PORTS = (DASHBOARD_PORT, RUNTIME_METRICS_PORT, RAY_METRICS_PORT, GCS_PORT, SSH_PORT)
ALL = frozenset(PORTS)
METRICS = frozenset({RUNTIME_METRICS_PORT, RAY_METRICS_PORT})
NOTHING: frozenset[int] = frozenset()
PROXY = "198.51.100.7"
NETWORK = NetworkSettings(
    prometheus_namespace="monitoring",
    prometheus_labels={"app": "prometheus"},
    api_server_cidrs=("198.51.100.0/28",),
)
OPERATOR = {"app.kubernetes.io/name": "lastmile-operator"}
SELECTED = {"app": "web"}


def policy(spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"namespace": "team"}, "spec": {"policyTypes": ["Ingress"], **spec}}


ALLOWS_LABELLED = policy(
    {
        "podSelector": {"matchLabels": SELECTED},
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": {"role": "client"}}}],
                "ports": [{"port": 80, "endPort": 90, "protocol": "TCP"}],
            }
        ],
    }
)
DENIES_ALL = policy({"podSelector": {}})
ALLOWS_OTHERS = policy(
    {
        "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]},
        "ingress": [
            {"from": [{"namespaceSelector": {"matchLabels": {"env": "prod"}}}]},
            {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]},
        ],
    }
)
CLOSED_EGRESS = policy({"podSelector": {}, "policyTypes": ["Egress"], "egress": []})
WEB = Place(namespace="team", labels=SELECTED)
CLIENT = Place(namespace="team", labels={"role": "client"})
AWAY = Place(namespace="other", labels={"role": "client"})


@pytest.mark.parametrize(
    ("policies", "source", "port", "lets"),
    [
        pytest.param([], AWAY, 80, True, id="without a policy a pod is open"),
        pytest.param([DENIES_ALL], CLIENT, 80, False, id="selected, and nothing is allowed"),
        pytest.param([ALLOWS_LABELLED], CLIENT, 80, True, id="a pod by its label"),
        pytest.param([ALLOWS_LABELLED], CLIENT, 90, True, id="the last port of a range"),
        pytest.param([ALLOWS_LABELLED], CLIENT, 91, False, id="beyond the range"),
        pytest.param([ALLOWS_LABELLED], WEB, 80, False, id="without the label"),
        pytest.param([ALLOWS_LABELLED], AWAY, 80, False, id="the label in another namespace"),
        pytest.param([DENIES_ALL, ALLOWS_LABELLED], CLIENT, 80, True, id="policies add up"),
        pytest.param([ALLOWS_OTHERS], AWAY, 1, True, id="a namespace by its label, any port"),
        pytest.param([ALLOWS_OTHERS], CLIENT, 1, False, id="and its own is not one of them"),
        pytest.param([ALLOWS_OTHERS], Place(ip="10.2.0.1"), 1, True, id="an address of a block"),
        pytest.param([ALLOWS_OTHERS], Place(ip="10.1.0.1"), 1, False, id="one that is excepted"),
        pytest.param([CLOSED_EGRESS], CLIENT, 80, False, id="the source may not go out"),
        pytest.param([CLOSED_EGRESS], AWAY, 80, True, id="of another namespace it may"),
    ],
)
def test_policies_are_judged_as_the_documentation_says(
    policies: list[dict[str, Any]], source: Place, port: int, lets: bool
) -> None:
    network = Network(policies=policies, namespaces={"team": {}, "other": {"env": "prod"}})
    assert network.lets(source, WEB, port) is lets


def reached(network: Network, source: Place, target: Place) -> frozenset[int]:
    return frozenset(port for port in PORTS if network.lets(source, target, port))


def read(box: Box, kind: str, *of: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = json.loads(box.kubectl("get", kind, *of, "-o", "json"))[
        "items"
    ]
    return found


def places(box: Box, namespace: str, cluster: str) -> dict[str, Place]:
    """The pods of a cluster by their role, as they are."""
    pods = read(box, "pods", "-n", namespace, "-l", f"{RAY_CLUSTER_LABEL}={cluster}")
    return {
        pod["metadata"]["labels"][ROLE_LABEL]: Place(
            namespace=namespace, labels=pod["metadata"]["labels"], ip=pod["status"]["podIP"]
        )
        for pod in pods
    }


RIGHTS = [
    (verb, resource)
    for verb in ("get", "list", "create", "patch", "delete")
    for resource in ("pods", "secrets", "configmaps", "rayclusters.ray.io")
] + [("get", "datasetexperiments.experiments.lastmile.dev"), ("create", "pods/exec")]


def test_a_pod_of_an_experiment_may_do_nothing(box: Box, namespace: str) -> None:
    async def story() -> str:
        async with stage_of(box, namespace) as stage:
            await stage.train()
            return (await stage.owner()).ray_cluster

    pods = read(box, "pods", "-n", namespace, "-l", f"{RAY_CLUSTER_LABEL}={asyncio.run(story())}")
    [account] = {pod["spec"]["serviceAccountName"] for pod in pods}
    assert account != "default"
    assert not any(pod["spec"]["automountServiceAccountToken"] for pod in pods)
    user = f"--as=system:serviceaccount:{namespace}:{account}"
    for verb, resource in RIGHTS:
        with pytest.raises(KubectlError):  # it says no by its exit code
            box.kubectl("auth", "can-i", verb, resource, "-n", namespace, user)


async def train(stage: Stage) -> dict[str, Place]:
    await stage.train()
    return places(stage.box, stage.namespace, (await stage.owner()).ray_cluster)


def test_an_experiments_pods_are_reached_by_their_own_and_by_who_watches_them(
    box: Box, namespace: str
) -> None:
    settings = SETTINGS.model_copy(update={"network": NETWORK})

    async def story() -> tuple[dict[str, Place], dict[str, Place]]:
        async with (
            stage_of(box, namespace, settings=settings) as one,
            stage_of(box, namespace, settings=settings, name="views") as other,
        ):
            return await train(one), await train(other)

    own, others = asyncio.run(story())
    names = {item["metadata"]["name"]: item for item in read(box, "namespaces")}
    network = Network(
        policies=read(box, "networkpolicies", "-n", namespace),
        namespaces={name: item["metadata"]["labels"] for name, item in names.items()}
        | {n: {"kubernetes.io/metadata.name": n} for n in ("lastmile-system", "monitoring")},
    )
    head = own["head"]
    thief = Place(namespace="default", labels=head.labels)  # our labels, another namespace
    strangers = {
        "a pod of the namespace": Place(namespace=namespace, labels={"app": "notebook"}),
        "a pod of another namespace with our labels": thief,
        "an operator of another namespace": Place(namespace="default", labels=OPERATOR),
        "somebody else beside the operator": Place(namespace="lastmile-system"),
        "a Prometheus of another namespace": Place(
            namespace="default", labels={"app": "prometheus"}
        ),
        "somebody outside": Place(ip="192.0.2.1"),
        **{f"the {role} of the experiment beside it": pod for role, pod in others.items()},
    }
    askers = frozenset({DASHBOARD_PORT}) | METRICS
    assert len(own) == len(others) == 3
    for pod in own.values():
        found = {who: reached(network, place, pod) for who, place in strangers.items()}
        assert found == dict.fromkeys(strangers, NOTHING)
        for friend in own.values():
            assert reached(network, friend, pod) == ALL
        operator = Place(namespace="lastmile-system", labels=OPERATOR)
        assert reached(network, operator, pod) == askers
        assert reached(network, Place(ip=PROXY), pod) == askers
        prometheus = Place(namespace="monitoring", labels={"app": "prometheus"})
        assert reached(network, prometheus, pod) == METRICS
    assert reached(network, head, others["head"]) == NOTHING
