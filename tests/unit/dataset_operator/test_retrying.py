"""Pauses: Retry-After of a busy server, and their random spread."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from local_http import serving

from dataset_operator.errors import RayUnreachable
from dataset_operator.ray.endpoints import send
from dataset_operator.ray.transport import Request
from dataset_operator.retrying import (
    MAX_RETRY_AFTER_SECONDS,
    bound_wait,
    parse_retry_after,
    spread,
)


@pytest.mark.parametrize(
    ("status", "text", "seconds"),
    [
        (429, "7", 7.0),
        (503, " 0 ", 0.0),
        (500, "7", None),
        (429, "", None),
        (429, "-1", None),
        (429, "٣", None),
        (429, "Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        (429, "later", None),
        (429, "Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        (429, "Mon, 01 Jan 2026 00:00:00 +99999999999999", None),
    ],
)
def test_retry_after_of_a_busy_server_is_read(
    status: int, text: str, seconds: float | None
) -> None:
    assert parse_retry_after(status, {"Retry-After": text}) == seconds


def test_retry_after_may_be_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    wait = parse_retry_after(503, {"Retry-After": date})
    assert wait is not None
    assert 3500 < wait <= 3600
    assert bound_wait(wait) == MAX_RETRY_AFTER_SECONDS


@given(st.text(), st.integers(0, 999))
def test_retry_after_is_bounded(text: str, status: int) -> None:
    assert 0.0 <= bound_wait(parse_retry_after(status, {"Retry-After": text})) <= 60.0


@given(st.floats(0, 60), st.floats(0, 1))
def test_a_pause_is_never_shortened(seconds: float, draw: float) -> None:
    assert seconds <= spread(seconds, lambda: draw) <= 1.5 * seconds


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_of_a_busy_head_is_read(status: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, headers={"Retry-After": "5"})

    async def story() -> float:
        request = Request(method="GET", port=8265, path="/")
        async with serving(answer) as url, aiohttp.ClientSession() as session:
            with pytest.raises(RayUnreachable) as caught:
                await send(session, url, request)
        return caught.value.retry_after_seconds

    assert asyncio.run(story()) == 5.0
