"""Measure the gain of request-level deduplication: `python -m benchmarks.deduplication`.

Tables of the same rows, but for how many of them one request has; in each the user's sequence and
its actions are wide, as in an impression log. Every cell reads, pads and hashes them and makes
batches of tensors, in one process and one thread, in turn:

    flat | nested       how the table is stored
    expanded | once     what batches carry: every row its own, or a request's columns once

against the flat table with sharing off. All cells of a table must hand over the same rows, which is
checked off the clock by a digest of every tensor, expanded.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from matplotlib.figure import Figure

from benchmarks import records
from benchmarks.dataloading.reporting.results import spread
from benchmarks.taking import take_batches
from benchmarks.turns import in_turn
from pipeline_runtime import Pipeline
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.batches import REQUEST_INDEX, Batch
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.convert import ConversionOptions, convert_table
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.batching import Batching
from pipeline_runtime.feed.making.maker import ChunkMaker, Stream
from pipeline_runtime.plan import build_plan
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.request_batches import expand
from pipeline_runtime.sources import open_location
from pipeline_runtime.sources.parquet import open_parquet

NAME = "deduplication"
DEFAULT_ROWS = 200_000
FACTORS = (1, 2, 3, 5, 10, 20, 50)
DEFAULT_ROUNDS = 7
GROUP_ROWS = 20_000
BATCH_SIZE = 4096
SHARED = ("user_id", "country", "history", "actions")
COLUMNS = ["item_id", *(f"dense_{i:02d}" for i in range(20)), "country", "history", "actions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One way to read a table; the first is what the others are compared with."""

    name: str
    table: str
    deduplication: bool
    once: bool


CELLS = (
    Cell(name="flat, off", table="flat.parquet", deduplication=False, once=False),
    Cell(name="flat, expanded", table="flat.parquet", deduplication=True, once=False),
    Cell(name="flat, once", table="flat.parquet", deduplication=True, once=True),
    Cell(name="nested, off", table="nested", deduplication=False, once=False),
    Cell(name="nested, expanded", table="nested", deduplication=True, once=False),
    Cell(name="nested, once", table="nested", deduplication=True, once=True),
)


def main() -> int:
    """Measure, and write the results; see `records.write_results`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deduplication", description=__doc__)
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="of each table")
    parser.add_argument("--factors", type=int, nargs="+", default=FACTORS)
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the tables")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    beginning = records.Beginning()
    tables = [measure(options.data, options.rows, f, options.rounds) for f in options.factors]
    results = {
        "version": 2,
        "benchmark": NAME,
        **beginning.describe(NAME, sys.argv[1:]),
        "settings": {"rows": options.rows, "rounds": options.rounds, "batchSize": BATCH_SIZE},
        "tables": tables,
    }
    records.print_results(NAME, results, options.output, build_markdown, draw)
    return 0


def measure(data: Path, rows: int, factor: int, rounds: int) -> dict[str, Any]:
    """Rows per second of every cell in turn, and how often as many as the first.

    Raises AssertionError if two cells hand over other rows.
    """
    folder = make_table(data / f"{NAME}-{rows}-{factor}", rows, factor)
    readers = {cell.name: Reader(plan_of(folder, cell)) for cell in CELLS}
    digests = {name: digest(reader) for name, reader in readers.items()}  # and warms up
    assert len(set(digests.values())) == 1, digests
    rates: dict[str, list[float]] = {cell.name: [] for cell in CELLS}
    for index in range(rounds):
        for name in in_turn(list(readers), index):
            started = time.perf_counter()
            for _ in readers[name].batches():
                pass
            rates[name].append(rows / (time.perf_counter() - started))
    base = rates[CELLS[0].name]
    return {
        "rowsPerRequest": factor,
        "digest": digests[CELLS[0].name],
        "cells": {
            name: {
                "rowsPerSecond": spread(found),
                "ratio": spread(a / b for a, b in zip(found, base, strict=True)),
            }
            for name, found in rates.items()
        },
    }


def make_table(folder: Path, rows: int, factor: int) -> Path:
    """The same rows' own columns for every factor; flat, and nested by request."""
    flat = folder / "flat.parquet"
    if not flat.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draw = np.random.default_rng(7)
        request = np.arange(rows) // factor
        lengths = draw.integers(100, 200, request[-1] + 1)
        offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
        history = pa.ListArray.from_arrays(offsets, pa.array(draw.integers(0, 10**6, sum(lengths))))
        kinds = draw.integers(0, 9, sum(lengths), dtype=np.int8)
        actions = pa.ListArray.from_arrays(offsets, pa.array(kinds))
        columns = {
            "id": pa.array(np.arange(rows)),
            "request": pa.array(request),
            "user_id": pa.array(request * 31),
            "country": pa.array([f"c{i % 50}" for i in request]),
            "history": history.take(pa.array(request)),
            "actions": actions.take(pa.array(request)),
            "item_id": pa.array(draw.integers(0, 10**6, rows)),
        }
        for i in range(20):
            columns[f"dense_{i:02d}"] = pa.array(draw.standard_normal(rows, dtype=np.float32))
        pq.write_table(pa.table(columns), flat, row_group_size=GROUP_ROWS, compression="zstd")
    if not (folder / "nested").exists():
        convert_table(
            open_parquet(ParquetSource(uri=str(flat)), ""),
            open_location(str(folder / "nested")),
            ConversionOptions(
                request_key="request",
                request_columns=SHARED,
                has_row_key=True,
                rows_per_group=GROUP_ROWS,
            ),
        )
    return folder


def plan_of(folder: Path, cell: Cell) -> StreamPlan:
    """The plan of a cell's manifest."""
    pipeline = (
        Pipeline.read_parquet(
            str(folder / cell.table), row_key="id", request_key="request", request_columns=SHARED
        )
        .filter("item_id % 10 != 0")
        .pad_sequence("history", length=128)
        .hash_bucket("country", buckets=1000)
        .with_options(deduplication=cell.deduplication)
    )
    training = {"columns": COLUMNS, "shuffle": {"unit": "None"}, "deduplicated": cell.once}
    return build_plan(pipeline.experiment(NAME, **training), "").training


class Reader:
    """A reader that makes the chunks of a plan and finds out what pays, as in a run."""

    def __init__(self, plan: StreamPlan) -> None:
        self.plan = plan
        self._groups = plan.groups(0, GROUP_ROWS)
        batching = Batching(
            batch_size=BATCH_SIZE, weight_column=None, label_column=None, once=plan.request_columns
        )
        stream = Stream(plan=plan, chunk_rows=GROUP_ROWS, batching=batching)
        self._maker = ChunkMaker(lambda role: stream)

    def batches(self, *, in_order: bool = False) -> Iterator[Batch]:
        """Batches as a trainer on this machine gets them, made by this thread."""
        return take_batches(self._chunks(), self._groups, BATCH_SIZE, in_order=in_order)

    def _chunks(self) -> Iterator[Chunk]:
        for group in self._groups:
            for index in itertools.count():
                task = Task(position=group.index, group=group, chunk=index)
                chunk = self._maker.make("training", task)
                yield chunk
                if chunk.header.is_last:
                    break


def digest(reader: Reader) -> str:
    """Hash all batches in the table's order, with request columns expanded."""
    found = hashlib.sha256()
    for batch in reader.batches(in_order=True):
        flat = expand(batch, reader.plan.request_columns)
        for name in sorted(flat.keys() - {REQUEST_INDEX}):
            found.update(flat[name].numpy().tobytes())
    return found.hexdigest()


def build_markdown(results: records.Document) -> str:
    """The results as a page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: records.Document) -> Iterator[str]:
    settings = results["settings"]
    yield "# A request's columns once\n"
    yield f"Do not edit; made by `{results['command']}` at commit {results['commit']},"
    yield f"{results['finishedAt']}, load average {results['loadAverage'][0]:.2f} at the start.\n"
    yield f"Rows per second against the flat table with sharing off: {settings['rows']:,} rows,"
    yield f"{settings['rounds']} rounds in turn, one thread; median (least–largest). All cells hand"
    yield "over the same rows, by SHA-256.\n"
    yield "| rows a request | " + " | ".join(cell.name for cell in CELLS[1:]) + " |"
    yield "|---|" + "---|" * (len(CELLS) - 1)
    for table in results["tables"]:
        ratios = [table["cells"][cell.name]["ratio"] for cell in CELLS[1:]]
        shown = [f"{r['median']:.2f} ({r['min']:.2f}–{r['max']:.2f})" for r in ratios]
        yield f"| {table['rowsPerRequest']} | " + " | ".join(shown) + " |"


def draw(results: records.Document, path: Path) -> None:
    """The gain by rows a request."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    factors = [table["rowsPerRequest"] for table in results["tables"]]
    for cell in CELLS[1:]:
        ratios = [table["cells"][cell.name]["ratio"] for table in results["tables"]]
        low = [r["median"] - r["min"] for r in ratios]
        high = [r["max"] - r["median"] for r in ratios]
        medians = [r["median"] for r in ratios]
        axes.errorbar(factors, medians, yerr=(low, high), marker="o", capsize=3, label=cell.name)
    axes.axhline(1.0, color="0.4", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks(factors, [str(factor) for factor in factors], minor=False)
    axes.minorticks_off()
    axes.set(xlabel="rows a request", ylabel="× the flat table with sharing off")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.suptitle("What it gains to keep a request's columns once, by rows a request")
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
