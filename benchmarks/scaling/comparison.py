"""The rounds of the benchmark: the number of nodes goes down, up, down, …; at each number there are
passes with units of both sizes, and at the most nodes small ones without
`pipelineOptions.debug.batchedCalls`. All passes over the same groups must have the same checksum.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import torch

from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import check_agreement
from benchmarks.scaling.passes import CPU, RATE, run_pass
from benchmarks.scaling.ray_cluster import open_cluster
from benchmarks.scaling.readers import make_source, open_readers
from benchmarks.scaling.slow_readers import slowed
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.feed.transport.wire import Sending

DEFAULT_ROWS: Final = 524_288  # 32 normal units, a gigabyte; passes that need more start over
# A twelfth of what the trainer of the committed results takes from two readers that are not slowed,
# so that eight readers make two thirds of it.
READER_ROWS_PER_SECOND: Final = 28_210
NORMAL, SMALL = "normal units", "50 ms units"
SINGLE_CALLS: Final = f"{SMALL}, batchedCalls: false"
NORMAL_ROWS: Final = 16_384  # of a row group, as `lastmile sample-data` writes them
SMALL_ROWS: Final = 1_400  # a slowed reader takes 50 ms for them
SMALL_TABLE_ROWS: Final = 93 * SMALL_ROWS  # they are read again and again
_MIN_CYCLES: Final = 4  # chunks of each reader in the steady part
_SHARE, _CPU_RATIO = "share", "cpuRatio"


_BOTH = partial(Target, arms=(NORMAL, SMALL), of_ratio=False)

BENCHMARK = Benchmark(
    name="scaling",
    module="scaling",
    title="Data-worker nodes beside one trainer",
    text=f"Readers are slowed to {READER_ROWS_PER_SECOND:,} rows per second. The share is that of "
    "n times a reader's rate. CPU seconds are those of trainer and coordinator for a million rows. "
    "How it is measured: [docs/benchmarks.md](../../docs/benchmarks.md#data-worker-nodes).",
    metrics=(
        Metric(name=_SHARE, label="share of n readers", is_compared=False),
        Metric(name=RATE, label="rows/s", is_compared=False, is_drawn=False),
        Metric(name=_CPU_RATIO, label="CPU per row, to the fewest nodes", is_compared=False),
        Metric(name=CPU, label="CPU, s", is_compared=False, is_drawn=False),
    ),
    targets=(
        _BOTH(text="share of n readers, at least 0.9", metric=_SHARE, at_least=0.9),
        _BOTH(text="CPU per row, to the fewest nodes, at most 1.1", metric=_CPU_RATIO, at_most=1.1),
    ),
    cell_label="nodes",
    arm_label="units",
    x_label="data-worker nodes",
)


def main() -> int:
    """Run the benchmark."""
    parser = build_parser("scaling", __doc__, rows=DEFAULT_ROWS, rounds=5)
    add = parser.add_argument
    add("--nodes", type=int, nargs="+", default=(1, 2, 4, 8), help="numbers of data workers")
    add("--seconds", type=float, default=20.0, help="of the steady part of a pass")
    return run(BENCHMARK, parser, compare)


def compare(options: argparse.Namespace) -> Iterable[Cell]:
    """Measure everything. Raises DisagreementError if the rows of two passes differ."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as `lastmile` does, for the readers' nodes
    normal = make_source(NORMAL, options.data, rows=options.rows, unit_rows=NORMAL_ROWS)
    small = make_source(SMALL, options.data, rows=SMALL_TABLE_ROWS, unit_rows=SMALL_ROWS)
    ways = {NORMAL: (normal, Sending()), SMALL: (small, Sending())}
    all_ways = {**ways, SINGLE_CALLS: (small, Sending(batched_calls=False))}
    nodes = sorted(options.nodes)
    cells = {n: Cell(name=f"{n}", base="", arms={}, x=n) for n in nodes}
    checksums: dict[tuple[str, int], Any] = {}
    reader = slowed(READER_ROWS_PER_SECOND)
    with open_cluster() as cluster, open_readers([normal, small], reader) as readers:
        for num_nodes in order_nodes(nodes, options.rounds):
            cluster.resize(num_nodes)
            readers.wait_for(num_nodes)
            chosen = all_ways if num_nodes == nodes[-1] else ways
            for arm, (source, sending) in chosen.items():
                num_groups = count_groups(num_nodes, options.seconds, source.stream.chunk_rows)
                sample = run_pass(readers, source, source.groups(num_groups), num_nodes, sending)
                first = checksums.setdefault((source.units, num_nodes), sample.checksum)
                where = f"{num_nodes} nodes, {arm}"
                check_agreement(where, {"the first pass": first, "this one": sample.checksum})
                print(f"{where}: {sample.values[RATE]:,.0f} rows/s", file=sys.stderr, flush=True)
                found = cells[num_nodes].arms.setdefault(arm, {})
                for metric, value in sample.values.items():
                    found.setdefault(metric, []).append(value)
    derive(list(cells.values()))
    return cells.values()


def order_nodes(nodes: Sequence[int], rounds: int) -> list[int]:
    """Return the numbers of nodes of all rounds: down and up in turn, so that few are started."""
    return [n for index in range(rounds) for n in sorted(nodes, reverse=index % 2 == 0)]


def count_groups(num_nodes: int, seconds: float, chunk_rows: int) -> int:
    """Return the groups of a pass with a long enough steady part, and four per reader around it."""
    cycles = math.ceil(seconds * READER_ROWS_PER_SECOND / chunk_rows)
    return num_nodes * (max(_MIN_CYCLES, cycles) + 4)


def derive(cells: Sequence[Cell]) -> None:
    """Add the shares of n readers, and the CPU per row compared with the first cell's."""
    for cell in cells:
        for arm, values in cell.arms.items():
            wanted = (cell.x or 0) * READER_ROWS_PER_SECOND
            values[_SHARE] = [rate / wanted for rate in values[RATE]]
            if cell is not cells[0] and arm in cells[0].arms:
                pairs = zip(values[CPU], cells[0].arms[arm][CPU], strict=True)
                values[_CPU_RATIO] = [most / few for most, few in pairs]
