"""The log of a run, `run.log` in its folder: what the user's code printed, and the run's own notes.

`session` opens it around all that may import the user's modules, and tells it the run's folder once
that is known. An attempt that resumes in the same folder appends to the log. On a cluster, Ray
writes the same lines to the driver's log, which `driver_log` copies to the store. On other
machines, this module has it copy what the attempt adds, to a file for each attempt.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import open_regular
from pipeline_runtime.run.driver_log import LogKeeper
from pipeline_runtime.sources import Location
from pipeline_runtime.user_output import catching_output

LOG_FILE = "run.log"
# On the store, the log of each attempt is named by the time at which the attempt began.
_COPY_NAME = "run-%Y%m%dT%H%M%S%fZ.log"
# Of the lines before the log has a file, so many are kept: far more than imports print.
MAX_EARLY_LINES = 1000


class RunLog:
    """Writes lines, first into memory, then to a file; if the disk is full, the log ends early."""

    def __init__(self) -> None:
        self._file: TextIO | None = None
        self._keeper: LogKeeper | None = None
        self._early: deque[str] = deque(maxlen=MAX_EARLY_LINES)
        self._lock = threading.RLock()  # a destructor may print while a line is written
        self._notes: set[str] = set()
        self._is_full = False

    def open(self, folder: Path, run_location: Location) -> None:
        """Write to the log in a run's folder from now on, and copy the log to the store.

        Raises LastmileError if the file cannot be opened.
        """
        from pipeline_runtime.metrics import ROLE_VARIABLE  # a plan is shown before this is loaded

        path = folder / LOG_FILE
        name = datetime.now(UTC).strftime(_COPY_NAME)
        with self._lock:
            self._file = _open(path)
            start = self._file.tell()
            while self._early:
                self.write(self._early.popleft())
        self._keeper = LogKeeper(None if ROLE_VARIABLE in os.environ else path, name, start)
        self._keeper.keep(run_location)

    def write(self, line: str) -> None:
        """Write a line."""
        with self._lock:
            if self._is_full:
                return
            if self._file is None:
                self._early.append(line)
                return
            try:
                self._file.write(f"{line}\n")
            except (OSError, ValueError):
                self._is_full = True

    def note(self, lines: Iterable[str]) -> None:
        """Write lines that were not written before."""
        for line in lines:
            if line not in self._notes:
                self._notes.add(line)
                self.write(line)

    def close(self) -> None:
        """Close the file, and copy it to the store a last time."""
        if self._file is not None:
            with suppress(OSError):  # the rest of a line that did not fit on the disk
                self._file.close()
        if self._keeper is not None:
            self._keeper.close()


def _open(path: Path) -> TextIO:
    try:
        if path.is_symlink():  # it may point to a file of somebody else
            path.unlink()
        descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return open(descriptor, "a", buffering=1, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise LastmileError(f"{path}: the log of the run cannot be opened: {error}") from error


@contextmanager
def keeping_run_log() -> Iterator[RunLog]:
    """Write what this process prints to the log of a run, which `RunLog.open` gives a file."""
    log = RunLog()
    try:
        with catching_output(log.write):
            yield log
    finally:
        log.close()
