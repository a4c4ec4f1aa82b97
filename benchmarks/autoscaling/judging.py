"""Judge Lastmile's policy by its targets, and by the cost of every other policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from benchmarks.autoscaling.policies import OURS, POLICIES
from benchmarks.autoscaling.result_rows import PRICES, Results, Row, log_ratios, mean_and_error
from benchmarks.autoscaling.scenarios import SCENARIOS, CellKey

MAX_IDLE_EXCESS: Final = 0.02
MAX_COST_RATIO: Final = 1.05
MAX_TURNED_SHARE: Final = 0.05
MAX_PROBES: Final = 1

_RIVALS: Final = {
    policy.name
    for policy in POLICIES
    if not (policy.is_oracle or policy.is_ablation or policy.name == OURS)
}
_STATIONARY: Final = {scenario.name for scenario in SCENARIOS if scenario.is_stationary}
_TRAPS: Final = {scenario.name for scenario in SCENARIOS if scenario.is_trap}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A cell at a bar: the figure, and how much of it is too much; at most 0 is met."""

    scenario: str
    provisioning_delay_seconds: float
    noise_percent: int
    measured: float
    missed_by: float

    @property
    def is_met(self) -> bool:
        return self.missed_by <= 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar over all cells that it is asked of.

    Attributes:
        unit: of its figures: `share`, `hours`, `count` or `ratio`.
    """

    bar: str
    asked: str
    unit: str
    verdicts: tuple[Verdict, ...]

    @property
    def num_met(self) -> int:
        return sum(verdict.is_met for verdict in self.verdicts)

    @property
    def misses(self) -> list[Verdict]:
        """The worst first."""
        missed = [verdict for verdict in self.verdicts if not verdict.is_met]
        return sorted(missed, key=lambda verdict: -verdict.missed_by)

    @property
    def worst(self) -> Verdict:
        return max(self.verdicts, key=lambda verdict: verdict.missed_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Our cost a row over another law's: the geometric mean over cells, its bounds over seeds.

    Attributes:
        is_rival: the bars ask for a lower cost than its.
        cells, cheaper: that are compared, and in which ours costs less.
        left_out: cells in which one of the two did not train all rows.
    """

    policy: str
    is_rival: bool
    price: int
    ratio: float
    low: float
    high: float
    cells: int
    cheaper: int
    left_out: int


def judge(rows: Sequence[Row]) -> list[Bar]:
    """Every bar that is asked of cells, of which there is one at least."""
    ours = [row for row in rows if row.policy == OURS]
    bars = [
        Bar(
            bar="GPU-idle share above the latency oracle's, upper bound",
            asked=f"≤ {MAX_IDLE_EXCESS:.0%}",
            unit="share",
            verdicts=_verdicts((row, row.idle_excess_high, MAX_IDLE_EXCESS) for row in ours),
        ),
        Bar(
            bar="worker hours beyond 1.10 × the latency oracle's + 1 worker, upper bound",
            asked="≤ 0 h",
            unit="hours",
            verdicts=_verdicts((row, row.worker_hours_excess, 0.0) for row in ours),
        ),
        Bar(
            bar="changes answered late: up by L + W + 2 P, down by a quarter a window",
            asked="0 %",
            unit="share",
            verdicts=_verdicts(
                (row, row.late_steps_share, 0.0) for row in ours if row.late_steps_share is not None
            ),
        ),
        Bar(
            bar="stationary hours of a seed with a reversal",
            asked=f"≤ {MAX_TURNED_SHARE:.0%}",
            unit="share",
            verdicts=_verdicts(
                (row, row.turned_hours_share, MAX_TURNED_SHARE)
                for row in ours
                if row.scenario in _STATIONARY
            ),
        ),
        Bar(
            bar="upward moves in the traps, the most of any seed",
            asked=f"≤ {MAX_PROBES}",
            unit="count",
            verdicts=_verdicts(
                (row, row.most_up_moves, MAX_PROBES) for row in ours if row.scenario in _TRAPS
            ),
        ),
        Bar(
            bar="seeds with which not all rows were trained",
            asked="0",
            unit="count",
            verdicts=_verdicts((row, row.cut_off, 0.0) for row in ours),
        ),
        *_judge_costs(rows, ours),
    ]
    return [bar for bar in bars if bar.verdicts]


def _verdicts(found: Iterable[tuple[Row, float, float]]) -> tuple[Verdict, ...]:
    """Args:

    found: the row of a cell, the figure, and what it may be at most.
    """
    return tuple(
        Verdict(
            scenario=row.scenario,
            provisioning_delay_seconds=row.provisioning_delay_seconds,
            noise_percent=row.noise_percent,
            measured=measured,
            missed_by=measured - most,
        )
        for row, measured, most in found
    )


def _judge_costs(rows: Sequence[Row], ours: Sequence[Row]) -> list[Bar]:
    """Cost a row in each cell against the best law there that is no oracle."""
    by_cell: dict[CellKey, list[Row]] = {row.cell: [] for row in ours if not row.cut_off}
    for row in rows:
        if row.policy in _RIVALS and row.cell in by_cell and not row.cut_off:
            by_cell[row.cell].append(row)
    bars = []
    for price in map(str, PRICES):
        ratios = []
        for row in ours:
            costs = [r.cost_per_row_ratio_by_price[price] for r in by_cell.get(row.cell, ())]
            if costs:
                ratio = row.cost_per_row_ratio_by_price[price] / min(costs)
                ratios.append((row, ratio, MAX_COST_RATIO))
        bars.append(
            Bar(
                bar=f"cost a row against the best other law of the cell, GPU at {price} workers",
                asked=f"≤ {MAX_COST_RATIO}",
                unit="ratio",
                verdicts=_verdicts(ratios),
            )
        )
    return bars


def compare(results: Results) -> list[Comparison]:
    """Our cost a row with every other law's that is no oracle, ablations included."""
    others = [
        policy.name
        for policy in POLICIES
        if policy.name != OURS
        and not policy.is_oracle
        and all(policy.name in by_policy for by_policy in results.values())
    ]
    found = [_compare(results, other, price) for price in PRICES for other in others]
    return [comparison for comparison in found if comparison is not None]


def _compare(results: Results, other: str, price: int) -> Comparison | None:
    """None: there is no cell in which both trained all rows."""
    pairs = [(by_policy[OURS], by_policy[other]) for by_policy in results.values()]
    whole = [(a, b) for a, b in pairs if not (a.num_cut_off or b.num_cut_off)]
    logs = [log_ratios(mine, its, price) for mine, its in whole]
    if not logs:
        return None
    mean, error = mean_and_error([fmean(of_seed) for of_seed in zip(*logs, strict=True)])
    return Comparison(
        policy=other,
        is_rival=other in _RIVALS,
        price=price,
        ratio=math.exp(mean),
        low=math.exp(mean - error),
        high=math.exp(mean + error),
        cells=len(logs),
        cheaper=sum(fmean(cell) < 0.0 for cell in logs),
        left_out=len(pairs) - len(whole),
    )
