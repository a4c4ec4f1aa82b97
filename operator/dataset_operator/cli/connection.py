"""A command's connection to its cluster, and how it finds the experiment that it is about."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dataset_operator.cli.failures import explaining
from dataset_operator.cli.options import Target
from dataset_operator.documents import Document
from dataset_operator.errors import UserError
from pipeline_runtime.config import API_VERSION, KIND

if TYPE_CHECKING:  # imported when a command runs: they take most of a second
    from kubernetes.aio.client import ApiClient

    from dataset_operator.kube.client import KubeClient

# What the API server notes as the writer of the fields that these commands set.
FIELD_MANAGER = "lastmile-cli"
POLL_SECONDS = 2.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster and the namespace that a command works on."""

    kube: KubeClient
    client: ApiClient
    namespace: str
    is_named: bool  # the namespace, by --namespace

    async def find(self, name: str) -> Document:
        """The experiment of that name. Raises UserError, with a name that it may have meant."""
        document = await self.kube.get(KIND, self.namespace, name)
        if document is not None:
            return document
        names = [other["metadata"]["name"] for other in await self.list_experiments()]
        close = difflib.get_close_matches(name, names, n=1)
        advice = f"did you mean {close[0]}?" if close else "see `lastmile get`, or name another -n"
        raise UserError(f"no experiment {name} in the namespace {self.namespace}; {advice}")

    async def list_experiments(self, namespace: str | None = None) -> list[Document]:
        """Return the experiments of a namespace, by name.

        Args:
            namespace: "": all; None: the command's own.

        Raises:
            UserError: the API server does not know experiments.
        """
        found = await self.kube.list_objects(
            KIND, self.namespace if namespace is None else namespace, ""
        )
        if not found and not await self.kube.is_served(KIND):
            raise UserError(
                f"this cluster has no {API_VERSION} {KIND}: install Lastmile there (its CRDs: "
                "kubectl apply --server-side -f crds/), or check --context"
            )
        return sorted(found, key=_sort_key)

    async def poll(self, name: str) -> Document:
        """Return the experiment, after a while."""
        await asyncio.sleep(POLL_SECONDS)
        return await self.find(name)


def _sort_key(document: Document) -> tuple[str, str]:
    metadata: dict[str, Any] = document["metadata"]
    return metadata["namespace"], metadata["name"]


def on_cluster(target: Target, work: Callable[[Cluster], Awaitable[T]]) -> T:
    """Do something on the cluster that the user named; its errors end the program."""
    with explaining():
        return asyncio.run(_connected(target, work))


async def _connected(target: Target, work: Callable[[Cluster], Awaitable[T]]) -> T:
    from kubernetes.aio.client import ApiClient

    from dataset_operator.kube.client import REQUEST_SECONDS, KubeClient
    from dataset_operator.kube.login import Login, has_kubeconfig, is_in_pod

    named = target.kubeconfig or target.context or has_kubeconfig()
    login = Login(
        in_cluster=not named and is_in_pod(), kubeconfig=target.kubeconfig, context=target.context
    )
    async with ApiClient(await login.configuration()) as client:
        cluster = Cluster(
            kube=KubeClient(client, manager=FIELD_MANAGER, retry_seconds=REQUEST_SECONDS),
            client=client,
            namespace=target.namespace or await login.namespace(),
            is_named=target.namespace is not None,
        )
        return await work(cluster)
