"""Sums up and judges the simulations of cells: every figure is against the oracle's, by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.autoscaling.policies import ORACLE, OURS, RIVALS
from benchmarks.autoscaling.scenarios import NOISE_PERCENT, START_SECONDS, Scenario
from benchmarks.autoscaling.simulations import Found
from benchmarks.harness.cells import Document, Values
from benchmarks.harness.report import build_table, cells_of, format_number
from benchmarks.harness.statistics import rounded
from dataset_operator.simulation.measures import Measures
from pipeline_runtime.comparison.intervals import CONFIDENCE
from pipeline_runtime.measuring.student import find_t

# Prices of a GPU second, in worker seconds.
PRICES: Final = (5, 20, 50)
PRICE: Final = 20  # at which scenarios are judged
NUM_GPUS: Final = 8
MAX_HOURS_RATIO: Final = 1.10
# The cells of a scenario, in their order.
PLACES: Final = [f"L {start:g} s, {n} %" for start in START_SECONDS for n in NOISE_PERCENT]


class Limit(NamedTuple):
    """A limit that a figure should keep in every cell; the page multiplies by the scale."""

    text: str
    at_most: float
    scale: float = 1.0

    def is_kept(self, figure: float) -> bool:
        """Return whether a figure keeps the limit."""
        return figure <= self.at_most + 1e-9

    def show(self, figure: float) -> str:
        """Return a figure as the page has it."""
        return format_number(figure * self.scale)


LIMITS: Final = {
    "idle": Limit("GPU-idle time above the oracle's, % (upper bound)", 0.02, scale=100.0),
    "hours": Limit(
        f"worker hours beyond {MAX_HOURS_RATIO} × the oracle's + 1 worker (upper bound)", 0.0
    ),
    "late": Limit(
        "changes followed late, %: up by L + W + 2 P, down by a quarter a window", 0.0, scale=100.0
    ),
    "turned": Limit("stationary hours with a reversal, %", 0.05, scale=100.0),
    "probes": Limit("upward moves in a trap, the most of any seed", 1.0),
    "cost": Limit("cost per row ÷ the best other policy's", 1.05),
}
Figures = dict[str, dict[str, float]]  # of a scenario, by limit and cell


def sum_up(cells: Sequence[Found], policy: str, price: int) -> Values:
    """Return the means of a policy over cells, by seed; costs are geometric means."""
    values: Values = {name: [] for name in ("cost", "idle", "hours", "moves", "reversals")}
    for pairs in zip(*(zip(f[policy], f[ORACLE], strict=True) for f in cells), strict=True):
        costs = [_cost(mine, price) / _cost(oracle, price) for mine, oracle in pairs]
        values["cost"].append(statistics.geometric_mean(costs))
        values["idle"].append(statistics.fmean(mine.idle_share for mine, _ in pairs))
        hours = [mine.worker_hours / oracle.worker_hours for mine, oracle in pairs]
        values["hours"].append(statistics.fmean(hours))
        values["moves"].append(statistics.fmean(mine.moves for mine, _ in pairs))
        turns = [3600.0 * mine.reversals / mine.seconds for mine, _ in pairs]
        values["reversals"].append(statistics.fmean(turns))
    return values


def judge(found: Found, scenario: Scenario) -> dict[str, float]:
    """Return the figures of a cell, by the name of the limit that applies to it."""
    ours, pairs = found[OURS], list(zip(found[OURS], found[ORACLE], strict=True))
    over = [
        m.worker_hours - MAX_HOURS_RATIO * o.worker_hours - m.seconds / 3600.0 for m, o in pairs
    ]
    figures = {
        "idle": find_upper_bound([mine.idle_share - oracle.idle_share for mine, oracle in pairs]),
        "hours": find_upper_bound(over),
    }
    if len(scenario.setting.phases) > 1:
        num_steps = sum(mine.steps for mine in ours)
        figures["late"] = sum(mine.late_steps for mine in ours) / max(num_steps, 1)
    if scenario.is_stationary:
        turned = sum(mine.turned_hours for mine in ours)
        figures["turned"] = turned / sum(mine.hours for mine in ours)
    if scenario.is_trap:
        figures["probes"] = max(mine.up_moves for mine in ours)
    costs = {
        policy: statistics.geometric_mean(_cost(one, PRICE) for one in found[policy])
        for policy in (OURS, *RIVALS)
    }
    figures["cost"] = costs[OURS] / min(costs[policy] for policy in RIVALS)
    return {name: rounded(figure) for name, figure in figures.items()}


def _cost(measures: Measures, price: int) -> float:
    return measures.cost_per_row(NUM_GPUS, price)


def find_upper_bound(values: Sequence[float]) -> float:
    """Return the upper bound of the mean's interval; the value itself if there is only one."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean
    error = statistics.stdev(values) / math.sqrt(len(values))
    return mean + find_t(CONFIDENCE, len(values) - 1) * error


def collect(judged: Sequence[dict[str, float]]) -> Figures:
    """Return the figures of the cells of a scenario by limit."""
    return {
        name: {place: figures[name] for place, figures in zip(PLACES, judged, strict=True)}
        for name in LIMITS
        if name in judged[0]
    }


def sum_up_limits(figures: Mapping[str, Figures]) -> Document:
    """Return the figures of scenarios by limit.

    Returns:
        `limits`: how many cells keep each limit, of how many, the largest figure, and its cell.
        `missed`: the figures that miss each limit, by scenario and cell.
    """
    limits: Document = {}
    missed: Document = {}
    for name, limit in LIMITS.items():
        found = [
            (figure, scenario, place)
            for scenario, mine in figures.items()
            for place, figure in mine.get(name, {}).items()
        ]
        misses = [one for one in found if not limit.is_kept(one[0])]
        largest, *where = max(found, default=(0.0, "–"))
        limits[name] = [len(found) - len(misses), len(found), largest, ", ".join(map(str, where))]
        for figure, scenario, place in misses:
            missed.setdefault(name, {}).setdefault(scenario, {})[place] = figure
    return {"limits": limits, "missed": missed}


def describe_limits(results: Document) -> Iterator[str]:
    """Yield the part of the page about the limits: all of them, and the cells that miss one."""
    [facts] = [cell.facts for cell in cells_of(results) if "limits" in cell.facts]
    yield "\n## Lastmile in every cell\n"
    yield "A cell is a scenario, a delay L from a pod's request to its first batch, and a noise.\n"
    rows = []
    for name, limit in LIMITS.items():
        kept, num_cells, largest, where = facts["limits"][name]
        shown = (f"≤ {limit.show(limit.at_most)}", f"{kept} of {num_cells}", limit.show(largest))
        rows.append([limit.text, *shown, where])
    yield from build_table(("figure", "limit", "cells that keep it", "largest", "where"), rows)
    for name, missed in facts["missed"].items():
        limit = LIMITS[name]
        yield f"\nCells that miss the limit: {limit.text} (· keeps it)\n"
        rows = [
            [scenario, *(limit.show(cells[p]) if p in cells else "·" for p in PLACES)]
            for scenario, cells in missed.items()
        ]
        yield from build_table(("scenario", *PLACES), rows)
