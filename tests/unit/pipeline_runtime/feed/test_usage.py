"""Readers' time: a gap is idle while the trainer waited, else blocked on output."""

from dataclasses import replace

import pytest

from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Header, StepCount
from pipeline_runtime.feed.reader_usage import UsageMeter


def header(gap: float) -> Header:
    counts = tuple(StepCount(rows=1, num_bytes=1, seconds=s) for s in (2.0, 1.0, 0.5))
    return Header(
        epoch=0, group=0, chunk=0, is_last=True, num_rows=1, counts=counts, gap_seconds=gap
    )


@pytest.mark.parametrize(
    ("gap", "waited", "idle", "blocked"),
    [
        pytest.param(4.0, 0.0, 0.0, 4.0, id="a trainer that never waited held it back"),
        pytest.param(4.0, 9.0, 4.0, 0.0, id="a trainer that waited all the time did not"),
        pytest.param(4.0, 1.0, 1.0, 3.0, id="some of both"),
        pytest.param(0.0, 9.0, 0.0, 0.0, id="no gap"),
    ],
)
def test_a_gap_is_idle_or_blocked(gap: float, waited: float, idle: float, blocked: float) -> None:
    usage = WorkerUsage()
    UsageMeter(usage, Waited(production=waited)).deliver("a", "x", header(gap), num_units=3)
    assert (usage.read, usage.compute, usage.units, usage.rows) == (2.0, 1.5, 3, 1)
    assert (usage.blocked_output, usage.idle, usage.ready) == (blocked, idle, 0)


def test_what_a_reader_does_at_first_is_told_apart() -> None:
    usage, now = WorkerUsage(), [100.0]
    meter = UsageMeter(usage, Waited(), clock=lambda: now[0])
    for reader, at in [("a", 100.0), ("a", 119.0), ("a", 121.0), ("b", 130.0), ("b", 151.0)]:
        now[0] = at
        meter.deliver(reader, "x", header(0.0), 0)
    assert (usage.rows, usage.read, usage.compute) == (5, 10.0, 7.5)
    assert (usage.warming_rows, usage.warming_read, usage.warming_compute) == (3, 6.0, 4.5)


def test_what_a_reader_was_waited_for_counts_once() -> None:
    usage, waited = WorkerUsage(), Waited(production=3.0)
    meter = UsageMeter(usage, waited)
    meter.deliver("a", "x", header(2.0), 0)
    meter.deliver("a", "x", header(2.0), 0)  # nobody waited since
    meter.deliver("b", "y", header(2.0), 0)
    assert (usage.idle, usage.blocked_output) == (4.0, 2.0)


def test_a_reader_starts_once_however_many_epochs_there_are() -> None:
    usage, now = WorkerUsage(), [100.0]
    for epoch in range(4):  # each has a meter of its own
        now[0] = 100.0 + 15.0 * epoch
        UsageMeter(usage, Waited(), clock=lambda: now[0]).deliver("a", "x", header(0.0), 0)
    assert (usage.rows, usage.warming_rows) == (4, 2)


def test_a_wait_for_inference_workers_is_no_work() -> None:
    usage = WorkerUsage()
    now = [100.0]
    meter = UsageMeter(usage, Waited(), clock=lambda: now[0])
    for now[0], seconds in ((100.0, 60.0), (121.0, 4.0)):  # the models were loaded at first
        meter.deliver("a", "x", replace(header(0.0), waiting_seconds=seconds), 0)
    assert (usage.read, usage.compute, usage.inference, usage.idle) == (4.0, 3.0, 64.0, 0.0)
    assert (usage.warming_compute, usage.warming_inference) == (1.5, 60.0)


def test_a_data_worker_counts_once_it_has_delivered() -> None:
    usage = WorkerUsage()
    meter = UsageMeter(usage, Waited())
    meter.answer(["x", "x", "y", "y", "y"])
    assert (usage.ready, usage.workers, usage.workers_readers) == (5, 0, 0)
    meter.deliver("b", "y", header(0.0), 0)
    meter.answer(["x", "x", "y", "y", "y"])
    assert (usage.ready, usage.workers, usage.workers_readers) == (5, 1, 3)
    meter.answer(["x", "x"])
    assert (usage.ready, usage.workers, usage.workers_readers) == (2, 0, 0)
