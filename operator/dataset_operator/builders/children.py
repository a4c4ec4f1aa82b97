"""Builds the owned objects beside the RayCluster: config, token, policies, service account."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dataset_operator.api import (
    CONFIG_KEY,
    DASHBOARD_PORT,
    RAY_CLUSTER_LABEL,
    RAY_METRICS_PORT,
    ROLE_LABEL,
    RUN_KEY,
    RUNTIME_METRICS_PORT,
    TOKEN_KEY,
)
from dataset_operator.builders.name_servers import build_name_server_rules
from dataset_operator.builders.shared_parts import Document, build_metadata, build_peer
from dataset_operator.groups import GROUPS, HEAD_GROUP, Group, Groups, resolve_groups
from dataset_operator.names import Owner
from dataset_operator.settings import NetworkSettings
from pipeline_runtime.config import ExperimentSpec

_ASKED_PORTS = (DASHBOARD_PORT, RUNTIME_METRICS_PORT, RAY_METRICS_PORT)


def build_config_map(owner: Owner, run: int, run_hash: str, config: Mapping[str, Any]) -> Document:
    """Build the copy of a run's config for people and tools; the driver gets one with its job."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": build_metadata(owner, owner.config_map(run, run_hash)),
        "immutable": True,
        "data": {CONFIG_KEY: json.dumps(config, indent=2, sort_keys=True)},
    }


def build_accepted(owner: Owner, run: int, config: Mapping[str, Any]) -> Document:
    """Build the accepted experiment, which the run keeps while a later spec waits or is invalid."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": build_metadata(owner, owner.accepted),
        "data": {RUN_KEY: str(run), CONFIG_KEY: json.dumps(config, indent=2, sort_keys=True)},
    }


def build_token_secret(owner: Owner, token: str) -> Document:
    """Build the Secret with Ray's token; it is created once and never changed."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": build_metadata(owner, owner.token_secret),
        "immutable": True,
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def build_service_account(owner: Owner) -> Document:
    """Build the service account of the cluster's pods, which has no rights and no token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": build_metadata(owner, owner.service_account),
        "automountServiceAccountToken": False,
    }


def build_network_policy(owner: Owner, network: NetworkSettings) -> Document:
    """Build the policy that lets pods of a cluster, the operator and Prometheus reach its pods.

    The operator and Prometheus reach only the ports that they need. Every pod serves Ray's metrics,
    from which the operator reads the utilization of the trainers' GPUs; only the head serves the
    other ports. An API server that proxies for people reaches the same ports as the operator.
    """
    own_pods = {"podSelector": {"matchLabels": {RAY_CLUSTER_LABEL: owner.ray_cluster}}}
    askers = [build_peer(network.operator_namespace, network.operator_labels)]
    askers += [{"ipBlock": {"cidr": cidr}} for cidr in network.api_server_cidrs]
    ingress: list[Document] = [
        {"from": [own_pods]},
        {"from": askers, "ports": _build_ports(*_ASKED_PORTS)},
    ]
    if network.prometheus_namespace:
        scraper = build_peer(network.prometheus_namespace, network.prometheus_labels)
        ports = _build_ports(RAY_METRICS_PORT, RUNTIME_METRICS_PORT)
        ingress.append({"from": [scraper], "ports": ports})
    spec: Document = {**own_pods, "policyTypes": ["Ingress"], "ingress": ingress}
    if network.egress is not None:
        spec["policyTypes"].append("Egress")
        spec["egress"] = [{"to": [own_pods]}, *build_name_server_rules(network), *network.egress]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": build_metadata(owner, owner.network_policy),
        "spec": spec,
    }


def _build_ports(*numbers: int) -> list[Document]:
    return [{"port": number, "protocol": "TCP"} for number in numbers]


def build_disruption_budgets(
    owner: Owner, spec: ExperimentSpec, groups: Groups = GROUPS
) -> list[Document]:
    """Build the budgets that limit evictions of the cluster's pods: one for each row of the table.

    RayCluster has no scale subresource, so `minAvailable` must be an integer (Kubernetes docs,
    «Specifying a Disruption Budget»).
    """
    limited = [kind for kind in (HEAD_GROUP, *groups) if kind.has_budget]
    members = [resolve_groups(spec, [kind]) for kind in limited]
    return [_build_disruption_budget(owner, found) for found in members if found]


def _build_disruption_budget(owner: Owner, groups: Sequence[Group]) -> Document:
    """Build the budget of the groups of one row, which has a fixed name whatever their number."""
    kind, roles = groups[0].kind, [group.role for group in groups]
    labels = {RAY_CLUSTER_LABEL: owner.ray_cluster}
    selector: Document = {"matchLabels": labels | {ROLE_LABEL: kind.role}}
    if roles != [kind.role]:
        expression = {"key": ROLE_LABEL, "operator": "In", "values": roles}
        selector = {"matchLabels": labels, "matchExpressions": [expression]}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": build_metadata(owner, owner.disruption_budget(kind.role)),
        "spec": {
            "minAvailable": sum(group.pods.num_kept for group in groups),
            "selector": selector,
        },
    }
