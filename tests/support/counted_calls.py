"""Counts calls instead of seconds, so that bounds on work hold on any machine."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any


@dataclass(slots=True)
class Calls:
    """The counted calls.

    Attributes:
        total: calls of all functions, those written in C included.
        by_name: calls of each function that was passed to `counting`.
        threads: names of the threads that called one of those.
    """

    total: int = 0
    by_name: Counter[str] = field(default_factory=Counter)
    threads: set[str] = field(default_factory=set)


@contextmanager
def counting(*functions: Callable[..., Any]) -> Iterator[Calls]:
    """Count calls in this thread and in threads that start meanwhile."""
    calls, names = Calls(), {_code(function): function.__name__ for function in functions}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "c_call":
            calls.total += 1
        elif event == "call":
            calls.total += 1
            if name := names.get(frame.f_code):
                calls.by_name[name] += 1
                calls.threads.add(threading.current_thread().name)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]  # typeshed does not know that


def _code(function: Callable[..., Any]) -> CodeType:
    code: CodeType = function.__code__  # type: ignore[attr-defined]
    return code
