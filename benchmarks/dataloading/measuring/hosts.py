"""The processes in which epochs run: some live for the whole benchmark, others for one start.

A DataLoader forks its workers, which is not safe beside the threads of Ray or of an engine, so
loaders with and without such threads have separate processes. All run the same code around the
loader (`host`). The first job that needs Ray starts it in one more process, which the others join.
While one process works, the others wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Final, Self

from benchmarks.dataloading.jobs import Job
from benchmarks.dataloading.measuring.epochs import Epoch
from benchmarks.dataloading.peers import RAY, host_of
from benchmarks.harness.children import ROOT, Child, environment_of
from benchmarks.harness.machine import tree_pss_bytes
from pipeline_runtime.allocator import keep_freed_memory

# How often memory is measured. It costs milliseconds per process, so never in a timed epoch.
_WATCH_SECONDS: Final = 0.2
_HOST: Final = ("-m", "benchmarks.dataloading.measuring.host")


class Hosts:
    """Measures jobs in the processes of their kind, which start when they are first needed."""

    def __init__(self) -> None:
        self._ray: Child | None = None
        self._alive: dict[tuple[str, bool], Child] = {}
        self._plain = environment_of(ROOT)
        # Lastmile's setting of the allocator, also for peers.
        self._keeps_memory = self._plain | keep_freed_memory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes, and Ray after the processes that joined it."""
        for host in self._alive.values():
            host.close()
        if self._ray is not None:
            self._ray.close()

    def run(self, job: Job) -> Epoch:
        """Measure a job in the process of its kind. Raises BenchmarkError if it failed there."""
        kind = (host_of(job), job.keeps_memory)
        if kind not in self._alive:
            self._alive[kind] = self._start(*kind)
        return _ask(self._alive[kind], job)

    def run_fresh(self, job: Job) -> Epoch:
        """Measure a job in a new process, with its start and its memory.

        The long-lived process of the same kind is ended first: its workers in Ray would count as
        memory, and delay the others.
        """
        kind = (host_of(job), job.keeps_memory)
        if (stays := self._alive.pop(kind, None)) is not None:
            stays.close()
        roots = [self._up().pid] if kind[0] == RAY else []
        with self._start(*kind) as host:
            if job.until_first_batch:  # only the start is timed
                epoch = _ask(host, job)
                return replace(epoch, cold_seconds=epoch.first_batch_at - host.started_at)
            with _watching_memory(host.pid, *roots) as peak:
                epoch = _ask(host, job)
        return replace(epoch, peak_bytes=peak[0] or None)

    def _start(self, kind: str, keeps_memory: bool) -> Child:
        environment = self._keeps_memory if keeps_memory else self._plain
        if kind != RAY:
            return Child(kind, _HOST, environment)
        ray = self._up()
        command = [*_HOST, ray.hello["address"], str(ray.pid)]
        return Child(kind, command, environment | ray.hello["environment"])

    def _up(self) -> Child:
        if self._ray is None:
            self._ray = Child("Ray", [*_HOST, "local"], self._keeps_memory)
        return self._ray


def _ask(host: Child, job: Job) -> Epoch:
    return Epoch(**host.ask(asdict(job)))


@contextmanager
def _watching_memory(*roots: int) -> Iterator[list[int]]:
    """Yield a list with the most memory that these processes and their descendants had."""
    peak, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(_WATCH_SECONDS):
            peak[0] = max(peak[0], sum(map(tree_pss_bytes, roots)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()
