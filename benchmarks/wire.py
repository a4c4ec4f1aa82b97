"""Measure the size of batches in transit, and the cost of sending and receiving them.

A chunk of padded sequences, dense and categorical columns goes the whole way but for the network:
made ready and packed as a reader does it, unpacked to tensors as a trainer does it. The base is
Arrow's own format, of which the trainer makes batches (`pipelineOptions.debug.readyBatches:
false`). The cells differ in how full the sequences are.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import torch

from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.taking import take_batches
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.arrays.conversion import Array
from pipeline_runtime.batches import Batch
from pipeline_runtime.feed.chunk import Chunk, Header
from pipeline_runtime.feed.making.batching import Batching, make_ready
from pipeline_runtime.feed.transport.wire import Wire, pack, unpack
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.steps.base import ROW_HASH_COLUMN

BATCH_SIZE: Final = 4096
LENGTH: Final = 128  # of a padded sequence
NUM_DENSE, NUM_CATEGORIES, NUM_IDS = 20, 18, 100_000
FILL_RATES: Final = (0.05, 0.25, 0.5, 1.0)  # mean share of a sequence that is not padding
ARROW: Final = "Arrow, batches by the trainer"
DENSE: Final = "one buffer"
# None: Arrow's format, of which the trainer makes batches.
WAYS: Final[Mapping[str, Wire | None]] = {
    ARROW: None,
    DENSE: Wire(),
    "sparse": Wire(sparse=True),
    "sparse, lz4": Wire(sparse=True, codec="lz4"),
    "sparse, zstd": Wire(sparse=True, codec="zstd"),
}
BENCHMARK = Benchmark(
    name="wire",
    module="wire",
    title="Batches in transit",
    text=f"A chunk of {NUM_DENSE} float32, {NUM_CATEGORIES} int64 and a padded sequence of "
    f"{LENGTH} int64, on one core. All ways deliver the same batches, by SHA-256. *Pays below* is "
    f"the speed of a network at which sending the saved bytes takes as long as the trainer's "
    f"additional work, compared with one buffer.",
    metrics=(
        Metric(name="bytesPerRow", label="bytes per row", is_compared=False),
        Metric(name="sendSeconds", label="reader, s per million rows", is_drawn=False),
        Metric(name="takeSeconds", label="trainer, s per million rows"),
        Metric(name="paysBelow", label="pays below, GB/s", is_compared=False, is_drawn=False),
    ),
    cell_label="sequences full",
    arm_label="way",
    x_label="share of the sequences that is not padding",
)


def make_chunk(rows: int, fill_rate: float) -> Chunk:
    """Return rows whose sequences are full to this share in the mean."""
    random = np.random.default_rng(0)
    most = min(LENGTH, round(2 * fill_rate * LENGTH))
    lengths = np.full(rows, LENGTH) if fill_rate == 1 else random.integers(0, most + 1, rows)
    ids = random.integers(1, NUM_IDS, (rows, LENGTH))
    padded = np.where(np.arange(LENGTH) < lengths[:, None], ids, 0)
    columns: dict[str, Array] = {
        f"dense_{i}": random.random(rows, dtype=np.float32) for i in range(NUM_DENSE)
    }
    columns |= {f"cat_{i}": random.integers(0, NUM_IDS, rows) for i in range(NUM_CATEGORIES)}
    columns[ROW_HASH_COLUMN] = random.integers(0, 2**64, rows, dtype=np.uint64)
    table = pa.table(columns).append_column(
        "sequence", pa.FixedSizeListArray.from_arrays(pa.array(padded.reshape(-1)), LENGTH)
    )
    header = Header(epoch=0, group=0, chunk=0, is_last=True, num_rows=rows, counts=())
    return Chunk(header=header, rows=table)


def send(chunk: Chunk, wire: Wire | None) -> pa.Buffer:
    """Return the chunk as a reader sends it."""
    batching = Batching(batch_size=BATCH_SIZE, weight_column=None, label_column=None)
    block = pack(chunk) if wire is None else pack(make_ready(chunk, batching), wire)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_table(block)
    return sink.getvalue()


def take(sent: pa.Buffer) -> Iterator[Batch]:
    """Yield its batches as a trainer on a CPU gets them."""
    [chunk] = unpack(pa.ipc.open_stream(sent).read_all())
    return take_batches([chunk], [Group(epoch=0, index=0, units=())], BATCH_SIZE)


def run_trip(chunk: Chunk, wire: Wire | None) -> Sample:
    """Send and receive the chunk once; hash its batches off the clock."""
    started = time.thread_time()
    sent = send(chunk, wire)
    known = time.thread_time()
    batches = list(take(sent))
    taken = time.thread_time()
    rows = chunk.header.num_rows
    values = {
        "takeSeconds": (taken - known) / rows * 1e6,
        "sendSeconds": (known - started) / rows * 1e6,
        "bytesPerRow": sent.size / rows,
    }
    return Sample(values, digest(batches))


def digest(batches: Sequence[Batch]) -> str:
    """Return the SHA-256 of all tensors."""
    found = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            found.update(batch[name].numpy().tobytes())
    return found.hexdigest()


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all ways at all fill rates."""
    keep_freed_memory()
    torch.set_num_threads(1)
    for fill_rate in FILL_RATES:
        chunk = make_chunk(options.rows, fill_rate)
        arms = {name: partial(run_trip, chunk, wire) for name, wire in WAYS.items()}
        cell = measure(f"{fill_rate:.0%}", arms, Rounds(count=options.rounds), x=fill_rate)
        plain = cell.arms[DENSE]
        for found in cell.arms.values():
            found["bytesPerRow"] = found["bytesPerRow"][:1]
            saved = plain["bytesPerRow"][0] - found["bytesPerRow"][0]
            both = zip(found["takeSeconds"], plain["takeSeconds"], strict=True)
            seconds = [mine - other for mine, other in both]
            if saved > 0 and (longer := statistics.median(seconds)) > 0:
                # Seconds are of a million rows, and a GB is 1e9 bytes.
                found["paysBelow"] = [saved / longer / 1e3]
        yield cell


if __name__ == "__main__":
    sys.exit(run(BENCHMARK, build_parser("wire", __doc__, rows=32_768, rounds=9), compare))
