"""A process that measures epochs with the code of one checkout, which is on its PYTHONPATH.

This file is run as a script. It imports nothing of the checkout that it lies in, except `serving`.
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
    """Import everything that an epoch needs."""
    with import_module("pipeline_runtime.importing").importing():
        torch = import_module("torch")
        for name in ("checksums", "epochs", "jobs", "peers", "workloads"):
            _find(name)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    runtime = import_module("pipeline_runtime").__file__
    return {"checkout": str(Path(str(runtime)).parents[1])}, _measure


def _measure(request: dict[str, Any]) -> dict[str, Any]:
    workload = _find("workloads").Workload(**request["workload"])
    job = _find("jobs").Job(
        loader=request["loader"], workload=workload, consumer=request["consumer"]
    )
    with import_module("pipeline_runtime.importing").importing():
        opener = _find("peers").opener_of(job)
    epoch = _find("epochs").run_epoch(job, opener)
    return {
        "values": {
            "rowsPerSecond": 1 / epoch.steady_seconds_a_row,
            "epochRowsPerSecond": epoch.sums.get("rows", 0) / epoch.seconds,
            "cpuSeconds": max(epoch.cpu_seconds or 0.0, 1e-3),
            "peakBytes": _peak_bytes(),
        },
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
    """Return the maximum of this process's memory so far; 0 off Linux."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    runpy.run_path(str(_SERVING))["serve"](_open)
