"""Claims the folders of a run, so that no other run and no other process writes there.

    build/clicks/20260101T000000Z-0123456789abcdef/   run.json, and the report once the run ends
    build/clicks/latest                               a link to the folder of the newest run

`run.json` names the run that a folder holds. The process of the run holds a lock on this file
(flock(2)), which the kernel releases when the process ends, however it ends. The run's folder on
the artifacts store is claimed too: by a lock if it is on this machine, else by a look at its name.

A consumer claims a run as soon as it knows the name, and before it changes anything. `session`
opens the claim, and has the files written into the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pyarrow import fs as pafs
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from pipeline_runtime.errors import FolderTaken, LastmileError, NameTaken
from pipeline_runtime.report.files.summary import SUMMARY_FILE
from pipeline_runtime.run.folders import parse_run_hash
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.runs.locate import LATEST
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import find_info

RUN_FILE = "run.json"
_MODE = 0o666
# The file has a few hundred bytes; somebody else may have put another one there.
_MAX_BYTES = 64 << 10


class RunFile(BaseModel):
    """The content of `run.json`: the run that a folder holds, and the process that last ran it."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    version: Literal[1] = 1
    run: str = Field(description="Name of the run: that of its folder on the artifacts store.")
    artifacts_uri: str = Field(description="That folder.")
    process: int = Field(description="Id of the process.")


def read_run_file(folder: Path) -> RunFile | None:
    """Return the `run.json` of a folder; None if there is none, or it is damaged.

    Raises OSError if it cannot be read.
    """
    try:
        with (folder / RUN_FILE).open("rb") as file:
            return RunFile.model_validate_json(file.read(_MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


@dataclass(slots=True)
class FolderClaim:
    """A claim that holds the folders of one run until the block of the `with` ends.

    Attributes:
        options: `output` is absolute.
        folder: the run's folder on this machine, once it is claimed.
    """

    options: RunOptions
    folder: Path | None = None
    _held: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    def __call__(self, run: Location) -> None:
        """Claim the folders of a run.

        Args:
            run: its folder on the artifacts store.

        Raises:
            FolderTaken: the folder on this machine holds another run, or is in use; NameTaken if
                only the name of the run is at fault.
            StoreError: the artifacts store does not answer.
            LastmileError: the folder cannot be made.
        """
        name = run.path.rstrip("/").rpartition("/")[2]
        per_run = self.options.folder_per_run
        folder = self.options.output / name if per_run else self.options.output
        record = RunFile(run=name, artifacts_uri=run.full_uri, process=os.getpid())
        with ExitStack() as held:
            self._claim_stored(held, run, folder, record)
            error = NameTaken if per_run else FolderTaken
            with making(folder):
                held.enter_context(_holding(folder, record, error, resume=self.options.resume))
            self._held.enter_context(held.pop_all())
        self.folder = folder

    def _claim_stored(self, held: ExitStack, run: Location, folder: Path, record: RunFile) -> None:
        """Claim the folder on the artifacts store.

        A lock on a file system that several machines share may outlive a machine that is lost, so
        a run on a cluster has none; the operator starts one attempt at a time.
        """
        resume = self.options.resume
        if isinstance(run.filesystem, pafs.LocalFileSystem) and self.options.is_on_this_machine:
            if os.path.realpath(run.path) != os.path.realpath(folder):
                with suppress(OSError):  # the files that follow are refused too, with a warning
                    stored = _holding(Path(run.path), record, NameTaken, resume=resume)
                    held.enter_context(stored)
        elif find_info(run, "look for the run").type != pafs.FileType.NotFound and not resume:
            raise NameTaken(f"{run.uri}: must not exist, but does. Start the run again")


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """Raise LastmileError for an OSError of the block, which makes the folder of a run."""
    try:
        yield
    except OSError as error:
        raise LastmileError(
            f"{folder}: the folder of the report cannot be made: {error}"
        ) from error


@contextmanager
def _holding(
    folder: Path, record: RunFile, error: type[FolderTaken], *, resume: bool
) -> Iterator[None]:
    """Hold a folder for a run. A folder that the run leaves empty is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RUN_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _MODE)
    _locked.add(descriptor)
    try:
        _lock(descriptor, folder, error)
        try:
            _check_holds(folder, record, error, resume=resume)
        except FolderTaken:
            if os.fstat(descriptor).st_size == 0:  # made just now
                path.unlink()
            raise
        text = record.model_dump_json(by_alias=True, indent=2) + "\n"
        os.pwrite(descriptor, text.encode(), 0)
        os.ftruncate(descriptor, len(text.encode()))
        try:
            yield
        finally:
            with suppress(OSError):  # somebody may have removed the folder
                if os.listdir(folder) == [RUN_FILE]:
                    path.unlink()
                    folder.rmdir()
    finally:
        _locked.discard(descriptor)
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, error: type[FolderTaken]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        found = read_run_file(folder)
        who = f"process {found.process} runs {found.run} there" if found else "a process does"
        raise error(
            f"{folder}: no other process may write there, but {who}. Wait until it ends, or stop it"
        ) from None
    except OSError:
        pass  # a file system without locks


def _check_holds(folder: Path, record: RunFile, error: type[FolderTaken], *, resume: bool) -> None:
    """Raise the error if the folder holds another run, or runs in folders of their own."""
    found = read_run_file(folder)
    run_hash = _read_hash(folder)
    if found is not None:
        is_same, what = found.run == record.run, f"run {found.run}"
    elif run_hash is not None:  # an older Lastmile left no run.json
        is_same, what = run_hash == parse_run_hash(record.run), f"a run with hash {run_hash}"
    elif (folder / LATEST).is_symlink():
        is_same, what = False, "the folders of several runs"
    else:
        return
    if resume and is_same:
        return
    rule, advice = "must not hold another run", "Continue that run with --resume"
    if resume:
        rule, advice = "must hold a run of this manifest", "Undo the change of the manifest"
    raise error(f"{folder}: {rule}, but holds {what}. {advice}, or name another folder by --output")


def _read_hash(folder: Path) -> str | None:
    """Return the hash of the run whose summary is in a folder; None without a summary."""
    try:
        found = json.loads((folder / SUMMARY_FILE).read_bytes())["run"]["runHash"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return "unknown"
    return str(found)


def point_latest(folder: Path) -> None:
    """Point the link `latest` beside a run's folder at it. Raises OSError.

    The link is relative, so that the parent can be moved, and is replaced at once.
    """
    link = folder.with_name(LATEST)
    temporary = folder.with_name(f".{LATEST}.{secrets.token_hex(8)}.tmp")
    temporary.symlink_to(folder.name)
    try:
        temporary.replace(link)
    finally:
        temporary.unlink(missing_ok=True)


# Descriptors of the locked files of this process.
_locked: set[int] = set()


def _release_in_child() -> None:
    """Close the files in a forked process, such as a DataLoader's worker.

    A lock ends when all copies of its descriptor are closed, and a worker may outlive a killed run.
    """
    for descriptor in _locked:
        os.close(descriptor)
    _locked.clear()


os.register_at_fork(after_in_child=_release_in_child)
