"""A pass while nodes join and leave: their time to the first chunk, and if a row is lost or
doubled.

A thread starts nodes one after another during the pass, since on one machine nodes that start at
once would share its cores, and records when Ray knows each. Later it drains some nodes and kills
others. The pass itself runs in the main thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from benchmarks.harness.errors import BenchmarkError
from benchmarks.scaling.one_pass import Arrival, Meter, Pass, run_pass, start_meter
from benchmarks.scaling.ray_cluster import Cluster
from benchmarks.scaling.readers import Readers
from benchmarks.scaling.units import Source
from pipeline_runtime.plan.groups import Group

# Shares of the chunks after which nodes are started, and may leave.
_JOIN_FROM: Final = 0.1
_LEAVE_FROM: Final = 0.6
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Stages:
    """Numbers of data nodes: at first, after others joined, and at the end."""

    first: int
    most: int
    last: int

    @property
    def num_drained(self) -> int:
        """The number of nodes that are drained; the others that leave are killed."""
        return (self.most - self.last + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """A pass during which nodes joined and left, and one with all of them throughout.

    Seconds are since the pass began; `joined` has one entry a node, `waited` is from there to the
    node's first chunk.
    """

    joined_seconds: tuple[float, ...]
    waited_seconds: tuple[float, ...]
    left_seconds: float  # when the last had been drained or killed
    chunks_after: int  # chunks that arrived later
    rows_by_second: tuple[int, ...]
    disturbed: Pass
    undisturbed: Pass


def run_elastic(
    cluster: Cluster, readers: Readers, source: Source, groups: Sequence[Group], stages: Stages
) -> Elastic:
    """Run both passes. Raises BenchmarkError if a node joins too late, or never."""
    cluster.resize(stages.most)
    readers.wait_for(stages.most)
    meter = start_meter(readers, groups, stages.most)
    undisturbed = run_pass(readers, source, groups, meter)
    cluster.resize(stages.first)
    readers.wait_for(stages.first)
    meter = start_meter(readers, groups, stages.most)
    ended, started = threading.Event(), time.perf_counter()
    with ThreadPoolExecutor(1, "director") as beside:
        directing = beside.submit(_direct, cluster, meter, stages, ended)
        try:
            disturbed = run_pass(readers, source, groups, meter)
        finally:
            ended.set()
        joined, left = directing.result()
    first = first_arrivals(meter.arrivals)
    chunks_after = sum(each.at > left for each in meter.arrivals)
    if not chunks_after:
        raise BenchmarkError("nodes left too late for the pass: take more --seconds")
    return Elastic(
        joined_seconds=tuple(at - started for at in joined.values()),
        waited_seconds=tuple(first[node] - at for node, at in joined.items()),
        left_seconds=left - started,
        chunks_after=chunks_after,
        rows_by_second=count_by_second(meter.arrivals, started),
        disturbed=disturbed,
        undisturbed=undisturbed,
    )


def _direct(
    cluster: Cluster, meter: Meter, stages: Stages, ended: threading.Event
) -> tuple[dict[str, float], float]:
    """Return when each joined node was known, by its id, and when the last one had left."""
    _wait_until(ended, lambda: len(meter.arrivals) >= _JOIN_FROM * meter.num_chunks)
    joined: dict[str, float] = {}
    for _ in range(stages.most - stages.first):
        joined.update(cluster.wait_for(cluster.add(1)))
        _wait_until(ended, lambda: joined.keys() <= first_arrivals(meter.arrivals).keys())
    _wait_until(ended, lambda: len(meter.arrivals) >= _LEAVE_FROM * meter.num_chunks)
    leaving = cluster.nodes[: stages.most - stages.last]
    for node in leaving[: stages.num_drained]:
        cluster.drain(node)
    for node in leaving[stages.num_drained :]:
        cluster.kill(node)
    return joined, time.perf_counter()


def _wait_until(ended: threading.Event, is_there: Callable[[], bool]) -> None:
    while not is_there():
        if ended.wait(_LOOK_SECONDS):
            raise BenchmarkError("nodes joined too late for the pass: take more --seconds")


def first_arrivals(arrivals: Sequence[Arrival]) -> dict[str, float]:
    """Return when the first chunk of each node arrived, by the node's id."""
    first: dict[str, float] = {}
    for each in list(arrivals):  # another thread may add to it
        first.setdefault(each.node, each.at)
    return first


def count_by_second(arrivals: Sequence[Arrival], started: float) -> tuple[int, ...]:
    """Return the number of rows that arrived in each second since the start."""
    rows = [0] * (1 + max((int(each.at - started) for each in arrivals), default=0))
    for each in arrivals:
        rows[int(each.at - started)] += each.rows
    return tuple(rows)
