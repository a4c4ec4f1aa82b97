"""The benchmark's command line: the table, the processes, the schedule, and the files it writes."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import records
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.measuring.piped import Process
from benchmarks.gpu.asking import Ask, Busyness, Rate
from benchmarks.gpu.cells import FORKING, ON_CPU, ON_GPU, THREADED
from benchmarks.gpu.on_device import has_gpu
from benchmarks.gpu.report import build_markdown, draw
from benchmarks.gpu.results import build_results
from benchmarks.gpu.schedule import Deadline, measure_all
from benchmarks.gpu.table import make_table
from pipeline_runtime.allocator import keep_freed_memory

NAME: Final = "gpu"
DEFAULT_SECONDS: Final = 420.0  # with the tests before it, and starting, eight minutes
# Of a request: the kernels of a first batch are compiled in it. poll() knows no infinity.
_MAX_ANSWER_SECONDS: Final = 300.0
_SERVE: Final = ("benchmarks.gpu.host", "serve")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the page, and write JSON, page and picture; 1 if something failed."""
    options = _parse(arguments)
    if options.draw:
        draw(json.loads(options.draw.read_text()), options.draw.with_suffix(".svg"))
        return 0
    device, scale = ("cuda", ON_GPU) if has_gpu() else ("cpu", ON_CPU)
    # What runs on a CPU is small, and nobody lends it by the minute.
    seconds = options.seconds or (DEFAULT_SECONDS if device == "cuda" else math.inf)
    deadline, beginning = Deadline(seconds), records.Beginning()
    root = options.data / f"gpu-{scale.rows}-{scale.files}"
    keep_freed_memory()  # as `lastmile` does: read as a process loads Arrow, so in another one
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor() as starting:
            opened = {
                name: starting.submit(Process, f"host-{name}", _SERVE, str(root), scale, device)
                for name in (THREADED, FORKING)
            }
            make_table(root, scale.rows, scale.files)
            hosts = {name: stack.enter_context(host.result()) for name, host in opened.items()}

        measured = measure_all(partial(_ask, dict(hosts)), scale, deadline, options.data / "traces")
        results = build_results(scale, measured, hosts[THREADED].hello)
        results |= beginning.describe(NAME, sys.argv[1:] if arguments is None else arguments)
        if options.commit:
            results["commit"] = options.commit
        output = options.output or Path("benchmarks/results" if device == "cuda" else "build/gpu")
        # Before the processes end, since one that hangs ends late.
        page = records.write_results(
            NAME, results, output, build_markdown=build_markdown, draw=draw
        )
    print(page)
    for failure in measured.failures:
        print(f"error: {failure}", file=sys.stderr)
    return int(bool(measured.failures))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, help=f"after which it has ended; on a GPU {DEFAULT_SECONDS}"
    )
    parser.add_argument("--data", type=Path, default=Path("build"), help="for table and traces")
    parser.add_argument("--output", type=Path, help="folder of the results")
    parser.add_argument("--commit", help="that is measured, where there is no git")
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the picture of a gpu.json")
    return parser.parse_args(arguments)


def _ask(hosts: dict[str, Process], ask: Ask, timeout_seconds: float) -> Rate | Busyness:
    """Ask a process; one that does not answer in time, or has died, is asked for nothing more."""
    name = ask.cell.host
    if name not in hosts:
        raise BenchmarkError(f"host-{name}: is not asked any more, since it gave no answer")
    try:
        hosts[name].send(ask)
        if hosts[name].is_answering(min(timeout_seconds, _MAX_ANSWER_SECONDS)):
            answer: Rate | Busyness = hosts[name].receive()
            return answer
    except OSError as error:
        del hosts[name]
        raise BenchmarkError(f"host-{name}: must go on, but has died ({ask.cell})") from error
    del hosts[name]
    raise BenchmarkError(f"host-{name}: must answer in time, but did not ({ask.cell})")
