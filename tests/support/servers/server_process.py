"""A server program that runs while a test needs it, with its log in a file."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05


@contextmanager
def running_server(
    command: Sequence[str],
    log: Path,
    is_ready: Callable[[], bool],
    *,
    start_seconds: float,
    env: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Run a program in the folder of its log; yield once it is ready, and stop it at the end.

    Raises AssertionError with its log if it ends before, or takes longer.
    """
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=env, stdout=output, stderr=output, cwd=log.parent)
    try:
        deadline = time.monotonic() + start_seconds
        while not is_ready():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        server.terminate()
        try:
            server.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
