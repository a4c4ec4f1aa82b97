"""A measuring process at the other end of a pipe. This module imports nothing heavy."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any, Self

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.measuring.starting import start

# Ray needs tens of seconds to stop on a busy machine; after that the system may end it.
_STOP_SECONDS = 60.0


class Process:
    """A process at the other end of a pipe, used as a context.

    Args:
        target: module and function; its arguments are the process' end of the pipe and `args`.
    """

    def __init__(self, name: str, target: tuple[str, str], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self.started_at = time.time()
        begun = (*target, theirs, *arguments)
        self._process = context.Process(target=start, args=begun, name=name)
        self._process.start()
        theirs.close()
        self.hello = self.receive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.terminate()

    def let_go(self) -> None:
        """Request the end of the process without waiting for it."""
        self._ours.close()  # which ends the process

    @property
    def pid(self) -> int:
        """The id of the process."""
        pid = self._process.pid
        assert pid is not None  # it has been started
        return pid

    def send(self, value: Any) -> None:
        """Send something to the process."""
        self._ours.send(value)

    def is_answering(self, seconds: float) -> bool:
        """Wait up to the given seconds, and return whether an answer came."""
        return self._ours.poll(seconds)

    def receive(self) -> Any:
        """Return the answer. Raises BenchmarkError if the process failed or died."""
        try:
            kind, value = self._ours.recv()
        except EOFError:
            raise BenchmarkError(f"process {self._process.name} ended before its answer") from None
        if kind == "error":
            raise BenchmarkError(f"a loader failed in {self._process.name}:\n{value}")
        return value
