"""Measures the gain of reading ahead from a slow store: `python -m benchmarks.read_ahead`.

One reader, a thread, reads a table from a slow store, and a consumer discards its chunks, all on
one core, as for a reader of a data worker. Passes with and without
`pipelineOptions.debug.readAhead` take turns over the same rows, for each level of work and each
speed of the store. The sums of all rows' hashes must be equal.

    store     local files; each read takes a latency, and then a number of bytes per second
    gain      rows per second with reading ahead, divided by those without in the same round
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import fsspec
import matplotlib
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from matplotlib.figure import Figure

from benchmarks import records
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.reporting.comparisons import describe_ratio, rounded
from benchmarks.dataloading.reporting.ratios import pair_ratios
from benchmarks.dataloading.reporting.results import spread
from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import Workload, build_experiment
from benchmarks.records import Document
from benchmarks.turns import in_turn
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.config.texts.storage_uri import SCHEMES_VARIABLE
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Batches
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.batching import batching_of
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.kernels import warm
from pipeline_runtime.plan import Group, build_plan

NAME: Final = "read-ahead"
LEVELS: Final = ("none", "heavy")
DEFAULT_ROWS: Final = 500_000
DEFAULT_ROUNDS: Final = 7
LATENCY_SECONDS: Final = 0.03  # of an object store, to the first byte
RATES: Final = (50, 200, 1000)  # MB/s of one request: slow, usual, nearly free
_COLOURS: Final = {"none": "#0072B2", "heavy": "#D55E00"}  # Okabe and Ito's
_NAMES: Final = {"none": "no work", "heavy": "heavy work"}


class SlowStore(LocalFileSystem):  # type: ignore[misc]
    """Local files, read as slowly as from a store."""

    protocol = "slow"
    bytes_per_second: ClassVar[float] = 1e9
    seconds: ClassVar[float] = 0.0  # spent so far, for all files together
    lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("slow://"))
        return stripped

    def _open(self, path: str, *_: Any, **__: Any) -> io.FileIO:
        return _SlowFile(path)


class _SlowFile(io.FileIO):
    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        seconds = LATENCY_SECONDS + len(data or b"") / SlowStore.bytes_per_second
        time.sleep(seconds)
        with SlowStore.lock:
            SlowStore.seconds += seconds
        return data or b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass over the table."""

    rows_per_second: float  # of the table
    store_seconds: float  # of all reads from the store
    read_seconds: float  # that the reader waited for rows
    work_seconds: float
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One level of work."""

    stream: Stream
    groups: Sequence[Group]

    @classmethod
    def open(cls, workload: Workload) -> Bench:
        """Open the workload's table on the store."""
        experiment = build_experiment(workload)
        plan = build_plan(experiment, f"slow://{workload.root}")
        rows = plan.training
        chunk_rows = rows.chunk_rows
        groups = rows.groups(0, chunk_rows)
        batching = batching_of(plan.delivery, rows, experiment.spec.training)
        return cls(
            stream=Stream(plan=rows, chunk_rows=chunk_rows, batching=batching), groups=groups
        )

    def run(self, *, reads_ahead: bool) -> Pass:
        """Run one pass by one reader."""
        plan = replace(self.stream.plan, reads_ahead=reads_ahead)
        streams = {"training": replace(self.stream, plan=plan)}
        readers = ThreadReaders(
            streams=streams, num_threads=threads_per_rank(1)
        )  # one reader on one core
        feed = readers.open("training", 0, self.groups, in_order=False)
        checksum, read, work = 0, 0.0, 0.0
        store, started = SlowStore.seconds, time.perf_counter()
        for chunk in feed.chunks(Waited()):
            assert isinstance(chunk.rows, Batches)
            checksum = (checksum + int(np.sum(chunk.rows.hashes, dtype=np.uint64))) % 2**64
            first, *steps = chunk.header.counts
            read += first.seconds
            work += sum(step.seconds for step in steps) + chunk.header.batching_seconds
        seconds = time.perf_counter() - started
        num_rows = sum(unit.num_rows for group in self.groups for unit in group.units)
        return Pass(
            rows_per_second=num_rows / seconds,
            store_seconds=SlowStore.seconds - store,
            read_seconds=read,
            work_seconds=work,
            checksum=checksum,
        )


def measure(bench: Bench, level: str, rate: int, rounds: int) -> Document:
    """Measure all rounds at one level of work and one speed of the store.

    Raises:
        BenchmarkError: rows differ.
    """
    SlowStore.bytes_per_second = rate * 1e6
    found: dict[bool, list[Pass]] = {True: [], False: []}
    for index in range(rounds):
        for reads_ahead in in_turn((False, True), index):
            found[reads_ahead].append(bench.run(reads_ahead=reads_ahead))
    sums = {one.checksum for passes in found.values() for one in passes}
    if len(sums) > 1:
        raise BenchmarkError(f"{level}, {rate} MB/s: rows differ with and without reading ahead")
    rates = {on: [one.rows_per_second for one in passes] for on, passes in found.items()}
    gain = pair_ratios(rates[True], rates[False])
    _say(f"{level}, {rate} MB/s: {rounded(gain.median)}")
    return {
        "work": level,
        "megabytes_per_second": rate,
        "rows_per_second": {"on": spread(rates[True]), "off": spread(rates[False])},
        **{name: _seconds(found, name) for name in _SECONDS},
        "gain": describe_ratio(gain),
        "checksum": f"{sums.pop():016x}",
    }


_SECONDS: Final = ("store_seconds", "read_seconds", "work_seconds")


def _seconds(found: Mapping[bool, Sequence[Pass]], name: str) -> Document:
    return {
        how: spread(getattr(one, name) for one in found[on])
        for how, on in (("on", True), ("off", False))
    }


def build_markdown(results: Document) -> str:
    """Return the page."""
    lines = [
        "# Reading ahead from a store",
        "",
        f"Made by `{results['command']}` at commit {results['commit']}; do not edit. "
        "[docs/benchmarks.md](../../docs/benchmarks.md) says how.",
        "",
        f"{results['rows']:,} rows, {results['rounds']} interleaved rounds, one reader on "
        f"one core, {results['machine']['processor']}; a store that gives the first byte after "
        f"{results['latency_seconds'] * 1000:.0f} ms.",
        "",
        "Seconds of a pass without it: of all the store's reads, that the reader took for rows, "
        "decoding included, and that it worked on them; and that it waited for rows with it.",
        "",
        "| work | MB/s | store | read | work | read ahead | gain |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in results["cells"]:
        gain = cell["gain"]
        bounds = "" if gain["ratio_low"] is None else _bounds(gain)
        seconds = [cell[name]["off"] for name in _SECONDS]
        seconds.append(cell["read_seconds"]["on"])
        texts = [cell["work"], str(cell["megabytes_per_second"])]
        texts += [f"{one['median']:.2f}" for one in seconds]
        texts.append(f"{gain['ratio_median']:.2f}{bounds}")
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _bounds(gain: Mapping[str, float]) -> str:
    return f" [{gain['ratio_low']:.2f}–{gain['ratio_high']:.2f}]"


def draw(results: Document, path: Path) -> None:
    """Draw the gain by the store's speed as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for level, colour in _COLOURS.items():
            cells = [cell for cell in results["cells"] if cell["work"] == level]
            rates = [cell["megabytes_per_second"] for cell in cells]
            gains = [cell["gain"] for cell in cells]
            medians = [gain["ratio_median"] for gain in gains]
            lows = [m - (g["ratio_low"] or m) for g, m in zip(gains, medians, strict=True)]
            highs = [(g["ratio_high"] or m) - m for g, m in zip(gains, medians, strict=True)]
            axes.errorbar(
                rates, medians, yerr=[lows, highs], fmt="o-", color=colour, label=_NAMES[level]
            )
        axes.axhline(1, color="#222222", linewidth=0.8, linestyle="dashed")
        axes.set_xscale("log")
        axes.set_xticks(RATES, [str(rate) for rate in RATES])
        axes.set_xlabel("MB/s of the store")
        axes.set_ylabel("speed with reading ahead, to without")
        axes.set_title(f"{results['rows']:,} rows, one reader")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="center right")
        figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> int:
    """Measure, print the table, and write JSON, table and figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.read_ahead", description=__doc__)
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the table")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    beginning = records.Beginning()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    keep_freed_memory()
    warm()
    fsspec.register_implementation("slow", SlowStore, clobber=True)
    os.environ[SCHEMES_VARIABLE] = "slow"
    root = str(Path(make_table(options.data, options.rows).roots["flat"]).absolute())
    cells = []
    try:
        for level in LEVELS:
            bench = Bench.open(Workload(level=level, root=root))
            bench.run(reads_ahead=True)  # brings the files into memory
            cells += [measure(bench, level, rate, options.rounds) for rate in RATES]
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    results = {
        "version": 1,
        "benchmark": NAME,
        **beginning.describe("read_ahead", sys.argv[1:]),
        "rows": options.rows,
        "rounds": options.rounds,
        "latency_seconds": LATENCY_SECONDS,
        "cells": cells,
    }
    records.print_results(NAME, results, options.output, build_markdown, draw)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
