"""Turns the measures of all seeds into a row per policy and cell, against the latency oracle."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.autoscaling.policies import LATENCY_ORACLE
from benchmarks.autoscaling.scenarios import CellKey
from dataset_operator.simulation.measures import Measures

# Prices of a GPU second, in worker seconds.
PRICES: Final = (5, 20, 50)
NUM_GPUS: Final = 8
MAX_HOURS_RATIO: Final = 1.10
# 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom. Beyond the end the last one is
# used, which is slightly too wide.
_T_975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measures of a policy in a cell, by price of a GPU and by seed.

    Only those of the best constant in hindsight depend on the price.
    """

    by_price: Mapping[int, Sequence[Measures]]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measures(self) -> Sequence[Measures]:
        """Measures at the middle price."""
        return self.by_price[PRICES[len(PRICES) // 2]]

    @property
    def num_cut_off(self) -> int:
        """Number of seeds with which not all rows were trained; they cannot be compared."""
        return max(sum(not m.has_ended for m in measured) for measured in self.by_price.values())

    def log_costs(self, price: int) -> list[float]:
        """Return the logarithms of the cost per row, by seed."""
        return [math.log(m.cost_per_row(NUM_GPUS, price)) for m in self.by_price[price]]


Results = Mapping[CellKey, Mapping[str, Measured]]  # by cell and policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A policy in a cell, against the latency oracle with the same seeds.

    Attributes:
        idle_excess_high, worker_hours_excess: upper bounds of the mean's 95 % interval.
        worker_hours_excess: hours of a run beyond 1.10 of the oracle's plus one worker.
        settling_seconds: the median over the seeds; None: no seed settled.
        unsettled_share: share of the seeds that did not settle after some change.
        overshoot_workers: the mean over the seeds.
        late_steps_share: share of the changes that were not followed in time; None: no changes.
        turned_hours_share: share of all seeds' hours with a reversal.
        most_up_moves: the most of any seed.
        cut_off: number of seeds with which not all rows were trained.
    """

    scenario: str
    provisioning_delay_seconds: float
    noise_percent: int
    policy: str
    idle_excess_share: float
    worker_hours_ratio: float
    cost_per_row_ratio_by_price: dict[str, float]
    settling_seconds: float | None
    overshoot_workers: float
    reversals_per_hour: float
    seeds: int
    idle_share: float
    idle_excess_high: float
    worker_hours: float
    worker_hours_excess: float
    unsettled_share: float
    late_steps_share: float | None
    turned_hours_share: float
    moves: float
    most_up_moves: int
    cut_off: int
    settings: dict[str, Any]

    @property
    def cell(self) -> CellKey:
        return self.scenario, self.provisioning_delay_seconds, self.noise_percent


def make_rows(results: Results) -> list[Row]:
    """Return a row for each policy and cell."""
    return [
        _make_row(cell, policy, measured, by_policy[LATENCY_ORACLE])
        for cell, by_policy in results.items()
        for policy, measured in by_policy.items()
    ]


def _make_row(cell: CellKey, policy: str, measured: Measured, oracle: Measured) -> Row:
    found = measured.measures
    pairs = list(zip(found, oracle.measures, strict=False))  # fewer seeds of an ablation
    over = [
        m.worker_hours - MAX_HOURS_RATIO * o.worker_hours - m.seconds / 3600.0 for m, o in pairs
    ]
    settled = [m.settling_seconds for m in found if m.settling_seconds is not None]
    idle, idle_error = mean_and_error([m.idle_share - o.idle_share for m, o in pairs])
    hours, hours_error = mean_and_error(over)
    num_steps = sum(m.steps for m in found)
    return Row(
        scenario=cell[0],
        provisioning_delay_seconds=cell[1],
        noise_percent=cell[2],
        policy=policy,
        idle_excess_share=idle,
        worker_hours_ratio=statistics.fmean(m.worker_hours / o.worker_hours for m, o in pairs),
        cost_per_row_ratio_by_price={
            str(price): math.exp(statistics.fmean(log_ratios(measured, oracle, price)))
            for price in PRICES
        },
        settling_seconds=statistics.median(settled) if settled else None,
        overshoot_workers=statistics.fmean(m.overshoot_workers for m in found),
        reversals_per_hour=statistics.fmean(3600.0 * m.reversals / m.seconds for m in found),
        seeds=len(found),
        idle_share=statistics.fmean(m.idle_share for m in found),
        idle_excess_high=idle + idle_error,
        worker_hours=statistics.fmean(m.worker_hours for m in found),
        worker_hours_excess=hours + hours_error,
        unsettled_share=sum(m.unsettled > 0 for m in found) / len(found),
        late_steps_share=sum(m.late_steps for m in found) / num_steps if num_steps else None,
        turned_hours_share=sum(m.turned_hours for m in found) / sum(m.hours for m in found),
        moves=statistics.fmean(m.moves for m in found),
        most_up_moves=max(m.up_moves for m in found),
        cut_off=measured.num_cut_off,
        settings=dict(measured.settings),
    )


def log_ratios(mine: Measured, other: Measured, price: int) -> list[float]:
    """Return log ratios of costs per row, by seed, for the seeds that both have."""
    pairs = zip(mine.log_costs(price), other.log_costs(price), strict=False)
    return [a - b for a, b in pairs]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of two or more values, and the half width of its 95 % interval."""
    quantile = _T_975[min(len(values) - 1, len(_T_975)) - 1]
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), quantile * error
