"""The log of a run, `run.log` in its folder: what the user's code printed, and the run's own notes.

`session` opens it around the work. An attempt that resumes in the same folder appends to it. On a
cluster, Ray writes the same lines to the driver's log, which `driver_log` copies to the store. On
other machines, this module has it copy what the attempt adds, to a file for each attempt.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.files import open_regular
from pipeline_runtime.metrics import ROLE_VARIABLE
from pipeline_runtime.run.driver_log import LogKeeper
from pipeline_runtime.sources import Location
from pipeline_runtime.user_output import catching_output

LOG_FILE = "run.log"
# On the store, the log of each attempt is named by the time at which the attempt began.
_COPY_NAME = "run-%Y%m%dT%H%M%S%fZ.log"


class RunLog:
    """Writes lines; if the disk is full, the log ends early."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.RLock()  # a destructor may print while a line is written
        self._notes: set[str] = set()
        self._is_full = False

    def write(self, line: str) -> None:
        """Write a line."""
        with self._lock:
            if self._is_full:
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


def _open(path: Path) -> TextIO:
    try:
        if path.is_symlink():  # it may point to a file of somebody else
            path.unlink()
        descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return open(descriptor, "a", buffering=1, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise LastmileError(f"{path}: the log of the run cannot be opened: {error}") from error


@contextmanager
def keeping_run_log(folder: Path, run_location: Location) -> Iterator[RunLog]:
    """Write what this process prints to the log of the run, and copy the log to the store.

    Raises LastmileError if the file cannot be opened.
    """
    path = folder / LOG_FILE
    name = datetime.now(UTC).strftime(_COPY_NAME)
    with _open(path) as file:
        log = RunLog(file)
        keeper = LogKeeper(None if ROLE_VARIABLE in os.environ else path, name, file.tell())
        keeper.keep(run_location)
        try:
            with catching_output(log.write):
                yield log
        finally:
            keeper.close()
