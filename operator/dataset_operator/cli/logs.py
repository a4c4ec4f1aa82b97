"""`lastmile logs`: prints the driver's log, fetched from Ray through the API server.

The head has an attempt's log while the cluster exists. The log is copied to the artifacts store
while it grows, and read from there once the cluster is deleted; so are the logs of all pods.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from dataset_operator.api import DASHBOARD_PORT, TOKEN_KEY
from dataset_operator.cli.connection import POLL_SECONDS, Cluster, on_cluster
from dataset_operator.cli.failures import explaining
from dataset_operator.cli.options import (
    ContextOption,
    KubeconfigOption,
    NameArgument,
    NamespaceOption,
    Target,
)
from dataset_operator.cli.printing import print_log
from dataset_operator.cli.stored import (
    FromOption,
    RunOption,
    StoredRun,
    open_stored,
    print_pod,
    print_pods,
)
from dataset_operator.documents import Document
from dataset_operator.errors import KubeUnavailable, UserError
from dataset_operator.names import Owner
from dataset_operator.shapes import read_status
from pipeline_runtime.config import clean

_ENDED = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})


def logs(
    program: typer.Context,
    name: NameArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the attempt ends.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="The attempt; by default the last.")
    ] = None,
    pods: Annotated[
        bool, typer.Option("--pods", help="List the logs of pods in the store.")
    ] = False,
    pod: Annotated[str | None, typer.Option(help="Print this pod's logs from the store.")] = None,
    file: Annotated[str | None, typer.Option(help="Print only this file of that pod.")] = None,
    run: RunOption = None,
    place: FromOption = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Print the log of an experiment's driver, or of its pods; from the store if they are gone."""
    target = Target(namespace=namespace, context=context, kubeconfig=kubeconfig)
    with explaining():
        if place is not None:
            stored: StoredRun = program.obj.open_history(place, run)
            document = stored.experiment() if pod is None and not pods else {}
        elif pods or pod is not None or run is not None:
            document = on_cluster(target, lambda cluster: cluster.find(name))
            stored = open_stored(program, document, run)
        else:
            work = partial(_print_log, name=name, attempt=attempt, follow=follow)
            gone = on_cluster(target, work)
            if gone is None:
                return
            print(_describe_loss(gone, choose_attempt(gone, attempt)), file=sys.stderr)
            document, stored = gone, open_stored(program, gone, None)
        if pod is not None:
            print_pod(stored, pod, file)
        elif pods:
            print_pods(stored)
        else:
            chosen = choose_attempt(stored.experiment() if run is not None else document, attempt)
            print_log(stored.read_driver(Owner.of(document).submission_id(chosen)))


async def _print_log(
    cluster: Cluster, *, name: str, attempt: int | None, follow: bool
) -> Document | None:
    """Print the log; return the experiment if its cluster is gone and nothing was printed."""
    document = await cluster.find(name)
    driver = await _find_driver(cluster, document, choose_attempt(document, attempt))
    if driver is None:
        return document
    printed = 0
    while True:
        try:
            has_ended = not follow or (await driver.ask(""))["status"] in _ENDED
            log: str = (await driver.ask("/logs")).get("logs") or ""
        except _HeadGone:
            if not printed:
                return document
            print(_describe_loss(document, driver.attempt), file=sys.stderr)
            return None
        except UserError:
            if not printed or not await driver.is_over():
                raise
            # The operator may observe the end, and delete the cluster, before this command does.
            print(_describe_loss(document, driver.attempt), file=sys.stderr)
            return None
        print_log([log[printed:].encode(errors="replace")])
        printed = len(log)
        if has_ended:
            return None
        await asyncio.sleep(POLL_SECONDS)


def choose_attempt(document: Document, wanted: int | None) -> int:
    """Return the attempt to show. Raises UserError if there is no such attempt."""
    name = document["metadata"]["name"]
    last = read_status(document.get("status")).attempt or 0
    if last == 0:
        raise UserError(
            f"{name} has no log yet, since no attempt was submitted; see `lastmile describe {name}`"
        )
    if wanted is not None and wanted > last:
        raise UserError(f"--attempt must be at most {last}, the last of {name}, got {wanted}")
    return wanted or last


class _HeadGone(UserError):
    """The head belongs to a newer cluster, which does not know the attempt."""


async def _find_driver(cluster: Cluster, document: Document, attempt: int) -> _Driver | None:
    owner = Owner.of(document)
    ray_cluster = await cluster.kube.get("RayCluster", owner.namespace, owner.ray_cluster)
    secret = await cluster.kube.get("Secret", owner.namespace, owner.token_secret)
    if ray_cluster is None or secret is None:
        return None
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
    name, uri = document["metadata"]["name"], read_status(document.get("status")).artifacts_uri
    place = f", below {clean(uri)}" if uri else ""
    return (
        f"the cluster of attempt {attempt} of {name} no longer exists; its log is in the store"
        f"{place}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Driver:
    """The job of one attempt, reached through the API server's proxy to its head."""

    cluster: Cluster
    owner: Owner
    document: Document
    attempt: int
    service: str
    token: str

    async def is_over(self) -> bool:
        """Return whether the operator has observed this attempt's end."""
        found = await self.cluster.find(self.owner.name)
        submission = read_status(found.get("status")).submission
        return submission is None or submission.id != self.owner.submission_id(self.attempt)

    async def ask(self, path: str) -> dict[str, Any]:
        """Return Ray's answer about the job, at a path below the job's own. Raises UserError."""
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
        if answer is None:  # the head belongs to a newer cluster
            raise _HeadGone(_describe_loss(self.document, self.attempt))
        return answer
