"""The operator as a process: log in, check, serve until it is told to stop, end in order.

One replica is active; a lease that others stand by for belongs around `serving`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass

import aiohttp
from kubernetes.aio.client import ApiClient
from prometheus_client import disable_created_metrics

from dataset_operator.errors import UserError
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.login import Login
from dataset_operator.ray.endpoints import build_connect, build_reach_pod
from dataset_operator.reconcile import Reconciler
from dataset_operator.serve import serving
from dataset_operator.settings import OperatorSettings
from dataset_operator.sources.choice import build_source
from dataset_operator.telemetry.freshness import LIST_SECONDS, compare_forever
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.probes import answering
from dataset_operator.telemetry.watched import Watched
from pipeline_runtime.config import KIND

_LOOPBACK = "127.0.0.1"
_INSTALL = {
    KIND: "kubectl apply --server-side -f crds/",
    "RayCluster": (
        "kubectl apply --server-side -k "
        "'github.com/ray-project/kuberay/ray-operator/config/default?ref=v1.6.2'"
    ),
}
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """How this process is run, beside what it does.

    Attributes:
        namespaces: whose experiments are reconciled; none: all.
        port: of the probes and metrics; 0: a free one.
    """

    login: Login
    settings: OperatorSettings
    namespaces: tuple[str, ...] = ()
    port: int


async def run_operator(options: ProcessOptions) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        UserError: what it needs is not there.
        KubeUnavailable: the API server does not answer at the start.
    """
    # A second series for each, which nobody reads.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    stop = asyncio.Event()
    _stop_by_signal(stop)
    metrics = OperatorMetrics(Watched(), options.settings.prices)
    configuration = await options.login.configuration()
    async with ApiClient(configuration) as client, aiohttp.ClientSession() as session:
        kube = KubeClient(client, observe=metrics.count_request)
        await check_installed(kube)
        in_cluster = options.login.in_cluster
        connect = build_connect(client, session, options.settings, in_cluster=in_cluster)
        reach_pod = build_reach_pod(client, session, in_cluster=in_cluster)
        reconciler = Reconciler(
            kube=kube,
            connect=connect,
            source=build_source(options.settings.metrics, session, reach_pod),
            settings=options.settings,
        )
        async with (
            _answering(options, metrics),
            serving(
                reconciler,
                options.namespaces,
                log_in=options.login.connection,
                metrics=metrics,
                stop=stop,
            ),
            _beside(stop, compare_forever(kube, options.namespaces, metrics.watched, LIST_SECONDS)),
            _beside(stop, options.login.refresh_forever(configuration)),
        ):
            _stop_by_signal(stop)  # again, since Kopf has set handlers of its own
            where = ", ".join(options.namespaces) or "all namespaces"
            _LOG.info("reconciling the experiments of %s at %s", where, configuration.host)
            await stop.wait()
            _LOG.info("stopping")
    _LOG.info("stopped")


async def check_installed(kube: KubeClient) -> None:
    """Raise UserError if the API server does not know what the operator works with."""
    for kind, command in _INSTALL.items():
        if not await kube.is_served(kind):
            raise UserError(f"the CRD of {kind} must be installed: {command}")


@contextlib.asynccontextmanager
async def _answering(options: ProcessOptions, metrics: OperatorMetrics) -> AsyncIterator[None]:
    """Probes and metrics: to everyone from a pod, to this machine alone from a laptop."""
    host = None if options.login.in_cluster else _LOOPBACK
    async with answering(metrics, host=host, port=options.port) as port:
        _LOG.info("http://%s:%d has /healthz, /readyz and /metrics", host or "0.0.0.0", port)
        yield


@contextlib.asynccontextmanager
async def _beside(stop: asyncio.Event, work: Coroutine[None, None, object]) -> AsyncIterator[None]:
    """Work that goes on meanwhile; that it ends is a defect, which ends the process."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _stop_by_signal(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
