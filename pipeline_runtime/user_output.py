"""Catches what the user's code prints and logs, line by line.

The process of the code keeps its streams, which get every character at once, and each whole line
also goes to a function: into the log of the run, or to the driver. Programs that the code starts,
and libraries in C, write past this.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

# A line without an end, such as a progress bar's, is cut here.
MAX_LINE_CHARS = 1 << 16
# Folders of code that is not the user's.
_INSTALLED = tuple(
    f"{folder}{os.sep}"
    for folder in {
        str(Path(__file__).parent),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    }
)


class LineTee:
    """A text stream that passes all on to another one, and hands whole lines to a function."""

    def __init__(self, below: TextIO, take: Callable[[str], None]) -> None:
        self._below = below
        self._take: Callable[[str], None] | None = take
        self._rest = ""
        self._lock = threading.RLock()
        _live.add(self)

    def forget(self) -> None:
        """Only pass on from now on, in a forked process: a thread of the parent may hold locks."""
        self._rest, self._take, self._lock = "", None, threading.RLock()

    def write(self, text: str) -> int:
        """Write to the stream below; hand over the lines that are whole now."""
        count = self._below.write(text)
        with self._lock:
            *lines, rest = (self._rest + text).split("\n")
            if len(rest) > MAX_LINE_CHARS:
                lines, rest = [*lines, rest], ""
            self._rest = rest
            for line in lines:
                self._hand_over(line)
        return count

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def finish(self) -> None:
        """Hand over the last line; from now on, only pass on."""
        with self._lock:
            if self._rest:
                self._hand_over(self._rest)
            self._rest, self._take = "", None

    def _hand_over(self, line: str) -> None:
        if self._take is not None:
            # Of a line that is drawn again and again, the last state counts.
            self._take(line.removesuffix("\r").rpartition("\r")[2])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


_live: weakref.WeakSet[LineTee] = weakref.WeakSet()


def _forget_in_child() -> None:
    for tee in list(_live):
        tee.forget()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def catching_output(take: Callable[[str], None]) -> Iterator[None]:
    """Hand each line that this process prints or logs to a function, for the time of a block.

    Args:
        take: called with a line without its end, by any thread; it must not print. A destructor may
            print while it runs, and so call it again.
    """
    before = sys.stdout, sys.stderr
    tees = [LineTee(stream, take) for stream in before]
    sys.stdout, sys.stderr = tees
    try:
        with showing_logs():
            yield
    finally:
        sys.stdout, sys.stderr = before
        for tee in tees:
            tee.finish()


class _LogHandler(logging.Handler):
    """Prints the user's records from INFO on, and those of libraries from WARNING on."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and record.pathname.startswith(_INSTALLED):
            return
        try:
            print(self.format(record), file=sys.stderr)
        except Exception:  # noqa: BLE001 - as each handler of Python: a record must not end a run
            self.handleError(record)


@contextmanager
def showing_logs() -> Iterator[None]:
    """Show what the user logs, from INFO on, unless the user configures logging.

    This replaces Python's handler of last resort, which shows warnings alone. So `basicConfig` in
    the user's code still does what it says.
    """
    root = logging.getLogger()
    last_resort, level = logging.lastResort, root.level
    logging.lastResort = _LogHandler()
    if not root.handlers and level == logging.WARNING:
        root.setLevel(logging.INFO)
    try:
        yield
    finally:
        logging.lastResort = last_resort
        if root.level == logging.INFO:
            root.setLevel(level)
