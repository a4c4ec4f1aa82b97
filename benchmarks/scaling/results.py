"""From passes to the document of results; its schema is in docs/benchmarks.md.

`schedule` runs before it, `report` and `figure` print what it gives. A ratio meets its bar when its
95 % bound on the bar's side does; seconds meet theirs by the slowest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks.dataloading.reporting.bars import MAX_LOAD
from benchmarks.dataloading.reporting.comparisons import rounded
from benchmarks.dataloading.reporting.ratios import pair_ratios
from benchmarks.dataloading.reporting.results import spread
from benchmarks.scaling.cpu_time import KINDS, TRAINER
from benchmarks.scaling.schedule import SLOWER, Measured, Settings

Document = dict[str, Any]
RESULTS_VERSION: Final = 1
FULL_NODES: Final = (1, 2, 4, 8)
FULL_ROUNDS: Final = 5
FULL_SECONDS: Final = 20.0
# What is asked: of n readers' rate, of the trainer's and the pool's CPU a row, and of a joiner.
MIN_RATE_RATIO: Final = 0.9
MAX_CPU_RATIO: Final = 1.1
MAX_WAIT_SECONDS: Final = 5.0
_MILLION = 1_000_000


def build_results(measured: Measured, environment: Mapping[str, Any]) -> Document:
    """Everything that was measured; `environment` says on what, the machine among it."""
    settings = measured.settings
    cores = environment["machine"]["cores"]
    cells = [_cell(measured, u, n, cores) for u in measured.unit_rows for n in settings.nodes]
    elastic = [_elastic(measured, units) for units in measured.elastic]
    return {
        "version": RESULTS_VERSION,
        "benchmark": "scaling",
        "indicative": _explain_indicative(settings, environment["loadAverage"]),
        **environment,
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "rows": settings.rows,
        "intake": _intake(measured),
        "bars": list(_judge(cells, elastic)),
        "cells": cells,
        "ablation": list(_ablation(measured, cores)),
        "elastic": elastic,
    }


def _explain_indicative(settings: Settings, loads: Sequence[float]) -> list[str]:
    """Return the reasons why this run can judge no target; nothing if it can judge one."""
    reasons = {
        f"data nodes {settings.nodes} of {FULL_NODES}": settings.nodes != FULL_NODES,
        f"{settings.rounds} rounds of {FULL_ROUNDS}": settings.rounds < FULL_ROUNDS,
        f"{settings.seconds:g} s a pass of {FULL_SECONDS:g}": settings.seconds < FULL_SECONDS,
        f"other work ran beside it: load average {loads[0]} at the start": loads[0] > MAX_LOAD,
    }
    return [reason for reason, holds in reasons.items() if holds]


def _intake(measured: Measured) -> Document:
    """Return the trainer's intake and busy share, and the pace of slowed readers."""
    steady = [each.steady for each in measured.intake]
    waited = [each.waited for each in measured.intake]
    return {
        "rowsPerSecond": spread(each.rows_per_second for each in steady),
        "trainerCpuShare": spread(each.cpu_seconds[TRAINER] / each.seconds for each in steady),
        "waitedForPiecesSeconds": spread(each.production for each in waited),
        "waitedForTransferSeconds": spread(each.transfer for each in waited),
        "slower": SLOWER,
        "readerRowsPerSecond": rounded(measured.reader_rows_per_second),
    }


def _ablation(measured: Measured, num_cores: int) -> Iterator[Document]:
    """The cell with the most nodes and small units, with an option switched off."""
    units, nodes = list(measured.unit_rows)[-1], measured.settings.nodes[-1]
    if not measured.single_calls:
        return
    off = replace(measured, passes=measured.passes | {(units, nodes): measured.single_calls})
    rates = [
        [each.steady.rows_per_second for each in passes]
        for passes in (measured.single_calls, measured.passes[units, nodes])
    ]
    cell = _cell(off, units, nodes, num_cores)
    yield {"variant": "batchedCalls: false"} | cell | _ratio("to_all_on", *rates)


def _cell(measured: Measured, units: str, nodes: int, num_cores: int) -> Document:
    passes, unit_rows = measured.passes[units, nodes], measured.unit_rows[units]
    steady = [each.steady for each in passes]
    fewest = [each.steady for each in measured.passes[units, measured.settings.nodes[0]]]
    rates = [each.rows_per_second for each in steady]
    costs = [each.cpu_seconds_per_row for each in steady]
    of_kinds = {
        kind: spread(each.cpu_seconds[kind] / each.rows * _MILLION for each in steady)
        for kind in KINDS
    }
    wanted = measured.reader_rows_per_second * nodes
    return {
        "units": units,
        "unitRows": unit_rows,
        "unitSeconds": rounded(unit_rows / measured.reader_rows_per_second),
        "nodes": nodes,
        "rowsPerSecond": spread(rates),
        **_ratio("rate_ratio", rates, [wanted] * len(rates)),
        "cpuSecondsPerMillionRows": spread(seconds * _MILLION for seconds in costs),
        "cpuSecondsPerMillionRowsByProcesses": of_kinds,
        "coresSecondsPerMillionRows": rounded(num_cores / wanted * _MILLION),
        **_ratio("cpu_ratio", costs, [each.cpu_seconds_per_row for each in fewest]),
        "bytes": passes[0].num_bytes,
        "checksum": passes[0].checksum,
    }


def _ratio(name: str, mine: Sequence[float], others: Sequence[float]) -> Document:
    found = pair_ratios(mine, others)
    values = {"median": found.median, "low": found.low, "high": found.high}
    return {f"{name}_{key}": None if v is None else rounded(v) for key, v in values.items()}


def _elastic(measured: Measured, units: str) -> Document:
    found, stages = measured.elastic[units], measured.settings.stages
    return {
        "units": units,
        "nodes": [stages.first, stages.most, stages.last],
        "drained": stages.num_drained,
        "killed": stages.most - stages.last - stages.num_drained,
        "waitedSeconds": spread(found.waited_seconds),
        "joinedSeconds": [rounded(at) for at in found.joined_seconds],
        "leftSeconds": rounded(found.left_seconds),
        "piecesAfterLeaving": found.chunks_after,
        "rowsBySecond": list(found.rows_by_second),
        "equalRows": found.disturbed.checksum == found.undisturbed.checksum,
        "checksum": found.disturbed.checksum,
    }


def _judge(cells: Sequence[Document], elastic: Sequence[Document]) -> Iterator[Document]:
    for cell in cells:
        yield _judge_ratio("rate, to n times a reader's", cell, "rate_ratio_low", MIN_RATE_RATIO)
    most = max(cell["nodes"] for cell in cells)
    for cell in [cell for cell in cells if cell["nodes"] == most]:
        name = "CPU a row of trainer and coordinator, to the fewest nodes"
        yield _judge_ratio(name, cell, "cpu_ratio_high", MAX_CPU_RATIO)
    for row in elastic:
        waited = row["waitedSeconds"]
        yield {
            "bar": "first chunk of a node that joins, s",
            "units": row["units"],
            "nodes": row["nodes"][1],
            "at_most": MAX_WAIT_SECONDS,
            "measured": waited["median"],
            "bound": waited["max"],
            "met": waited["max"] <= MAX_WAIT_SECONDS,
        }


def _judge_ratio(name: str, cell: Document, field: str, bar: float) -> Document:
    """A bar of at least so much if `field` is a lower bound, of at most so much if an upper."""
    bound, is_floor = cell[field], field.endswith("_low")
    return {
        "bar": name,
        "units": cell["units"],
        "nodes": cell["nodes"],
        "at_least" if is_floor else "at_most": bar,
        "measured": cell[field.rpartition("_")[0] + "_median"],
        "bound": bound,
        "met": None if bound is None else (bound >= bar if is_floor else bound <= bar),
    }
