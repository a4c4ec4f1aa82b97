"""The benchmark's command line: the table, the processes, the schedule, and the results."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.dataloading.workloads import FORMS
from benchmarks.gpu.asking import GAP_SECONDS, Ask, Busyness, Rate
from benchmarks.gpu.cells import FORKING, FROZEN, ON_CPU, ON_GPU, THREADED, Scale, list_cells
from benchmarks.gpu.cells import Cell as GpuCell
from benchmarks.gpu.on_device import has_gpu
from benchmarks.gpu.schedule import Deadline, Measured, measure_all
from benchmarks.gpu.table import make_table
from benchmarks.harness.cells import Cell, Values
from benchmarks.harness.children import Child
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from pipeline_runtime.allocator import keep_freed_memory

DEFAULT_SECONDS: Final = 420.0  # with the tests before it, and starting, eight minutes
# Of a request: the kernels of a first batch are compiled in it.
_MAX_ANSWER_SECONDS: Final = 300.0

BENCHMARK = Benchmark(
    name="gpu",
    module="gpu",
    title="Training on a GPU",
    text="Ratios are to the rate with frozen batches. Busy: share of the traced time in which a "
    f"kernel ran. Gaps: of at least {GAP_SECONDS * 1e3:g} ms without a kernel. Waited: share of "
    f"the loop's time until batches came. How it is measured: "
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
    """Measure all cells before the deadline."""
    device, scale = ("cuda", ON_GPU) if has_gpu() else ("cpu", ON_CPU)
    # The run on a CPU is small, and has no deadline.
    seconds = options.seconds or (DEFAULT_SECONDS if device == "cuda" else math.inf)
    deadline = Deadline(seconds)
    root = options.data.absolute() / f"gpu-{scale.rows}-{scale.files}"
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
        measured = measure_all(partial(_ask, dict(hosts)), scale, deadline, options.data / "traces")
        options.device = hosts[THREADED].hello
    failures += measured.failures
    yield from describe(scale, measured)


def _ask(hosts: dict[str, Child], ask: Ask, timeout_seconds: float) -> Rate | Busyness:
    """Send a request; a process that fails to answer in time, or has died, gets no other one."""
    name = ask.cell.host
    if name not in hosts:
        raise BenchmarkError(
            f"host-{name}: gets no requests, since it did not answer an earlier one"
        )
    trace = None if ask.trace_path is None else str(ask.trace_path)
    try:
        found = hosts[name].ask(
            asdict(ask) | {"trace_path": trace}, min(timeout_seconds, _MAX_ANSWER_SECONDS)
        )
    except OSError as error:
        del hosts[name]
        raise BenchmarkError(f"host-{name}: died or did not answer in time ({ask.cell})") from error
    return Rate(**found) if ask.trace_path is None else Busyness(**found)


def describe(scale: Scale, measured: Measured) -> Iterator[Cell]:
    """Yield a cell for each model and form of batches, and one for the settings of each form."""
    all_cells = list_cells({form: measured.best_tuning(form) for form in FORMS})
    for name in dict.fromkeys(f"{cell.form}, {cell.size}" for cell in all_cells):
        together = [cell for cell in all_cells if f"{cell.form}, {cell.size}" == name]
        facts: dict[str, Any] = {"tuning": str(together[0].tuning)}
        missing = [cell.way for cell in together if cell not in measured.rates]
        if missing:
            facts["missing"] = ", ".join(missing)
        kept = [cell for cell in together if cell in measured.rates]
        # A measurement that failed leaves fewer rounds to compare.
        num_rounds = min((len(measured.rates[cell]) for cell in kept), default=0)
        arms = {cell.way: _values(cell, measured, num_rounds) for cell in kept}
        yield Cell(name=name, base=FROZEN, arms=arms, facts=facts)
    for form in FORMS:
        rates = {
            f"{cell.tuning.workers} workers, {cell.tuning.unit}": {
                "samplesPerSecond": [rate.samples / rate.seconds]
            }
            for cell, rate in measured.tuning.items()
            if cell.form == form
        }
        if rates:
            yield Cell(name=f"{form}, no model", base=next(iter(rates)), arms=rates)


def _values(cell: GpuCell, measured: Measured, num_rounds: int) -> Values:
    rates = measured.rates[cell][:num_rounds]
    values: Values = {
        "samplesPerSecond": [rate.samples / rate.seconds for rate in rates],
        "waitedShare": [rate.waited_seconds / rate.seconds for rate in rates],
    }
    trace = measured.traces.get(cell)
    if trace is not None:
        values |= {
            "busyShare": [trace.busy_share],
            "gapShare": [trace.gap_share],
            "gapsPerStep": [trace.num_gaps / trace.steps],
            "longestGapMilliseconds": [1e3 * trace.longest_gap_seconds],
        }
    return values
