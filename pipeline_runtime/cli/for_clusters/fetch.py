"""Fetches the files of a run from the artifacts store, for `lastmile artifacts --download`.

Names and contents in the store are untrusted: anybody who can write to it chooses them. So only the
files that Lastmile writes are copied: by an allow-list of names, up to a size, and each kind into
its own folder. A link at the place of a file or a folder is never followed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline_runtime.config.texts.plain_text import clean
from pipeline_runtime.errors import LastmileError, SourceError
from pipeline_runtime.run.folders import parse_run_id

if TYPE_CHECKING:
    from pipeline_runtime.sources.filesystem import Location

# The allowed names in each folder; "" is the run's own folder. `run.session`, `run.logs` and
# `report.files` define them, but are not imported here, since they need heavy libraries.
_NAMES = {
    "": re.compile(
        r"(run\.json|report\.html|summary\.json|plan\.json|manifest\.yaml|metrics\.parquet)"
    ),
    "logs": re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,199}\.log"),
    "decisions": re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9]{1,9}-[0-9]{1,9}\.json"),
}
# A driver's log has at most 16 MiB (`run.logs`); the report of a long run has a few MiB.
MAX_FILE_BYTES = 64 << 20
MAX_BYTES = 512 << 20  # of all files together
MAX_FILES = 2000
_MAX_LINES = 100  # lines about skipped files
_MAX_NAME_CHARS = 120
_CHUNK_BYTES = 1 << 20
_FETCH = "fetch the file"

Tell = Callable[[str], None]


def fetch_run(uri: str, run_id: str, folder: Path, tell: Tell) -> Sequence[Path]:
    """Copy the newest report of a run, and the files beside it, into a folder.

    Args:
        uri: the experiment's folder; the folders of its runs are below it.
        run_id: the id that the attempts of the run share.
        folder: the target, created if missing. Checkpoints are not copied.
        tell: called with a line about each skipped file.

    Raises:
        SourceError: the store has no such run.
        StoreError: the store does not answer.
        LastmileError: this machine's disk is full.
        OSError: the target cannot be written to.
    """
    from pipeline_runtime.sources.filesystem import open_location

    store = open_location(uri)
    found = list(_list_files(store, run_id))
    if not found:
        raise SourceError(
            f"{uri}: must have a finished run {run_id}, but has none; try again later"
        )
    return _Fetch(store.filesystem, folder, tell).copy_all(found)


def _list_files(experiment: Location, run_id: str) -> Iterator[tuple[str, Any]]:
    """Yield (folder, info) for each file in the newest folder of the run and its subfolders."""
    from pyarrow.fs import FileType

    from pipeline_runtime.sources.stores import list_folder

    runs = [info.base_name for info in list_folder(experiment, "list the runs")]
    mine = [name for name in runs if parse_run_id(name) == run_id]
    if not mine:
        return
    run = max(mine)  # names begin with the time
    for folder in _NAMES:
        infos = list_folder(experiment.join(run, folder), "list the files of the run")
        for info in sorted(infos, key=lambda info: info.base_name):
            if info.type == FileType.File:
                yield folder, info


@dataclass(slots=True)
class _Fetch:
    """One download, with the bytes copied and the files skipped so far."""

    store: Any  # pyarrow.fs.FileSystem
    target: Path
    tell: Tell
    num_bytes: int = 0
    num_skipped: int = 0

    def copy_all(self, found: Sequence[tuple[str, Any]]) -> list[Path]:
        copied: list[Path] = []
        self.target.mkdir(parents=True, exist_ok=True)
        with _opened(os.open(self.target, os.O_RDONLY | os.O_DIRECTORY)) as root:
            for folder in _NAMES:
                infos = [info for name, info in found if name == folder]
                copied += self._copy_folder(root, folder, infos) if infos else ()
        if (more := self.num_skipped - _MAX_LINES) > 0:
            self.tell(f"skipped {more} more files")
        return copied

    def _copy_folder(self, root: int, folder: str, infos: Sequence[Any]) -> Iterator[Path]:
        try:
            opened = _open_below(root, folder)
        except OSError as error:
            self._skip(folder, "", f"the folder cannot be written to: {error.strerror}")
            return
        with _opened(opened) as descriptor:
            for count, info in enumerate(infos):
                if not _NAMES[folder].fullmatch(info.base_name):
                    self._skip(folder, info.base_name, "it is not a file of a report")
                elif count >= MAX_FILES:
                    self._skip(folder, info.base_name, f"the run has more than {MAX_FILES} files")
                elif self._copy(descriptor, folder, info):
                    yield self.target / folder / info.base_name

    def _copy(self, descriptor: int, folder: str, info: Any) -> bool:
        """Write a temporary file, then rename it, so that a link in its place is replaced."""
        name, temporary = info.base_name, f".{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=descriptor), "wb") as file:
                is_whole = self._write(file, info)
            if is_whole:
                os.rename(temporary, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
                return True
            self._skip(
                folder,
                name,
                f"it is larger than {MAX_FILE_BYTES:,} B, or than the rest of the "
                f"{MAX_BYTES:,} B for the whole run",
            )
        except OSError as error:  # from this machine; a store raises StoreError
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise LastmileError(
                    f"{self.target}: {error.strerror}; make room, then fetch the run again"
                ) from error
            self._skip(folder, name, str(error.strerror or error))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=descriptor)
        return False

    def _write(self, file: Any, info: Any) -> bool:
        """Copy a file's bytes; return False if they exceed a limit. A listed size may be wrong."""
        left = min(MAX_FILE_BYTES, MAX_BYTES - self.num_bytes)
        if (info.size or 0) > left:
            return False
        from pipeline_runtime.sources.stores import asking

        with asking(info.path, _FETCH):
            stream = self.store.open_input_stream(info.path)
        with stream:
            while True:
                with asking(info.path, _FETCH):
                    chunk = stream.read(_CHUNK_BYTES)
                if not chunk:
                    return True
                left -= len(chunk)
                self.num_bytes += len(chunk)
                if left < 0:
                    return False
                file.write(chunk)

    def _skip(self, folder: str, name: str, why: str) -> None:
        self.num_skipped += 1
        if self.num_skipped <= _MAX_LINES:
            path = f"{folder}/{name}" if folder else name
            shown = clean(path[:_MAX_NAME_CHARS]).replace("\n", "�").replace("\t", "�")
            self.tell(f"skipped {shown}: {why}")


def _open_below(root: int, folder: str) -> int:
    """Open a folder of the target, created if missing. Raises OSError if it is a link."""
    if not folder:
        return os.dup(root)
    with suppress(FileExistsError):
        os.mkdir(folder, dir_fd=root)
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)


@contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)
