"""The operator as a process: watches, passes and clients for as long as it lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection

import kopf

from dataset_operator.handlers import build_kopf_settings, build_registry
from dataset_operator.passes import Passes
from dataset_operator.reconcile import Reconciler


@contextlib.asynccontextmanager
async def serving(
    reconciler: Reconciler, namespaces: Collection[str] = ()
) -> AsyncIterator[Passes]:
    """Reconcile the experiments of these namespaces, of all if none is named.

    Kopf finds the API server as kubectl does, by KUBECONFIG or the pod's service account.
    """
    passes = Passes(reconciler.reconcile)
    stop, ready = asyncio.Event(), asyncio.Event()
    watching = asyncio.create_task(
        kopf.operator(
            registry=build_registry(passes),
            settings=build_kopf_settings(),
            namespaces=namespaces,
            clusterwide=not namespaces,
            standalone=True,  # one active replica is a lease's business, not peering's
            stop_flag=stop,
            ready_flag=ready,
        )
    )
    started = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait({watching, started}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching  # raises what ended it
        yield passes
    finally:
        started.cancel()
        stop.set()
        await asyncio.gather(watching, return_exceptions=True)
        await passes.close()
