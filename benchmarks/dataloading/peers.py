"""The loaders that are compared: Lastmile twice, and its peers, each a file in `loaders`."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any, Final

from benchmarks.dataloading.jobs import Job

SUBJECT: Final = "lastmile"  # the feed of a run
LOADER: Final = (
    "loader"  # Lastmile too, in a loop of the user's own; `benchmarks.pairs` measures it
)
DATALOADER, THREADS, RAY_DATA = "dataloader", "threads", "ray-stock"
# Of each loader, the module and the class, which takes the workload.
LOADERS: Final = {
    SUBJECT: ("lastmile_loader", "LastmileLoader"),
    LOADER: ("pipeline_loader", "PipelineLoader"),
    DATALOADER: ("torch_loader", "TorchLoader"),
    THREADS: ("threads_loader", "ThreadsLoader"),
    RAY_DATA: ("stock_loader", "StockLoader"),
}


def opener_of(job: Job) -> Callable[[], Any]:
    """Return the function that opens the job's loader; import its libraries, and start its Ray."""
    module, name = LOADERS[job.loader]
    opens = getattr(import_module(f"benchmarks.dataloading.loaders.{module}"), name)
    if job.loader == RAY_DATA:
        start_ray()
    return partial(opens, job.workload)


def start_ray() -> None:
    """Start a Ray that ends with this process, unless one runs."""
    import ray

    from pipeline_runtime.run.ray_connection import connected

    if not ray.is_initialized():
        stack = ExitStack()
        # In `lastmile run` a trainer has a logical CPU of its own; here it is no actor.
        stack.enter_context(connected("local", 0, verbose=False))
        atexit.register(stack.close)
