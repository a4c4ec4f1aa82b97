"""A process that measures epochs, or that holds Ray for others; `hosts` starts it.

    python -m benchmarks.dataloading.measuring.host                measures
    python -m benchmarks.dataloading.measuring.host ADDRESS PID    measures; Ray runs in process PID
    python -m benchmarks.dataloading.measuring.host local          starts Ray, and nothing else

It imports like `lastmile`, whatever it measures.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks.harness.machine import num_cores
from benchmarks.harness.serving import serve
from pipeline_runtime.importing import importing

Answer = Callable[[Any], Any]


def _open(stack: ExitStack, *ray_of: str) -> tuple[Any, Answer]:
    with importing():
        import torch

        from benchmarks.dataloading.measuring import epochs  # noqa: F401 - for the jobs to come
    if ray_of:
        # A trainer has a logical CPU of its own in `lastmile run`; here it is no actor, so none is
        # held, and data work may have as many.
        from pipeline_runtime.run.ray_connection import connected

        stack.enter_context(connected(ray_of[0], 0, verbose=False))
    if ray_of == ("local",):
        return _describe_ray(), lambda _: None
    # Batches are only read here, so their memory may be read-only.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    # The tuning tries more workers than cores on purpose.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(num_cores())
    return None, partial(_measure, *map(int, ray_of[1:]))


def _describe_ray() -> dict[str, Any]:
    """Return its address, and the environment of a process that joins it."""
    import ray

    # Ray sets the mode for its own children, but not for processes that join by address.
    mode = {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled")}
    return {"address": ray.get_runtime_context().gcs_address, "environment": mode}


def _measure(*helpers_and_request: Any) -> Any:
    from benchmarks.dataloading.jobs import Job
    from benchmarks.dataloading.measuring.epochs import run_epoch
    from benchmarks.dataloading.peers import opener_of

    *helpers, request = helpers_and_request
    job = Job.from_json(request)
    with importing():
        opener = opener_of(job)
    return asdict(run_epoch(job, opener, *helpers))


if __name__ == "__main__":
    with ExitStack() as opened:
        serve(partial(_open, opened, *sys.argv[1:]))
