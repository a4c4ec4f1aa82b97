"""Measured passes, and their order.

    intake   readers not slowed: what the trainer takes; a slowed reader's rate is its twelfth
    rounds   the number of nodes goes down, up, down, …; at each, units of both sizes, and at the
             most nodes small ones without `pipelineOptions.debug.batchedCalls`
    elastic  nodes join and leave during a pass, with units of both sizes

All passes over the same groups must give the same checksum.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.dataloading.errors import DisagreementError
from benchmarks.harness.machine import num_cores
from benchmarks.scaling.cpu_time import COORDINATOR, TRAINER
from benchmarks.scaling.elastic import Elastic, Stages, run_elastic
from benchmarks.scaling.one_pass import Pass, run_pass, start_meter
from benchmarks.scaling.ray_cluster import Cluster, open_cluster
from benchmarks.scaling.readers import Readers, open_readers
from benchmarks.scaling.slow_readers import slowed
from benchmarks.scaling.units import Source, make_source
from pipeline_runtime.feed.over_ray.reader_actor import Reader
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.sample_data.options import SampleDataOptions

SLOWER: Final = 12  # times, than the trainer's intake
NORMAL, SMALL = "normal", "50 ms"  # units
SMALL_SECONDS: Final = 0.05  # that a slowed reader has for a small unit
NORMAL_ROWS: Final = SampleDataOptions().rows_per_group
_MAX_SMALL_ROWS: Final = 131_072  # of their table: they are read again and again
_MIN_CYCLES: Final = 4  # chunks of each reader in the steady part


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings: what to measure, and how often.

    Args:
        data: folder below which tables are kept.
        rows: of the table with normal units.
        nodes: numbers of data nodes, ascending.
        rounds: passes of each number of nodes with units of each size, and of the intake.
        seconds: of the steady part of a pass.
        stages: of the elastic passes.
    """

    data: Path
    rows: int
    nodes: tuple[int, ...]
    rounds: int
    seconds: float
    stages: Stages


@dataclass(slots=True, kw_only=True)
class Measured:
    """All passes."""

    settings: Settings
    intake: list[Pass]
    reader_rows_per_second: float  # of a slowed one
    unit_rows: dict[str, int]  # by units, as all below
    passes: dict[tuple[str, int], list[Pass]] = field(default_factory=dict)  # (units, nodes)
    single_calls: list[Pass] = field(default_factory=list)  # small units, most nodes, each round
    elastic: dict[str, Elastic] = field(default_factory=dict)


def run_schedule(settings: Settings) -> Measured:
    """Measure everything.

    Raises BenchmarkError if nodes or readers do not come up, DisagreementError if rows differ.
    """
    normal = make_source(NORMAL, settings.data, rows=settings.rows, unit_rows=NORMAL_ROWS)
    with open_cluster() as cluster:
        intake = _measure_intake(cluster, normal, settings)
        rate = statistics.median(each.steady.rows_per_second for each in intake) / SLOWER
        unit_rows = small_unit_rows(rate)
        rows = min(settings.rows, _MAX_SMALL_ROWS) // unit_rows * unit_rows
        sources = [normal, make_source(SMALL, settings.data, rows=rows, unit_rows=unit_rows)]
        measured = Measured(
            settings=settings,
            intake=intake,
            reader_rows_per_second=rate,
            unit_rows={source.units: source.stream.chunk_rows for source in sources},
        )
        with open_readers(sources, slowed(rate)) as readers:
            for index in range(settings.rounds):
                for num_nodes in order_nodes(settings.nodes, index):
                    cluster.resize(num_nodes)
                    readers.wait_for(num_nodes)
                    for source in sources:
                        _measure_rate(readers, source, num_nodes, measured)
                    if num_nodes == settings.nodes[-1]:
                        _measure_single_calls(readers, sources[-1], num_nodes, measured)
            for source in sources:
                _measure_elastic(cluster, readers, source, measured)
    return measured


def small_unit_rows(reader_rows_per_second: float) -> int:
    """Rows of a small unit, to two digits: a run that is like another finds its table."""
    return max(1, int(float(f"{reader_rows_per_second * SMALL_SECONDS:.2g}")))


def order_nodes(nodes: Sequence[int], index: int) -> list[int]:
    """Numbers of nodes in the order of a round: down and up in turn, so that few are started."""
    return sorted(nodes, reverse=index % 2 == 0)


def count_groups(num_nodes: int, seconds: float, unit_seconds: float) -> int:
    """Groups of a pass with so many seconds in its steady part, and four a reader around it."""
    return num_nodes * (max(_MIN_CYCLES, math.ceil(seconds / unit_seconds)) + 4)


def _measure_intake(cluster: Cluster, source: Source, settings: Settings) -> list[Pass]:
    """Passes after one that warms up, with a node a core: more would take turns."""
    num_nodes = min(settings.nodes[-1], num_cores())
    cluster.resize(num_nodes)
    groups = source.groups(max(num_nodes * (_MIN_CYCLES + 4), settings.rows // NORMAL_ROWS))
    with open_readers([source], Reader) as readers:
        readers.wait_for(num_nodes)
        passes: list[Pass] = []
        for _ in range(1 + settings.rounds):
            meter = start_meter(readers, groups, num_nodes)
            passes.append(run_pass(readers, source, groups, meter))
            _report(f"intake of {num_nodes} nodes", passes)
    return passes[1:]


def _measure_rate(readers: Readers, source: Source, num_nodes: int, measured: Measured) -> None:
    groups = _groups(source, num_nodes, measured)
    meter = start_meter(readers, groups, num_nodes)
    passes = measured.passes.setdefault((source.units, num_nodes), [])
    passes.append(run_pass(readers, source, groups, meter))
    _report(f"{num_nodes} nodes, {source.units} units", passes)


def _measure_single_calls(
    readers: Readers, source: Source, num_nodes: int, measured: Measured
) -> None:
    groups = _groups(source, num_nodes, measured)
    meter = start_meter(readers, groups, num_nodes)
    sending = Sending(batched_calls=False)
    measured.single_calls.append(run_pass(readers, source, groups, meter, sending))
    _report(f"{num_nodes} nodes, {source.units} units, a chunk a call", measured.single_calls)


def _measure_elastic(
    cluster: Cluster, readers: Readers, source: Source, measured: Measured
) -> None:
    stages = measured.settings.stages
    # Each number of nodes for twice as many seconds: nodes take some to start.
    groups = _groups(source, 2 * (stages.first + stages.most + stages.last), measured)
    found = run_elastic(cluster, readers, source, groups, stages)
    measured.elastic[source.units] = found
    _report(f"elastic, {source.units} units", [found.undisturbed, found.disturbed])


def _groups(source: Source, num_nodes: int, measured: Measured) -> list[Group]:
    unit_seconds = source.stream.chunk_rows / measured.reader_rows_per_second
    return source.groups(count_groups(num_nodes, measured.settings.seconds, unit_seconds))


def _report(name: str, passes: Sequence[Pass]) -> None:
    """Say what the last pass was like, and refuse one that delivered other rows than the first."""
    first, last = passes[0].checksum, passes[-1].checksum
    if first != last:
        raise DisagreementError(f"{name}: must deliver the same rows, got {first} and {last}")
    steady = passes[-1].steady
    print(
        f"{name}: {steady.rows_per_second:,.0f} rows/s in {steady.seconds:.1f} s; processor: "
        + ", ".join(f"{kind} {steady.cpu_seconds[kind]:.2f} s" for kind in (TRAINER, COORDINATOR)),
        file=sys.stderr,
        flush=True,
    )
