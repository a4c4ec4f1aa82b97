"""A process that measures epochs with the code of one checkout, which is on its PYTHONPATH.

This file is run as a script, and imports like `lastmile`. Of the checkout that it lies in it uses
`serving` alone, since `benchmarks.pairs` measures older commits with it.
"""

from __future__ import annotations

import os
import pkgutil
import runpy
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_PACKAGE: Final = "benchmarks.dataloading"
_SERVING: Final = Path(__file__).parents[1] / "harness" / "serving.py"


def _open() -> tuple[Any, Any]:
    """Import everything that an epoch needs; return the checkout, and the measurement."""
    with import_module("pipeline_runtime.importing").importing():
        torch = import_module("torch")
        for name in ("checksums", "epochs", "jobs", "peers", "workloads"):
            _find(name)
    # Batches are only read here, so their memory may be read-only.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    # A DataLoader is faster with more workers than cores.
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    runtime = import_module("pipeline_runtime").__file__
    return str(Path(str(runtime)).parents[1]), _measure


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    workload = _find("workloads").Workload(**request["workload"])
    job = _find("jobs").Job(**request | {"workload": workload})
    with import_module("pipeline_runtime.importing").importing():
        opener = _find("peers").opener_of(job)
    epoch = _find("epochs").run_epoch(job, opener)
    return {
        "steadySecondsPerRow": epoch.steady_seconds_a_row,
        "seconds": epoch.seconds,
        "cpuSeconds": epoch.cpu_seconds,
        "firstBatchAt": epoch.first_batch_at,
        "peakBytes": _peak_bytes(),
        "sums": epoch.sums,
    }


def _find(name: str) -> Any:
    """Import a module of the loading benchmark; in some commits it is in a folder below."""
    package = import_module(_PACKAGE)
    for found in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."):
        if found.name.rpartition(".")[2] == name and not found.ispkg:
            return import_module(found.name)
    raise ModuleNotFoundError(f"{_PACKAGE} has no module {name}")


def _peak_bytes() -> int:
    """Return the maximum of this process's memory so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    runpy.run_path(str(_SERVING))["serve"](_open)
