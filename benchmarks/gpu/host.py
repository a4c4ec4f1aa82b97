"""A process that feeds models and measures them; its sources and models stay open until the end.

`python -m benchmarks.gpu.host ROOT DEVICE` answers the requests of `command`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.dataloading.jobs import BATCHES, Tuning
from benchmarks.dataloading.measuring.training_step import TrainingStep
from benchmarks.dataloading.workloads import Workload
from benchmarks.gpu.cells import find_scale
from benchmarks.gpu.sources import open_source
from benchmarks.gpu.trace import synchronize, trace_steps
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.serving import serve
from pipeline_runtime import kernels
from pipeline_runtime.batches import ROW_WEIGHT, Batch

_MIN_STEPS = 2  # of a measurement, and before it


def open_host(root: str, device: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return the description of the device, and the function that answers a request."""
    # Batches are only read here, so their memory may be read-only.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    # On a CPU there is nothing to pin for, and there may be more workers than cores.
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    if device == "cpu":
        torch.set_num_threads(1)
    if find_scale(device).has_kernels:
        kernels.warm()
    host = Host(root, torch.device(device))
    return describe_device(device), lambda request: host.answer(Request(**request))


def describe_device(device: str) -> dict[str, Any]:
    """Return the card's name and memory, or the processor's where there is no card."""
    if device == "cpu":
        return {"name": describe_machine()["processor"], "type": device}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "type": device,
        "memoryGiB": round(properties.total_memory / 2**30),
        "cuda": torch.version.cuda,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to measure a way to feed a model.

    Attributes:
        form: of the batches, one of `FORMS`.
        way: one of `WAYS`.
        size: of the model, one of `SIZES`; None: no model, batches only reach the device.
        workers, unit: of a DataLoader.
        seconds: length of the measurement.
        trace_path: trace some steps to this file instead.
        is_last: close the source of the batches afterwards.
    """

    form: str
    way: str
    size: str | None = None
    workers: int = 0
    unit: str = BATCHES
    seconds: float = 0.0
    trace_path: str | None = None
    is_last: bool = False

    @property
    def source(self) -> tuple[Any, ...]:
        """The key of the source; models of all sizes are fed from one."""
        return self.form, self.way, self.workers, self.unit


class Host:
    """The open objects of a process: sources of batches, and models."""

    def __init__(self, root: str, device: torch.device) -> None:
        self._root, self._scale, self._device = root, find_scale(device.type), device
        self._sources: dict[tuple[Any, ...], Iterator[Batch]] = {}
        self._models: dict[tuple[str, str], TrainingStep] = {}

    def answer(self, request: Request) -> dict[str, float]:
        """Measure or trace, and return the metrics."""
        if request.source not in self._sources:
            self._sources[request.source] = open_source(
                request.way,
                self._workload(request.form),
                Tuning(workers=request.workers, unit=request.unit),
                self._device,
                self._scale.frozen_batches,
            )
        source, take = self._sources[request.source], self._consumer(request)
        if request.trace_path is None:
            self._run(source, take, self._scale.warm_seconds)
            found = self._run(source, take, request.seconds)
        else:
            path, steps = Path(request.trace_path), self._scale.traced_steps
            found = trace_steps(lambda: take(next(source)), steps, self._device, path)
        if request.is_last:
            del source
            self._sources.pop(request.source)
        return found

    def _run(
        self, source: Iterator[Batch], take: Callable[[Batch], Any], seconds: float
    ) -> dict[str, float]:
        """Take batches for some seconds, from the first one on."""
        samples = steps = 0
        waited = 0.0
        batch = next(source)
        synchronize(self._device)
        started = now = time.perf_counter()
        while steps < _MIN_STEPS or now - started < seconds:
            take(batch)
            samples, steps = samples + len(batch[ROW_WEIGHT]), steps + 1
            asked = time.perf_counter()
            batch = next(source)
            now = time.perf_counter()
            waited += now - asked
        synchronize(self._device)
        spent = time.perf_counter() - started
        return {"samplesPerSecond": samples / spent, "waitedShare": waited / spent}

    def _consumer(self, request: Request) -> Callable[[Batch], Any]:
        if request.size is None:
            return len  # the batch only has to reach the device
        key = (request.size, request.form)
        if key not in self._models:
            config = self._scale.model_config(request.size)
            self._models[key] = TrainingStep(self._workload(request.form), config, self._device)
        return self._models[key].take

    def _workload(self, form: str) -> Workload:
        return Workload(
            level="heavy",
            root=self._root,
            form=form,
            options=() if self._scale.has_kernels else (("kernels", False),),
            batch_size=self._scale.batch_size,
        )


if __name__ == "__main__":
    serve(lambda: open_host(*sys.argv[1:]))
