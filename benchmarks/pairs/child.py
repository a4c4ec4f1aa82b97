"""A process that measures epochs with the code of one checkout, whichever commit that is.

`arms` runs this file with the checkout on the module path. Each line of its input is a JSON
document with a loader, a workload and a consumer; it writes a line with the measured epoch, or
with the error. It uses only what the loading benchmark has had in every commit.
"""

from __future__ import annotations

import json
import os
import pkgutil
import sys
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

_PACKAGE = "benchmarks.dataloading"


def serve() -> None:
    """Measure what is asked until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print there
    importing = import_module("pipeline_runtime.importing").importing
    with importing():
        torch = import_module("torch")
        for name in ("checksums", "epochs", "jobs", "peers", "workloads"):
            _find(name)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    runtime = import_module("pipeline_runtime").__file__
    answers.write(json.dumps({"checkout": str(Path(str(runtime)).parents[1])}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return _measure(asked)
    except Exception:  # noqa: BLE001 - the other side reports it, whatever it is
        return {"error": traceback.format_exc()}


def _measure(asked: dict[str, Any]) -> dict[str, Any]:
    workload = _find("workloads").Workload(**asked["workload"])
    job = _find("jobs").Job(loader=asked["loader"], workload=workload, consumer=asked["consumer"])
    with import_module("pipeline_runtime.importing").importing():
        opener = _find("peers").opener_of(job)
    epoch = _find("epochs").run_epoch(job, opener)
    return {
        "seconds": epoch.seconds,
        "steady_seconds_a_row": epoch.steady_seconds_a_row,
        "cpu_seconds": epoch.cpu_seconds,
        "sums": epoch.sums,
        "peak_bytes": _peak_bytes(),
    }


def _find(name: str) -> Any:
    """Import a module of the loading benchmark; in some commits it lies in a folder below."""
    package = import_module(_PACKAGE)
    for found in pkgutil.walk_packages(package.__path__, f"{_PACKAGE}."):
        if found.name.rpartition(".")[2] == name and not found.ispkg:
            return import_module(found.name)
    raise ModuleNotFoundError(f"{_PACKAGE} has no module {name}")


def _peak_bytes() -> int | None:
    """Return the most memory that this process ever had; None off Linux."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


if __name__ == "__main__":
    serve()
