"""The operator's work for as long as it lives: watches that wake passes.

`process` puts clients, telemetry and signals around it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

import kopf

from dataset_operator.handlers import LogIn, build_kopf_settings, build_registry
from dataset_operator.kube.login import Login, has_kubeconfig
from dataset_operator.passes import Passes, Reconcile
from dataset_operator.reconcile import Reconciler
from dataset_operator.telemetry.logs import bind
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.watched import Watched


@contextlib.asynccontextmanager
async def serving(
    reconciler: Reconciler,
    namespaces: Collection[str] = (),
    *,
    log_in: LogIn | None = None,
    metrics: OperatorMetrics | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Passes]:
    """Reconcile the experiments of these namespaces, of all if none is named.

    At the end the watches stop first, so that nothing wakes passes, then the passes.

    Args:
        log_in: credentials of the watches; None: KUBECONFIG, else the pod's service account.
        metrics: counts the passes, and what comes through the watch.
        stop: is set when the watches ended by themselves.

    Raises:
        Exception: what ended the watches.
    """
    log_in = log_in or Login(in_cluster=not has_kubeconfig()).connection
    metrics = metrics or OperatorMetrics(Watched())
    passes = Passes(_bind_passes(reconciler, metrics.watched), report=metrics.count_pass)
    ending, ready = asyncio.Event(), asyncio.Event()
    watches = await kopf.spawn_tasks(
        registry=build_registry(passes, metrics.watched, log_in),
        settings=build_kopf_settings(clusterwide=not namespaces),
        namespaces=namespaces,
        clusterwide=not namespaces,
        standalone=True,  # one active replica is a lease's business, not peering's
        stop_flag=ending,
        ready_flag=ready,
    )
    watching = asyncio.create_task(_run(watches))
    if stop is not None:
        watching.add_done_callback(lambda _: stop.set())
    started = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({watching, started}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching
        yield passes
    finally:
        started.cancel()
        ending.set()
        await asyncio.wait({watching})
        await passes.close()
    await watching


async def _run(watches: Collection[asyncio.Task[None]]) -> None:
    """End all as soon as one of Kopf's own tasks ends, and raise what ended it.

    Not `kopf.operator`: at its end it waits for, cancels and raises the errors of every task that
    was begun since, those of passes and probes too.
    """
    await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
    for task in watches:
        task.cancel()
    await asyncio.wait(watches)
    for task in watches:
        if not task.cancelled():
            task.result()


def _bind_passes(reconciler: Reconciler, watched: Watched) -> Reconcile:
    """Passes whose log records say what they are about."""

    async def reconcile(namespace: str, name: str) -> float | None:
        bind(namespace=namespace, experiment=name, attempt=watched.attempt(namespace, name))
        return await reconciler.reconcile(namespace, name)

    return reconcile
