"""A rank in the driver's own process: its loop is a thread, and the monitor a plain object.

The driver's main thread watches it and takes signals, as it does where Ray Train runs the loop.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipeline_runtime.monitor import Monitor
from pipeline_runtime.training.script import alone


class Aborted(BaseException):
    """Raised in the loop's thread to end it; no `except Exception` of the user's catches it."""


class LocalRuntime:
    """The runtime of the only rank, in the thread that creates it; see `runtime.Runtime`."""

    rank = 0

    def __init__(self, monitor: Monitor, *, takes_gpu: bool) -> None:
        has_gpu = takes_gpu and torch.cuda.is_available()
        self.device = torch.device("cuda", 0) if has_gpu else torch.device("cpu")
        self.push = monitor.push
        self.take_history = monitor.take_history
        self.warn = monitor.warn
        self.evaluated = monitor.evaluated
        self.fail = monitor.fail
        self._loop = threading.get_ident()
        self._is_aborted = False

    @property
    def environment(self) -> dict[str, str]:
        return alone()

    def check_driver(self) -> None:
        """Do nothing: this process is the driver."""

    def abort(self) -> None:
        """Raise Aborted in the loop once it runs Python code again."""
        if not self._is_aborted:
            self._is_aborted = True
            thread = ctypes.c_ulong(self._loop)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Aborted))


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Have torch compute with one thread, as in a worker of Ray, so that results are equal.

    The other cores are for readers. OMP_NUM_THREADS says otherwise, there as here.
    """
    if "OMP_NUM_THREADS" in os.environ:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
