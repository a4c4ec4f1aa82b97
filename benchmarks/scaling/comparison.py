"""The passes of the benchmark, and their order.

    intake   readers not slowed: the rate of the trainer; a slowed reader has a twelfth of it
    rounds   the number of nodes goes down, up, down, …; at each, units of both sizes, and at the
             most nodes small ones without `pipelineOptions.debug.batchedCalls`
    elastic  nodes join and leave during a pass, with units of both sizes

All passes over the same groups must have the same checksum.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from benchmarks.harness.cells import Cell
from benchmarks.harness.machine import num_cores
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import check_agreement
from benchmarks.scaling.cpu_time import COORDINATOR, KINDS, TRAINER
from benchmarks.scaling.elastic import Elastic, Stages, run_elastic
from benchmarks.scaling.one_pass import Pass, run_pass, start_meter
from benchmarks.scaling.ray_cluster import Cluster, open_cluster
from benchmarks.scaling.readers import Readers, open_readers
from benchmarks.scaling.slow_readers import slowed
from benchmarks.scaling.units import Source, make_source
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.feed.over_ray.reader_actor import Reader
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.sample_data.options import SampleDataOptions

DEFAULT_ROWS: Final = 524_288  # 32 normal units, a gigabyte; passes that need more start over
SLOWER: Final = 12  # times, than the trainer's intake
NORMAL, SMALL = "normal units", "50 ms units"
SINGLE_CALLS: Final = f"{SMALL}, batchedCalls: false"
SMALL_SECONDS: Final = 0.05  # that a slowed reader has for a small unit
NORMAL_ROWS: Final = SampleDataOptions().rows_per_group
_MAX_SMALL_ROWS: Final = 131_072  # of their table: they are read again and again
_MIN_CYCLES: Final = 4  # chunks of each reader in the steady part

BENCHMARK = Benchmark(
    name="scaling",
    module="scaling",
    title="Data-worker nodes beside one trainer",
    text=f"Slowed readers, each with 1/{SLOWER} of the trainer's rate. The share is that of n "
    f"times a reader's rate. CPU seconds are for a million rows: of trainer and coordinator, and "
    f"of all processes; those of the machine are what all cores have at n times a reader's rate. "
    f"How it is measured: [docs/benchmarks.md](../../docs/benchmarks.md#data-worker-nodes).",
    metrics=(
        Metric(name="share", label="share of n readers", is_compared=False),
        Metric(name="rowsPerSecond", label="rows/s", is_compared=False, is_drawn=False),
        Metric(name="cpuRatio", label="CPU per row, to the fewest nodes", is_compared=False),
        *(
            Metric(name=name, label=label, is_compared=False, is_drawn=False)
            for name, label in (
                ("cpuSeconds", "CPU, s"),
                *((f"cpu of {kind}", kind) for kind in KINDS),
                ("coreSeconds", "of the machine"),
                ("waitedSeconds", "first chunk after joining, s"),
            )
        ),
    ),
    targets=(
        Target(
            text="share of n readers, at least 0.9",
            metric="share",
            arms=(NORMAL, SMALL),
            at_least=0.9,
            of_ratio=False,
        ),
        Target(
            text="CPU per row, to the fewest nodes, at most 1.1",
            metric="cpuRatio",
            arms=(NORMAL, SMALL),
            at_most=1.1,
            of_ratio=False,
        ),
        Target(
            text="slowest first chunk of a node that joins, at most 5 s",
            metric="slowestSeconds",
            at_most=5.0,
            of_ratio=False,
            by_bound=False,
        ),
    ),
    cell_label="nodes",
    arm_label="units",
    x_label="data-worker nodes",
    fact_labels={
        "readerRowsPerSecond": "rows/s of a slowed reader",
        "chunksAfterLeaving": "chunks after nodes left",
        "emptySeconds": "seconds without rows, after the first two",
    },
)


@dataclass(slots=True, kw_only=True)
class Measured:
    """All passes; those of the rounds by units and number of nodes."""

    nodes: Sequence[int]
    intake: list[Pass]
    reader_rows_per_second: float  # of a slowed one
    seconds: float
    passes: dict[tuple[str, int], list[Pass]] = field(default_factory=dict)
    elastic: dict[str, Elastic] = field(default_factory=dict)

    def groups(self, source: Source, num_nodes: int) -> list[Group]:
        """Return the groups of a pass."""
        unit_seconds = source.stream.chunk_rows / self.reader_rows_per_second
        return source.groups(count_groups(num_nodes, self.seconds, unit_seconds))

    def add(
        self, units: str, readers: Readers, source: Source, nodes: int, sending: Sending | None
    ) -> None:
        """Run a pass. Raises DisagreementError if its rows differ from those of earlier ones."""
        groups = self.groups(source, nodes)
        passes = self.passes.setdefault((units, nodes), [])
        meter = start_meter(readers, groups, nodes)
        passes.append(run_pass(readers, source, groups, meter, sending))
        report(f"{nodes} nodes, {units}", passes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = build_parser("scaling", __doc__, rows=DEFAULT_ROWS, rounds=5)
    add = parser.add_argument
    add("--nodes", type=_numbers, default=(1, 2, 4, 8), metavar="A,B,…", help="of data workers")
    add(
        "--stages",
        type=_stages,
        default=Stages(4, 8, 3),
        metavar="A,B,C",
        help="nodes, join, leave",
    )
    add("--seconds", type=float, default=20.0, metavar="S", help="of the steady part of a pass")
    return run(BENCHMARK, parser, compare, arguments)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split(",")))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text!r}")
    return numbers


def _stages(text: str) -> Stages:
    numbers = _numbers(text)
    if len(numbers) != 3 or not numbers[0] < numbers[1] > numbers[2]:
        raise argparse.ArgumentTypeError(f"must be few, more and few again, got {text!r}")
    return Stages(*numbers)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure everything."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as `lastmile` does, for the readers' nodes
    nodes = sorted(set(options.nodes))
    normal = make_source(NORMAL, options.data, rows=options.rows, unit_rows=NORMAL_ROWS)
    with open_cluster() as cluster:
        intake = measure_intake(cluster, normal, nodes[-1], options)
        rate = statistics.median(each.steady.rows_per_second for each in intake) / SLOWER
        unit_rows = small_unit_rows(rate)
        rows = min(options.rows, _MAX_SMALL_ROWS) // unit_rows * unit_rows
        sources = [normal, make_source(SMALL, options.data, rows=rows, unit_rows=unit_rows)]
        measured = Measured(
            nodes=nodes, intake=intake, reader_rows_per_second=rate, seconds=options.seconds
        )
        with open_readers(sources, slowed(rate)) as readers:
            for index in range(options.rounds):
                for num_nodes in order_nodes(nodes, index):
                    cluster.resize(num_nodes)
                    readers.wait_for(num_nodes)
                    for source in sources:
                        measured.add(source.units, readers, source, num_nodes, None)
                    if num_nodes == nodes[-1]:
                        one_by_one = Sending(batched_calls=False)
                        measured.add(SINGLE_CALLS, readers, sources[-1], num_nodes, one_by_one)
            for source in sources:
                stages = options.stages
                # Each number of nodes for twice as many seconds: nodes take some to start.
                groups = measured.groups(source, 2 * (stages.first + stages.most + stages.last))
                found = run_elastic(cluster, readers, source, groups, stages)
                report(f"elastic, {source.units}", [found.undisturbed, found.disturbed])
                measured.elastic[source.units] = found
    options.stages = f"{stages.first},{stages.most},{stages.last}"
    yield from describe(measured, stages)


def small_unit_rows(reader_rows_per_second: float) -> int:
    """Return the rows of a small unit, to two digits, so that a similar run finds its table."""
    return max(1, int(float(f"{reader_rows_per_second * SMALL_SECONDS:.2g}")))


def order_nodes(nodes: Sequence[int], index: int) -> list[int]:
    """Return the order of a round: down and up in turn, so that few nodes are started."""
    return sorted(nodes, reverse=index % 2 == 0)


def count_groups(num_nodes: int, seconds: float, unit_seconds: float) -> int:
    """Return the groups of a pass with a long enough steady part, and four per reader around it."""
    return num_nodes * (max(_MIN_CYCLES, math.ceil(seconds / unit_seconds)) + 4)


def measure_intake(
    cluster: Cluster, source: Source, most: int, options: argparse.Namespace
) -> list[Pass]:
    """Run passes after one that warms up, with a node per core: more would take turns."""
    num_nodes = min(most, num_cores())
    cluster.resize(num_nodes)
    groups = source.groups(max(num_nodes * (_MIN_CYCLES + 4), options.rows // NORMAL_ROWS))
    with open_readers([source], Reader) as readers:
        readers.wait_for(num_nodes)
        passes: list[Pass] = []
        for _ in range(1 + options.rounds):
            meter = start_meter(readers, groups, num_nodes)
            passes.append(run_pass(readers, source, groups, meter))
            report(f"intake of {num_nodes} nodes", passes)
    return passes[1:]


def report(name: str, passes: Sequence[Pass]) -> None:
    """Print the last pass. Raises DisagreementError if its rows differ from those of the first."""
    check_agreement(name, {"first pass": passes[0].checksum, "last pass": passes[-1].checksum})
    steady = passes[-1].steady
    used = ", ".join(f"{kind} {steady.cpu_seconds[kind]:.2f} s" for kind in (TRAINER, COORDINATOR))
    line = f"{name}: {steady.rows_per_second:,.0f} rows/s in {steady.seconds:.1f} s; CPU: {used}"
    print(line, file=sys.stderr, flush=True)


def describe(measured: Measured, stages: Stages) -> Iterator[Cell]:
    """Yield a cell for each number of nodes, and one for the nodes that joined and left."""
    for nodes in measured.nodes:
        found = {units: each for (units, n), each in measured.passes.items() if n == nodes}
        arms = {units: _values(measured, units, nodes) for units in found}
        facts = {"readerRowsPerSecond": round(measured.reader_rows_per_second)}
        yield Cell(name=f"{nodes}", base="", arms=arms, x=nodes, facts=facts)
    if not measured.elastic:
        return
    facts = {
        "drained": stages.num_drained,
        "killed": stages.most - stages.last - stages.num_drained,
        "chunksAfterLeaving": min(found.chunks_after for found in measured.elastic.values()),
        "emptySeconds": sum(_count_empty(found) for found in measured.elastic.values()),
    }
    waited = {units: list(found.waited_seconds) for units, found in measured.elastic.items()}
    yield Cell(
        name=f"{stages.first} → {stages.most} → {stages.last}",
        base="",
        arms={
            units: {"waitedSeconds": seconds, "slowestSeconds": [max(seconds)]}
            for units, seconds in waited.items()
        },
        facts=facts,
    )


def _values(measured: Measured, units: str, nodes: int) -> dict[str, list[float]]:
    steady = [each.steady for each in measured.passes[units, nodes]]
    wanted = nodes * measured.reader_rows_per_second
    values = {
        "share": [each.rows_per_second / wanted for each in steady],
        "rowsPerSecond": [each.rows_per_second for each in steady],
        "cpuSeconds": [each.cpu_seconds_per_row * 1e6 for each in steady],
        "coreSeconds": [num_cores() / wanted * 1e6],
    }
    for kind in KINDS:
        values[f"cpu of {kind}"] = [each.cpu_seconds[kind] / each.rows * 1e6 for each in steady]
    if nodes != measured.nodes[0] and (units, measured.nodes[0]) in measured.passes:
        fewest = [
            each.steady.cpu_seconds_per_row for each in measured.passes[units, measured.nodes[0]]
        ]
        pairs = zip(steady, fewest, strict=True)
        values["cpuRatio"] = [each.cpu_seconds_per_row / few for each, few in pairs]
    return values


def _count_empty(found: Elastic) -> int:
    """Return the whole seconds without rows, apart from the first two."""
    return sum(rows == 0 for rows in found.rows_by_second[2:-1])
