"""`lastmile scale`: how many data workers there should be, of a cluster that runs.

The number lives in the RayCluster; the spec's bounds hold. The group list is written as it was
observed but for the one number, and only if nobody changed the RayCluster since.
"""

from __future__ import annotations

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
    owner = Owner.of(await cluster.find(name))
    ray_cluster = await cluster.kube.get("RayCluster", cluster.namespace, owner.ray_cluster)
    if ray_cluster is None:
        raise UserError(
            f"{name} has no cluster now that could be scaled; see `lastmile describe {name}`, or "
            "change dataWorkers.minReplicas in its manifest"
        )
    patch, before = build_patch(ray_cluster, wanted)
    if before == wanted:
        print(f"{name} has {wanted} data workers already")
        return
    await cluster.kube.patch("RayCluster", cluster.namespace, owner.ray_cluster, patch)
    print(f"{name}: {before} → {wanted} data workers")


def build_patch(ray_cluster: Document, wanted: int) -> tuple[Document, int]:
    """A merge patch, and the number before. Raises UserError beyond the bounds."""
    groups: list[dict[str, Any]] = ray_cluster["spec"]["workerGroupSpecs"]
    group = next(group for group in groups if group["groupName"] == DATA_WORKERS)
    lowest, highest = group["minReplicas"], group["maxReplicas"]
    if not lowest <= wanted <= highest:
        raise UserError(
            f"--data-workers must be from dataWorkers.minReplicas ({lowest}) to maxReplicas "
            f"({highest}), got {wanted}; change the bounds in the manifest first"
        )
    changed = [g | {"replicas": wanted} if g is group else g for g in groups]
    patch = {
        "metadata": {"resourceVersion": ray_cluster["metadata"]["resourceVersion"]},
        "spec": {"workerGroupSpecs": changed},
    }
    return patch, int(group["replicas"])
