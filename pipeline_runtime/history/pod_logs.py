"""Copies the log files of a pod's Ray processes to the store while they grow: `lastmile keep-logs`.

It runs beside Ray, so that the logs of a killed Ray container remain. Object stores cannot append,
so each copy holds the whole file, or both ends of a long one. The longer a file is, the less often
it is copied. If the store refuses, logs are lost but nothing else is.
"""

from __future__ import annotations

import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pipeline_runtime.errors import StoreError
from pipeline_runtime.sources.filesystem import Location
from pipeline_runtime.sources.stores import asking, open_output

# The two ends of a longer file that are kept: its beginning and its latest lines.
HEAD_BYTES = 1 << 20
TAIL_BYTES = 7 << 20
MAX_FILES = 1_000  # per pod; Ray has three for each process
# Pace of the copies of a file: 8 MiB every 80 s, so that many long files load the network little.
_BYTES_PER_SECOND = 100 << 10
_CHUNK_BYTES = 1 << 20
_LOGS = "logs"  # a folder in each of Ray's session_TIME/


@dataclass(slots=True)
class _Copied:
    size: int
    modified: int
    at: float


@dataclass(slots=True, kw_only=True)
class LogCopier:
    """Copies changed log files from Ray's folder to the store.

    Attributes:
        source: Ray's folder, which has a folder for each session.
        target: the pod's folder in the store.
        every: seconds between copies of a short file.
    """

    source: Path
    target: Location
    every: float
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = print
    problem: str = ""
    _copied: dict[Path, _Copied] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Copy until `stop` is set, and then copy the remaining changes."""
        while not stop.wait(self.every):
            self.copy()
        self.copy(last=True)

    def copy(self, *, last: bool = False) -> int:
        """Copy the files that are due, and return their number.

        Args:
            last: whether this is the last round, so that no file is put off.
        """
        number, self.problem = 0, ""
        for path in find_logs(self.source):
            if len(self._copied) >= MAX_FILES and path not in self._copied:
                self.problem = f"{self.source}: only {MAX_FILES} files are copied, got more"
                break
            try:
                number += self._copy_if_due(path, last=last)
            except FileNotFoundError:
                continue  # Ray rotated it away
            except (OSError, StoreError) as error:
                self.problem = str(error)
                break  # the store is unreachable, and the remaining files would fail as slowly
        if self.problem:
            self.say(f"warning: {self.problem}")
        return number

    def _copy_if_due(self, path: Path, *, last: bool) -> bool:
        state = path.stat()
        before, now = self._copied.get(path), self.clock()
        if before is not None:
            if (before.size, before.modified) == (state.st_size, state.st_mtime_ns):
                return False
            pause = min(state.st_size, HEAD_BYTES + TAIL_BYTES) / _BYTES_PER_SECOND
            if not last and now < before.at + max(self.every, pause):
                return False
        self._write(path, state.st_size)
        self._copied[path] = _Copied(state.st_size, state.st_mtime_ns, now)
        return True

    def _write(self, path: Path, size: int) -> None:
        session, _, *rest = path.relative_to(self.source).parts
        place = self.target.join(session, *rest)
        with path.open("rb") as file, asking(self.target.uri, "copy logs there"):
            place.filesystem.create_dir(place.path.rsplit("/", 1)[0], recursive=True)
            with open_output(place) as stream:
                for chunk in read_ends(file, size):
                    stream.write(chunk)


def find_logs(source: Path) -> Iterator[Path]:
    """Yield log files that are not empty, drivers' logs first, so that they are dropped last."""
    files = [
        path
        for folder in sorted(source.glob(f"session_*/{_LOGS}"))
        if not folder.parent.is_symlink()  # session_latest
        for path in folder.rglob("*")
        if _is_file(path)
    ]
    yield from sorted(files, key=lambda path: (not path.name.startswith("job-driver-"), path))


def _is_file(path: Path) -> bool:
    try:
        state = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(state.st_mode) and state.st_size > 0


def read_ends(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield a file's first `size` bytes; of a long file both ends, with a line about the gap."""
    left_out = size - HEAD_BYTES - TAIL_BYTES
    if left_out <= 0:
        yield from _read(file, size)
        return
    yield from _read(file, HEAD_BYTES)
    yield f"\n… {left_out:,} bytes of {size:,} were left out here …\n".encode()
    file.seek(size - TAIL_BYTES)
    yield from _read(file, TAIL_BYTES)


def _read(file: BinaryIO, num_bytes: int) -> Iterator[bytes]:
    while num_bytes > 0 and (chunk := file.read(min(_CHUNK_BYTES, num_bytes))):
        num_bytes -= len(chunk)
        yield chunk
