"""Runs the operator as a process: log in, check the CRDs, serve until a signal, stop in order.

Only the replica that holds the lease acts; the others stand by and answer probes (`election`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, replace

import aiohttp
from kubernetes.aio.client import ApiClient
from prometheus_client import disable_created_metrics

from dataset_operator.election.candidate import Candidate, build_identity
from dataset_operator.election.elector import Elector, Terms
from dataset_operator.election.guard import build_trace
from dataset_operator.errors import KubeRefused, UserError
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.login import Login
from dataset_operator.kube.seal_key import fetch_seal
from dataset_operator.ray.endpoints import build_connect, build_reach_pod
from dataset_operator.reconcile import Reconciler
from dataset_operator.sealing import Seal
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
    """Options of this process.

    Attributes:
        namespaces: namespaces whose experiments are reconciled; empty: all.
        port: port of the probes and metrics; 0: a free one.
    """

    login: Login
    settings: OperatorSettings
    namespaces: tuple[str, ...] = ()
    port: int

    @property
    def elects(self) -> bool:
        """True if this process takes part in leader election."""
        wanted = self.settings.leader_election
        return self.login.in_cluster if wanted is None else wanted


async def run_operator(options: ProcessOptions) -> None:
    """Serve until SIGTERM or SIGINT; with leader election, act once this process is elected.

    Raises:
        UserError: a CRD is not installed, or the key of the seals is damaged.
        KubeUnavailable: the API server does not answer at the start.
        KubeRefused: the operator has no right to the lease, or to the key of its seals.
    """
    # Each counter would have a second series, which nobody reads.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    stop = asyncio.Event()
    _stop_by_signal(stop)
    async with _standing(options, stop) as candidate:
        await _run(options, candidate, stop)
    _LOG.info("stopped")


async def _run(options: ProcessOptions, candidate: Candidate | None, stop: asyncio.Event) -> None:
    """Connect, wait until elected, then work."""
    login, settings, in_cluster = options.login, options.settings, options.login.in_cluster
    configuration = await login.configuration()
    traces = [build_trace(candidate.check)] if candidate else []
    configuration.trace_configs = traces
    # `slots` bounds the requests per namespace. With a bound here, silent heads of one tenant could
    # occupy all connections.
    configuration.connection_pool_maxsize = 0
    metrics = OperatorMetrics(Watched(), settings.prices, candidate)
    async with (
        ApiClient(configuration) as client,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), trace_configs=traces
        ) as session,
    ):
        kube = KubeClient(client, observe=metrics.count_request)
        await check_installed(kube)
        reach_pod = build_reach_pod(client, session, in_cluster=in_cluster)
        reconciler = Reconciler(
            kube=kube,
            connect=build_connect(client, session, settings, in_cluster=in_cluster),
            source=build_source(settings.metrics, session, reach_pod),
            settings=settings,
        )
        work = _Work(options=options, kube=kube, metrics=metrics, traces=traces)
        async with (
            _answering(options, metrics),
            _beside(stop, login.refresh_forever(configuration)),
            candidate.leading(stop) if candidate else contextlib.nullcontext(True) as leads,
        ):
            if leads:
                seal = await _find_seal(options, kube)
                await work.until(stop, replace(reconciler, seal=seal), configuration.host)


async def _find_seal(options: ProcessOptions, kube: KubeClient) -> Seal:
    """Return the seal whose key is in the operator's namespace; with `--dev`, in the context's.

    Outside a cluster, a new key for this process is used if there is no right to the Secret.

    Raises:
        UserError: the Secret has no valid key.
        KubeRefused: the operator, in a cluster, has no right to the Secret.
    """
    name, namespace = options.settings.lease.seal_secret, await options.login.namespace()
    try:
        return await fetch_seal(kube, namespace, name)
    except KubeRefused as refused:
        if options.login.in_cluster:
            raise
        _LOG.warning("using a key of its own for seals until this process ends: %s", refused)
        return Seal.generate()


@contextlib.asynccontextmanager
async def _standing(
    options: ProcessOptions, stop: asyncio.Event
) -> AsyncIterator[Candidate | None]:
    """Yield the candidate for the lease, with its own clients; None without leader election."""
    if not options.elects:
        yield None
        return
    login, lease = options.login, options.settings.lease
    terms = Terms(
        name=lease.name,
        namespace=lease.namespace or await login.namespace(),
        duration_seconds=lease.lease_duration_seconds,
        deadline_seconds=lease.renew_deadline_seconds,
        retry_seconds=lease.retry_period_seconds,
    )
    configuration = await login.configuration()

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[KubeClient]:
        async with ApiClient(configuration) as client:
            # A request that gets no answer leaves time for another one (controller-runtime).
            yield KubeClient(client, request_seconds=terms.deadline_seconds / 2)

    elector = Elector(identity=build_identity(), terms=terms)
    async with _beside(stop, login.refresh_forever(configuration)):
        yield Candidate(connect=connect, elector=elector)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The work of the elected operator."""

    options: ProcessOptions
    kube: KubeClient
    metrics: OperatorMetrics
    traces: Sequence[aiohttp.TraceConfig]

    async def until(self, stop: asyncio.Event, reconciler: Reconciler, host: str) -> None:
        """Reconcile until `stop`, and compare the watched objects with lists of them."""
        namespaces, watched = self.options.namespaces, self.metrics.watched
        async with (
            serving(
                reconciler,
                namespaces,
                log_in=self.options.login.connection,
                traces=self.traces,
                metrics=self.metrics,
                stop=stop,
            ),
            _beside(stop, compare_forever(self.kube, namespaces, watched, LIST_SECONDS)),
        ):
            _stop_by_signal(stop)  # again, since Kopf has set its own handlers
            where = ", ".join(namespaces) or "all namespaces"
            _LOG.info("reconciling the experiments of %s at %s", where, host)
            await stop.wait()
            _LOG.info("stopping")


async def check_installed(kube: KubeClient) -> None:
    """Raise UserError if a CRD that the operator needs is not installed."""
    for kind, command in _INSTALL.items():
        if not await kube.is_served(kind):
            raise UserError(f"the CRD of {kind} is not installed; install it: {command}")


@contextlib.asynccontextmanager
async def _answering(options: ProcessOptions, metrics: OperatorMetrics) -> AsyncIterator[None]:
    """Serve probes and metrics: in a pod on all addresses, on a laptop on the loopback address."""
    host = None if options.login.in_cluster else _LOOPBACK
    async with answering(metrics, host=host, port=options.port) as port:
        _LOG.info("serving /healthz, /readyz and /metrics at http://%s:%d", host or "0.0.0.0", port)
        yield


@contextlib.asynccontextmanager
async def _beside(stop: asyncio.Event, work: Coroutine[None, None, object]) -> AsyncIterator[None]:
    """Run background work; if it ends, which is a defect, the process stops."""
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
