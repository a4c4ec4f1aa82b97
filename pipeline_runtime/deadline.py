"""Bounds the time that the first request to a store may take.

The client of S3 gives up after some 15 seconds by itself. That of Google's store tries for 15
minutes, and that of hdfs and those of fsspec may wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

# With the start of a command, an unreachable store fails within half a minute.
ANSWER_SECONDS = 15.0

_T = TypeVar("_T")


def call_in_time(call: Callable[[], _T], seconds: float = ANSWER_SECONDS) -> _T:
    """Return the result of a call, which a thread of its own makes.

    Raises TimeoutError if there is none in time; the thread then ends with the call, or with the
    process. Raises what the call raises otherwise.
    """
    future: Future[_T] = Future()

    def make() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            future.set_exception(error)

    threading.Thread(target=make, name="lastmile-store", daemon=True).start()
    try:
        return future.result(timeout=seconds)
    except TimeoutError:
        if future.done():  # the call's own
            raise
        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
