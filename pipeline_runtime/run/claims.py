"""Claims the folders of a run, so that no other run and no other process writes there.

    build/clicks/20260101T000000Z-0123456789abcdef/   run.json, and the report once the run ends
    build/clicks/latest                               a link to the folder of the newest run

`run.json` names the run that a folder holds. The process of the run holds a lock on this file
(`runs.locking`). The run's folder on the artifacts store is claimed too: by a lock if it is on this
machine, else by its name, which ends with an id that no other run has.

A consumer claims a run as soon as it knows the name, and before it changes anything. `session`
opens the claim, and has the files written into the folder.
"""

from __future__ import annotations

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

from pipeline_runtime.errors import FolderInUse, FolderTaken, LastmileError, NameTaken
from pipeline_runtime.files import read_regular
from pipeline_runtime.report.files.plan_file import PLAN_FILE
from pipeline_runtime.report.files.summary import SUMMARY_FILE
from pipeline_runtime.run.folders import parse_run_hash
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.runs.locate import LATEST, RUN_FILE, is_run_name
from pipeline_runtime.runs.locking import is_at, locking
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import find_info

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
        return _parse_run_file(read_regular(folder / RUN_FILE, _MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _parse_run_file(content: bytes) -> RunFile | None:
    try:
        found = RunFile.model_validate_json(content)
    except ValidationError:
        return None
    return found if is_run_name(found.run) else None  # it becomes a part of paths


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
            FolderTaken: the folder on this machine holds another run; NameTaken if only the name
                of the run is at fault, FolderInUse if another process writes there.
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

    def check_free(self) -> None:
        """Check the user's folder before work whose rows would be computed in vain.

        Raises FolderTaken if it holds another run.
        """
        if self.options.resume or self.options.folder_per_run:
            return
        folder = self.options.output
        try:
            content = read_regular(folder / RUN_FILE, _MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            content = b""
        record = RunFile(run="", artifacts_uri="", process=os.getpid())  # no name is known yet
        with making(folder):
            _check_holds(folder, content, record, FolderTaken, resume=False)

    def _claim_stored(self, held: ExitStack, run: Location, folder: Path, record: RunFile) -> None:
        """Claim the folder on the artifacts store.

        A lock on a file system that several machines share may outlive a machine that is lost, so
        a run on a cluster has none; the operator starts one attempt at a time.
        """
        resume = self.options.resume
        if self.options.may_lock(run):
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
            f"{folder}: the folder of the report cannot be made: {error}. Name another one by "
            "--output"
        ) from error


@contextmanager
def _holding(
    folder: Path, record: RunFile, error: type[FolderTaken], *, resume: bool
) -> Iterator[None]:
    """Hold a folder for a run. A folder that the run leaves empty is removed."""
    path = folder / RUN_FILE
    is_new = error is NameTaken and not resume
    with ExitStack() as held:
        try:
            descriptor = held.enter_context(locking(folder, is_new=is_new))
        except FileExistsError:
            if not is_new or not os.path.lexists(path):  # a file or a broken link above it
                raise
            raise NameTaken(f"{folder}: must not exist, but does. Start the run again") from None
        except BlockingIOError:
            raise _explain_use(folder) from None
        try:
            _check_holds(folder, os.pread(descriptor, _MAX_BYTES, 0), record, error, resume=resume)
        except (FolderTaken, OSError):
            if os.fstat(descriptor).st_size == 0:  # made just now
                path.unlink()
            raise
        text = record.model_dump_json(by_alias=True, indent=2) + "\n"
        os.pwrite(descriptor, text.encode(), 0)
        os.ftruncate(descriptor, len(text.encode()))
        os.fsync(descriptor)  # or a power cut may leave it empty beside the other files
        try:
            yield
        finally:
            with suppress(OSError):  # somebody may have removed the folder
                if os.listdir(folder) == [RUN_FILE] and is_at(descriptor, path):
                    path.unlink()
                    folder.rmdir()


def _explain_use(folder: Path) -> FolderInUse:
    found = read_run_file(folder)
    who = f"process {found.process}, which runs {found.run} there," if found else "a process"
    return FolderInUse(
        f"{folder}: no other process may write there, but {who} holds the lock. Wait until it "
        "ends, or stop it"
    )


def _check_holds(
    folder: Path, content: bytes, record: RunFile, error: type[FolderTaken], *, resume: bool
) -> None:
    """Raise the error if the folder holds another run, or runs in folders of their own.

    Args:
        content: that of its `run.json`.
    """
    found, run_hash = _parse_run_file(content), _read_hash(folder)
    advice = "Undo the change of the manifest" if resume else "Continue that run with --resume"
    if found is not None:
        is_same, what = found.run == record.run, f"run {found.run}"
    elif content:
        is_same, what = folder.name == record.run, f"a run whose {RUN_FILE} is damaged"
        advice = f"Restore {RUN_FILE} to resume that run"
    elif run_hash is not None:  # an older Lastmile left no run.json
        is_same, what = run_hash == parse_run_hash(record.run), f"a run with hash {run_hash}"
    elif (folder / LATEST).is_symlink():
        is_same, what = False, "the folders of several runs"
        advice = "Leave --output out if that is their experiment"
    elif (folder / PLAN_FILE).exists():  # it was killed, or its run.json is lost
        is_same, what = True, "a run that did not end"
    else:
        return
    if resume and is_same:
        return
    rule = "must hold a run of this manifest" if resume else "must not hold another run"
    raise error(f"{folder}: {rule}, but holds {what}. {advice}, or name another folder by --output")


def _read_hash(folder: Path) -> str | None:
    """Return the hash of the run whose summary is in a folder; None without a summary."""
    try:
        found = json.loads(read_regular(folder / SUMMARY_FILE))["run"]["runHash"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return "unknown"
    return str(found)


def point_latest(folder: Path) -> str | None:
    """Point the link `latest` beside a run's folder at it; return a warning if that fails.

    The link is relative, so that the parent can be moved, and is replaced at once.
    """
    link = folder.with_name(LATEST)
    if link.exists() and not link.is_symlink():
        return (
            f"{link}: must be a link to the folder of the newest run, but is a file or a folder of "
            "your own, which stays as it is. Give it another name"
        )
    temporary = folder.with_name(f".{LATEST}.{secrets.token_hex(8)}.tmp")
    try:
        temporary.symlink_to(folder.name)
        temporary.replace(link)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        return f"{link}: cannot be made a link to the folder of the newest run: {error}"
    return None
