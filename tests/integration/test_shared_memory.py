"""Readers of a rank's own machine: chunks through memory, or through Ray where it may not be."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import Workload, build_experiment
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Batches, Chunk
from pipeline_runtime.feed.local import switching
from pipeline_runtime.feed.local.process_readers import ProcessReaders
from pipeline_runtime.feed.local.switching import SwitchingReaders
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.batching import batching_of
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.over_ray import actor_readers
from pipeline_runtime.feed.over_ray.actor_readers import ActorReaders, start_pool
from pipeline_runtime.feed.over_ray.reader_actor import Reader, Reporter
from pipeline_runtime.feed.transport.segments import Mapped, Segment, Segments
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.plan import build_plan, plan_groups

CHUNK_ROWS = 4096
TIMEOUT_SECONDS = 300


class _Hidden(Mapped):
    """Memory that this process may not see."""

    def open(self, reader: str, segment: Segment) -> Any:
        raise PermissionError(reader)


def _in_own_process(work: Callable[[Path], None], folder: Path) -> None:
    """In one that may start a Ray of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as beside:
        beside.submit(work, folder).result()


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_chunks_are_the_same_whichever_way_they_come(tmp_path: Path) -> None:
    _in_own_process(_compare_ways, tmp_path)


def _compare_ways(folder: Path) -> None:
    workload = Workload(level="none", root=make_table(folder, 60_000).roots["flat"])
    with _readers(workload) as (open_feed, groups):
        through_ray = _take(open_feed(Sending(shared_memory=False)))
        assert not _is_writeable(through_ray)
        assert {chunk.header.group for chunk in through_ray} == set(range(len(groups)))

        shared = _take(open_feed(Sending()))
        assert _is_writeable(shared)
        _assert_equal(shared, through_ray)

        left = open_feed(Sending())  # what is asked for and not taken is used again
        next(left)
        left.close()
        again = _take(open_feed(Sending()))
        _assert_equal(again, through_ray)
        _assert_equal(shared, through_ray)  # which nobody wrote over

        actor_readers.MAPPED = _Hidden()  # type: ignore[misc]
        hidden = _take(open_feed(Sending()))
        assert not _is_writeable(hidden)
        _assert_equal(hidden, through_ray)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_readers_that_read_ahead_make_the_same_chunks(tmp_path: Path) -> None:
    _in_own_process(_read_ahead, tmp_path)


def _read_ahead(folder: Path) -> None:
    workload = Workload(level="heavy", root=make_table(folder, 60_000).roots["flat"])
    with _readers(workload, reads_ahead=True) as (open_feed, _):
        plainly = _take(open_feed(Sending()))
        told_early = _take(open_feed(Sending(reads_ahead=True)))
        _assert_equal(told_early, plainly)
        again = _take(open_feed(Sending(reads_ahead=True, batched_calls=False)))
        _assert_equal(again, plainly)


class _Forbidden(Segments):
    """No memory can be shared."""

    def take(self, num_bytes: int, rank: int) -> tuple[Segment, Any]:
        raise PermissionError(num_bytes)


class _PoorReader(Reader):
    """A reader in a process that may not share memory."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._segments = _Forbidden()


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_a_reader_that_cannot_share_memory_sends_its_chunks(tmp_path: Path) -> None:
    _in_own_process(_read_poorly, tmp_path)


def _read_poorly(folder: Path) -> None:
    workload = Workload(level="none", root=make_table(folder, 60_000).roots["flat"])
    with _readers(workload, _PoorReader) as (open_feed, _):
        through_ray = _take(open_feed(Sending(shared_memory=False)))
        found = _take(open_feed(Sending()))
        assert not _is_writeable(found)
        _assert_equal(found, through_ray)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_a_trainer_that_binds_is_fed_by_processes_after_a_while(tmp_path: Path) -> None:
    _in_own_process(_switch, tmp_path)


def _switch(folder: Path) -> None:
    workload = Workload(level="heavy", root=make_table(folder, 200_000).roots["flat"])
    switching.WINDOW_SECONDS = 0.5  # type: ignore[misc]
    switching.MIN_LEFT_SECONDS = 1.0  # type: ignore[misc]
    stream, groups = _plan(workload)
    streams = {"training": stream}
    threads = ThreadReaders(streams=streams, num_threads=threads_per_rank(1))
    expected = _take(threads.open("training", 0, groups, in_order=True).chunks(Waited()))
    processes = ProcessReaders(streams=streams, sending=Sending(), num_readers=2)
    readers = SwitchingReaders(threads=threads, processes=processes)
    usage = WorkerUsage()
    taken = []
    killed: list[int] = []
    feed = readers.open("training", 0, groups, in_order=True)
    for chunk in feed.chunks(Waited(), usage):
        taken.append(chunk)
        # The trainer binds, and takes so long that processes come up on a busy machine, too.
        time.sleep(1.0 if len(usage.delivered) == 1 else 0.1)
        if len(usage.delivered) > 1 and not killed:  # processes are asked
            killed = _reader_processes()
            os.kill(killed[0], signal.SIGKILL)
    _assert_equal(_take(iter(taken)), expected)
    assert usage.delivered == {"here", "processes"}
    assert len(killed) == 2
    assert not _reader_processes()  # they go with the feed


def _reader_processes() -> list[int]:
    """Return the process ids of this process's readers."""
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if _is_reader(child)]


def _is_reader(process: psutil.Process) -> bool:
    try:
        return "reader_process" in " ".join(process.cmdline())
    except psutil.Error:
        return False  # it has ended


def _plan(workload: Workload) -> tuple[Stream, Sequence[Any]]:
    experiment = build_experiment(workload)
    plan = build_plan(experiment, workload.root)
    rows = plan.training
    batching = batching_of(plan.delivery, rows, experiment.spec.training)
    groups = plan_groups(
        rows.scan.units, seed=0, epoch=0, shuffle=rows.shuffle, chunk_rows=CHUNK_ROWS
    )
    return Stream(plan=rows, chunk_rows=CHUNK_ROWS, batching=batching), groups


@contextmanager
def _readers(
    workload: Workload, reader: type[Reader] | None = None, *, reads_ahead: bool = False
) -> Iterator[tuple[Any, Sequence[Any]]]:
    with _ray():
        stream, groups = _plan(workload)
        stream = replace(stream, plan=replace(stream.plan, reads_ahead=reads_ahead))
        reporter = Reporter(on_failure=_fail)
        pool, held = start_pool({"training": stream}, reporter, None, num_trainers=1, reader=reader)

        def open_feed(sending: Sending) -> Iterator[Chunk]:
            readers = ActorReaders(pool=pool, streams=held, chunk_rows=CHUNK_ROWS, sending=sending)
            return readers.open("training", 0, groups, in_order=True).chunks(Waited())

        yield open_feed, groups


@contextmanager
def _ray() -> Iterator[None]:
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    ray.init(address="local", num_cpus=3, include_dashboard=False, object_store_memory=512 << 20)
    try:
        yield
    finally:
        ray.shutdown()


def _fail(error: LastmileError) -> None:
    raise AssertionError(error)


def _take(chunks: Iterator[Chunk]) -> list[Chunk]:
    taken = list(chunks)
    assert all(isinstance(chunk.rows, Batches) for chunk in taken)
    return taken


def _batches_of(chunk: Chunk) -> Batches:
    assert isinstance(chunk.rows, Batches)
    return chunk.rows


def _is_writeable(chunks: Sequence[Chunk]) -> bool:
    return all(_batches_of(chunk).hashes.flags.writeable for chunk in chunks)


def _assert_equal(found: Sequence[Chunk], wanted: Sequence[Chunk]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.header.group, ours.header.chunk) == (theirs.header.group, theirs.header.chunk)
        rows, wanted_rows = _batches_of(ours), _batches_of(theirs)
        np.testing.assert_array_equal(rows.hashes, wanted_rows.hashes)
        assert len(rows.batches) == len(wanted_rows.batches)
        for index in range(len(rows.batches)):
            arrays, expected = rows.arrays(index), wanted_rows.arrays(index)
            assert arrays.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(arrays[name], array)
