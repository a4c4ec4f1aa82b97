"""Workers that bring no more rows: storage, a network or a lock that all of them share.

    e = (Δr ÷ r) ÷ (Δn ÷ n)       between two clean windows, the trainers starved in both

Linear is 1. Below `MIN_ELASTICITY` the number goes back to the least that brings 95 % of the rows,
and stays there, or until so many could bring more, since rows became cheaper. After half an hour a
few more are tried, and given up at once if they bring nothing; then after an hour, and so on.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dataset_operator.autoscaling.bottleneck import is_starved
from dataset_operator.autoscaling.estimates import Estimate
from dataset_operator.autoscaling.history import SMOOTHING_SECONDS, Knee, Memory, Plateau
from dataset_operator.autoscaling.signals import FIRST_START_SECONDS, Sample
from dataset_operator.autoscaling.statistics import mean_of, squares_of

MIN_ELASTICITY = 0.3
# A window in which the number of workers did not change, long enough to tell a rate (W, 30 s).
CLEAN_SECONDS = 30.0
REMEMBER_SECONDS = 1800.0
MAX_REMEMBER_SECONDS = 14400.0
# Blocks before a trend can be told.
_MIN_TREND_BLOCKS = 4
# Of a clean window: two minutes at a period of 15 s.
_MAX_PERIODS = 8
_PLATEAU_SHARE = 0.95
# Of demand or of a worker's rate: what was seen before it says nothing any more.
_CHANGE = math.log(1.2)


def judge(
    memory: Memory, sample: Sample, estimate: Estimate, *, finds_knees: bool = True
) -> Memory:
    """Remember what this window says of the number of workers; a knee, if it shows one."""
    memory = _forget(memory, sample, estimate)
    ready, since = sample.pods.ready, memory.ready_since
    is_clean = since is not None and sample.at - since >= CLEAN_SECONDS
    rows_per_second = _measure_clean(memory, ready)
    if not is_clean or ready == 0 or rows_per_second <= 0.0:
        return memory
    if not is_starved(estimate):
        return replace(memory, verified=max(memory.verified, ready), plateaus=())
    now = Plateau(
        workers=ready,
        rows_per_second=rows_per_second,
        demand=estimate.demand,
        at=sample.at,
        num_blocks=max(1, len(_list_rates(memory, ready))),
    )
    others = tuple(p for p in memory.plateaus if p.workers != ready)
    memory = replace(memory, plateaus=(*others, now))
    if memory.knee is not None and memory.knee.probed_at is not None:
        return _judge_probe(memory, memory.knee, now, sample.at)
    before = _find_comparable(memory, now)
    has_waited = since is not None and sample.at - since >= SMOOTHING_SECONDS
    if before is None:  # lost in the noise, unless nobody knows better for long
        is_least = all(plateau.workers > ready for plateau in others)
        helps = is_least or has_waited
        return replace(memory, verified=max(memory.verified, ready)) if helps else memory
    if _find_elasticity(before, now) >= MIN_ELASTICITY or not finds_knees:
        return replace(memory, verified=max(memory.verified, ready))
    if memory.knee is not None or not (_is_steady(memory, before, now) or has_waited):
        return memory
    most = max(plateau.rows_per_second for plateau in memory.plateaus)
    enough, until = _find_enough(memory.plateaus), sample.at + REMEMBER_SECONDS
    return replace(memory, knee=Knee(workers=enough, until=until, rows_per_second=most))


def _find_comparable(memory: Memory, now: Plateau) -> Plateau | None:
    """The next smaller number from which more would show: twice the noise of the two means."""
    for plateau in sorted(memory.plateaus, key=lambda plateau: -plateau.workers):
        if plateau.workers >= now.workers:
            continue
        error = memory.noise * math.sqrt(1 / plateau.num_blocks + 1 / now.num_blocks)
        if now.workers / plateau.workers - 1.0 >= 2.0 * error:
            return plateau
    return None


def _is_steady(memory: Memory, before: Plateau, now: Plateau) -> bool:
    """Whether the rows that are missing are none that became dearer meanwhile.

    A trend of the workers' rate at this number, as far as it may be one (two standard errors), must
    not explain half of them.
    """
    rates = _list_rates(memory, now.workers)
    if len(rates) < _MIN_TREND_BLOCKS:
        return False
    middle = mean_of([at for at, _ in rates])
    spread = math.sqrt(squares_of([at for at, _ in rates]))
    slope = sum((at - middle) * rate for at, rate in rates) / spread**2
    trend = (abs(slope) + 2.0 * memory.noise / spread) * (middle - before.at)
    missing = now.workers / before.workers - now.rows_per_second / before.rows_per_second
    return trend < missing / 2.0


def _list_rates(memory: Memory, ready: int) -> list[tuple[float, float]]:
    """(when, log of a worker's rate) of the blocks with so many workers."""
    return [
        (block.intervals[-1].end, math.log(block.worker_rate))
        for block in memory.blocks
        if all(interval.ready == ready for interval in block.intervals)
    ]


def _judge_probe(memory: Memory, knee: Knee, now: Plateau, at: float) -> Memory:
    """Whether more than was ever there came; the knee itself is a little below that."""
    if now.workers <= knee.workers or now.workers / knee.workers - 1.0 < 2.0 * memory.noise:
        return memory
    most = replace(now, workers=knee.workers, rows_per_second=knee.rows_per_second)
    if _find_elasticity(most, now) < MIN_ELASTICITY:
        return _give_up(memory, at)
    return replace(memory, knee=None, plateaus=(now,), verified=max(memory.verified, now.workers))


def _find_elasticity(before: Plateau, now: Plateau) -> float:
    more_rows = now.rows_per_second / before.rows_per_second - 1.0
    return more_rows / (now.workers / before.workers - 1.0)


def _give_up(memory: Memory, now: float) -> Memory:
    """The probe beyond the knee did not help: the next comes after twice as long."""
    knee = memory.knee
    if knee is None or knee.probed_at is None:
        return memory
    pause = min(MAX_REMEMBER_SECONDS, REMEMBER_SECONDS * 2.0 ** min(knee.times, 8))
    times = knee.times + 1
    again = replace(knee, until=now + pause, times=times, probed_at=None, undone_at=now)
    return replace(memory, knee=again)


def _measure_clean(memory: Memory, ready: int) -> float:
    """Rows a second of the loop's time in the latest periods with so many workers; 0: none."""
    clean = [i for i in memory.intervals[-_MAX_PERIODS:] if i.ready == ready]
    seconds = sum(interval.loop_seconds for interval in clean)
    return sum(interval.rows for interval in clean) / seconds if seconds > 0.0 else 0.0


def _find_enough(plateaus: tuple[Plateau, ...]) -> int:
    """The least number that brings 95 % of the rows, had each worker what it had at its best."""
    rows = _PLATEAU_SHARE * max(plateau.rows_per_second for plateau in plateaus)
    best = max(plateau.rows_per_second / plateau.workers for plateau in plateaus)
    return math.ceil(rows / best)


def _forget(memory: Memory, sample: Sample, estimate: Estimate) -> Memory:
    """What was seen under another demand, or with slower workers; a probe whose time has come."""
    knee = memory.knee
    if knee is not None:
        if _is_another_source(memory, knee, sample.pods.ready):
            memory = replace(memory, knee=None, plateaus=())
        elif knee.probed_at is None and sample.at >= knee.until:
            memory = replace(memory, knee=replace(knee, probed_at=sample.at))
        elif knee.probed_at is not None and sample.at >= knee.probed_at + _probe_seconds(sample):
            memory = _give_up(memory, sample.at)
    kept = [p for p in memory.plateaus if abs(math.log(estimate.demand / p.demand)) < _CHANGE]
    return replace(memory, plateaus=tuple(kept)) if len(kept) < len(memory.plateaus) else memory


def _is_another_source(memory: Memory, knee: Knee, ready: int) -> bool:
    """Whether so many workers could bring other than they did, for better or for worse."""
    rates = [rate for _, rate in _list_rates(memory, ready)]
    if len(rates) < _MIN_TREND_BLOCKS:
        return False
    did = knee.rows_per_second * min(1.0, ready / knee.workers)
    return abs(mean_of(rates) + math.log(ready / did)) > _CHANGE


def _probe_seconds(sample: Sample) -> float:
    """L + 2 W, by which a probe has told what it can, and one period."""
    return (sample.pods.start_seconds or FIRST_START_SECONDS) + 3.0 * CLEAN_SECONDS
