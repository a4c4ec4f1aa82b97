"""A process that feeds models and measures them; its sources and models stay open until the end.

`python -m benchmarks.gpu.host ROOT DEVICE` answers the requests of `command`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.dataloading.jobs import Tuning
from benchmarks.dataloading.measuring.training_step import TrainingStep
from benchmarks.dataloading.workloads import Workload
from benchmarks.gpu.asking import Ask, Busyness, Rate
from benchmarks.gpu.cells import ON_CPU, ON_GPU, Cell, Scale
from benchmarks.gpu.sources import open_source
from benchmarks.gpu.trace import synchronize, trace_steps
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.serving import serve
from pipeline_runtime import kernels
from pipeline_runtime.batches import ROW_WEIGHT, Batch

_MIN_STEPS = 2  # of a measurement, and before it


def open_host(root: str, device: str) -> tuple[Any, Callable[[Any], Any]]:
    """Return the description of the device, and the function that answers a request."""
    scale = ON_GPU if device == "cuda" else ON_CPU
    # Batches are only read here, so their memory may be read-only.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    # On a CPU there is nothing to pin for, and there may be more workers than cores.
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    if device == "cpu":
        torch.set_num_threads(1)
    if scale.has_kernels:
        kernels.warm()
    host = Host(root, scale, torch.device(device))
    return describe_device(device), lambda request: asdict(host.answer(parse_ask(request)))


def parse_ask(request: Mapping[str, Any]) -> Ask:
    """Return the request of a parsed line."""
    cell = request["cell"]
    path = request["trace_path"]
    return Ask(
        cell=Cell(**{**cell, "tuning": Tuning(**cell["tuning"])}),
        seconds=request["seconds"],
        trace_path=None if path is None else Path(path),
        is_last=request["is_last"],
    )


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


class Host:
    """The open objects of a process: sources of batches by cell, and models."""

    def __init__(self, root: str, scale: Scale, device: torch.device) -> None:
        self._root, self._scale, self._device = root, scale, device
        self._sources: dict[Cell, Iterator[Batch]] = {}
        self._models: dict[tuple[str, str], TrainingStep] = {}

    def answer(self, ask: Ask) -> Rate | Busyness:
        """Measure or trace a cell."""
        source, take = self._source(ask.cell), self._consumer(ask.cell)
        if ask.trace_path is None:
            self._run(source, take, self._scale.warm_seconds)
            found: Rate | Busyness = self._run(source, take, ask.seconds)
        else:
            found = trace_steps(
                lambda: take(next(source)), self._scale.traced_steps, self._device, ask.trace_path
            )
        if ask.is_last:
            del source
            self._sources.pop(_source_key(ask.cell))
        return found

    def _run(self, source: Iterator[Batch], take: Callable[[Batch], Any], seconds: float) -> Rate:
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
        return Rate(
            samples=samples,
            steps=steps,
            seconds=time.perf_counter() - started,
            waited_seconds=waited,
        )

    def _source(self, cell: Cell) -> Iterator[Batch]:
        key = _source_key(cell)
        if key not in self._sources:
            self._sources[key] = open_source(
                cell.way,
                self._workload(cell.form),
                cell.tuning,
                self._device,
                self._scale.frozen_batches,
            )
        return self._sources[key]

    def _consumer(self, cell: Cell) -> Callable[[Batch], Any]:
        if cell.size is None:
            return len  # the batch only has to reach the device
        key = (cell.size, cell.form)
        if key not in self._models:
            self._models[key] = TrainingStep(
                self._workload(cell.form), self._scale.model_config(cell.size), self._device
            )
        return self._models[key].take

    def _workload(self, form: str) -> Workload:
        return Workload(
            level="heavy",
            root=self._root,
            form=form,
            options=() if self._scale.has_kernels else (("kernels", False),),
            batch_size=self._scale.batch_size,
        )


def _source_key(cell: Cell) -> Cell:
    """Return the cell without its model: models of all sizes are fed from one source."""
    return Cell(size=None, form=cell.form, way=cell.way, tuning=cell.tuning)


if __name__ == "__main__":
    serve(lambda: open_host(*sys.argv[1:]))
