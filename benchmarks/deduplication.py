"""Measure the gain of request-level deduplication: `python -m benchmarks.deduplication`.

Tables of the same rows differ in how many of them belong to one request. In each, the user's
sequence and actions are wide, as in an impression log. Every way reads, pads and hashes them and
makes batches of tensors, in one process and one thread. They differ in how the table is stored
(flat or nested), and in what batches carry: every row its own columns (expanded), or a request's
columns once.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.rounds import Rounds, Sample, check_agreement, measure
from benchmarks.taking import take_batches
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

FACTORS: Final = (1, 2, 5, 20, 50)  # rows per request
GROUP_ROWS = 20_000
BATCH_SIZE = 4096
SHARED = ("user_id", "country", "history", "actions")
COLUMNS = ["item_id", *(f"dense_{i:02d}" for i in range(20)), "country", "history", "actions"]
# Of each way, the table, and whether batches carry a request's columns once. The first one is the
# base, which does not look for requests.
WAYS: Final = {
    "flat, off": ("flat.parquet", False),
    "flat, once": ("flat.parquet", True),
    "nested, expanded": ("nested", False),
    "nested, once": ("nested", True),
}
BENCHMARK = Benchmark(
    name="deduplication",
    module="deduplication",
    title="The columns of a request once",
    text="Rows per second against the flat table with request-level deduplication off, by one "
    "thread. All ways deliver the same rows, by SHA-256.",
    metrics=(Metric(name="rowsPerSecond", label="rows/s"),),
    cell_label="rows per request",
    arm_label="table, batches",
    x_label="rows per request",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all ways for each number of rows per request."""
    torch.set_num_threads(1)
    keep_freed_memory()
    for factor in FACTORS:
        folder = options.data / f"deduplication-{options.rows}-{factor}"
        make_table(folder, options.rows, factor)
        readers = {name: Reader(plan_way(folder, name)) for name in WAYS}
        check_agreement(f"{factor} rows", {name: digest(one) for name, one in readers.items()})
        arms = {name: partial(read_epoch, one, options.rows) for name, one in readers.items()}
        yield measure(f"{factor}", arms, Rounds(count=options.rounds, warmups=0), x=factor)


def read_epoch(reader: Reader, rows: int) -> Sample:
    """Make all batches, without a look at them."""
    started = time.perf_counter()
    for _ in reader.batches():
        pass
    return Sample({"rowsPerSecond": rows / (time.perf_counter() - started)})


def make_table(folder: Path, rows: int, factor: int) -> None:
    """Write the same rows' own columns for every factor; flat, and nested by request."""
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
        options = ConversionOptions(
            request_key="request",
            request_columns=SHARED,
            has_row_key=True,
            rows_per_group=GROUP_ROWS,
        )
        source = open_parquet(ParquetSource(uri=str(flat)), "")
        convert_table(source, open_location(str(folder / "nested")), options)


def plan_way(folder: Path, way: str) -> StreamPlan:
    """Return the plan of a way's manifest."""
    table, once = WAYS[way]
    pipeline = (
        Pipeline.read_parquet(
            str(folder / table), row_key="id", request_key="request", request_columns=SHARED
        )
        .filter("item_id % 10 != 0")
        .pad_sequence("history", length=128)
        .hash_bucket("country", buckets=1000)
        .with_options(deduplication=way != "flat, off")
    )
    training = {"columns": COLUMNS, "shuffle": {"unit": "None"}, "deduplicated": once}
    return build_plan(pipeline.experiment("deduplication", **training), "").training


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
        """Yield batches as a trainer on this machine gets them, made by this thread."""
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


if __name__ == "__main__":
    parser = build_parser("deduplication", __doc__, rows=200_000, rounds=7)
    sys.exit(run(BENCHMARK, parser, compare))
