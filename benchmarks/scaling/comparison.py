"""The rounds of the benchmark: the number of nodes goes down, up, down, …; at each number there are
passes with units of both sizes, and at the most nodes small ones without
`pipelineOptions.debug.batchedCalls`. All passes over the same groups must have the same checksum.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from benchmarks.harness.cells import Cell, Values
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
_SHARE: Final = "share"
_CPU_RATIO: Final = "cpuRatio"
# The metrics of an arm's rounds, by number of nodes and arm.
Measured = dict[int, dict[str, Values]]

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
        Target(
            text="share of n readers, at least 0.9",
            metric=_SHARE,
            arms=(NORMAL, SMALL),
            at_least=0.9,
            of_ratio=False,
        ),
        Target(
            text="CPU per row, to the fewest nodes, at most 1.1",
            metric=_CPU_RATIO,
            arms=(NORMAL, SMALL),
            at_most=1.1,
            of_ratio=False,
        ),
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


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure everything. Raises DisagreementError if the rows of two passes differ."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as `lastmile` does, for the readers' nodes
    nodes = sorted(options.nodes)
    normal = make_source(NORMAL, options.data, rows=options.rows, unit_rows=NORMAL_ROWS)
    small = make_source(SMALL, options.data, rows=SMALL_TABLE_ROWS, unit_rows=SMALL_ROWS)
    ways = [(NORMAL, normal, Sending()), (SMALL, small, Sending())]
    all_ways = [*ways, (SINGLE_CALLS, small, Sending(batched_calls=False))]
    measured: Measured = {num_nodes: {} for num_nodes in nodes}
    checksums: dict[tuple[str, int], Any] = {}
    reader = slowed(READER_ROWS_PER_SECOND)
    with open_cluster() as cluster, open_readers([normal, small], reader) as readers:
        for num_nodes in order_nodes(nodes, options.rounds):
            cluster.resize(num_nodes)
            readers.wait_for(num_nodes)
            for arm, source, sending in all_ways if num_nodes == nodes[-1] else ways:
                num_groups = count_groups(num_nodes, options.seconds, source.stream.chunk_rows)
                groups = source.groups(num_groups)
                sample = run_pass(readers, source, groups, num_nodes, sending)
                first = checksums.setdefault((source.units, num_nodes), sample.checksum)
                where = f"{num_nodes} nodes, {arm}"
                check_agreement(where, {"the first pass": first, "this one": sample.checksum})
                print(f"{where}: {sample.values[RATE]:,.0f} rows/s", file=sys.stderr, flush=True)
                found = measured[num_nodes].setdefault(arm, {RATE: [], CPU: []})
                for metric, values in found.items():
                    values.append(sample.values[metric])
    yield from describe(measured)


def order_nodes(nodes: Sequence[int], rounds: int) -> list[int]:
    """Return the numbers of nodes of all rounds: down and up in turn, so that few are started."""
    return [n for index in range(rounds) for n in sorted(nodes, reverse=index % 2 == 0)]


def count_groups(num_nodes: int, seconds: float, chunk_rows: int) -> int:
    """Return the groups of a pass with a long enough steady part, and four per reader around it."""
    cycles = math.ceil(seconds * READER_ROWS_PER_SECOND / chunk_rows)
    return num_nodes * (max(_MIN_CYCLES, cycles) + 4)


def describe(measured: Measured) -> Iterator[Cell]:
    """Yield a cell for each number of nodes, beginning with the fewest."""
    fewest = next(iter(measured.values()))
    for num_nodes, arms in measured.items():
        for arm, values in arms.items():
            wanted = num_nodes * READER_ROWS_PER_SECOND
            values[_SHARE] = [rate / wanted for rate in values[RATE]]
            if arms is not fewest and arm in fewest:
                pairs = zip(values[CPU], fewest[arm][CPU], strict=True)
                values[_CPU_RATIO] = [most / few for most, few in pairs]
        yield Cell(name=f"{num_nodes}", base="", arms=arms, x=num_nodes)
