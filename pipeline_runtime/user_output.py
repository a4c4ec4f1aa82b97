"""Catches what the user's code prints and logs, line by line.

The process of the code keeps its streams, which get every character at once, and each whole line
also goes to a function: into the log of the run, or to the driver. Programs that the code starts,
libraries in C, and bytes that are written to `sys.stdout.buffer` pass this by.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TextIO

# A longer line is cut into lines of this length.
MAX_LINE_CHARS = 1 << 16
# Folders of code that is not the user's.
_INSTALLED = tuple(
    f"{folder}{os.sep}"
    for folder in {
        str(Path(__file__).parent),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    }
)
StreamName = Literal["stdout", "stderr"]


class LineCutter:
    """Cuts text that comes in parts into lines without their ends, in time linear in the text."""

    def __init__(self) -> None:
        self._parts: list[str] = []  # of the line that has not ended
        self._size = 0  # chars of these parts

    def feed(self, text: str) -> list[str]:
        """Take the next part; return the lines that are whole now."""
        self._parts.append(text)
        self._size += len(text)
        if "\n" not in text and self._size <= MAX_LINE_CHARS:
            return []
        parts, self._parts, self._size = self._parts, [], 0
        *lines, rest = "".join(parts).split("\n")
        found = [part for line in lines for part in _cut(_keep_last_state(line))]
        if len(rest) > MAX_LINE_CHARS:
            # A carriage return at the end may be one of `\r\n`.
            *cut, rest = _cut(_keep_last_state(rest) + "\r" * rest.endswith("\r"))
            found += cut
        # A destructor that printed since then has written its own line, or a part of the next.
        self._parts.insert(0, rest)
        self._size += len(rest)
        return found

    def finish(self) -> list[str]:
        """Return the last line, if it has no end."""
        return self.feed("\n") if self._size else []


def _keep_last_state(line: str) -> str:
    """Return the last state of a line that a program draws again and again, as a progress bar."""
    return line.rstrip("\r").rpartition("\r")[2]


def _cut(line: str) -> list[str]:
    starts = range(0, max(len(line), 1), MAX_LINE_CHARS)
    return [line[start : start + MAX_LINE_CHARS] for start in starts]


class LineTee(io.TextIOBase):
    """A text stream that passes all on to another one, and hands whole lines to a function.

    Code may keep it for longer than the block of `catching_output`: it then only passes on. It is
    copied and pickled as the stream of that name, whatever process loads it.
    """

    _below: TextIO | None = None

    def __init__(
        self, below: TextIO | None, take: Callable[[str], None], name: StreamName = "stdout"
    ) -> None:
        self._below = below
        self._take: Callable[[str], None] | None = take
        self._stands_for = name
        self._cutter = LineCutter()
        self._lock = threading.RLock()  # a destructor may print while a line is written
        _live.add(self)

    def forget(self) -> None:
        """Only pass on from now on, in a forked process: a thread of the parent may hold locks."""
        self._take, self._lock = None, threading.RLock()

    def write(self, text: str) -> int:
        """Write to the stream below; hand over the lines that are whole now."""
        if self._below is not None:
            self._below.write(text)
        with self._lock:
            if self._take is not None:
                self._hand_over(self._cutter.feed(text))
        return len(text)

    def finish(self) -> None:
        """Hand over the last line; from now on, only pass on."""
        with self._lock:
            self._hand_over(self._cutter.finish())
            self._take = None

    def _hand_over(self, lines: list[str]) -> None:
        for line in lines:
            if self._take is not None:
                self._take(line)

    def flush(self) -> None:
        if self._below is not None:
            self._below.flush()

    def close(self) -> None:
        """Do nothing: the stream below belongs to the process."""

    @property
    def closed(self) -> bool:
        return self._below is not None and self._below.closed

    def isatty(self) -> bool:
        return self._below is not None and self._below.isatty()

    def fileno(self) -> int:
        return super().fileno() if self._below is None else self._below.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has a variable
        return getattr(self._below, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return getattr(self._below, "errors", None)

    @property
    def newlines(self) -> Any:  # type: ignore[override]
        return getattr(self._below, "newlines", None)

    def is_for(self, stream: object) -> bool:
        """Return whether a stream is the one below, or a tee that stood here before."""
        if isinstance(stream, LineTee):
            return stream is not self and stream._stands_for == self._stands_for
        return stream is not None and stream is self._below

    def __getattr__(self, name: str) -> Any:
        # Rich would print past this to the stream that its progress display has replaced.
        if name == "rich_proxied_file":
            raise AttributeError(name)
        return getattr(self._below, name)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return _find_stream, (self._stands_for,)


def _find_stream(name: str) -> Any:
    return getattr(sys, name)


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
    tees = LineTee(sys.stdout, take, "stdout"), LineTee(sys.stderr, take, "stderr")
    sys.stdout, sys.stderr = tees
    try:
        with _redirecting_handlers(tees), showing_logs():
            yield
    finally:
        sys.stdout, sys.stderr = before
        for tee in tees:
            tee.finish()


@contextmanager
def _redirecting_handlers(tees: Sequence[LineTee]) -> Iterator[None]:
    """Have the handlers of loggers that keep a stream of the process write to its tee instead."""
    redirected = []
    for handler in _list_handlers():
        tee = next((each for each in tees if each.is_for(handler.stream)), None)
        if tee is not None:
            redirected.append((handler, tee, handler.stream))
            handler.stream = tee  # `setStream` would flush, and a former tee's stream may be closed
    try:
        yield
    finally:
        for handler, tee, before in redirected:
            if handler.stream is tee:
                handler.stream = before


def _list_handlers() -> Iterator[logging.StreamHandler[Any]]:
    """Yield the handlers that write to a stream, apart from Ray's own."""
    for name, logger in (("", logging.root), *list(logging.root.manager.loggerDict.items())):
        if name.partition(".")[0] != "ray":
            for handler in getattr(logger, "handlers", ()):  # a placeholder has none
                if isinstance(handler, logging.StreamHandler):
                    yield handler


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


class _Level(int):
    """A level of logging that is told from an equal one of the user's by its identity."""


_SHOWN: Final = _Level(logging.INFO)


@contextmanager
def showing_logs() -> Iterator[None]:
    """Show what the user logs, from INFO on, unless the user configures logging.

    This replaces Python's handler of last resort, which shows warnings alone. Once the user's code
    adds a handler to the root logger, such as by `basicConfig`, it does what it does without this.
    """
    root = logging.getLogger()
    last_resort, level = logging.lastResort, root.level

    def restore() -> None:
        vars(root).pop("addHandler", None)
        if root.level is _SHOWN:
            root.setLevel(level)

    def add_handler(handler: logging.Handler) -> None:
        restore()
        root.addHandler(handler)

    logging.lastResort = _LogHandler()
    if not root.handlers and level == logging.WARNING:
        root.setLevel(_SHOWN)
        vars(root)["addHandler"] = add_handler
    try:
        yield
    finally:
        logging.lastResort = last_resort
        restore()
