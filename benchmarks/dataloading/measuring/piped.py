"""A process at the other end of a pipe, which measures; imports nothing heavy itself."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any, Self

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.measuring.starting import start

# Ray needs tens of seconds to stop on a machine that is busy; then it is left to the system.
_STOP_SECONDS = 60.0


class Process:
    """A process at the other end of a pipe; use it as a context.

    Args:
        target: module and function, which takes the process' end of the pipe and the arguments.
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
        """Ask it to end, without waiting."""
        self._ours.close()  # the process takes it as the end

    @property
    def pid(self) -> int:
        """Its id."""
        pid = self._process.pid
        assert pid is not None  # it has been started
        return pid

    def send(self, value: Any) -> None:
        """Send something to the process."""
        self._ours.send(value)

    def is_answering(self, seconds: float) -> bool:
        """Wait so long at most for an answer."""
        return self._ours.poll(seconds)

    def receive(self) -> Any:
        """Its answer. Raises BenchmarkError if it failed there, or died."""
        try:
            kind, value = self._ours.recv()
        except EOFError:
            raise BenchmarkError(f"process {self._process.name} ended before its answer") from None
        if kind == "error":
            raise BenchmarkError(f"a loader failed in {self._process.name}:\n{value}")
        return value
