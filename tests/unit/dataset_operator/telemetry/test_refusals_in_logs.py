"""Kopf's messages about a namespace that refuses are dropped from the log, and no others."""

import io
import logging

import pytest

from dataset_operator.telemetry.log_records import build_handler

REFUSAL = 'pods is forbidden: User "u" cannot list resource "pods" in API group ""'
NAMED = f"APIForbiddenError('{REFUSAL} in the namespace \"team\"', status=403)"
ATTEMPT = "Request attempt #1/9 failed; will retry: GET https://h/api/v1/namespaces/team/pods -> "


def write(name: str, message: str, *, verbose: bool = False) -> str:
    stream = io.StringIO()
    handler = build_handler(stream, as_text=True, verbose=verbose)
    handler.handle(logging.LogRecord(name, logging.ERROR, "", 0, message, (), None))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kopf._cogs.clients.watching", ATTEMPT + NAMED),
        ("kopf._core.reactor.orchestration", f"Watcher for pods.v1@team has failed: {NAMED}"),
        ("asyncio", f"Task exception was never retrieved\nfuture: <Task exception={NAMED}>"),
    ],
    ids=["a request that is refused", "a task that ended by it", "an error that nobody took"],
)
def test_a_refusal_is_told_once_and_not_by_kopf(name: str, message: str) -> None:
    assert write(name, message) == ""
    assert message in write(name, message, verbose=True)
    assert message in write("dataset_operator.serve", message)


@pytest.mark.parametrize(
    "message",
    [
        ATTEMPT + "APIServerError('etcd is away', status=500)",
        f"Watcher for pods.v1 has failed: {REFUSAL} at the cluster scope",
        'APIForbiddenError(\'cannot patch resource "pods" in the namespace "team"\')',
    ],
    ids=["a server's error", "a refusal of the whole cluster", "a write that is refused"],
)
def test_all_else_that_kopf_says_is_told(message: str) -> None:
    assert message in write("kopf._cogs.clients.watching", message)
