"""`lastmile operator`: reconcile experiments, in a pod or from a laptop; let go of finalisers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dataset_operator.cli.connection import Cluster, on_cluster
from dataset_operator.cli.failures import explain, explaining
from dataset_operator.cli.options import (
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    Target,
)
from dataset_operator.errors import KubeConflict, KubeRefused, UserError

# Where controller-runtime's operators serve their metrics.
DEFAULT_PORT = 8080
_LOG = logging.getLogger(__name__)

app = typer.Typer(
    help="Reconcile experiments until SIGTERM.",
    invoke_without_command=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def operator(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings as YAML; docs/operating/operator.md."),
    ] = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Only its experiments (repeatable); all if absent."),
    ] = None,
    runtime_image: Annotated[
        str | None, typer.Option(help="Overrides the setting runtimeImage.")
    ] = None,
    storage_root: Annotated[
        str | None, typer.Option(metavar="URI", help="Overrides the setting storageRoot.")
    ] = None,
    dev: Annotated[
        bool,
        typer.Option(
            "--dev",
            help="From a laptop: log in by the kubeconfig, reach Ray through the API server's "
            "proxy, log as text.",
        ),
    ] = False,
    kubeconfig: KubeconfigOption = None,
    kube_context: ContextOption = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port of /healthz, /readyz and /metrics; 0 takes a free one."
        ),
    ] = DEFAULT_PORT,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log details too.")] = False,
) -> None:
    """Reconcile experiments until SIGTERM."""
    if context.invoked_subcommand is not None:
        return
    from dataset_operator.cli.configuration import load_settings
    from dataset_operator.kube.login import Login
    from dataset_operator.process import ProcessOptions, run_operator
    from dataset_operator.telemetry.log_records import set_up_logging

    if not dev and (kubeconfig or kube_context):
        raise typer.BadParameter("--kubeconfig and --context come with --dev; add it")
    with explaining():
        options = ProcessOptions(
            login=Login(in_cluster=not dev, kubeconfig=kubeconfig, context=kube_context),
            settings=load_settings(
                config, {"runtimeImage": runtime_image, "storageRoot": storage_root}
            ),
            namespaces=tuple(namespaces or ()),
            port=port,
        )
    set_up_logging(as_text=dev, verbose=verbose)
    with explaining(_LOG.error):
        asyncio.run(run_operator(options))


@app.command("release-finalizers")
def release_finalizers(
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Namespace (repeatable); the context's if absent."),
    ] = None,
    all_namespaces: AllNamespacesOption = False,
    kube_context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Let deleted experiments go although no operator runs any more, as after its removal.

    Drivers that still run are not asked to write a checkpoint.
    """
    target = Target(namespace=None, context=kube_context, kubeconfig=kubeconfig)
    wanted: Sequence[str | None] = [""] if all_namespaces else namespaces or [None]
    on_cluster(target, lambda cluster: _release(cluster, wanted))


async def _release(cluster: Cluster, namespaces: Sequence[str | None]) -> None:
    from pipeline_runtime.config import KIND

    if not await cluster.kube.is_served(KIND):  # the CRD was removed first, and they with it
        print("this cluster has no experiments")
        return
    failed = []
    for namespace in namespaces:  # one that refuses, or is gone, keeps no other one waiting
        try:
            failed += await _release_namespace(cluster, namespace)
        except (KubeRefused, KubeConflict) as error:
            failed.append(f"{namespace or cluster.namespace}: {explain(error)}")
    if failed:
        raise UserError("\n".join((*failed, "run it again for what is left")))


async def _release_namespace(cluster: Cluster, namespace: str | None) -> list[str]:
    """Release the finalizers of a namespace; return what could not be released, and why."""
    from dataset_operator.api import FINALIZER

    failed = []
    for document in await cluster.list_experiments(namespace):
        metadata = document["metadata"]
        held = metadata.get("finalizers") or []
        if FINALIZER not in held:
            continue
        about = f"{metadata['namespace']}/{metadata['name']}"
        try:
            await cluster.kube.write_finalizers(document, [n for n in held if n != FINALIZER])
            print(f"{about}: released")
        except (KubeRefused, KubeConflict) as error:
            failed.append(f"{about}: {explain(error)}")
    return failed
