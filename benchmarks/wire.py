"""Measure the size of batches in transit, and the cost of sending and receiving them.

A chunk of padded sequences, dense and categorical columns goes the whole way but for the network:
made ready and packed as a reader does it, unpacked to tensors as a trainer does it. Ways take
turns; how full the sequences are is varied. The peer is Arrow's own format, of which the trainer
makes batches: `pipelineOptions.debug.readyBatches: false`.

    python -m benchmarks.wire [--rows N] [--repeats N] [--output DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from matplotlib.figure import Figure

from benchmarks import records
from benchmarks.dataloading.reporting.results import spread
from benchmarks.taking import take_batches
from benchmarks.turns import in_turn
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.arrays.conversion import Array
from pipeline_runtime.batches import Batch
from pipeline_runtime.feed.chunk import Chunk, Header
from pipeline_runtime.feed.making.batching import Batching, make_ready
from pipeline_runtime.feed.transport.wire import Wire, pack, unpack
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.steps.base import ROW_HASH_COLUMN

DEFAULT_ROWS: Final = 32_768
DEFAULT_REPEATS: Final = 9
BATCH_SIZE: Final = 4096
LENGTH: Final = 128  # of a padded sequence
NUM_DENSE, NUM_CATEGORIES, NUM_IDS = 20, 18, 100_000
FILL_RATES: Final = (0.05, 0.25, 0.5, 1.0)  # mean share of a sequence that is no padding
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


@dataclass(frozen=True, slots=True)
class Trip:
    """A chunk sent and taken once; seconds of one core."""

    num_bytes: int
    send_seconds: float
    take_seconds: float
    digest: str


def make_chunk(rows: int, fill_rate: float) -> Chunk:
    """Rows whose sequences are so full in the mean: uniformly long up to twice that, or whole."""
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
    """The chunk as a reader sends it."""
    batching = Batching(batch_size=BATCH_SIZE, weight_column=None, label_column=None)
    block = pack(chunk) if wire is None else pack(make_ready(chunk, batching), wire)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as writer:
        writer.write_table(block)
    return sink.getvalue()


def take(sent: pa.Buffer) -> Iterator[Batch]:
    """Its batches as a trainer on a CPU gets them."""
    [chunk] = unpack(pa.ipc.open_stream(sent).read_all())
    return take_batches([chunk], [Group(epoch=0, index=0, units=())], BATCH_SIZE)


def run_trip(chunk: Chunk, wire: Wire | None, *, digested: bool) -> Trip:
    """One trip; its batches are hashed off the clock."""
    started = time.thread_time()
    sent = send(chunk, wire)
    known = time.thread_time()
    batches = list(take(sent))
    taken = time.thread_time()
    digest = _digest(batches) if digested else ""
    return Trip(sent.size, known - started, taken - known, digest)


def _digest(batches: Sequence[Batch]) -> str:
    found = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            found.update(batch[name].numpy().tobytes())
    return found.hexdigest()


def measure(rows: int, repeats: int) -> list[records.Document]:
    """All ways at all fill rates. Raises ValueError if two of them bring different batches."""
    cells: list[records.Document] = []
    for fill_rate in FILL_RATES:
        chunk = make_chunk(rows, fill_rate)
        digests = {name: run_trip(chunk, wire, digested=True).digest for name, wire in WAYS.items()}
        if len(set(digests.values())) > 1:
            raise ValueError(f"fill rate {fill_rate}: other batches by another way: {digests}")
        trips: dict[str, list[Trip]] = {name: [] for name in WAYS}
        for index in range(repeats):
            for name in in_turn(list(WAYS), index):
                trips[name].append(run_trip(chunk, WAYS[name], digested=False))
        cells += [_describe(fill_rate, rows, name, trips) for name in WAYS]
    return cells


def _describe(
    fill_rate: float, rows: int, name: str, trips: Mapping[str, Sequence[Trip]]
) -> records.Document:
    own, plain = trips[name], trips[DENSE]
    saved = plain[0].num_bytes - own[0].num_bytes
    longer = statistics.median(
        a.take_seconds - b.take_seconds for a, b in zip(own, plain, strict=True)
    )
    return {
        "fillRate": fill_rate,
        "way": name,
        "bytesPerRow": own[0].num_bytes / rows,
        "sendSecondsPerMillionRows": spread([t.send_seconds / rows * 1e6 for t in own]),
        "takeSecondsPerMillionRows": spread([t.take_seconds / rows * 1e6 for t in own]),
        "takeRatio": spread(
            [a.take_seconds / b.take_seconds for a, b in zip(own, trips[ARROW], strict=True)]
        ),
        # On a slower network what is saved takes longer than the trainer takes for undoing it.
        "paysBelowBytesPerSecond": (
            saved / longer if name != ARROW and saved > 0 and longer > 0 else None
        ),
        "equalRows": True,
    }


def build_markdown(results: records.Document) -> str:
    """The results as a page."""
    return "\n".join(_lines(results)) + "\n"


def _lines(results: records.Document) -> Iterator[str]:
    yield "# Batches on their way\n"
    yield f"Do not edit; made by `{results['command']}` at commit {results['commit']},"
    yield f"{results['finishedAt']}, load average {results['loadAverage'][0]:.2f} at the start.\n"
    yield f"A chunk of {results['rows']:,} rows, {results['repeats']} turns, one core; medians."
    yield f"{NUM_DENSE} float32, {NUM_CATEGORIES} int64, a padded sequence of {LENGTH} int64. All"
    yield "ways bring the same batches, by SHA-256. *Trainer, ×* is its time against Arrow's way in"
    yield "the same turn [least–largest]. *Pays below* is the speed of a network at which the bytes"
    yield "that are saved take as long as the trainer takes longer than for one plain buffer.\n"
    heads = ("sequences full", "way", "bytes per row", "reader, s per million rows", "trainer, s")
    yield "| " + " | ".join((*heads, "trainer, ×", "pays below, GB/s")) + " |"
    yield "|---" * 7 + "|"
    for cell in results["cells"]:
        ratio, pays = cell["takeRatio"], cell["paysBelowBytesPerSecond"]
        yield (
            f"| {cell['fillRate']:.0%} | {cell['way']} | {cell['bytesPerRow']:,.0f} "
            f"| {cell['sendSecondsPerMillionRows']['median']:.2f} "
            f"| {cell['takeSecondsPerMillionRows']['median']:.2f} "
            f"| {ratio['median']:.2f} [{ratio['min']:.2f}–{ratio['max']:.2f}] "
            f"| {'–' if pays is None else f'{pays / 1e9:.1f}'} |"
        )


def draw(results: records.Document, path: Path) -> None:
    """Bytes per row, and the trainer's seconds, by how full the sequences are."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    bytes_axes, take_axes = figure.subplots(1, 2)
    for way in WAYS:
        cells = [cell for cell in results["cells"] if cell["way"] == way]
        rates = [100 * cell["fillRate"] for cell in cells]
        seconds = [cell["takeSecondsPerMillionRows"]["median"] for cell in cells]
        bytes_axes.plot(rates, [cell["bytesPerRow"] for cell in cells], "o-", label=way)
        take_axes.plot(rates, seconds, "o-", label=way)
    for axes, label in ((bytes_axes, "bytes per row"), (take_axes, "trainer, s per million rows")):
        axes.set(xlabel="share of the sequences that is no padding, %", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    figure.legend(*take_axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.suptitle("Batches on their way: fewer bytes, and what undoing that costs the trainer")
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wire", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--repeats", type=int, default=DEFAULT_REPEATS)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(arguments)
    keep_freed_memory()
    torch.set_num_threads(1)
    beginning = records.Beginning()
    cells = measure(options.rows, options.repeats)
    given: Sequence[str] = sys.argv[1:] if arguments is None else arguments
    results: dict[str, Any] = {
        "version": 1,
        "benchmark": "wire",
        **beginning.describe("wire", given),
        "rows": options.rows,
        "repeats": options.repeats,
        "cells": cells,
    }
    records.print_results("wire", results, options.output, build_markdown, draw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
