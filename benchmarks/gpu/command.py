"""The benchmark's command line: the table, the processes, the schedule, and the results."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.dataloading.jobs import BATCHES, ROW_GROUPS
from benchmarks.dataloading.workloads import FORMS
from benchmarks.gpu.cells import (
    DATALOADER,
    DATALOADER_UNPINNED,
    FROZEN,
    SIZES,
    WAYS,
    Scale,
    find_scale,
)
from benchmarks.gpu.on_device import has_gpu
from benchmarks.gpu.table import make_table
from benchmarks.harness.cells import Cell
from benchmarks.harness.children import Child
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.rounds import Rounds, Sample, measure
from pipeline_runtime.allocator import keep_freed_memory

# A DataLoader forks its workers, which is not safe beside the threads of a loader.
THREADED, FORKING = "threaded", "forking"
# Seconds of a measurement besides its clock: the first batch, or writing and reading a trace.
OVERHEAD_SECONDS: Final = 1.0
_MIN_SECONDS: Final = 0.5  # of a measurement
DEFAULT_SECONDS: Final = 420.0  # with the tests before it, and starting, eight minutes
# Of a request: the kernels of a first batch are compiled in it.
_MAX_ANSWER_SECONDS: Final = 300.0

BENCHMARK = Benchmark(
    name="gpu",
    module="gpu",
    title="Training on a GPU",
    text="Ratios are to the rate with frozen batches. Busy: share of the traced time in which a "
    "kernel ran. Gaps: of at least 0.1 ms without a kernel. Waited: share of "
    "the loop's time until batches came. How it is measured: "
    "[docs/benchmarks.md](../../docs/benchmarks.md#on-a-gpu).",
    metrics=(
        Metric(name="samplesPerSecond", label="thousand samples/s", scale=1e-3),
        *(
            Metric(name=name, label=label, is_compared=False, is_drawn=name == "busyShare")
            for name, label in (
                ("busyShare", "busy"),
                ("gapsPerStep", "gaps per step"),
                ("gapShare", "in gaps"),
                ("longestGapMilliseconds", "longest gap, ms"),
                ("waitedShare", "waited"),
            )
        ),
    ),
    cell_label="batches, model",
    arm_label="fed by",
    fact_labels={"tuning": "setting of the DataLoader", "missing": "without time for"},
)


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write the results; return 1 if something failed."""
    parser = build_parser("gpu", __doc__)
    help_text = f"after which it has ended; {DEFAULT_SECONDS} on a GPU"
    parser.add_argument("--seconds", type=float, help=help_text)
    parser.set_defaults(output=Path("benchmarks/results" if has_gpu() else "build/gpu"))
    failures: list[str] = []
    code = run(BENCHMARK, parser, partial(compare, failures), arguments)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return code or int(bool(failures))


def compare(failures: list[str], options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all cells before the deadline; those that fail leave the others."""
    device = "cuda" if has_gpu() else "cpu"
    scale = find_scale(device)
    # The run on a CPU is small, and has no deadline.
    deadline = time.monotonic() + (
        options.seconds or (DEFAULT_SECONDS if device == "cuda" else math.inf)
    )
    root = options.data.absolute() / f"gpu-{scale.rows}-{scale.files}"
    traces = options.data.absolute() / "traces"
    traces.mkdir(parents=True, exist_ok=True)
    keep_freed_memory()  # Arrow reads it when it is loaded, so it holds for the processes below
    with ExitStack() as stack:
        with ThreadPoolExecutor() as starting:
            command = ["-m", "benchmarks.gpu.host", str(root), device]
            opened = {
                name: starting.submit(Child, f"host-{name}", command)
                for name in (THREADED, FORKING)
            }
            make_table(root, scale.rows, scale.files)
            hosts = {name: stack.enter_context(host.result()) for name, host in opened.items()}
        options.device = hosts[THREADED].hello
        bench = Bench(hosts, scale, deadline, traces)
        num_cells = len(FORMS) * len(SIZES)
        for form in FORMS:
            best = {"workers": 0, "unit": BATCHES}
            with note_failure(failures):
                tuned, best = bench.tune(form)
                yield tuned
            for size in SIZES:
                found = None
                with note_failure(failures):
                    found = bench.compare(form, size, best, num_cells)
                num_cells -= 1
                missing = {"missing": "all: no time, or a failure"}
                yield found or Cell(name=f"{form}, {size}", base=FROZEN, arms={}, facts=missing)


@contextmanager
def note_failure(failures: list[str]) -> Iterator[None]:
    """Add the failure of a cell to the list."""
    try:
        yield
    except (BenchmarkError, OSError) as error:
        failures.append(str(error))


@dataclass(frozen=True, slots=True)
class Bench:
    """The processes, and the time that is left."""

    hosts: Mapping[str, Child]
    scale: Scale
    deadline: float
    traces: Path

    def tune(self, form: str) -> tuple[Cell, dict[str, Any]]:
        """Measure each setting of a DataLoader once, without a model; return the best one too."""
        settings = {
            f"{workers} workers, {unit}": {"workers": workers, "unit": unit}
            for workers in self.scale.workers
            for unit in (BATCHES, ROW_GROUPS)
        }
        # A quarter of the time for both forms together; the best setting is measured again.
        share = (self.deadline - time.monotonic()) / 4 / len(FORMS) / len(settings)
        seconds = max(0.0, min(self.scale.max_seconds / 2, share - OVERHEAD_SECONDS))
        arms = {
            name: partial(
                self.ask, form=form, way=DATALOADER, seconds=seconds, is_last=True, **setting
            )
            for name, setting in settings.items()
        }
        cell = measure(f"{form}, no model", arms, Rounds(count=1, warmups=0))
        best = max(cell.arms, key=lambda name: cell.arms[name]["samplesPerSecond"][0])
        return cell, settings[best]

    def compare(self, form: str, size: str, best: Mapping[str, Any], num_cells: int) -> Cell | None:
        """Measure and trace all ways to feed a model, or return None if there is no time.

        Args:
            best: setting of the DataLoader.
            num_cells: remaining cells, this one included.
        """
        left = (self.deadline - time.monotonic()) / num_cells
        rounds, seconds = plan_rounds(left, self.scale)
        if rounds == 0:
            return None
        requests = {way: {"form": form, "size": size, "way": way} | dict(best) for way in WAYS}
        arms = {
            way: partial(self.ask, seconds=seconds, **request) for way, request in requests.items()
        }
        cell = measure(f"{form}, {size}", arms, Rounds(count=rounds, warmups=0), base=FROZEN)
        for way, request in requests.items():
            path = self.traces / f"{form}-{size}-{way}.json".replace(" ", "-").replace(",", "")
            traced = self.ask(trace_path=str(path), **request)
            cell.arms[way] |= {name: [value] for name, value in traced.values.items()}
        cell.facts["tuning"] = f"{best['workers']} workers, {best['unit']}"
        return cell

    def ask(self, **request: Any) -> Sample:
        """Send a request. Raises BenchmarkError or OSError if the process fails, or is too slow."""
        name = FORKING if request["way"] in (DATALOADER, DATALOADER_UNPINNED) else THREADED
        left = max(1.0, self.deadline - time.monotonic())
        return Sample(self.hosts[name].ask(request, min(left, _MAX_ANSWER_SECONDS)))


def plan_rounds(seconds: float, scale: Scale) -> tuple[int, float]:
    """Return how many rounds of a cell fit into some seconds, and the length of a measurement.

    A short time has shorter measurements, and then fewer rounds; if not even one fits, there is
    none.
    """
    free = seconds - len(WAYS) * OVERHEAD_SECONDS  # without the traces
    for rounds in range(scale.rounds, 0, -1):
        length = free / len(WAYS) / rounds - scale.warm_seconds - OVERHEAD_SECONDS
        if length >= _MIN_SECONDS:
            return rounds, min(scale.max_seconds, length)
    return 0, 0.0
