"""A chunk that is lost with its node keeps nobody waiting: others come before Ray knows of it."""

import multiprocessing
from collections.abc import Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray

from benchmarks.scaling.ray_cluster import open_cluster
from benchmarks.scaling.readers import make_source, open_readers
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.over_ray.actor_readers import ActorCrew
from pipeline_runtime.feed.over_ray.reader_actor import Reader
from pipeline_runtime.feed.reader_feed import ReaderFeed
from pipeline_runtime.feed.transport.wire import Sending

UNIT_ROWS = 1024  # a megabyte: Ray keeps it where it was made until it is fetched
NUM_GROUPS = 40
TIMEOUT_SECONDS = 300


class _Crew(ActorCrew):
    """Remembers what was asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tickets: dict[Hashable, str] = {}  # each one's node

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        ticket = super().ask(reader, role, tasks)
        self.tickets[ticket] = self.worker(reader)
        return ticket


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_the_chunks_of_others_arrive_before_a_lost_node_is_known_to_be_lost(
    tmp_path: Path,
) -> None:
    # In a process of its own, which may connect to a Ray of its own.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as beside:
        before, groups = beside.submit(_take_chunks, tmp_path).result()

    assert sorted(groups) == list(range(NUM_GROUPS))  # every one once
    assert before >= NUM_GROUPS - 2  # all but those that its reader had made


def _take_chunks(folder: Path) -> tuple[int, list[int]]:
    """Chunks that were there before Ray knew that a node was lost, and the groups of all."""
    rows = NUM_GROUPS * UNIT_ROWS
    source = make_source("normal", folder, rows=rows, unit_rows=UNIT_ROWS)
    with open_cluster() as cluster:
        cluster.resize(2)
        with open_readers([source], Reader) as readers:
            readers.wait_for(2)
            crew = _Crew(readers.pool, readers.streams, Sending())
            feed = ReaderFeed(
                crew=crew,
                role=source.units,
                groups=source.groups(NUM_GROUPS),
                chunk_rows=UNIT_ROWS,
                in_order=False,
            )
            chunks = feed.chunks(Waited())
            groups = [next(chunks).header.group]
            while len(set(crew.tickets.values())) < 2:
                groups.append(next(chunks).header.group)
            ray.wait(list(crew.tickets), num_returns=len(crew.tickets), fetch_local=False)
            cluster.kill(cluster.nodes[0])
            before = 0
            for chunk in chunks:
                groups.append(chunk.header.group)
                if sum(node["Alive"] for node in ray.nodes()) == 3:  # type: ignore[no-untyped-call]
                    before = len(groups)
    return before, groups
