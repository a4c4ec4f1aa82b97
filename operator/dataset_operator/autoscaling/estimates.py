"""Demand, rate and need from the intervals since the last change, with their bounds.

    D = rows ÷ (loop seconds − production wait)      what the trainers would take
    μ = rows ÷ busy worker seconds                   what one busy worker makes
    x = D ÷ μ                                        workers needed, all busy

None of them depends on how many workers there are, so they hold while pods are on their way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dataset_operator.autoscaling.confidence import mean_of, squares_of, t_quantile
from dataset_operator.autoscaling.intervals import MIN_STEPS, NOISE_DEGREES, Memory
from dataset_operator.autoscaling.signals import Interval

# Waits are judged by so many of the latest intervals at most: a minute at a period of 15 s.
_WAIT_INTERVALS = 4
# A wait is told when it ends, so shares are those of at least so many steps; bounds are taken over
# a minute of them, and over three, in which waits that come and go with pauses show.
_SHARE_STEPS = 3.0
_FEW_SHARES = 4
_MANY_SHARES = 12
# An interval of which a pause was a larger part does not say what holds readers up.
_RUNNING_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimates from the signals.

    Attributes:
        need, need_low, need_high: workers, all busy, with 95 % bounds.
        production_share: of the loop's time lately.
        production_low, production_high: its 95 % bounds.
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
    production_high: float
    blocked_share: float
    read_share: float
    rows_per_second: float
    waits: dict[str, float] = field(default_factory=dict)

    @property
    def is_unbounded(self) -> bool:
        """Return whether no trainer bounds the rows per second; the need is then infinite."""
        return math.isinf(self.demand)


def estimate(memory: Memory) -> Estimate | None:
    """Estimate from the intervals; None while they are too few."""
    blocks = memory.blocks
    if len(blocks) < 2:
        return None
    used = [interval for block in blocks for interval in block.intervals]
    if not used[-1].is_unbounded and sum(interval.steps for interval in used) < MIN_STEPS:
        return None
    unstarved = sum(i.unstarved_seconds for i in used)
    demand = math.inf if used[-1].is_unbounded else sum(i.rows for i in used) / unstarved
    made, busy = sum(i.made_rows for i in used), sum(i.busy_seconds for i in used)
    worker_rate = made / busy * used[-1].readers_per_worker
    need = demand / worker_rate
    degrees = NOISE_DEGREES + len(blocks) - 1
    squares = squares_of([math.log(block.need) for block in blocks])
    variance = (NOISE_DEGREES * memory.noise**2 + squares) / degrees
    spread = math.exp(t_quantile(degrees) * math.sqrt(variance / len(blocks)))
    bounds = (need / spread, need, need * spread)
    return _with_shares(memory.intervals, demand, worker_rate, bounds)


def _with_shares(
    intervals: tuple[Interval, ...],
    demand: float,
    worker_rate: float,
    need: tuple[float, float, float],
) -> Estimate:
    lately = intervals[-_WAIT_INTERVALS:]
    loop = max(sum(i.loop_seconds for i in lately), 1e-9)
    running = [i for i in intervals if i.loop_seconds >= _RUNNING_SHARE * i.seconds] or lately
    running = running[-_WAIT_INTERVALS:]
    blocked = sum(i.blocked_seconds for i in running)
    readers = blocked + sum(i.busy_seconds + i.idle_seconds for i in running)
    busy = sum(i.busy_seconds for i in lately)
    few, many = (_share_waits(intervals, number) for number in (_FEW_SHARES, _MANY_SHARES))
    stages = sorted({stage for interval in lately for stage in interval.waits})
    low, middle, high = need
    return Estimate(
        demand=demand,
        worker_rate=worker_rate,
        need=middle,
        need_low=low,
        need_high=high,
        production_share=sum(i.production_seconds for i in lately) / loop,
        production_low=max(_bound(few, -1.0), _bound(many, -1.0)),
        production_high=max(_bound(few, 1.0), _bound(many, 1.0)),
        blocked_share=blocked / readers if readers > 0.0 else 0.0,
        read_share=sum(i.read_seconds for i in lately) / busy if busy > 0.0 else 0.0,
        rows_per_second=sum(i.rows for i in lately) / loop,
        waits={s: sum(i.waits.get(s, 0.0) for i in lately) / loop for s in stages},
    )


def _share_waits(intervals: tuple[Interval, ...], number: int) -> list[float]:
    """Waits for production as shares of the loop, of the latest groups with enough steps each."""
    shares: list[float] = []
    loop = waited = steps = 0.0
    for interval in reversed(intervals):
        loop += interval.loop_seconds
        waited += interval.production_seconds
        steps += interval.steps
        if steps >= _SHARE_STEPS and loop > 0.0:
            shares.append(min(1.0, waited / loop))
            loop = waited = steps = 0.0
        if len(shares) == number:
            break
    return shares


def _bound(shares: list[float], side: float) -> float:
    """Return the 95 % bound of the mean, above (1) or below (-1); of one value the widest."""
    if len(shares) < 2:
        return 0.0 if side < 0.0 else 1.0
    error = math.sqrt(squares_of(shares) / (len(shares) - 1) / len(shares))
    return mean_of(shares) + side * t_quantile(len(shares) - 1) * error
