"""The two processes in which epochs run: one without Ray, one with, alive for the whole benchmark.

A DataLoader forks its workers, which is not safe beside Ray's threads, so loaders with and
without Ray have a process each; both run the same code around the loader. Jobs go down a pipe, one
at a time, and epochs come back. While one works the other waits.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from typing import Any, Self

import torch

from benchmarks.dataloading.epochs import Epoch, Job, Loader, run_epoch
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.torch_loader import TorchLoader
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.batches import Batch
from pipeline_runtime.run.cluster import connected, logical_cpus

# loader -> the process that it runs in
LOADERS: Mapping[str, str] = {
    "dataloader": "plain",
    "dataloader-ship": "plain",
    "ray-stock": "ray",
    "lastmile": "ray",
    "roofline": "plain",
}
# Ray needs tens of seconds to stop on a machine that is busy; then it is left to the system.
_STOP_SECONDS = 60.0


class Host:
    """A process that measures jobs; use it as a context."""

    def __init__(self, kind: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, kind), name=f"host-{kind}")
        self._process.start()
        theirs.close()
        self.start_seconds = float(self._receive())  # without imports

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()  # the process takes it as the end
        self._process.join(_STOP_SECONDS)
        if self._process.is_alive():
            self._process.terminate()

    def run(self, job: Job) -> Epoch:
        """Measure a job. Raises BenchmarkError if it failed there."""
        self._ours.send(job)
        epoch: Epoch = self._receive()
        return epoch

    def _receive(self) -> Any:
        try:
            kind, value = self._ours.recv()
        except EOFError:
            raise BenchmarkError(f"process {self._process.name} ended before its answer") from None
        if kind == "error":
            raise BenchmarkError(f"a loader failed in {self._process.name}:\n{value}")
        return value


def serve(connection: Connection, kind: str) -> None:
    """Measure jobs until the other side closes."""
    # Batches are only read here, whatever memory they lie in.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    # More workers than cores are tried on purpose.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(logical_cpus())
    started = time.perf_counter()
    # A trainer has a logical CPU of its own in `lastmile run`; here it is no actor, so none is held
    # and data work may have as many as there.
    ray_session = connected("local", 0, verbose=False) if kind == "ray" else nullcontext()
    session: AbstractContextManager[None] = ray_session
    with session:
        connection.send(("ready", time.perf_counter() - started))
        frozen = Frozen()
        while (job := _next_job(connection)) is not None:
            try:
                connection.send(("epoch", run_epoch(job, opener(job, frozen))))
            except Exception:  # noqa: BLE001 - it goes to the other side, whatever it is
                connection.send(("error", traceback.format_exc()))


def _next_job(connection: Connection) -> Job | None:
    try:
        job: Job = connection.recv()
    except EOFError:
        return None
    return job


def opener(job: Job, frozen: Frozen) -> Callable[[], Loader]:
    """What opens the job's loader; the roofline's batches are made here, before the clock."""
    if job.loader == "roofline":
        frozen.fill(job.workload)
        return lambda: frozen
    if job.loader in ("dataloader", "dataloader-ship"):
        ships = job.loader == "dataloader-ship"
        return lambda: TorchLoader(job.workload, job.num_workers, ships_row_groups=ships)
    return _ray_opener(job)


def _ray_opener(job: Job) -> Callable[[], Loader]:
    # Imported here: the process without Ray stays without it.
    from benchmarks.dataloading.lastmile_loader import LastmileLoader
    from benchmarks.dataloading.stock_loader import StockLoader, be_quiet

    be_quiet()
    if job.loader == "lastmile":
        return lambda: LastmileLoader(job.workload)
    return lambda: StockLoader(job.workload)


class Frozen:
    """The roofline: the batches of one workload in memory, handed on as they are."""

    def __init__(self) -> None:
        self._workload: Workload | None = None
        self._batches: list[Batch] = []

    def fill(self, workload: Workload) -> None:
        """Load a workload's batches, unless they are there; those of another are let go."""
        if workload == self._workload:
            return
        self._batches = []
        loader = TorchLoader(workload, 0, ships_row_groups=False)
        for batch in loader.batches():
            self._batches.append({name: tensor.clone() for name, tensor in batch.items()})
        self._workload = workload

    def batches(self) -> Iterator[Batch]:
        """See Loader."""
        return iter(self._batches)

    def profile(self) -> dict[str, float]:
        """See Loader."""
        return {}


@contextmanager
def both_hosts() -> Iterator[Mapping[str, Host]]:
    """The two processes by kind, for the time of the benchmark."""
    with Host("plain") as plain, Host("ray") as with_ray:
        yield {"plain": plain, "ray": with_ray}
