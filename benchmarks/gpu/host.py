"""A process that feeds models and measures it; what it opened stays open until the end.

The command sends it an `Ask` at a time over a pipe (`piped` of the loading benchmark).
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.dataloading.measuring.training_step import TrainingStep
from benchmarks.dataloading.workloads import Workload
from benchmarks.gpu.asking import Ask, Busyness, Rate
from benchmarks.gpu.cells import Cell, Scale
from benchmarks.gpu.sources import open_source
from benchmarks.gpu.trace import synchronize, trace_steps
from benchmarks.harness.machine import describe_machine
from pipeline_runtime import kernels
from pipeline_runtime.batches import ROW_WEIGHT, Batch

_MIN_STEPS = 2  # of a measurement, and before it


def serve(connection: Connection, root: str, scale: Scale, device: str) -> None:
    """Say what the device is, then answer requests until the other side closes."""
    # Batches are only read here, whatever memory they lie in.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    # On a CPU there is nothing to pin for, and there may be more workers than cores.
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true")
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    if device == "cpu":
        torch.set_num_threads(1)
    connection.send(("ready", describe_device(device)))
    if scale.has_kernels:
        kernels.warm()
    host = Host(root, scale, torch.device(device))
    while True:
        try:
            ask: Ask = connection.recv()
        except (EOFError, ConnectionError):
            host.close()
            return
        try:
            connection.send(("measured", host.answer(ask)))
        except Exception:  # noqa: BLE001 - it goes to the other side, whatever it is
            connection.send(("error", traceback.format_exc()))


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
        """Do what a request asks for."""
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

    def close(self) -> None:
        """End the threads and the workers that bring batches."""
        self._sources.clear()

    def _run(self, source: Iterator[Batch], take: Callable[[Batch], Any], seconds: float) -> Rate:
        """Take batches for so long, from the first one on."""
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
            return len  # the batch is on the device, and that is all
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
