"""Copies the driver's log to the artifacts store, where it survives the cluster.

Ray's Jobs API redirects the driver's standard output to a file on the head, which is lost with the
head. This module copies that file regularly, so that a lost head costs only the last seconds, and
once more at the end. If standard output is a terminal or a pipe, nothing is copied.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline_runtime.errors import StoreError
from pipeline_runtime.files import open_regular
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import write_files

FOLDER = "logs"
COPY_SECONDS = 30.0
# Object stores cannot append, so each copy is the whole file, or the end of a longer one.
MAX_LOG_BYTES = 16 << 20


class LogKeeper:
    """Copies this process's log to a run's location, once the location is known.

    Args:
        log: the file; None: nothing is copied.
        name: name of the copy; that of the file by default.
        start: bytes at the start of the file that are not this process's.
    """

    def __init__(self, log: Path | None, name: str | None = None, start: int = 0) -> None:
        self._log = log
        self._name = name
        self._start = start
        self._location: Location | None = None
        self._copied = -1
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, run_location: Location) -> None:
        """Start to copy the log to `logs/` of this run."""
        if self._log is None:
            return
        self._location = run_location.join(FOLDER)
        self._thread = threading.Thread(target=self._run, name="lastmile-logs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and copy the log a last time."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._copy()

    def _run(self) -> None:
        while not self._stop.wait(COPY_SECONDS):
            self._copy()

    def _copy(self) -> None:
        assert self._log is not None
        assert self._location is not None
        try:
            size = self._log.stat().st_size
            if size == self._copied:
                return
            with os.fdopen(open_regular(self._log), "rb") as file:
                file.seek(max(self._start, size - MAX_LOG_BYTES))
                content = file.read(MAX_LOG_BYTES)
            name = self._name or self._log.name
            write_files(self._location, {name: content}, "copy the log there")
        except (OSError, StoreError) as error:
            print(f"warning: {error}", flush=True)
            return
        self._copied = size


def find_log() -> Path | None:
    """Return the file that standard output writes to; None if it is no file with a name."""
    try:
        descriptor = sys.stdout.fileno()
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not status.st_nlink:
            return None
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except (OSError, ValueError):
        return None


@contextmanager
def keeping_log() -> Iterator[LogKeeper]:
    """Yield a keeper, and close it at the end of the run."""
    keeper = LogKeeper(find_log())
    try:
        yield keeper
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        keeper.close()
