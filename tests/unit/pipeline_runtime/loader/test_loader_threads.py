"""Threads end with the loop, and other processes get an error or a loader of their own."""

import gc
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import LoaderError, StepError
from pipeline_runtime.loader import Loader


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lastmile")]


def join_threads() -> None:
    for thread in own_threads():
        thread.join(timeout=30)
    assert own_threads() == []


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Fail a test whose threads do not end by themselves."""
    join_threads()
    yield
    join_threads()


def leave_by_break(loader: Loader) -> None:
    for _ in loader:
        assert own_threads()
        break


def leave_by_error(loader: Loader) -> None:
    def work() -> None:
        for _ in loader:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def exhaust(loader: Loader) -> None:
    assert len(list(loader)) == 100


def drop(loader: Loader) -> None:
    batches = iter(loader)
    next(batches)
    del loader, batches


def close(loader: Loader) -> None:
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(LoaderError):
        next(batches)


def never_take(loader: Loader) -> None:
    iter(loader)


LEAVINGS = [leave_by_break, leave_by_error, exhaust, drop, close, never_take]


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("leave", LEAVINGS)
def test_threads_end_with_the_loop(
    pipeline: Pipeline, leave: Callable[[Loader], None], shuffle: bool
) -> None:
    gc.disable()  # nothing may depend on the collector of cycles
    try:
        leave(pipeline.loader(10, shuffle=shuffle, num_threads=2))
    finally:
        gc.enable()


@pytest.mark.usefixtures("no_thread_is_left")
def test_threads_end_when_a_step_fails(pipeline: Pipeline) -> None:
    failing = pipeline.cast(x="int8")
    with pytest.raises(StepError, match=r"row group \d"):
        list(failing.loader(10, num_threads=2))


@pytest.mark.usefixtures("no_thread_is_left")
def test_a_later_loop_ends_an_earlier_one(pipeline: Pipeline) -> None:
    loader = pipeline.loader(10, ["x"])
    first = iter(loader)
    next(first)
    second = iter(loader)
    assert next(second)["x"][0] == 0
    with pytest.raises(LoaderError, match="two loaders"):
        next(first)
    loader.close()


@pytest.mark.usefixtures("no_thread_is_left")
def test_after_the_last_batch_there_is_never_another(pipeline: Pipeline) -> None:
    loader = pipeline.loader(500, ["x"])
    batches = iter(loader)
    assert len(list(batches)) == 2
    assert next(batches, None) is None
    loader.close()
    loader.close()
    assert next(batches, None) is None
    assert iter(batches) is batches


GATE = threading.Event()
WAITING = threading.Event()


def wait_at_gate(table: pa.Table) -> pa.Table:
    """Return the table once the gate is open; a function that a step `map` imports."""
    WAITING.set()
    assert GATE.wait(60)
    return table


@pytest.mark.usefixtures("no_thread_is_left")
@pytest.mark.parametrize("end", [Loader.close, iter, lambda loader: loader.set_epoch(3)])
def test_a_loader_can_be_closed_while_another_thread_takes_a_batch(
    pipeline: Pipeline, end: Callable[[Loader], object]
) -> None:
    GATE.clear()
    WAITING.clear()
    slow = pipeline.map(wait_at_gate, output_columns={"x": "int64"}, input_columns=["x"])
    loader = slow.loader(90, ["x"], num_threads=1)
    batches = iter(loader)
    with ThreadPoolExecutor(1, "test") as pool:
        taken = pool.submit(next, batches)
        assert WAITING.wait(60)
        later = end(loader)
        GATE.set()
        assert taken.result(60)["x"][0] == 0
    if later is not None or end is Loader.close:
        with pytest.raises(LoaderError, match="two loaders"):
            next(batches)
    else:
        assert next(batches)["x"][0] == 90
    loader.close()
    join_threads()


@pytest.mark.usefixtures("no_thread_is_left")
def test_threads_that_share_a_loop_get_each_batch_once(pipeline: Pipeline) -> None:
    batches = iter(pipeline.loader(10, ["x"]))
    with ThreadPoolExecutor(4, "test") as pool:
        takers = [pool.submit(list, batches) for _ in range(4)]
        rows = [x for taker in takers for batch in taker.result() for x in batch["x"].tolist()]
    assert sorted(rows) == list(range(1000))


CALLS: list[int] = []


def count_call(table: pa.Table) -> pa.Table:
    """Return the table; a function that a step `map` imports."""
    CALLS.append(table.num_rows)
    return table


def test_what_is_made_ahead_of_the_loop_is_bounded(pipeline: Pipeline) -> None:
    counted = pipeline.map(count_call, output_columns={"x": "int64"}, input_columns=["x"])
    loader = counted.with_options(rows_per_block=10).loader(10, ["x"], num_threads=2)
    CALLS.clear()
    next(iter(loader))
    join_threads()
    assert 1 <= len(CALLS) <= 6  # of 105: two calls a thread, and those that follow the first
    assert len(list(loader)) == 100


HELD: list[int] = []


def note_held_bytes(table: pa.Table) -> pa.Table:
    """Return the table, and note the memory that Arrow holds; a function that `map` imports."""
    HELD.append(pa.total_allocated_bytes())
    return table


def test_the_bytes_of_rows_in_memory_are_bounded(tmp_path: Path) -> None:
    num_chunks, chunk_rows = 60, 10_000
    table = pa.table({"x": np.arange(num_chunks * chunk_rows)})
    chunk_bytes = table.nbytes // num_chunks
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=chunk_rows)
    del table
    pipeline = Pipeline.read_parquet(f"{tmp_path}/t.parquet").map(
        note_held_bytes, input_columns=["x"], output_columns={"x": "int64"}
    )
    loader = pipeline.with_options(rows_per_block=chunk_rows).loader(1000, ["x"], num_threads=2)
    HELD.clear()
    before = pa.total_allocated_bytes()
    num_batches = 0
    for _ in loader:
        num_batches += 1
        time.sleep(0.001)  # readers get ahead of the loop, as far as they may
        HELD.append(pa.total_allocated_bytes())
    assert num_batches == num_chunks * chunk_rows // 1000
    # Two calls of each thread, each with the rows that it read and those that it made; and the
    # chunk that batches are cut from.
    assert max(HELD) - before <= 15 * chunk_bytes


def test_a_pickled_loader_works_and_goes_on(pipeline: Pipeline) -> None:
    loader = pipeline.loader(100, ["x"])
    batches = iter(loader)
    next(batches)
    again: Loader = pickle.loads(pickle.dumps(loader))
    assert [batch["x"][0].item() for batch in again] == list(range(100, 1000, 100))
    assert next(batches)["x"][0] == 100


def run_in_fork(work: Callable[[], object]) -> str:
    """Return what the work raised in a fork of this process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            work()
            told = "nothing"
        except BaseException as error:  # noqa: BLE001 - it is told to the other process
            told = f"{type(error).__name__}: {error}"
        os.write(write, told.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told_by_fork:
        told = told_by_fork.read()
    os.waitpid(pid, 0)
    return told


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_gets_an_error_instead_of_waiting_for_ever(pipeline: Pipeline) -> None:
    loader = pipeline.loader(100, ["x"])
    assert run_in_fork(lambda: next(iter(loader))).startswith("LoaderError: ")
    batches = iter(loader)
    next(batches)
    assert run_in_fork(lambda: next(batches)).startswith("LoaderError: ")
    assert next(batches)["x"][0] == 100  # the parent's goes on


class Wrapped(IterableDataset[dict[str, torch.Tensor]]):
    """A loader in a DataLoader, as a worker gets it by pickling."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(self._loader)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_of_a_dataloader_is_told_to_do_without(pipeline: Pipeline) -> None:
    wrapped = DataLoader(
        Wrapped(pipeline.loader(100)),
        batch_size=None,
        num_workers=1,
        multiprocessing_context="fork",
    )
    with pytest.raises(LoaderError):
        next(iter(wrapped))
