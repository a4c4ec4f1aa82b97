"""Claims of run folders: one process at a time, locked only where a lock can end."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from failing_store import store_in_memory

from pipeline_runtime.cli.failures import exit_code_of
from pipeline_runtime.config.texts.storage_uri import SCHEMES_VARIABLE
from pipeline_runtime.errors import FolderInUse, NameTaken
from pipeline_runtime.run.claims import FolderClaim
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.runs import cleaning
from pipeline_runtime.runs.locate import is_run_name
from pipeline_runtime.runs.locking import locking
from pipeline_runtime.sources import open_location

HASH = "0123456789abcdef"
RUN = f"20260101T000000Z-{HASH}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Claims a folder, forks a process that outlives it, and is killed.
_FORKS = """
import os, signal, sys, time
from pathlib import Path
from pipeline_runtime.run.claims import FolderClaim
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.sources import open_location
claim = FolderClaim(RunOptions(output=Path("here")))
claim(open_location("experiments/copied/20260101T000000Z-0123456789abcdef"))
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_holds_no_lock_even_if_it_has_forked(folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _FORKS]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=folder)
    try:
        options = RunOptions(output=folder / "here", resume=True)
        with FolderClaim(options) as claim:
            claim(open_location("experiments/copied/20260101T000000Z-0123456789abcdef"))
            assert claim.folder == folder / "here"
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


def test_a_name_in_use_on_a_store_is_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEMES_VARIABLE, "away")
    with store_in_memory() as store:
        store.makedirs("/lake/experiments/copied/20260101T000000Z-0123456789abcdef")
        place = open_location("away://lake/experiments/copied/20260101T000000Z-0123456789abcdef")
        with FolderClaim(RunOptions(output=folder / "here")) as claim, pytest.raises(NameTaken):
            claim(place)
        with FolderClaim(RunOptions(output=folder / "here", resume=True)) as claim:
            claim(place)


def test_a_run_on_a_cluster_leaves_no_lock_on_shared_disks(folder: Path) -> None:
    place = open_location("experiments/copied/20260101T000000Z-0123456789abcdef")
    with FolderClaim(RunOptions(output=folder / "here", address="auto")) as claim:
        claim(place)
        assert (folder / "here" / "run.json").exists()
        assert not Path(place.path).exists()
        Path(place.path).mkdir(parents=True)
        elsewhere = RunOptions(output=folder / "there", address="auto")
        with FolderClaim(elsewhere) as other, pytest.raises(NameTaken):
            other(place)


def test_names_differ_where_no_lock_protects_the_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEMES_VARIABLE, "away")
    now, here, options = datetime.now(UTC), open_location("here"), RunOptions(output=folder)
    with store_in_memory():
        there = open_location("away://lake/experiments/copied")
    assert options.name_run(now, HASH, here) == options.name_run(now, HASH, here)
    on_a_cluster = replace(options, address="auto")
    for asked, place in ((options, there), (on_a_cluster, here)):
        names = {asked.name_run(now, HASH, place) for _ in range(2)}
        assert len(names) == 2
        assert all(is_run_name(name) for name in names)
    shared = replace(options, run_id="1f-2")
    assert shared.name_run(now, HASH, there) == shared.name_run(now, HASH, there)


@pytest.mark.parametrize("place", ["here", "experiments/copied"])
def test_one_of_two_runs_takes_a_name(folder: Path, place: str) -> None:
    made = folder / place / RUN
    made.mkdir(parents=True)
    (made / "run.json").touch()  # by another machine, whose lock does not reach here
    options = RunOptions(output=folder / "here", folder_per_run=True)
    with FolderClaim(options) as claim, pytest.raises(NameTaken):
        claim(open_location(f"experiments/copied/{RUN}"))


def test_a_cluster_tries_again_while_an_old_driver_ends(folder: Path) -> None:
    options = RunOptions(
        output=folder / "here", folder_per_run=True, address="auto", resume=True, run_id="1f-2"
    )
    place = open_location(f"experiments/copied/{RUN}-1f-2")
    with FolderClaim(options) as old:
        old(place)
        with FolderClaim(options) as new, pytest.raises(FolderInUse) as caught:
            new(place)
    assert exit_code_of(type(caught.value).__name__) == 1
    with FolderClaim(options) as new:
        new(place)


def test_a_lock_on_a_removed_folder_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock
    removed: list[int] = []

    def remove_and_lock(descriptor: int, kind: int) -> None:
        if not removed:
            removed.append((folder / "here" / "run.json").stat().st_ino)
            shutil.rmtree(folder / "here")
        lock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    with locking(folder / "here") as descriptor:
        assert os.path.samestat(os.fstat(descriptor), (folder / "here" / "run.json").stat())
        with pytest.raises(BlockingIOError), locking(folder / "here"):
            pass
    assert len(removed) == 1


def test_a_lock_that_ends_leaves_the_file_of_another_process(folder: Path) -> None:
    with locking(folder / "here") as old:
        shutil.rmtree(folder / "here")
        with locking(folder / "here"):
            cleaning._drop_empty(folder / "here", old)
            assert (folder / "here" / "run.json").exists()
