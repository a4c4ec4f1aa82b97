"""Measure the gain of memory shared with a trainer: `python -m benchmarks.shared_memory`.

A reader, a process, makes ready batches on one core, and this process takes them on the other and
does nothing with them: through memory that both have mapped, and through Ray's object store
(`pipelineOptions.debug.sharedMemory: false`). The ways take turns over the same rows, at each level
of work; the sums of all rows' hashes must be equal.

    rate      delivered rows per second, in the middle 80 % of them
    taking    seconds of this process's cores for a million rows, Ray's threads included
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import matplotlib
import torch
from matplotlib.figure import Figure

from benchmarks import records
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.reporting.comparisons import describe_ratio, rounded
from benchmarks.dataloading.reporting.ratios import pair_ratios
from benchmarks.dataloading.reporting.results import spread
from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import Workload
from benchmarks.overlap.sessions import FEEDS, MODELS, PROCESSES, Bench, open_bench
from benchmarks.records import Document
from benchmarks.turns import in_turn
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.feed.over_ray.actor_readers import ActorReaders
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.hashing import Checksum

NAME: Final = "shared-memory"
LEVELS: Final = ("none", "heavy")
DEFAULT_ROWS: Final = 2_000_000
DEFAULT_ROUNDS: Final = 7
_NAMES: Final = {"none": "no work", "heavy": "heavy work"}
_COLOURS: Final = {"on": "#0072B2", "off": "#D55E00"}  # Okabe and Ito's
_WAYS: Final = {"on": "shared memory", "off": "object store"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass over the table."""

    rows_per_second: float  # delivered
    taking_seconds: float  # of this process's cores per million rows
    checksum: Checksum


def measure(workload: Workload, rounds: int, cores: tuple[int, int]) -> Document:
    """All rounds of one level of work. Raises BenchmarkError if rows differ."""
    with open_bench(workload, cores) as bench:
        benches = {"on": bench, "off": _through_objects(bench)}
        found: dict[str, list[Pass]] = {way: [] for way in benches}
        for one in benches.values():
            run(one)  # all warm up
        for index in range(rounds):
            for way in in_turn(("off", "on"), index):
                found[way].append(run(benches[way]))
    first, *others = [one.checksum for passes in found.values() for one in passes]
    if any(checksum != first for checksum in others):
        raise BenchmarkError(f"{workload.level}: rows differ with and without shared memory")
    rates = {way: [one.rows_per_second for one in passes] for way, passes in found.items()}
    taking = {way: [one.taking_seconds for one in passes] for way, passes in found.items()}
    gain = pair_ratios(rates["on"], rates["off"])
    print(f"{workload.level}: {rounded(gain.median)}", file=sys.stderr, flush=True)
    return {
        "work": workload.level,
        "rows_per_second": {way: spread(values) for way, values in rates.items()},
        "taking_seconds": {way: spread(values) for way, values in taking.items()},
        "gain": describe_ratio(gain),
        "taking": describe_ratio(pair_ratios(taking["on"], taking["off"])),
        "checksum": first.to_json(),
    }


def run(bench: Bench) -> Pass:
    """One pass by the reader that is a process."""
    session = bench.run(FEEDS[PROCESSES], MODELS[0])
    _, rows = session.taken[-1]
    return Pass(
        rows_per_second=session.rows_per_second,
        taking_seconds=session.cpu_seconds / rows * 1e6,
        checksum=session.checksum,
    )


def _through_objects(bench: Bench) -> Bench:
    """The same reader, which sends what it makes through Ray's object store."""
    readers = bench.readers[PROCESSES]
    assert isinstance(readers, ActorReaders)
    copied = replace(readers, sending=Sending(shared_memory=False))
    return replace(bench, readers={**bench.readers, PROCESSES: copied})


def build_markdown(results: Document) -> str:
    """The page."""
    lines = [
        "# Memory shared with a trainer",
        "",
        f"Made by `{results['command']}` at commit {results['commit']}; do not edit. "
        "[docs/benchmarks.md](../../docs/benchmarks.md) says how.",
        "",
        f"{results['rows']:,} input rows, {results['rounds']} interleaved rounds, one reader, a "
        f"process, on one core and who takes its batches on the other, "
        f"{results['machine']['processor']}; through shared memory, to through Ray's object "
        "store.",
        "",
        "| work | thousand rows/s, shared | by objects | gain | seconds of the taking process "
        "per million rows, shared | by objects | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in results["cells"]:
        rates, taking = cell["rows_per_second"], cell["taking_seconds"]
        texts = [cell["work"]]
        texts += [f"{rates[way]['median'] / 1000:,.0f}" for way in _WAYS]
        texts.append(_show(cell["gain"]))
        texts += [f"{taking[way]['median']:.2f}" for way in _WAYS]
        texts.append(_show(cell["taking"]))
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _show(ratio: Mapping[str, float | None]) -> str:
    text = f"{ratio['ratio_median']:.2f}"
    if ratio["ratio_low"] is None:
        return text
    return f"{text} [{ratio['ratio_low']:.2f}–{ratio['ratio_high']:.2f}]"


def draw(results: Document, path: Path) -> None:
    """Rates and costs of both ways, as SVG; equal results give equal bytes."""
    with matplotlib.rc_context({"svg.hashsalt": "lastmile", "font.size": 9}):
        figure = Figure(figsize=(8, 3.5), layout="constrained")
        panels = {
            "rows_per_second": ("thousand rows per second", 1e-3),
            "taking_seconds": ("seconds to take a million rows", 1.0),
        }
        for axes, (name, (label, scale)) in zip(
            figure.subplots(1, len(panels)), panels.items(), strict=True
        ):
            for index, (way, colour) in enumerate(_COLOURS.items()):
                found = [cell[name][way] for cell in results["cells"]]
                medians = [scale * one["median"] for one in found]
                low = [m - scale * one["min"] for one, m in zip(found, medians, strict=True)]
                high = [scale * one["max"] - m for one, m in zip(found, medians, strict=True)]
                places = [place + 0.38 * (index - 0.5) for place in range(len(found))]
                axes.bar(places, medians, 0.36, color=colour, label=_WAYS[way])
                axes.errorbar(places, medians, yerr=(low, high), fmt="none", ecolor="#222222")
            axes.set_xticks(range(len(found)), [_NAMES[cell["work"]] for cell in results["cells"]])
            axes.set_ylabel(label)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside lower center")
        figure.savefig(path, format="svg", metadata={"Date": None})


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write JSON, table and picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="input rows")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the table")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("error: the reader and the trainer need a core each, got one", file=sys.stderr)
        return 1
    beginning = records.Beginning()
    root = make_table(options.data, options.rows).roots["flat"]
    keep_freed_memory()
    torch.set_num_threads(1)
    try:
        cells = [
            measure(Workload(level=level, root=root), options.rounds, (cores[0], cores[1]))
            for level in LEVELS
        ]
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    results = {
        "version": 1,
        "benchmark": NAME,
        **beginning.describe("shared_memory", sys.argv[1:]),
        "rows": options.rows,
        "rounds": options.rounds,
        "cells": cells,
    }
    records.print_results(NAME, results, options.output, build_markdown, draw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
