"""Builds the RayCluster of an experiment: a head, and the worker groups of its spec (`groups`)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dataset_operator.api import (
    HEAD,
    KUEUE_ELASTIC_ANNOTATION,
    KUEUE_LABELS,
    KUEUE_QUEUE_LABEL,
    RAY_API_VERSION,
    RAY_METRICS_PORT,
    RENDERER_ANNOTATION,
)
from dataset_operator.builders.frozen import freeze
from dataset_operator.builders.pod_templates import ClusterInput, build_pod_template
from dataset_operator.builders.shared_parts import Document, build_metadata
from dataset_operator.groups import GROUPS, Group, Groups, locate_section, resolve_groups

# Raised when the rendered cluster changes; a running cluster keeps the version that rendered it.
RENDERER_VERSION = 1


def build_ray_cluster(cluster: ClusterInput, labels: Mapping[str, str] | None = None) -> Document:
    """Build the whole RayCluster.

    Args:
        labels: the experiment's labels; the cluster gets those for the queue.
    """
    owner, settings = cluster.owner, cluster.settings
    metadata = build_metadata(owner, owner.ray_cluster)
    metadata["annotations"] = {RENDERER_ANNOTATION: str(RENDERER_VERSION)}
    if labels and KUEUE_QUEUE_LABEL in labels:
        metadata["labels"] |= {k: v for k, v in labels.items() if k.startswith(KUEUE_LABELS)}
        metadata["annotations"][KUEUE_ELASTIC_ANNOTATION] = "true"
    document: Document = {
        "apiVersion": RAY_API_VERSION,
        "kind": "RayCluster",
        "metadata": metadata,
        "spec": {
            "rayVersion": settings.ray_version,
            "enableInTreeAutoscaling": False,
            "authOptions": {"mode": "token", "secretName": owner.token_secret},
            "headGroupSpec": {
                "serviceType": "ClusterIP",
                "rayStartParams": _start_params("0") | {"dashboard-host": "0.0.0.0"},
                "template": build_pod_template(cluster, HEAD),
            },
            "workerGroupSpecs": [
                _build_group(cluster, group)
                for group in resolve_groups(cluster.spec, cluster.groups)
            ],
        },
    }
    return freeze(document, cluster.spec, cluster.spec_hash, cluster.groups)


def name_templates(cluster: Document, groups: Groups = GROUPS) -> dict[str, str]:
    """Return the path of each template in a RayCluster, with its path in the experiment."""
    roles = [group["groupName"] for group in cluster["spec"]["workerGroupSpecs"]]
    return {
        "spec.headGroupSpec.template": "spec.head.template",
        **{
            f"spec.workerGroupSpecs[{index}].template": f"spec.{section}.template"
            for index, section in enumerate(locate_section(role, groups) for role in roles)
        },
    }


def _start_params(
    num_cpus: str | None, resources: Mapping[str, int] | None = None
) -> dict[str, str]:
    params = {"metrics-export-port": str(RAY_METRICS_PORT)}
    if resources:
        # KubeRay writes the value into a line for a shell.
        params["resources"] = f"'{json.dumps(dict(resources))}'"
    return params if num_cpus is None else params | {"num-cpus": num_cpus}


def _build_group(cluster: ClusterInput, group: Group) -> Document:
    role, pods, bounds = group.role, group.pods, group.pods.bounds
    document: Document = {
        "groupName": role,
        "minReplicas": bounds.least,
        "replicas": bounds.clamp(cluster.replicas.get(role, bounds.first)),
        "maxReplicas": bounds.most,
        "rayStartParams": _start_params(
            None if pods.num_cpus is None else str(pods.num_cpus), pods.ray_resources
        ),
        "template": build_pod_template(cluster, role),
    }
    if group.kind.labels:
        document["labels"] = dict(group.kind.labels)
    return document
