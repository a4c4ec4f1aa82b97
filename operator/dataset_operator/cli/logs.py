"""`lastmile logs`: the driver's log, asked of Ray through the API server, while the cluster lives.

An attempt's log lies with the head. The driver copies it to the artifacts store while it grows, and
that is where it is when the cluster was given back.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from dataset_operator.api import DASHBOARD_PORT, TOKEN_KEY
from dataset_operator.cli.cluster import POLL_SECONDS, Cluster, on_cluster
from dataset_operator.cli.options import (
    ContextOption,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    Target,
)
from dataset_operator.errors import KubeUnavailable, UserError
from dataset_operator.names import Owner
from dataset_operator.observed import Document

_ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})


def logs(
    name: NameArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the attempt ends.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which attempt; the last if absent.")
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Print the log of an experiment's driver."""
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    on_cluster(target, lambda cluster: _print_log(cluster, name, attempt, follow=follow))


async def _print_log(cluster: Cluster, name: str, attempt: int | None, *, follow: bool) -> None:
    document = await cluster.find(name)
    driver = await _find_driver(cluster, document, choose_attempt(document, attempt))
    printed = 0
    while True:
        try:
            has_ended = not follow or (await driver.ask(""))["status"] in _ENDED
            log: str = (await driver.ask("/logs")).get("logs") or ""
        except UserError:
            if not printed or not await driver.is_over():
                raise
            # The cluster goes as soon as the operator sees the end, which may be before we do.
            print(_describe_loss(document, driver.attempt), file=sys.stderr)
            return
        print(log[printed:], end="", flush=True)
        printed = len(log)
        if has_ended:
            return
        await asyncio.sleep(POLL_SECONDS)


def choose_attempt(document: Document, wanted: int | None) -> int:
    """The attempt to show. Raises UserError for one that never was."""
    name = document["metadata"]["name"]
    last = int((document.get("status") or {}).get("attempt", 0))
    if last == 0:
        raise UserError(
            f"{name} has no log yet, since no attempt was submitted; see `lastmile describe {name}`"
        )
    if wanted is not None and wanted > last:
        raise UserError(f"--attempt must be at most {last}, the last of {name}, got {wanted}")
    return wanted or last


async def _find_driver(cluster: Cluster, document: Document, attempt: int) -> _Driver:
    owner = Owner.of(document)
    ray_cluster = await cluster.kube.get("RayCluster", owner.namespace, owner.ray_cluster)
    secret = await cluster.kube.get("Secret", owner.namespace, owner.token_secret)
    if ray_cluster is None or secret is None:
        raise UserError(_describe_loss(document, attempt))
    head = ray_cluster.get("status", {}).get("head", {})
    return _Driver(
        cluster=cluster,
        owner=owner,
        document=document,
        attempt=attempt,
        service=f"{head.get('serviceName') or owner.head_service}:{DASHBOARD_PORT}",
        token=base64.b64decode(secret["data"][TOKEN_KEY]).decode(),
    )


def _describe_loss(document: Document, attempt: int) -> str:
    name, uri = document["metadata"]["name"], document["status"].get("artifactsUri", "")
    return (
        f"the cluster of attempt {attempt} of {name} was given back; its log is in the store, in "
        f"logs/ of its run below {uri}: lastmile artifacts {name} --download FOLDER"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Driver:
    """One attempt's job, behind the API server's proxy to its head."""

    cluster: Cluster
    owner: Owner
    document: Document
    attempt: int
    service: str
    token: str

    async def is_over(self) -> bool:
        """Whether the operator has seen this attempt's end."""
        found = await self.cluster.find(self.owner.name)
        submission = (found.get("status") or {}).get("submission") or {}
        return submission.get("id") != self.owner.submission_id(self.attempt)

    async def ask(self, path: str) -> dict[str, Any]:
        """What Ray says of the job, or of what is below it. Raises UserError."""
        from dataset_operator.ray.transport import Request

        whole = f"/api/jobs/{self.owner.submission_id(self.attempt)}{path}"
        request = Request(method="GET", port=DASHBOARD_PORT, path=whole, token=self.token)
        try:
            answer = await self.cluster.kube.ask_service(
                self.owner.namespace, self.service, whole, request.headers()
            )
        except KubeUnavailable as error:
            raise UserError(
                f"the head of {self.owner.name} does not answer: {error}; see `lastmile describe "
                f"{self.owner.name}` and try again"
            ) from error
        if answer is None:  # its head is another's now
            raise UserError(_describe_loss(self.document, self.attempt))
        return answer
