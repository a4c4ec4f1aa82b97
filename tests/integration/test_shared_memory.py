"""Readers of a rank's own machine: pieces through memory, or through Ray where it may not be."""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import Workload, build_experiment
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed import actor_readers, switching
from pipeline_runtime.feed.actor_readers import ActorReaders, start_pool
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.batching import batching_of
from pipeline_runtime.feed.maker import Stream
from pipeline_runtime.feed.pieces import Piece, ReadyPiece
from pipeline_runtime.feed.segments import Mapped, Segment
from pipeline_runtime.feed.switching import SwitchingReaders
from pipeline_runtime.feed.thread_readers import ThreadReaders
from pipeline_runtime.feed.wire import Sending
from pipeline_runtime.plan import build_plan, plan_groups

PIECE_ROWS = 4096
TIMEOUT_SECONDS = 300


class _Hidden(Mapped):
    """Memory that this process may not see."""

    def open(self, reader: str, segment: Segment) -> Any:
        raise PermissionError(reader)


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_pieces_are_the_same_whichever_way_they_come(tmp_path: Path) -> None:
    # In a process of its own, which may start a Ray of its own.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as beside:
        beside.submit(_compare_ways, tmp_path).result()


def _compare_ways(folder: Path) -> None:
    workload = Workload(level="none", root=make_table(folder, 60_000).roots["flat"])
    with _readers(workload) as (open_feed, groups):
        through_ray = _take(open_feed(Sending(shared_memory=False)))
        assert not _is_writeable(through_ray)
        assert {piece.header.group for piece in through_ray} == set(range(len(groups)))

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
        _assert_equal(_take(open_feed(Sending())), through_ray)


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_a_trainer_that_binds_is_fed_by_processes_after_a_while(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as beside:
        beside.submit(_switch, tmp_path).result()


def _switch(folder: Path) -> None:
    workload = Workload(level="heavy", root=make_table(folder, 200_000).roots["flat"])
    switching.WINDOW_SECONDS = 0.5  # type: ignore[misc]
    with _ray():
        stream, groups = _plan(workload)
        threads = ThreadReaders(streams={"training": stream}, ranks_here=1)
        expected = _take(threads.open("training", 0, groups, in_order=True).pieces(Waited()))
        readers = SwitchingReaders(
            threads=threads, sending=Sending(), broadcast=True, on_failure=_fail
        )
        usage = WorkerUsage()
        taken = []
        feed = readers.open("training", 0, groups, in_order=True)
        for piece in feed.pieces(Waited(), usage):
            taken.append(piece)
            time.sleep(0.15)  # the trainer binds
        _assert_equal(_take(iter(taken)), expected)
        assert usage.delivered == {"here", ray.get_runtime_context().get_node_id()}


def _plan(workload: Workload) -> tuple[Stream, Sequence[Any]]:
    experiment = build_experiment(workload)
    plan = build_plan(experiment, workload.root)
    rows = plan.training
    batching = batching_of(plan.delivery, rows, experiment.spec.training)
    groups = plan_groups(
        rows.scan.units, seed=0, epoch=0, shuffle=rows.shuffle, piece_rows=PIECE_ROWS
    )
    return Stream(plan=rows, piece_rows=PIECE_ROWS, batching=batching), groups


@contextmanager
def _readers(workload: Workload) -> Iterator[tuple[Any, Sequence[Any]]]:
    with _ray():
        stream, groups = _plan(workload)
        pool, held = start_pool({"training": stream}, _fail, None, num_trainers=1)

        def open_feed(sending: Sending) -> Iterator[Piece | ReadyPiece]:
            readers = ActorReaders(pool=pool, streams=held, piece_rows=PIECE_ROWS, sending=sending)
            return readers.open("training", 0, groups, in_order=True).pieces(Waited())

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


def _take(pieces: Iterator[Piece | ReadyPiece]) -> list[ReadyPiece]:
    taken = list(pieces)
    assert all(isinstance(piece, ReadyPiece) for piece in taken)
    return [piece for piece in taken if isinstance(piece, ReadyPiece)]


def _is_writeable(pieces: Sequence[ReadyPiece]) -> bool:
    return all(piece.hashes.flags.writeable for piece in pieces)


def _assert_equal(found: Sequence[ReadyPiece], wanted: Sequence[ReadyPiece]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.header.group, ours.header.piece) == (theirs.header.group, theirs.header.piece)
        np.testing.assert_array_equal(ours.hashes, theirs.hashes)
        assert len(ours.batches) == len(theirs.batches)
        for index in range(len(ours.batches)):
            arrays, expected = ours.arrays(index), theirs.arrays(index)
            assert arrays.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(arrays[name], array)
