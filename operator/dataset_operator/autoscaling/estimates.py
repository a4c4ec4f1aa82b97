"""Demand, rate and need from the intervals since the last change, with their bounds.

    D = rows ÷ (loop seconds − production wait)      what the trainers would take
    μ = rows ÷ busy worker seconds                   what one busy worker makes
    x = D ÷ μ                                        workers needed, all busy

None of them depends on how many workers there are, so they hold while pods are on their way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dataset_operator.autoscaling.history import MIN_STEPS, NOISE_DEGREES, Memory
from dataset_operator.autoscaling.signals import Interval
from dataset_operator.autoscaling.statistics import mean_of, squares_of, t_quantile

# Waits are judged by so many of the latest intervals at most: a minute at a period of 15 s.
_WAIT_INTERVALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the signals say.

    Attributes:
        need, need_low, need_high: workers, all busy, with 95 % bounds.
        production_share, production_low: of the loop's time lately, with its lower 95 % bound.
        blocked_share: of the readers' time lately: rows made that nobody took yet.
        read_share: of the readers' busy time.
        waits: shares of the loop's time lately, by stage.
        rows_per_second: that the trainers took lately, pauses left out.
    """

    demand: float
    worker_rate: float
    need: float
    need_low: float
    need_high: float
    production_share: float
    production_low: float
    blocked_share: float
    read_share: float
    rows_per_second: float
    waits: dict[str, float] = field(default_factory=dict)


def estimate(memory: Memory) -> Estimate | None:
    """What the intervals say; None while they are too few."""
    blocks = memory.blocks
    if len(blocks) < 2:
        return None
    used = [interval for block in blocks for interval in block.intervals]
    if sum(interval.steps for interval in used) < MIN_STEPS:
        return None
    demand = sum(i.rows for i in used) / sum(i.unstarved_seconds for i in used)
    made, busy = sum(i.made_rows for i in used), sum(i.busy_seconds for i in used)
    worker_rate = made / busy * used[-1].readers_per_worker
    need = demand / worker_rate
    degrees = NOISE_DEGREES + len(blocks) - 1
    squares = squares_of([math.log(block.need) for block in blocks])
    variance = (NOISE_DEGREES * memory.noise**2 + squares) / degrees
    spread = math.exp(t_quantile(degrees) * math.sqrt(variance / len(blocks)))
    return _with_shares(memory.intervals, demand, worker_rate, (need / spread, need, need * spread))


def _with_shares(
    intervals: tuple[Interval, ...],
    demand: float,
    worker_rate: float,
    need: tuple[float, float, float],
) -> Estimate:
    lately = intervals[-_WAIT_INTERVALS:]
    loop = max(sum(i.loop_seconds for i in lately), 1e-9)
    busy = sum(i.busy_seconds for i in lately)
    blocked = sum(i.blocked_seconds for i in lately)
    readers = busy + blocked + sum(i.idle_seconds for i in lately)
    stages = sorted({stage for interval in lately for stage in interval.waits})
    low, middle, high = need
    return Estimate(
        demand=demand,
        worker_rate=worker_rate,
        need=middle,
        need_low=low,
        need_high=high,
        production_share=sum(i.production_seconds for i in lately) / loop,
        production_low=_lower_bound([i.production_share for i in lately]),
        blocked_share=blocked / readers if readers > 0.0 else 0.0,
        read_share=sum(i.read_seconds for i in lately) / busy if busy > 0.0 else 0.0,
        rows_per_second=sum(i.rows for i in lately) / loop,
        waits={s: sum(i.waits.get(s, 0.0) for i in lately) / loop for s in stages},
    )


def _lower_bound(shares: list[float]) -> float:
    """Of the mean, 95 %; of a single one nothing can be said."""
    if len(shares) < 2:
        return 0.0
    error = math.sqrt(squares_of(shares) / (len(shares) - 1) / len(shares))
    return mean_of(shares) - t_quantile(len(shares) - 1) * error
