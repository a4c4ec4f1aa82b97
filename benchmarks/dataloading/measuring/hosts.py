"""The processes in which epochs run: some live for the whole benchmark, others for one start.

A DataLoader forks its workers, which is not safe beside the threads of Ray or of an engine, so
loaders with and without such threads have separate processes. All run the same code around the
loader. The first job that needs Ray starts it in one more process, which the others join. Jobs are
sent through a pipe, one at a time, and epochs come back. While one process works, the others wait.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Final

import torch

from benchmarks.dataloading.jobs import Job
from benchmarks.dataloading.measuring.epochs import Epoch, run_epoch
from benchmarks.dataloading.measuring.piped import Process
from benchmarks.dataloading.measuring.ray_up import RayUp, join_ray
from benchmarks.dataloading.peers import GIVES_BACK, RAY, ROOFLINE, host_of, opener_of
from benchmarks.harness.machine import num_cores, tree_pss_bytes
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.importing import importing

# How often memory is measured. It costs milliseconds per process, so never in a timed epoch.
_WATCH_SECONDS = 0.2
_SERVE: Final = ("benchmarks.dataloading.measuring.hosts", "serve")
_HOLD_RAY: Final = ("benchmarks.dataloading.measuring.ray_up", "hold_ray")


class Hosts:
    """Measures jobs in the processes of their kind, which start when they are first needed."""

    def __init__(self) -> None:
        self._ray: Process | None = None
        self._alive: dict[str, Process] = {}

    @property
    def ray_start_seconds(self) -> float | None:
        """Duration of `ray.init` in seconds; None if no job needed Ray."""
        return None if self._ray is None else self._up().start_seconds

    def run(self, job: Job) -> Epoch:
        """Measure a job in the process of its kind. Raises BenchmarkError if it failed there."""
        kind = host_of(job)
        if kind not in self._alive:
            self._alive[kind] = self._start(kind)
        host = self._alive[kind]
        host.send(job)
        epoch: Epoch = host.receive()
        return epoch

    def run_fresh(self, job: Job) -> Epoch:
        """Measure a job in a new process, with its start and its memory.

        The long-lived process of the same kind is ended first: its workers in Ray would count as
        memory, and delay the others.
        """
        kind = host_of(job)
        roots = [self._up().pid] if kind == RAY else []
        if stays := self._alive.pop(kind, None):
            stays.__exit__()
        with self._start(kind) as host:
            host.send(job)
            peak = 0
            # Only the start is timed.
            while not job.until_first_batch and not host.is_answering(_WATCH_SECONDS):
                peak = max(peak, sum(map(tree_pss_bytes, [host.pid, *roots])))
            epoch: Epoch = host.receive()
            cold = epoch.first_batch_at - host.started_at
        return replace(epoch, cold_seconds=cold, peak_bytes=peak or None)

    def _start(self, kind: str) -> Process:
        with _allocator(keeps_memory=not kind.endswith(GIVES_BACK)):
            return Process(f"host-{kind}", _SERVE, self._up() if kind == RAY else None)

    def _up(self) -> RayUp:
        if self._ray is None:
            with _allocator():
                self._ray = Process("ray", _HOLD_RAY)
        up: RayUp = self._ray.hello
        return up

    def close(self) -> None:
        """End all processes at once, and Ray after the processes that joined it."""
        for host in self._alive.values():
            host.let_go()
        for host in self._alive.values():
            host.__exit__()
        if self._ray is not None:
            self._ray.__exit__()


@contextmanager
def _allocator(*, keeps_memory: bool = True) -> Iterator[None]:
    """Set Lastmile's allocator environment for the start of a process, also for peers."""
    before = dict(os.environ)
    if keeps_memory:
        keep_freed_memory()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def all_hosts() -> Iterator[Hosts]:
    """Yield the processes, and end them when the context ends."""
    hosts = Hosts()
    try:
        yield hosts
    finally:
        hosts.close()


def serve(connection: Connection, ray: RayUp | None) -> None:
    """Measure jobs until the other side closes the pipe, with Ray if it runs."""
    # Batches are only read here, so their memory may be read-only.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    # The tuning tries more workers than cores on purpose.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(num_cores())
    plain: AbstractContextManager[None] = nullcontext()
    with join_ray(ray) if ray else plain:
        connection.send(("ready", None))
        while (job := _receive_job(connection)) is not None:
            connection.send(_answer(job, [ray.pid] if ray else []))


def _answer(job: Job, helpers: list[int]) -> tuple[str, Any]:
    try:
        return "epoch", _measure(job, helpers)
    except Exception:  # noqa: BLE001 - it goes to the other side, whatever it is
        return "error", traceback.format_exc()


def _measure(job: Job, helpers: list[int]) -> Epoch:
    if job.loader == ROOFLINE:
        from benchmarks.dataloading.loaders.frozen_loader import freeze

        freeze(job.workload)
    with importing():
        opener = opener_of(job)
    return run_epoch(job, opener, *helpers)


def _receive_job(connection: Connection) -> Job | None:
    try:
        job: Job = connection.recv()
    except EOFError:
        return None
    return job
