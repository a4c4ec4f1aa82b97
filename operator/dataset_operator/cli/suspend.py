"""`lastmile stop` and `lastmile resume`: set and clear spec.suspend.

To stop a run is to suspend it: the driver writes a checkpoint and ends, the cluster is deleted, and
the resumed run continues from there. To end an experiment for good, delete it with kubectl.
"""

from __future__ import annotations

from typing import Annotated

import typer

from dataset_operator.api import COMPLETE, FAILED, SUSPENDED
from dataset_operator.cli.connection import Cluster, on_cluster
from dataset_operator.cli.options import (
    ContextOption,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    Target,
)
from dataset_operator.documents import Document
from dataset_operator.shapes import read_status
from pipeline_runtime.config import KIND, ExperimentStatus, clean

_WaitOption = Annotated[bool, typer.Option("--wait", help="Return once it has stopped.")]


def stop(
    name: NameArgument,
    wait: _WaitOption = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Stop with a checkpoint and give the cluster back; `resume` goes on from there."""
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    on_cluster(target, lambda cluster: _stop(cluster, name, wait=wait))


def resume(
    name: NameArgument,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Let a stopped experiment go on from its last checkpoint."""
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    on_cluster(target, lambda cluster: _resume(cluster, name))


async def _stop(cluster: Cluster, name: str, *, wait: bool) -> None:
    document = await cluster.find(name)
    status = read_status(document.get("status"))
    if is_over(status):
        print(f"{name} is over ({clean(status.phase or '')}), there is nothing to stop")
        return
    await _write(cluster, document, suspend=True)
    while wait and not _is_stopped(status):
        status = read_status((await cluster.poll(name)).get("status"))
    print(f"{name} {'has stopped' if _is_stopped(status) else 'is stopping'}")


async def _resume(cluster: Cluster, name: str) -> None:
    document = await cluster.find(name)
    if not document["spec"].get("suspend"):
        print(f"{name} is not stopped, there is nothing to resume")
        return
    await _write(cluster, document, suspend=False)
    print(f"{name} goes on; follow it with: lastmile describe {name}")


async def _write(cluster: Cluster, document: Document, *, suspend: bool) -> None:
    patch = {"spec": {"suspend": suspend}}
    await cluster.kube.patch(KIND, cluster.namespace, document["metadata"]["name"], patch)


def is_over(status: ExperimentStatus) -> bool:
    """Return whether the run has completed or failed."""
    return status.is_true(COMPLETE) or status.is_true(FAILED)


def _is_stopped(status: ExperimentStatus) -> bool:
    return is_over(status) or status.is_true(SUSPENDED)
