"""`lastmile stop` and `lastmile resume`: spec.suspend, set and taken back.

Stopping is suspending: the driver writes a checkpoint and ends, the cluster is given back, and the
run goes on from there when it is resumed. What is never wanted again is deleted with kubectl.
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
from dataset_operator.status import is_true
from pipeline_runtime.config import KIND

_WaitOption = Annotated[bool, typer.Option("--wait", help="Come back when it is so.")]


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
    if is_over(document):
        print(f"{name} is over ({document['status']['phase']}), there is nothing to stop")
        return
    await _write(cluster, document, suspend=True)
    while wait and not _is_stopped(document):
        document = await cluster.poll(name)
    print(f"{name} {'has stopped' if _is_stopped(document) else 'is stopping'}")


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


def is_over(document: Document) -> bool:
    """Return whether its run has ended, one way or the other."""
    status = document.get("status") or {}
    return is_true(status, COMPLETE) or is_true(status, FAILED)


def _is_stopped(document: Document) -> bool:
    return is_over(document) or is_true(document.get("status") or {}, SUSPENDED)
