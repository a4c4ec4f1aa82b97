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
    """A cell and a target: the figure, and its excess over the limit; at most 0 is met."""

    scenario: str
    provisioning_delay_seconds: float
    noise_percent: int
    measured: float
    missed_by: float

    @property
    def is_met(self) -> bool:
        return self.missed_by <= 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target over all cells to which it applies.

    Attributes:
        unit: unit of the figures: `share`, `hours`, `count` or `ratio`.
    """

    name: str
    limit: str
    unit: str
    verdicts: tuple[Verdict, ...]

    @property
    def num_met(self) -> int:
        return sum(verdict.is_met for verdict in self.verdicts)

    @property
    def misses(self) -> list[Verdict]:
        """The missed cells, the worst first."""
        missed = [verdict for verdict in self.verdicts if not verdict.is_met]
        return sorted(missed, key=lambda verdict: -verdict.missed_by)

    @property
    def worst(self) -> Verdict:
        return max(self.verdicts, key=lambda verdict: verdict.missed_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Our cost per row over another policy's: the geometric mean over cells, its bounds over seeds.

    Attributes:
        is_rival: True if the targets require a lower cost than that of the policy.
        cells, cheaper: number of compared cells, and of those in which ours costs less.
        left_out: number of cells in which one of the two did not train all rows.
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


def judge(rows: Sequence[Row]) -> list[Target]:
    """Return every target that applies to at least one cell."""
    ours = [row for row in rows if row.policy == OURS]
    stationary = [row for row in ours if row.scenario in _STATIONARY]
    traps = [row for row in ours if row.scenario in _TRAPS]
    steps = [(row, row.late_steps_share) for row in ours if row.late_steps_share is not None]
    targets = [
        _judge(
            "GPU-idle share above the latency oracle's, upper bound",
            "share",
            f"≤ {MAX_IDLE_EXCESS:.0%}",
            ((row, row.idle_excess_high, MAX_IDLE_EXCESS) for row in ours),
        ),
        _judge(
            "worker hours beyond 1.10 × the latency oracle's + 1 worker, upper bound",
            "hours",
            "≤ 0 h",
            ((row, row.worker_hours_excess, 0.0) for row in ours),
        ),
        _judge(
            "changes followed late: up by L + W + 2 P, down by a quarter a window",
            "share",
            "0 %",
            ((row, share, 0.0) for row, share in steps),
        ),
        _judge(
            "stationary hours of a seed with a reversal",
            "share",
            f"≤ {MAX_TURNED_SHARE:.0%}",
            ((row, row.turned_hours_share, MAX_TURNED_SHARE) for row in stationary),
        ),
        _judge(
            "upward moves in the traps, the most of any seed",
            "count",
            f"≤ {MAX_PROBES}",
            ((row, row.most_up_moves, MAX_PROBES) for row in traps),
        ),
        _judge(
            "seeds with which not all rows were trained",
            "count",
            "0",
            ((row, row.cut_off, 0.0) for row in ours),
        ),
        *(_judge_costs(rows, ours, str(price)) for price in PRICES),
    ]
    return [target for target in targets if target.verdicts]


def _judge(name: str, unit: str, limit: str, found: Iterable[tuple[Row, float, float]]) -> Target:
    """Return a target with a verdict for each (row of a cell, figure, limit)."""
    verdicts = tuple(
        Verdict(
            scenario=row.scenario,
            provisioning_delay_seconds=row.provisioning_delay_seconds,
            noise_percent=row.noise_percent,
            measured=measured,
            missed_by=measured - most,
        )
        for row, measured, most in found
    )
    return Target(name=name, limit=limit, unit=unit, verdicts=verdicts)


def _judge_costs(rows: Sequence[Row], ours: Sequence[Row], price: str) -> Target:
    """Compare the cost per row of each cell with that of the best policy that is no oracle."""
    best: dict[CellKey, float] = {}
    for row in rows:
        if row.policy in _RIVALS and not row.cut_off:
            cost = row.cost_per_row_ratio_by_price[price]
            best[row.cell] = min(cost, best.get(row.cell, cost))
    return _judge(
        f"cost per row against the cell's best other policy, GPU at {price} workers",
        "ratio",
        f"≤ {MAX_COST_RATIO}",
        (
            (row, row.cost_per_row_ratio_by_price[price] / best[row.cell], MAX_COST_RATIO)
            for row in ours
            if row.cell in best and not row.cut_off
        ),
    )


def compare(results: Results) -> list[Comparison]:
    """Compare our cost per row with that of every policy but oracles, ablations included."""
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
    """Return the comparison; None if there is no cell in which both trained all rows."""
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
