"""Deletes the folders of runs that nobody needs, or only their checkpoints.

`listing` runs before. The plan is made first, and shown in a dry run; each run is looked at again
right before it is deleted, while its folders on this machine are locked (`locking`), so that no
process resumes it meanwhile. These are kept, whatever the rule says:

- a run that is in use: its process holds the lock on its folder, or it has not ended and one of its
  files is younger than an hour, which is also how a run on another machine is noticed;
- the run that `latest` names, and the newest of each experiment;
- a run that can go on: it was interrupted or killed, and no newer one of its experiment has
  completed;
- a run from whose checkpoint another one went on that is kept, for whatever reason;
- a run whose commit to an Iceberg table the catalog may yet carry out;
- a folder whose name is not one that Lastmile gives to runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path

from pyarrow import fs as pafs

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.output.names import STAGING_FOLDER
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.runs.listing import UNFINISHED, ListedRun
from pipeline_runtime.runs.locate import LATEST, RUN_FILE, is_run_name
from pipeline_runtime.runs.locking import is_at, is_locked, locking
from pipeline_runtime.runs.tables import list_commits, release_tables
from pipeline_runtime.sources.filesystem import Location, open_location
from pipeline_runtime.sources.stores import asking, find_info

# A run writes its metrics and checkpoints to the store every few minutes.
QUIET_TIME = timedelta(hours=1)
CHECKPOINTS_FOLDER = "checkpoints"
_PURPOSE = "delete runs"
_RUNNING = "it is running"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRule:
    """The runs to delete: those that meet all conditions that are given.

    Attributes:
        name: the experiment's name.
        older_than: age since the run started.
        keep_last: number of newest runs of each experiment that are kept.
        is_failed: only runs that failed, or were killed.
        only_checkpoints: delete the checkpoints alone, and keep reports and metrics.
    """

    name: str | None = None
    older_than: timedelta | None = None
    keep_last: int | None = None
    is_failed: bool = False
    only_checkpoints: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A run, the folders to delete, and their size.

    Attributes:
        is_whole: False if its checkpoints alone are deleted.
    """

    run: ListedRun
    folders: tuple[Location, ...]
    num_files: int
    num_bytes: int
    is_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run that meets the rule and is kept all the same.

    Attributes:
        is_failed: it was not to be kept, but it, or a part of it, could not be deleted.
    """

    run: ListedRun
    reason: str
    is_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """The runs to delete, and those that something protects."""

    deletions: tuple[Deletion, ...]
    kept: tuple[Kept, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes that the deletions free."""
        return sum(deletion.num_bytes for deletion in self.deletions)


def plan_cleaning(runs: Sequence[ListedRun], rule: CleaningRule, now: datetime) -> CleaningPlan:
    """Choose what to delete among all runs below a root, which are given newest first.

    Raises StoreError if a store does not answer.
    """
    chosen = [run for run in runs if _meets(run, runs, rule, now)]
    reasons = {id(run): _find_reason(run, runs, now) for run in chosen}
    _protect_bases(chosen, runs, reasons)
    deletions, kept = [], []
    for run in chosen:
        if reason := reasons[id(run)]:
            kept.append(Kept(run=run, reason=reason))
        elif found := _measure(run, rule):
            deletions.append(found)
    return CleaningPlan(deletions=tuple(deletions), kept=tuple(kept))


def delete(plan: CleaningPlan) -> CleaningPlan:
    """Delete what the plan says, and return what was deleted and what was kept."""
    done: list[Deletion] = []
    kept = list(plan.kept)
    for deletion in plan.deletions:
        run = deletion.run
        try:
            reason = _delete(deletion)
        except (LastmileError, OSError) as error:  # the others are deleted all the same
            kept.append(Kept(run=run, reason=f"not all could be deleted: {error}", is_failed=True))
            continue
        if reason:
            kept.append(Kept(run=run, reason=reason))
        else:
            done.append(deletion)
    return CleaningPlan(deletions=tuple(done), kept=tuple(kept))


def _delete(deletion: Deletion) -> str | None:
    """Delete the folders of a run; return why it is kept, if a process uses it."""
    run = deletion.run
    if reason := _find_use(run, datetime.now(UTC)):
        return reason
    local = [Path(folder.path) for folder in run.folders if _is_local(folder)]
    with ExitStack() as held:
        try:
            for path in local:
                held.callback(_drop_empty, path, held.enter_context(locking(path)))
        except BlockingIOError:
            return _RUNNING
        if deletion.is_whole and (reason := release_tables(run)):
            return reason
        for folder in deletion.folders:
            if Path(folder.path) in local:
                _remove_locked(Path(folder.path))
            else:
                Storage(folder).remove()
    return None


def _remove_locked(folder: Path) -> None:
    """Remove a locked folder, its `run.json` last: until then, nobody else can lock it."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != RUN_FILE:
            os.unlink(entry.path)
    (folder / RUN_FILE).unlink(missing_ok=True)
    with suppress(OSError):  # a process has resumed the run since, in a new folder
        folder.rmdir()


def _drop_empty(folder: Path, descriptor: int) -> None:
    """Remove the `run.json` that a lock on the folder of an older Lastmile has made.

    Args:
        descriptor: the lock's; a process that has resumed the run since has a file of its own.
    """
    with suppress(OSError):
        if os.fstat(descriptor).st_size == 0 and is_at(descriptor, folder / RUN_FILE):
            (folder / RUN_FILE).unlink()


def _meets(run: ListedRun, runs: Sequence[ListedRun], rule: CleaningRule, now: datetime) -> bool:
    if rule.name not in (None, run.experiment):
        return False
    if rule.is_failed and run.phase not in ("Failed", UNFINISHED):
        return False
    if rule.older_than is not None and (
        run.started_at is None or now - run.started_at < rule.older_than
    ):
        return False
    return rule.keep_last is None or len(_list_newer(run, runs)) >= rule.keep_last


def _list_newer(run: ListedRun, runs: Sequence[ListedRun]) -> list[ListedRun]:
    """Return the newer runs of the experiment. Another run may have the same name."""
    before = takewhile(lambda other: other is not run, runs)
    return [other for other in before if other.experiment == run.experiment]


def _find_reason(run: ListedRun, runs: Sequence[ListedRun], now: datetime) -> str | None:
    """Return why a run is kept; None if nothing protects it."""
    if not is_run_name(run.name):
        return "its folder has a name of your own; delete it yourself"
    if use := _find_use(run, now):
        return use
    if any(_is_latest(folder) for folder in run.folders):
        return f"`{LATEST}` names it"
    newer = _list_newer(run, runs)
    if not newer:
        return "it is the newest of its experiment"
    is_open = run.phase in ("Interrupted", UNFINISHED)
    if is_open and not any(other.phase == "Complete" for other in newer):
        return "it can go on with --resume, and no newer run is complete"
    return None


def _find_use(run: ListedRun, now: datetime) -> str | None:
    if any(_is_local(folder) and is_locked(Path(folder.path)) for folder in run.folders):
        return _RUNNING
    if run.phase == "Complete":
        return None
    times = [info.mtime for folder in run.folders for info in _list_files(folder) if info.mtime]
    is_fresh = bool(times) and now - max(times) < QUIET_TIME
    return "it may be running: it was written to within the last hour" if is_fresh else None


def _is_latest(folder: Location) -> bool:
    if not isinstance(folder.filesystem, pafs.LocalFileSystem):
        return False
    link = Path(folder.path).with_name(LATEST)
    return link.is_symlink() and link.resolve() == Path(folder.path).resolve()


def _protect_bases(
    chosen: Sequence[ListedRun], runs: Sequence[ListedRun], reasons: dict[int, str | None]
) -> None:
    """Add the reason of runs from whose checkpoints runs went on that are kept, or bases of those.

    All runs of a base's name are kept, since a root may have been moved after the checkpoint's URI
    was recorded.
    """
    doomed = {id(run): run for run in chosen if reasons[id(run)] is None}
    kept = [run for run in runs if id(run) not in doomed]
    while kept:
        run = kept.pop()
        resumed = run.summary.run.resumed_from if run.summary else None
        for base in list(doomed.values()):
            if resumed and f"/{base.name}/" in resumed.checkpoint:
                reasons[id(base)] = "another run went on from its checkpoint"
                kept.append(doomed.pop(id(base)))


def _measure(run: ListedRun, rule: CleaningRule) -> Deletion | None:
    """Return the deletion of a run; None if there is nothing to delete."""
    folders = run.folders
    if rule.only_checkpoints:
        folders = tuple(folder.join(CHECKPOINTS_FOLDER) for folder in folders)
    else:
        commits = (place for folder in folders for place in list_commits(folder))
        folders = (*folders, *_find_staging(run), *commits)
    found = tuple(folder for folder in folders if _exists(folder))
    if not found:
        return None
    files = [info for folder in found for info in _list_files(folder)]
    return Deletion(
        run=run,
        folders=found,
        num_files=len(files),
        num_bytes=sum(info.size or 0 for info in files),
        is_whole=not rule.only_checkpoints,
    )


def _find_staging(run: ListedRun) -> Iterator[Location]:
    """Yield the folders in which the run staged a table: beside it, or below it on a store.

    A run that wrote an Iceberg table staged its files in its own folder; see `tables`.

    Only a summary on this machine is believed: whoever may write to a store chooses those there.
    """
    written = run.summary.output if run.summary else None
    if written is None or written.catalog or not _is_local(run.folders[0]):
        return
    table = open_location(written.uri.rstrip("/"))
    yield table.join(STAGING_FOLDER, run.name)
    parent, _, name = table.path.rpartition("/")
    path = f"{parent}/{STAGING_FOLDER}/{name}/{run.name}"
    if _is_local(table) and name and os.path.realpath(path) == path:
        yield Location(uri=path, filesystem=table.filesystem, path=path)


def _is_local(place: Location) -> bool:
    return isinstance(place.filesystem, pafs.LocalFileSystem)


def _exists(folder: Location) -> bool:
    found: bool = find_info(folder, _PURPOSE).type == pafs.FileType.Directory
    return found


def _list_files(folder: Location) -> Iterator[pafs.FileInfo]:
    if _is_local(folder):  # Arrow would follow links, also in circles
        for path, _, names in os.walk(folder.path):
            whole = [f"{path}/{name}" for name in names]
            yield from folder.filesystem.get_file_info([n for n in whole if not os.path.islink(n)])
        return
    with asking(folder.uri, _PURPOSE):
        infos = folder.filesystem.get_file_info(
            pafs.FileSelector(folder.path, recursive=True, allow_not_found=True)
        )
    yield from (info for info in infos if info.type == pafs.FileType.File)
