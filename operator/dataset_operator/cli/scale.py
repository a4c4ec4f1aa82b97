"""`lastmile scale`: ask for a number of data workers of a running experiment.

The request is an annotation on the experiment, so users need no right to RayClusters. The operator
applies it once, within the spec's bounds, and records that in the status (`plan.data_workers`).
"""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from dataset_operator.api import SCALE_ANNOTATION
from dataset_operator.cli.connection import Cluster, on_cluster
from dataset_operator.cli.options import (
    ContextOption,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    Target,
)
from dataset_operator.documents import Document
from dataset_operator.errors import UserError
from dataset_operator.shapes import read_status
from dataset_operator.status import count_staying
from pipeline_runtime.config import KIND, DataWorkers

_ID_BYTES = 4  # enough to distinguish a request from the one before


def scale(
    name: NameArgument,
    data_workers: Annotated[int, typer.Option(help="From dataWorkers.minReplicas to maxReplicas.")],
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Change how many data workers a running experiment has.

    Workers that are removed hand over their rows first.
    """
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    on_cluster(target, lambda cluster: _scale(cluster, name, data_workers))


async def _scale(cluster: Cluster, name: str, wanted: int) -> None:
    experiment = await cluster.find(name)
    before = check_request(experiment, wanted)
    if before == wanted:
        print(f"{name} has {wanted} data workers already")
        return
    request = build_request(wanted)
    await cluster.kube.patch(KIND, cluster.namespace, name, request)
    print(f"{name}: requested {before} → {wanted} data workers; see `lastmile describe {name}`")


def build_request(wanted: int) -> Document:
    """Build the merge patch that requests a number of data workers for an experiment."""
    request = f"{wanted}/{secrets.token_hex(_ID_BYTES)}"
    return {"metadata": {"annotations": {SCALE_ANNOTATION: request}}}


def check_request(experiment: Document, wanted: int) -> int:
    """Return the current number of data workers.

    Raises:
        UserError: the experiment has no cluster, or the request is outside the spec's bounds.
    """
    name, status = experiment["metadata"]["name"], read_status(experiment.get("status"))
    before = count_staying(status.data_workers)
    # A cluster that only waits for its history to be stored is no longer in the status.
    if before is None or status.ray_cluster_name is None:
        raise UserError(
            f"{name} has no cluster to scale; see `lastmile describe {name}`, or change "
            "dataWorkers.minReplicas in its manifest"
        )
    asked, default = experiment["spec"].get("dataWorkers") or {}, DataWorkers()
    lowest = asked.get("minReplicas", default.min_replicas)
    highest = asked.get("maxReplicas", default.max_replicas)
    if not lowest <= wanted <= highest:
        raise UserError(
            f"--data-workers must be from dataWorkers.minReplicas ({lowest}) to maxReplicas "
            f"({highest}), got {wanted}; change the bounds in the manifest first"
        )
    return before
