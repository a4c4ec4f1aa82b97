"""Finds the saturation point: workers that bring no more rows, since all share one storage.

    e = (Δr ÷ r) ÷ (Δn ÷ n)       between two clean windows, with starved trainers in both

The elasticity e of proportional growth is 1. Below `MIN_ELASTICITY` the number returns to the
fewest workers that bring 95 % of the rows. After half an hour a few more are tried, and given up if
they bring nothing; then after an hour.

Guards the traps "storage-bound" and "storage near demand".
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
    NOISE_DEGREES,
    SMOOTHING_SECONDS,
    Memory,
    Plateau,
    SaturationPoint,
)
from dataset_operator.autoscaling.signals import FIRST_START_SECONDS, Interval, Sample
from dataset_operator.autoscaling.steps import MIN_BLOCK_STEPS

MIN_ELASTICITY = 0.3
# The shortest window with an unchanged number of workers that gives a rate (W, 30 s).
CLEAN_SECONDS = 30.0
REMEMBER_SECONDS = 1800.0
MAX_REMEMBER_SECONDS = 3600.0
# Noise of a block's log rate until it is measured, with the weight `NOISE_DEGREES`.
_FIRST_RATE_NOISE = 0.05
_ROUNDING_SECONDS = 1e-6
# Blocks that a trend needs.
_MIN_TREND_BLOCKS = 4
# Longest clean window: two minutes at a period of 15 s.
_MAX_PERIODS = 8
_PLATEAU_SHARE = 0.95
# More workers do not slow each other's computing, if they are at most this share more.
_A_FEW = 0.5
# A source whose rate changed by more than this, in logs, is another one.
_CHANGE = math.log(1.2)


def judge(memory: Memory, sample: Sample, estimate: Estimate) -> Memory:
    """Record the throughput of the number of workers; perhaps it is a saturation point."""
    memory = _time_probes(memory, sample)
    ready, since = sample.pods.ready, memory.ready_since
    is_clean = since is not None and sample.at - since >= CLEAN_SECONDS - EARLY_SECONDS
    measured = _measure_chunks if estimate.is_unbounded else _measure_clean
    rows_per_second, compute_seconds = measured(memory, ready)
    has_waited = since is not None and sample.at - since >= SMOOTHING_SECONDS
    if not is_clean or ready == 0:
        return memory
    if rows_per_second <= 0.0:  # too few steps, as with steps of a minute: do not wait forever
        return replace(memory, verified=max(memory.verified, ready)) if has_waited else memory
    if estimate.production_high < MIN_PRODUCTION_SHARE:
        return replace(memory, verified=max(memory.verified, ready))
    if not is_starved(estimate):
        return memory  # the waits do not show if trainers are starved
    now = Plateau(
        workers=ready,
        rows_per_second=rows_per_second,
        compute_seconds=compute_seconds,
        at=sample.at,
        num_blocks=max(1, len(_list_rates(memory, ready))),
    )
    others = tuple(p for p in memory.plateaus if p.workers != ready)
    memory = replace(memory, plateaus=(*others, now))
    if memory.saturation is not None and memory.saturation.probed_at is not None:
        return _judge_probe(memory, memory.saturation, now, sample.at)
    fewer = [plateau for plateau in others if plateau.workers < ready]
    if not fewer:
        return replace(memory, verified=max(memory.verified, ready))
    before = max(fewer, key=lambda plateau: plateau.workers)
    elasticity = _find_elasticity(before, now)
    if elasticity >= MIN_ELASTICITY:
        growth = memory.growth
        if ready > memory.verified:  # halves the moves of a cold start that mostly reads
            growth = min(MAX_GROWTH, 2.0 * growth)
        return replace(memory, verified=max(memory.verified, ready), growth=growth)
    if memory.saturation is not None or not (_is_steady(memory, before, now) or has_waited):
        return memory
    most = max(plateau.rows_per_second for plateau in memory.plateaus)
    enough, until = _find_enough(memory.plateaus), sample.at + REMEMBER_SECONDS
    point = SaturationPoint(workers=enough, until=until, rows_per_second=most)
    # Growth starts again, lest "storage near demand" runs away with many workers.
    return replace(memory, saturation=point, growth=FIRST_GROWTH)


def _is_steady(memory: Memory, before: Plateau, now: Plateau) -> bool:
    """Return whether more expensive rows do not explain the missing throughput.

    A trend of the workers' rate, with two standard errors, must not explain half of it. Guards
    scenario "churn", where lost workers look like a saturation point, and "heavy tail".
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
    """Return the standard deviation of a block's log rate."""
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
    """Return e between two numbers of workers.

    If a few more workers compute longer for a row, rows became more expensive, and Δr is relative
    to what the earlier workers would bring of them. Guards scenario "ramp".
    """
    more, cost = now.workers / before.workers - 1.0, 1.0
    if more < _A_FEW and min(before.compute_seconds, now.compute_seconds) > 0.0:
        cost = now.compute_seconds / before.compute_seconds
    return (now.rows_per_second * cost / before.rows_per_second - 1.0) / more


def _give_up(memory: Memory, now: float) -> Memory:
    """End a probe that did not help; the next comes after twice as long.

    The longer pause halves the moves of "storage-bound".
    """
    point = memory.saturation
    if point is None or point.probed_at is None:
        return memory
    pause = min(MAX_REMEMBER_SECONDS, REMEMBER_SECONDS * 2.0 ** min(point.count, 8))
    count = point.count + 1
    again = replace(point, until=now + pause, count=count, probed_at=None, undone_at=now)
    return replace(memory, saturation=again)


def _measure_clean(memory: Memory, ready: int) -> tuple[float, float]:
    """Return the rows per second in the latest periods with this number of workers.

    Also returns the seconds that a worker computed for a row. Zeros if there are too few steps,
    because rows are counted once per step.
    """
    clean = [i for i in memory.intervals[-_MAX_PERIODS:] if i.ready == ready]
    seconds = sum(interval.loop_seconds for interval in clean)
    if sum(interval.steps for interval in clean) < MIN_BLOCK_STEPS or seconds <= 0.0:
        return 0.0, 0.0
    computed = sum(interval.compute_seconds for interval in clean)
    made = max(sum(interval.made_rows for interval in clean), 1.0)
    return sum(interval.rows for interval in clean) / seconds, computed / made


def _measure_chunks(memory: Memory, ready: int) -> tuple[float, float]:
    """Return the same for workers that store rows themselves, from the seconds of their chunks.

    A chunk may take longer than a period, so rows per period vary. The first chunk of each reader
    began with another number of workers; each must have stored one more. After `SMOOTHING_SECONDS`
    the stored chunks are enough.
    """
    since = [i for i in _list_since(memory, ready) if i.loop_seconds > 0.0]
    clean = [interval for interval in since if interval.end > _find_first_end(memory, ready)]
    is_long = sum(interval.seconds for interval in since) >= SMOOTHING_SECONDS
    enough = MIN_BLOCK_STEPS if is_long else _count_readers(memory, ready)
    seconds = sum(i.occupied_seconds + i.blocked_seconds + i.idle_seconds for i in clean)
    made = sum(interval.made_rows for interval in clean)
    if sum(interval.steps for interval in clean) < enough or min(seconds, made) <= 0.0:
        return 0.0, 0.0
    computed = sum(interval.compute_seconds for interval in clean)
    return made / seconds * _count_readers(memory, ready), computed / made


def _count_readers(memory: Memory, ready: int) -> float:
    return ready * memory.intervals[-1].readers_per_worker


def _list_since(memory: Memory, ready: int) -> list[Interval]:
    """Return the latest intervals with this number of workers, oldest first."""
    latest = itertools.takewhile(lambda i: i.ready == ready, reversed(memory.intervals))
    return list(latest)[::-1]


def _find_first_end(memory: Memory, ready: int) -> float:
    """Return the time at which each reader has stored a chunk with this number of workers."""
    steps = 0.0
    for interval in _list_since(memory, ready):
        steps += interval.steps
        if steps >= _count_readers(memory, ready):
            return interval.end
    return math.inf


def _find_enough(plateaus: tuple[Plateau, ...]) -> int:
    """Return the fewest workers that bring 95 % of the rows at the best rate of a worker."""
    rows = _PLATEAU_SHARE * max(plateau.rows_per_second for plateau in plateaus)
    best = max(plateau.rows_per_second / plateau.workers for plateau in plateaus)
    return math.ceil(rows / best)


def _time_probes(memory: Memory, sample: Sample) -> Memory:
    """Start a probe that is due, end one that has taken too long, or forget the point."""
    point = memory.saturation
    if point is None:
        return memory
    if _is_another_source(memory, point, sample.pods.ready):
        return replace(memory, saturation=None, plateaus=())
    if point.probed_at is None and sample.at >= point.until:
        return replace(memory, saturation=replace(point, probed_at=sample.at))
    if point.probed_at is not None and sample.at >= point.probed_at + _probe_seconds(sample):
        return _give_up(memory, sample.at)
    return memory


def _is_another_source(memory: Memory, point: SaturationPoint, ready: int) -> bool:
    """Return whether this number of workers has another throughput than it had at the point.

    Then the point is useless, as for "storage-bound" whose storage became faster.
    """
    rates = [rate for _, rate in _list_rates(memory, ready)]
    if len(rates) < _MIN_TREND_BLOCKS:
        return False
    did = point.rows_per_second * min(1.0, ready / point.workers)
    return abs(mean_of(rates) + math.log(ready / did)) > _CHANGE


def _probe_seconds(sample: Sample) -> float:
    """Return L + 2 W and one period, after which a probe ends."""
    return (sample.pods.start_seconds or FIRST_START_SECONDS) + 3.0 * CLEAN_SECONDS
