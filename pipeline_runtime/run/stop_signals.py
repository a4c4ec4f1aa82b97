"""Ctrl-C and SIGTERM: the first requests a stop, the second ends the run at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline_runtime.errors import Interrupted


@dataclass(slots=True)
class StopRequest:
    """The number of signals so far.

    Attributes:
        interrupts: whether the second signal raises Interrupted in the main thread.
    """

    count: int = 0
    interrupts: bool = False

    def add(self) -> None:
        """Count a signal."""
        self.count += 1
        if self.count > 1 and self.interrupts:
            raise Interrupted("stopped by a second signal")


@contextmanager
def catching_signals(stop: StopRequest, on_stop: Callable[[int], None]) -> Iterator[None]:
    """Count signals for the time of a block; only the main thread can handle them.

    Args:
        on_stop: called with the number of signals so far.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(*_: object) -> None:
        on_stop(stop.count + 1)
        stop.add()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
