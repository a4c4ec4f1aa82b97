"""`lastmile scale`: how many data workers there should be, of a cluster that runs.

The number lives in the RayCluster; the spec's bounds hold. The group list is written as it was
observed but for what is about the number, and only if nobody changed the RayCluster since. Those
that are on their way out go at once, so that the number is of those that stay, and the operator
sees that it is somebody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dataset_operator.api import DATA_WORKERS
from dataset_operator.cli.cluster import Cluster, on_cluster
from dataset_operator.cli.options import (
    ContextOption,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    Target,
)
from dataset_operator.errors import UserError
from dataset_operator.names import Owner
from dataset_operator.observed import Document


def scale(
    name: NameArgument,
    data_workers: Annotated[
        int, typer.Option(help="Within dataWorkers.minReplicas and maxReplicas.")
    ],
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Change how many data workers a running experiment has.

    The work of those that are taken away is done again by the others.
    """
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    on_cluster(target, lambda cluster: _scale(cluster, name, data_workers))


async def _scale(cluster: Cluster, name: str, wanted: int) -> None:
    experiment = await cluster.find(name)
    owner = Owner.of(experiment)
    ray_cluster = await cluster.kube.get("RayCluster", cluster.namespace, owner.ray_cluster)
    # One that waits for its history alone is no longer in the status.
    if ray_cluster is None or "rayClusterName" not in (experiment.get("status") or {}):
        raise UserError(
            f"{name} has no cluster now that could be scaled; see `lastmile describe {name}`, or "
            "change dataWorkers.minReplicas in its manifest"
        )
    patch, before = build_patch(ray_cluster, wanted, experiment)
    if before == wanted:
        print(f"{name} has {wanted} data workers already")
        return
    await cluster.kube.patch("RayCluster", cluster.namespace, owner.ray_cluster, patch)
    print(f"{name}: {before} → {wanted} data workers")


def build_patch(ray_cluster: Document, wanted: int, experiment: Document) -> tuple[Document, int]:
    """A merge patch, and the number before. Raises UserError beyond the bounds."""
    groups: list[dict[str, Any]] = ray_cluster["spec"]["workerGroupSpecs"]
    group = next(group for group in groups if group["groupName"] == DATA_WORKERS)
    bounds = group | (experiment["spec"].get("dataWorkers") or {})
    lowest, highest = bounds["minReplicas"], bounds["maxReplicas"]
    if not lowest <= wanted <= highest:
        raise UserError(
            f"--data-workers must be from dataWorkers.minReplicas ({lowest}) to maxReplicas "
            f"({highest}), got {wanted}; change the bounds in the manifest first"
        )
    workers = (experiment.get("status") or {}).get("dataWorkers") or {}
    change = _change(group, wanted, workers.get("draining") or ())
    changed = [g | change if g is group else g for g in groups]
    patch = {
        "metadata": {"resourceVersion": ray_cluster["metadata"]["resourceVersion"]},
        "spec": {"workerGroupSpecs": changed},
    }
    return patch, int(workers.get("drainingTo", group["replicas"]))


def _change(group: Document, wanted: int, draining: Sequence[Document]) -> Document:
    """What is other in the group; KubeRay counts those on lost nodes, which are never listed."""
    listed = (group.get("scaleStrategy") or {}).get("workersToDelete") or []
    unlisted = [victim for victim in draining if victim["name"] not in listed]
    names = [victim["name"] for victim in unlisted if not victim.get("lost")]
    replicas = wanted + len(unlisted) - len(names)
    change: Document = {"replicas": replicas}
    if names:
        change["scaleStrategy"] = {"workersToDelete": [*listed, *names]}
    if replicas > group["maxReplicas"]:
        change["maxReplicas"] = replicas
    return change
