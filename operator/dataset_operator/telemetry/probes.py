"""One HTTP server for the kubelet and Prometheus: /healthz, /readyz, /metrics.

It runs on the operator's own event loop: that it answers shows that the loop turns.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dataset_operator.errors import UserError
from dataset_operator.telemetry.freshness import find_staleness
from dataset_operator.telemetry.metrics import OperatorMetrics

Handler = Callable[[web.Request], Awaitable[web.Response]]


@contextlib.asynccontextmanager
async def answering(metrics: OperatorMetrics, *, host: str | None, port: int) -> AsyncIterator[int]:
    """Answer probes; yields the port.

    Args:
        host: address to listen on; None: every one.
        port: 0 takes a free one.

    Raises:
        UserError: the port is taken.
    """
    app = web.Application()
    app.router.add_get("/healthz", _answer(lambda: _find_death(metrics)))
    app.router.add_get("/readyz", _answer(lambda: _find_unreadiness(metrics)))
    app.router.add_get("/metrics", _show(metrics))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await _listen(runner, host, port)
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str | None, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        raise UserError(
            f"--port must be one that is free, got {port}: {error.strerror}; give another, or 0 "
            "for any"
        ) from error


def _find_death(metrics: OperatorMetrics) -> str | None:
    """Return why the process must be restarted: a leader without events, or a stuck standby."""
    if metrics.leadership.is_leading:
        return find_staleness(metrics.watched)
    return metrics.leadership.find_staleness()


def _find_unreadiness(metrics: OperatorMetrics) -> str | None:
    """Return why the operator is not ready; a standby is ready, since it can take over."""
    if not metrics.leadership.is_leading or metrics.watched.is_synced:
        return None
    return "the experiments have not all come through the watch yet"


def _answer(find_trouble: Callable[[], str | None]) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        trouble = find_trouble()
        return web.Response(status=503 if trouble else 200, text=(trouble or "ok") + "\n")

    return answer


def _show(metrics: OperatorMetrics) -> Handler:
    async def show(_: web.Request) -> web.Response:
        text = generate_latest(metrics.registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return show
