"""Workers that bring no more rows: storage, a network or a lock that all of them share.

    e = (Δr ÷ r) ÷ (Δn ÷ n)       between two clean windows, the trainers starved in both

Linear is 1. Below `MIN_ELASTICITY` the number goes back to the least that brings 95 % of the rows,
and stays there, or until so many could bring more, since rows became cheaper. After half an hour a
few more are tried, and given up at once if they bring nothing; then after an hour, and so on.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from dataset_operator.autoscaling.bottleneck import MIN_PRODUCTION_SHARE, is_starved
from dataset_operator.autoscaling.confidence import mean_of, squares_of
from dataset_operator.autoscaling.estimates import Estimate
from dataset_operator.autoscaling.interface import EARLY_SECONDS
from dataset_operator.autoscaling.intervals import (
    FIRST_GROWTH,
    MAX_GROWTH,
    MIN_BLOCK_STEPS,
    NOISE_DEGREES,
    SMOOTHING_SECONDS,
    Memory,
    Plateau,
    SaturationPoint,
)
from dataset_operator.autoscaling.signals import FIRST_START_SECONDS, Interval, Sample

MIN_ELASTICITY = 0.3
# From here on more readers bring as much more as they are.
_IN_PROPORTION = 0.7
# A window in which the number of workers did not change, long enough to tell a rate (W, 30 s).
CLEAN_SECONDS = 30.0
REMEMBER_SECONDS = 1800.0
MAX_REMEMBER_SECONDS = 3600.0
# Of a block's log rate, until it was measured; counts as `NOISE_DEGREES` degrees of freedom.
_FIRST_RATE_NOISE = 0.05
_ROUNDING_SECONDS = 1e-6
# Blocks before a trend can be told.
_MIN_TREND_BLOCKS = 4
# Of a clean window: two minutes at a period of 15 s.
_MAX_PERIODS = 8
_PLATEAU_SHARE = 0.95
# Of demand or of a worker's rate: what was seen before it says nothing any more.
_CHANGE = math.log(1.2)
# More workers, as a share of those before.
_A_FEW = 0.5


def judge(
    memory: Memory, sample: Sample, estimate: Estimate, *, finds_saturation: bool = True
) -> Memory:
    """Record what this window shows about the number of workers, perhaps a saturation point."""
    memory = _forget(memory, sample, estimate)
    ready, since = sample.pods.ready, memory.ready_since
    is_clean = since is not None and sample.at - since >= CLEAN_SECONDS - EARLY_SECONDS
    measured = _measure_chunks if estimate.is_unbounded else _measure_clean
    rows_per_second, compute_seconds = measured(memory, ready)
    has_waited = since is not None and sample.at - since >= SMOOTHING_SECONDS
    if not is_clean or ready == 0:
        return memory
    if rows_per_second <= 0.0:  # too few steps to tell, and for long nobody knows better
        return replace(memory, verified=max(memory.verified, ready)) if has_waited else memory
    if estimate.production_high < MIN_PRODUCTION_SHARE:
        return replace(memory, verified=max(memory.verified, ready), plateaus=())
    if not is_starved(estimate):
        return memory  # perhaps it is, perhaps not
    now = Plateau(
        workers=ready,
        rows_per_second=rows_per_second,
        demand=estimate.demand,
        compute_seconds=compute_seconds,
        at=sample.at,
        num_blocks=max(1, len(_list_rates(memory, ready))),
    )
    others = tuple(p for p in memory.plateaus if p.workers != ready)
    memory = replace(memory, plateaus=(*others, now))
    if memory.saturation is not None and memory.saturation.probed_at is not None:
        return _judge_probe(memory, memory.saturation, now, sample.at)
    before = _find_comparable(memory, now)
    if before is None:  # lost in the noise, unless nobody knows better for long
        is_least = all(plateau.workers > ready for plateau in others)
        helps = is_least or has_waited
        return replace(memory, verified=max(memory.verified, ready)) if helps else memory
    elasticity = _find_elasticity(before, now)
    if elasticity >= MIN_ELASTICITY or not finds_saturation:
        growth = memory.growth
        if ready > memory.verified and elasticity >= _IN_PROPORTION:
            growth = min(MAX_GROWTH, 2.0 * growth)
        return replace(memory, verified=max(memory.verified, ready), growth=growth)
    if memory.saturation is not None or not (_is_steady(memory, before, now) or has_waited):
        return memory
    most = max(plateau.rows_per_second for plateau in memory.plateaus)
    enough, until = _find_enough(memory.plateaus), sample.at + REMEMBER_SECONDS
    point = SaturationPoint(workers=enough, until=until, rows_per_second=most)
    return replace(memory, saturation=point, growth=FIRST_GROWTH)


def _find_comparable(memory: Memory, now: Plateau) -> Plateau | None:
    """The next smaller number from which more would show: twice the noise of the two means."""
    noise = _measure_noise(_list_rates(memory, now.workers))
    for plateau in sorted(memory.plateaus, key=lambda plateau: -plateau.workers):
        if plateau.workers >= now.workers:
            continue
        error = noise * math.sqrt(1 / plateau.num_blocks + 1 / now.num_blocks)
        if now.workers / plateau.workers - 1.0 >= 2.0 * error:
            return plateau
    return None


def _is_steady(memory: Memory, before: Plateau, now: Plateau) -> bool:
    """Return whether missing rows are not explained by rows that became more expensive.

    A trend of the workers' rate at this number, as far as it may be one (two standard errors), must
    not explain half of them.
    """
    rates = _list_rates(memory, now.workers)
    if len(rates) < _MIN_TREND_BLOCKS:
        return False
    middle = mean_of([at for at, _ in rates])
    spread = math.sqrt(squares_of([at for at, _ in rates]))
    slope = sum((at - middle) * rate for at, rate in rates) / spread**2
    trend = (abs(slope) + 2.0 * _measure_noise(rates) / spread) * (middle - before.at)
    missing = now.workers / before.workers - now.rows_per_second / before.rows_per_second
    return trend < missing / 2.0


def _measure_noise(rates: list[tuple[float, float]]) -> float:
    """Standard deviation of a block's log rate: less than that of a need, which has D's too."""
    squares = squares_of([rate for _, rate in rates]) if rates else 0.0
    degrees = NOISE_DEGREES + max(0, len(rates) - 1)
    return math.sqrt((NOISE_DEGREES * _FIRST_RATE_NOISE**2 + squares) / degrees)


def _list_rates(memory: Memory, ready: int) -> list[tuple[float, float]]:
    """(when, log of a worker's rate) of the blocks since there are so many workers."""
    since = (memory.ready_since or 0.0) - _ROUNDING_SECONDS
    if memory.intervals and memory.intervals[-1].is_unbounded:
        since = _find_first_end(memory, ready) - _ROUNDING_SECONDS
    return [
        (block.intervals[-1].end, math.log(block.worker_rate))
        for block in memory.blocks
        if all(i.ready == ready and i.end - i.seconds >= since for i in block.intervals)
    ]


def _judge_probe(memory: Memory, point: SaturationPoint, now: Plateau, at: float) -> Memory:
    """Judge a probe: if throughput rose above the previous maximum, move the saturation point."""
    error = _measure_noise(_list_rates(memory, now.workers)) / math.sqrt(now.num_blocks)
    if now.workers <= point.workers or now.workers / point.workers - 1.0 < 2.0 * error:
        return memory
    most = replace(now, workers=point.workers, rows_per_second=point.rows_per_second)
    if _find_elasticity(most, now) < MIN_ELASTICITY:
        return _give_up(memory, at)
    return replace(
        memory, saturation=None, plateaus=(now,), verified=max(memory.verified, now.workers)
    )


def _find_elasticity(before: Plateau, now: Plateau) -> float:
    """A few more workers do not slow each other's computing: then it is the rows that are dearer,
    and Δr is against what the former would bring of them.
    """
    more, cost = now.workers / before.workers - 1.0, 1.0
    if more < _A_FEW and min(before.compute_seconds, now.compute_seconds) > 0.0:
        cost = now.compute_seconds / before.compute_seconds
    return (now.rows_per_second * cost / before.rows_per_second - 1.0) / more


def _give_up(memory: Memory, now: float) -> Memory:
    """The probe beyond the saturation point did not help: the next comes after twice as long."""
    point = memory.saturation
    if point is None or point.probed_at is None:
        return memory
    pause = min(MAX_REMEMBER_SECONDS, REMEMBER_SECONDS * 2.0 ** min(point.count, 8))
    count = point.count + 1
    again = replace(point, until=now + pause, count=count, probed_at=None, undone_at=now)
    return replace(memory, saturation=again)


def _measure_clean(memory: Memory, ready: int) -> tuple[float, float]:
    """Rows per second of the loop's time in the latest periods with so many workers, and how long
    computing one took a worker; zeros: too few.

    Rows are counted at the ends of steps, so it takes some.
    """
    clean = [i for i in memory.intervals[-_MAX_PERIODS:] if i.ready == ready]
    seconds = sum(interval.loop_seconds for interval in clean)
    if sum(interval.steps for interval in clean) < MIN_BLOCK_STEPS or seconds <= 0.0:
        return 0.0, 0.0
    computed = sum(interval.compute_seconds for interval in clean)
    made = max(sum(interval.made_rows for interval in clean), 1.0)
    return sum(interval.rows for interval in clean) / seconds, computed / made


def _measure_chunks(memory: Memory, ready: int) -> tuple[float, float]:
    """Return the same for workers that store rows themselves, by the time that their chunks took.

    A chunk may take longer than a period, so counts of rows per period vary. The first chunk of
    each reader began with another number of workers; each must have stored one more. After
    `SMOOTHING_SECONDS` those that there are have to do.
    """
    since = [i for i in _list_since(memory, ready) if i.loop_seconds > 0.0]
    clean = [interval for interval in since if interval.end > _find_first_end(memory, ready)]
    is_long = sum(interval.seconds for interval in since) >= SMOOTHING_SECONDS
    enough = MIN_BLOCK_STEPS if is_long else _count_readers(memory, ready)
    seconds = sum(i.busy_seconds + i.blocked_seconds + i.idle_seconds for i in clean)
    made = sum(interval.made_rows for interval in clean)
    if sum(interval.steps for interval in clean) < enough or min(seconds, made) <= 0.0:
        return 0.0, 0.0
    computed = sum(interval.compute_seconds for interval in clean)
    return made / seconds * _count_readers(memory, ready), computed / made


def _count_readers(memory: Memory, ready: int) -> float:
    return ready * memory.intervals[-1].readers_per_worker


def _list_since(memory: Memory, ready: int) -> list[Interval]:
    """Return the intervals since there are so many workers, oldest first."""
    latest = itertools.takewhile(lambda i: i.ready == ready, reversed(memory.intervals))
    return list(latest)[::-1]


def _find_first_end(memory: Memory, ready: int) -> float:
    """Return when each reader had stored a chunk since there are so many workers."""
    steps = 0.0
    for interval in _list_since(memory, ready):
        steps += interval.steps
        if steps >= _count_readers(memory, ready):
            return interval.end
    return math.inf


def _find_enough(plateaus: tuple[Plateau, ...]) -> int:
    """The least number that brings 95 % of the rows, had each worker what it had at its best."""
    rows = _PLATEAU_SHARE * max(plateau.rows_per_second for plateau in plateaus)
    best = max(plateau.rows_per_second / plateau.workers for plateau in plateaus)
    return math.ceil(rows / best)


def _forget(memory: Memory, sample: Sample, estimate: Estimate) -> Memory:
    """Forget observations under another demand or with slower workers, and due probes."""
    point = memory.saturation
    if point is not None:
        if _is_another_source(memory, point, sample.pods.ready):
            memory = replace(memory, saturation=None, plateaus=())
        elif point.probed_at is None and sample.at >= point.until:
            memory = replace(memory, saturation=replace(point, probed_at=sample.at))
        elif point.probed_at is not None and sample.at >= point.probed_at + _probe_seconds(sample):
            memory = _give_up(memory, sample.at)
    if estimate.is_unbounded:
        return memory
    kept = [p for p in memory.plateaus if abs(math.log(estimate.demand / p.demand)) < _CHANGE]
    return replace(memory, plateaus=tuple(kept)) if len(kept) < len(memory.plateaus) else memory


def _is_another_source(memory: Memory, point: SaturationPoint, ready: int) -> bool:
    """Return whether this number of workers may have another throughput than it had."""
    rates = [rate for _, rate in _list_rates(memory, ready)]
    if len(rates) < _MIN_TREND_BLOCKS:
        return False
    did = point.rows_per_second * min(1.0, ready / point.workers)
    return abs(mean_of(rates) + math.log(ready / did)) > _CHANGE


def _probe_seconds(sample: Sample) -> float:
    """L + 2 W, by which a probe has told what it can, and one period."""
    return (sample.pods.start_seconds or FIRST_START_SECONDS) + 3.0 * CLEAN_SECONDS
