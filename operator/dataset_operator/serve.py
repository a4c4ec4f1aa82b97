"""Run the operator: watches that wake passes, and the passes.

`process` adds clients, telemetry and signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import kopf

from dataset_operator.api import HEAD, RAY_CLUSTER_LABEL, ROLE_LABEL
from dataset_operator.handlers import See, build_kopf_settings, build_registry
from dataset_operator.kube.login import Login, has_kubeconfig
from dataset_operator.kube.remembering import RememberingKube
from dataset_operator.kube.watching import LogIn, watch_metadata
from dataset_operator.ray.head_requests import Heads
from dataset_operator.reconcile import Reconciler
from dataset_operator.scheduling.passes import Passes, Trigger
from dataset_operator.scheduling.places import Places
from dataset_operator.telemetry.log_records import bind
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.watched import Follow, Watched

FORBIDDEN = 403  # of Kopf's APIForbiddenError, which is private
# Pause between two tries to watch a namespace that refused it.
REFUSED_SECONDS = 60.0
_LOG = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def serving(
    reconciler: Reconciler,
    namespaces: Collection[str] = (),
    *,
    log_in: LogIn | None = None,
    traces: Sequence[aiohttp.TraceConfig] = (),
    metrics: OperatorMetrics | None = None,
    stop: asyncio.Event | None = None,
) -> AsyncIterator[Passes]:
    """Reconcile the experiments of these namespaces, of all if none is named.

    At the end the watches stop first, so that nothing wakes a pass, and then the passes stop.

    Args:
        log_in: gets credentials for the watches; None: KUBECONFIG, else the pod's service account.
        traces: traces of the watches' HTTP session.
        metrics: counts the passes, and the events of the watches.
        stop: is set when the watches end by themselves.

    Raises:
        Exception: the error that ended the watches.
    """
    log_in = log_in or Login(in_cluster=not has_kubeconfig()).connection
    metrics = metrics or OperatorMetrics(Watched())
    kube = RememberingKube(reconciler.kube, metrics.watched)
    heads = Heads(reconciler.connect)
    passes = _build_passes(replace(reconciler, kube=kube, connect=heads.connect), metrics)
    see, open_session = build_see(kube, heads), watch_metadata(log_in, traces)
    registry = build_registry(passes, metrics.watched, see, open_session)
    watches = _Watches(registry, metrics.watched)
    watching = asyncio.create_task(watches.run(namespaces))
    if stop is not None:
        watching.add_done_callback(lambda _: stop.set())
    started = asyncio.create_task(watches.wait_until_started(namespaces))
    try:
        await asyncio.wait({watching, started}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching
        yield passes
    finally:
        started.cancel()
        watches.ending.set()
        await asyncio.wait({watching})
        await passes.close()
    await watching


def build_see(kube: RememberingKube, heads: Heads) -> See:
    """Build the function that records events of owned objects before they wake a pass."""

    def see(kind: str, event: str | None, child: Mapping[str, Any]) -> bool:
        labels = child["metadata"].get("labels") or {}
        if kind == "Pod" and labels.get(ROLE_LABEL) == HEAD:
            heads.forget(child["metadata"]["namespace"], labels.get(RAY_CLUSTER_LABEL, ""))
        return kube.see(kind, event, child)

    return see


@dataclass(slots=True)
class _Watches:
    """Kopf's watches, of all namespaces together or of each named one.

    So if a namespace or its Role is deleted, only the watch of that namespace pauses.
    """

    registry: kopf.OperatorRegistry
    watched: Watched
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    _started: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))

    async def wait_until_started(self, namespaces: Collection[str]) -> None:
        """Return once each namespace is watched, or has refused to be watched."""
        for namespace in namespaces or ("",):
            await self._started[namespace].wait()

    async def run(self, namespaces: Collection[str]) -> None:
        """Watch until `ending` is set. Raises the error that ended the watches before."""
        tasks = [
            asyncio.create_task(self._watch_again(namespace)) for namespace in namespaces or ("",)
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.ending.set()
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _watch_again(self, namespace: str) -> None:
        """Watch a namespace, or all if it is "", and again after each refusal."""
        while not self.ending.is_set():
            try:
                await self._watch(namespace)
                self.ending.set()  # Kopf ended by itself, as after a signal that it handles
            except Exception as error:
                if not namespace or getattr(error, "status", None) != FORBIDDEN:
                    raise
                self.watched.refuse(namespace)
                self._started[namespace].set()
                _LOG.error(
                    "the operator may not watch the namespace %s and reconciles none of its "
                    "experiments; retry every %.0f s: %s",
                    *(namespace, REFUSED_SECONDS, error.args[0] if error.args else error),
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ending.wait(), REFUSED_SECONDS)
                self.watched.refused.discard(namespace)

    async def _watch(self, namespace: str) -> None:
        """Watch until one of Kopf's tasks ends; then end all of them, and raise its error.

        `kopf.operator` is not used: at its end it waits for, cancels and raises the errors of every
        task that was begun since, including passes and probes.
        """
        watches = await kopf.spawn_tasks(
            registry=self.registry,
            settings=build_kopf_settings(),
            namespaces=[namespace] if namespace else [],
            clusterwide=not namespace,
            standalone=True,  # one active replica is a lease's business, not peering's
            stop_flag=self.ending,
            ready_flag=self._started[namespace],
        )
        try:
            await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = {*watches, *_find_streams(namespace)}
            for task in left:
                task.cancel()
            await asyncio.wait(left)
        for task in watches:
            if not task.cancelled():
                task.result()


def _find_streams(namespace: str) -> list[asyncio.Task[object]]:
    """Return Kopf's tasks that each watch one resource.

    If one of them fails, its orchestrator ends and leaves the others running (Kopf 1.45), and each
    new try would add more of them.
    """
    of = f"@{namespace or None}"
    named = [(task, task.get_name()) for task in asyncio.all_tasks()]
    return [task for task, name in named if name.startswith("watcher for ") and name.endswith(of)]


def _build_passes(reconciler: Reconciler, metrics: OperatorMetrics) -> Passes:
    """Build passes whose log records name the experiment, and that take places if it is large."""
    watched, places = metrics.watched, Places()

    async def reconcile(namespace: str, name: str) -> float | None:
        bind(namespace=namespace, experiment=name, attempt=watched.attempt(namespace, name))
        follow = Follow()
        try:
            with watched.following(namespace, name, follow):
                async with places.serving(namespace):
                    return await reconciler.reconcile(namespace, name)
        finally:
            if follow.has_news:
                passes.wake(namespace, name, Trigger.CHANGE)

    passes = Passes(reconcile, report=metrics.count_pass)
    return passes
