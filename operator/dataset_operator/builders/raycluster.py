"""Builds the RayCluster of an experiment: a head, trainers, and data workers that scale.

An experiment that writes a table has no trainers.
"""

from __future__ import annotations

from collections.abc import Mapping

from dataset_operator.api import (
    DATA_SUBCLUSTER,
    DATA_WORKERS,
    HEAD,
    KUEUE_ELASTIC_ANNOTATION,
    KUEUE_LABELS,
    KUEUE_QUEUE_LABEL,
    RAY_API_VERSION,
    RAY_METRICS_PORT,
    RAY_SUBCLUSTER_LABEL,
    RENDERER_ANNOTATION,
    TRAINERS,
    TRAINING_SUBCLUSTER,
    Role,
)
from dataset_operator.builders.frozen import freeze
from dataset_operator.builders.pod_templates import SPEC_FIELDS, ClusterInput, build_pod_template
from dataset_operator.builders.shared_parts import Document, build_metadata

# Raised when the rendered cluster changes; a running cluster keeps the version that rendered it.
RENDERER_VERSION = 1


def build_ray_cluster(
    cluster: ClusterInput, num_data_workers: int, labels: Mapping[str, str] | None = None
) -> Document:
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
                *([_build_trainers(cluster)] if cluster.spec.num_trainers else []),
                _build_data_workers(cluster, num_data_workers),
            ],
        },
    }
    return freeze(document, cluster.spec, cluster.spec_hash)


def name_templates(cluster: Document) -> dict[str, str]:
    """Return the path of each template in a RayCluster, with its path in the experiment."""
    groups = [group["groupName"] for group in cluster["spec"]["workerGroupSpecs"]]
    return {
        "spec.headGroupSpec.template": "spec.head.template",
        **{
            f"spec.workerGroupSpecs[{index}].template": f"spec.{SPEC_FIELDS[role]}.template"
            for index, role in enumerate(groups)
        },
    }


def _start_params(num_cpus: str | None) -> dict[str, str]:
    params = {"metrics-export-port": str(RAY_METRICS_PORT)}
    return params if num_cpus is None else params | {"num-cpus": num_cpus}


def _build_trainers(cluster: ClusterInput) -> Document:
    """Build the trainers' group with one logical CPU per rank, so that no data work runs there."""
    trainers = cluster.spec.trainers
    ranks = max(1, trainers.gpus_per_replica)
    bounds = (trainers.replicas, trainers.replicas, trainers.replicas)
    group = _build_group(cluster, TRAINERS, bounds, _start_params(str(ranks)))
    return group | {"labels": {RAY_SUBCLUSTER_LABEL: TRAINING_SUBCLUSTER}}


def _build_data_workers(cluster: ClusterInput, replicas: int) -> Document:
    workers = cluster.spec.data_workers
    bounds = (workers.min_replicas, replicas, workers.max_replicas)
    group = _build_group(cluster, DATA_WORKERS, bounds, _start_params(None))
    return group | {"labels": {RAY_SUBCLUSTER_LABEL: DATA_SUBCLUSTER}}


def _build_group(
    cluster: ClusterInput, role: Role, bounds: tuple[int, int, int], params: dict[str, str]
) -> Document:
    lowest, wanted, highest = bounds
    return {
        "groupName": role,
        "minReplicas": lowest,
        "replicas": min(max(wanted, lowest), highest),
        "maxReplicas": highest,
        "rayStartParams": params,
        "template": build_pod_template(cluster, role),
    }
