"""A Prometheus that is slow, refuses, lies or is absent: values are unknown, with a reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from facts import assert_told
from loopback import free_ports

from dataset_operator.api import HEAD, TRAINERS
from dataset_operator.names import Owner
from dataset_operator.observed import Pod
from dataset_operator.settings import PrometheusSettings
from dataset_operator.sources.base import Reading, Run
from dataset_operator.sources.prometheus import (
    MAX_ANSWER_BYTES,
    MAX_QUERIES_EACH,
    PrometheusSource,
)
from dataset_operator.testing import LIES, StandInRay

OWNER = Owner(name="clicks", namespace="team", uid="1")
PODS = (
    Pod(name="clicks.head", uid="h", role=HEAD, ready=True, ip="10.0.0.1"),
    Pod(name="clicks.a", uid="a", role=TRAINERS, ready=True, ip="10.0.0.2"),
    Pod(name="clicks-b", uid="b", role=TRAINERS, ready=True, ip="10.0.0.3"),
)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(answer: Answer) -> Any:
    app = web.Application()
    app.router.add_route("*", "/prefix/api/v1/query", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/prefix"
    finally:
        await runner.cleanup()


def build_run(
    session: aiohttp.ClientSession, owner: Owner, trainers: int = 2, gpus: int = 1
) -> Run:
    return Run(
        owner=owner,
        jobs=StandInRay(token="t").connect(session)(owner, "t"),
        pods=PODS,
        trainers=trainers,
        gpus_per_trainer=gpus,
        since=datetime(2026, 1, 1, tzinfo=UTC),
    )


async def ask(url: str, trainers: int = 2, gpus: int = 1, **settings: Any) -> Reading:
    async with aiohttp.ClientSession() as session:
        run = build_run(session, OWNER, trainers, gpus)
        source = PrometheusSource(settings=PrometheusSettings(url=url, **settings), session=session)
        return await source.read(run)


def read(answer: Answer, **settings: Any) -> Reading:
    async def story() -> Reading:
        async with serving(answer) as url:
            return await ask(url, **settings)

    return asyncio.run(story())


def answering(content: bytes, status: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=content, status=status)

    return answer


REFUSED = json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error: x"})
EMPTY = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}).encode()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (answering(REFUSED.encode(), 400), "HTTP 400: parse error: x"),
        (answering(b"Unauthorized", 401), "HTTP 401: Unauthorized"),
        (answering(b"down", 503), "HTTP 503: down"),
        (answering(b"", 302), "HTTP 302: "),
        (answering(b"<html>"), "answer"),
        (answering(b" " * (MAX_ANSWER_BYTES + 1)), "larger"),
        (answering(EMPTY), "lastmile_run_* … clicks.head"),
    ],
    ids=["bad query", "no right", "overloaded", "a redirect", "garbage", "too large", "no series"],
)
def test_a_bad_answer_makes_everything_unknown_and_is_reported(answer: Answer, why: str) -> None:
    reading = read(answer)
    assert reading.progress is None
    assert_told(reading.unknown, f"Prometheus … driver … GPUs … {why}")


@pytest.mark.parametrize("lie", LIES)
def test_no_lie_is_taken_for_an_answer(lie: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return LIES[lie]()

    assert read(answer).progress is None


def test_hanging_queries_do_not_delay_other_namespaces() -> None:
    hanging = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal hanging
        if 'namespace="team"' in (await request.post())["query"]:
            hanging += 1
            await asyncio.sleep(60.0)
        return web.Response(body=EMPTY)

    async def story() -> None:
        async with serving(answer) as url, aiohttp.ClientSession() as session:
            settings = PrometheusSettings(url=url, timeout_seconds=10)
            source = PrometheusSource(settings=settings, session=session)
            runs = [build_run(session, OWNER) for _ in range(20)]
            first = [asyncio.create_task(source.read(run)) for run in runs]
            while hanging < MAX_QUERIES_EACH:
                await asyncio.sleep(0.001)
            other = Owner(name="clicks", namespace="other", uid="2")
            reading = await source.read(build_run(session, other))
            assert "clicks.head" in reading.unknown  # answered, without series of this pod
            assert hanging == MAX_QUERIES_EACH
            for task in first:
                task.cancel()
            await asyncio.gather(*first, return_exceptions=True)

    asyncio.run(story())


def test_a_slow_prometheus_times_out() -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(600)
        raise AssertionError

    reading = read(answer, timeout_seconds=1)
    assert reading.progress is None
    assert "time" in reading.unknown.lower()


def test_an_absent_prometheus_is_reported() -> None:
    reading = asyncio.run(ask(f"http://127.0.0.1:{free_ports(1)[0]}"))
    assert "127.0.0.1" in reading.unknown


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"token_file": "/nowhere/token"}, "/nowhere/token"),
        ({"ca_file": "/nowhere/ca.crt"}, "No such file or directory"),
        ({"ca_file": __file__}, "NO_CERTIFICATE_OR_CRL_FOUND"),
        ({"token_file": "/bin/sh"}, "/bin/sh"),
    ],
)
def test_missing_and_wrong_files_are_reported(settings: dict[str, str], why: str) -> None:
    assert why in read(answering(EMPTY), **settings).unknown


def test_queries_name_the_pods_and_carry_the_current_token(tmp_path: Path) -> None:
    token, asked = tmp_path / "token", []

    async def answer(request: web.Request) -> web.Response:
        form = await request.post()
        asked.append((request.headers.get("Authorization"), str(form["query"])))
        return web.Response(body=EMPTY)

    token.write_text("first\n")
    read(answer, token_file=str(token), scrape_seconds=10)
    token.write_text("second")
    custom = 'my_gpus{ns="$namespace",p=~"($pods)$"}'
    read(answer, token_file=str(token), gpu_query=custom, pod_label="p", namespace_label="ns")

    assert [given for given, _ in asked] == ["Bearer first"] * 2 + ["Bearer second"] * 2
    queries = [query for _, query in asked]
    driver = next(query for query in queries if 'namespace="team",pod="clicks.head"}[30s]' in query)
    assert driver.startswith('{__name__=~"lastmile_progress_ratio|')
    assert driver.count("lastmile_run_.+") == 1
    pods = r"clicks\\.a|clicks-b"
    assert f'DCGM_FI_DEV_GPU_UTIL{{namespace="team",pod=~"{pods}"}}[30s]' in queries
    assert f'my_gpus{{ns="team",p=~"({pods})$"}}[90s]' in queries
    assert any('ns="team",p="clicks.head"}[90s]' in query for query in queries)


def test_no_gpu_query_for_trainers_without_gpus() -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.post())
        return web.Response(body=EMPTY)

    assert "GPU" not in read(answer, gpus=0).unknown
    assert len(asked) == 1
