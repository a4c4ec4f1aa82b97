"""Estimates demand, throughput and required workers from the intervals since the last change.

    D = rows ÷ (loop seconds − production wait)      rows per second that the trainers would take
    μ = rows ÷ busy worker seconds                   rows per second of one busy worker; waits for
                                                     inference workers count as busy here
    x = D ÷ μ                                        required workers, if all are busy

None of them depends on the number of workers, so they hold while pods are pending.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dataset_operator.autoscaling.confidence import mean_of, squares_of, t_quantile
from dataset_operator.autoscaling.intervals import NOISE_DEGREES, Memory
from dataset_operator.autoscaling.signals import Interval
from dataset_operator.autoscaling.steps import Steps, sum_steps

# Waits are measured over the latest intervals: a minute at a period of 15 s.
_WAIT_INTERVALS = 4
# Bounds are taken over a minute of shares, and over three minutes, which also contain waits that
# come and go with pauses.
_FEW_SHARES = 4
_MANY_SHARES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimates from the signals.

    Attributes:
        demand: rows per second that the trainers would take.
        worker_rate: rows per second of one busy worker.
        required, required_low, required_high: workers, if all are busy, with 95 % bounds.
        production_share: share of the loop's time in the last minute spent waiting for production.
        production_low, production_high: its 95 % bounds.
        blocked_share: share of the readers' time in the last minute spent blocked on output.
        read_share: share of the readers' busy time spent reading.
        rows_per_second: taken by the trainers in the last minute, without pauses.
        waits: shares of the loop's time in the last minute, by stage.
    """

    demand: float
    worker_rate: float
    required: float
    required_low: float
    required_high: float
    production_share: float
    production_low: float
    production_high: float
    blocked_share: float
    read_share: float
    rows_per_second: float
    waits: dict[str, float] = field(default_factory=dict)

    @property
    def is_unbounded(self) -> bool:
        """Return whether no trainer bounds the rows per second, so that demand is infinite."""
        return math.isinf(self.demand)


def estimate(memory: Memory) -> Estimate | None:
    """Return the estimates; None while there are too few steps."""
    blocks = memory.blocks
    if len(blocks) < 2:
        return None
    used = [interval for block in blocks for interval in block.intervals]
    steps = sum_steps(used)
    if not used[-1].is_unbounded and not steps.make_estimate():
        return None
    rows, seconds = steps.measured
    demand = math.inf if used[-1].is_unbounded else rows / seconds
    made, busy = sum(i.made_rows for i in used), sum(i.occupied_seconds for i in used)
    worker_rate = made / busy * used[-1].readers_per_worker
    required = demand / worker_rate
    degrees = NOISE_DEGREES + len(blocks) - 1
    squares = squares_of([math.log(block.required) for block in blocks])
    variance = (NOISE_DEGREES * memory.noise**2 + squares) / degrees
    spread = math.exp(t_quantile(degrees) * math.sqrt(variance / len(blocks)))
    bounds = (required / spread, required, required * spread)
    return _with_shares(memory.intervals, demand, worker_rate, bounds)


def _with_shares(
    intervals: tuple[Interval, ...],
    demand: float,
    worker_rate: float,
    required: tuple[float, float, float],
) -> Estimate:
    lately = intervals[-_WAIT_INTERVALS:]
    loop = max(sum(i.loop_seconds for i in lately), 1e-9)
    blocked = sum(i.blocked_seconds for i in lately)
    busy = sum(i.busy_seconds for i in lately)
    readers = blocked + busy + sum(i.idle_seconds + i.inference_seconds for i in lately)
    few, many = (_share_waits(intervals, number) for number in (_FEW_SHARES, _MANY_SHARES))
    stages = sorted({stage for interval in lately for stage in interval.waits})
    low, middle, high = required
    return Estimate(
        demand=demand,
        worker_rate=worker_rate,
        required=middle,
        required_low=low,
        required_high=high,
        production_share=sum(i.production_seconds for i in lately) / loop,
        production_low=max(_bound(few, -1.0), _bound(many, -1.0)),
        production_high=max(_bound(few, 1.0), _bound(many, 1.0)),
        blocked_share=blocked / readers if readers > 0.0 else 0.0,
        read_share=sum(i.read_seconds for i in lately) / busy if busy > 0.0 else 0.0,
        rows_per_second=sum(i.rows for i in lately) / loop,
        waits={s: sum(i.waits.get(s, 0.0) for i in lately) / loop for s in stages},
    )


def _share_waits(intervals: tuple[Interval, ...], number: int) -> list[float]:
    """Return waits for production as shares of the loop, of the latest groups of enough steps.

    With the trainers' clock, one long step is enough (scenario "long steps").
    """
    shares: list[float] = []
    steps, loop, waited = Steps(), 0.0, 0.0
    for interval in reversed(intervals):
        steps.add(interval)
        loop += interval.loop_seconds
        waited += interval.production_seconds
        if not steps.make_share() or loop <= 0.0:
            continue
        if steps.are_long:
            loop = steps.clock_seconds + waited
        shares.append(min(1.0, waited / loop))
        steps, loop, waited = Steps(), 0.0, 0.0
        if len(shares) == number:
            break
    return shares


def _bound(shares: list[float], side: float) -> float:
    """Return the upper (1) or lower (-1) 95 % bound of the mean; the widest for one value."""
    if len(shares) < 2:
        return 0.0 if side < 0.0 else 1.0
    error = math.sqrt(squares_of(shares) / (len(shares) - 1) / len(shares))
    return mean_of(shares) + side * t_quantile(len(shares) - 1) * error
