"""Intervals since the last change, and the memory that outlives them.

A change of the required workers (another phase of the model, more expensive rows) makes earlier
measurements useless: they are dropped once two blocks in a row differ from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dataset_operator.autoscaling.confidence import mean_of, squares_of
from dataset_operator.autoscaling.signals import Interval, Sample, measure_between
from dataset_operator.autoscaling.steps import MIN_STEPS, Steps

# The required workers are smoothed over this time.
SMOOTHING_SECONDS = 300.0
# Two blocks in a row are a change if they differ by this many standard errors, and by a tenth.
CHANGE_ERRORS = 3.0
_MIN_CHANGE = math.log(1.1)
# Growth at once where reading is most of the work, since all readers may wait for one storage: a
# quarter, doubled each time that added readers raised the rows per second, up to 100 %.
FIRST_GROWTH = 0.25
MAX_GROWTH = 1.0
# A number of required workers below this, or above its inverse, comes from nonsensical counters.
_MIN_REQUIRED = 1e-9
# Bound for a trainer that makes no steps, whose intervals would never be dropped.
MAX_INTERVALS = 240
# Noise of a block's log required workers until it is measured, with its weight in degrees of
# freedom.
FIRST_NOISE = 0.1
NOISE_DEGREES = 4
# Weight of a newly measured variance against the earlier one.
_NOISE_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Intervals joined until they contain enough steps.

    Attributes:
        demand: rows per second that the trainers would take with rows always ready; 1 if nothing
            bounds it, so that the required workers change only with the throughput of a worker.
        worker_rate: rows per second of one busy worker.
    """

    intervals: tuple[Interval, ...]
    demand: float
    worker_rate: float

    @property
    def required(self) -> float:
        """Required workers, if all are busy."""
        return self.demand / self.worker_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of the requested number."""

    at: float
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """Throughput of a number of workers in a clean window with the trainers starved.

    Attributes:
        compute_seconds: of a busy worker for one row, without reading.
        at: time of the last measurement.
        num_blocks: number of blocks in the mean.
    """

    workers: int
    rows_per_second: float
    compute_seconds: float
    at: float
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationPoint:
    """The number of workers beyond which rows per second do not increase.

    Attributes:
        until: time at which a few more workers are tried.
        count: number of times it was found in succession.
        probed_at: time since which a few more workers are tried; None: they are not.
        undone_at: time at which the last such probe was given up.

    """

    workers: int
    until: float
    rows_per_second: float
    count: int = 1
    probed_at: float | None = None
    undone_at: float | None = None

    @property
    def probe(self) -> int:
        """Workers during a probe: a tenth more, rounded up so that a difference shows."""
        return self.workers + math.ceil(0.1 * self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of the policy; `Memory(since=now)` for a policy that starts.

    Attributes:
        since: time since which recommendations are recorded; without a whole window of them, no
            worker is removed.
        intervals: since the last change, and at most `SMOOTHING_SECONDS` old if there are enough
            steps.
        blocks: these intervals, joined.
        straddles: True if the first block may contain both sides of a change.
        noise: standard deviation of a block's log required workers.
        decided_at: time of the last decision.
        desired: workers requested at that time.
        recommendations: (time, workers), each valid until the next, for the longest window.
        moves: observed moves within the longest period of a rate limit.
        verified: the most workers that were observed to help.
        growth: share of additional readers that may be tried at once.
        has_estimate: True if the demand was known in this attempt.
        ready_since: time of the last change of the number of ready workers.
        ceiling: workers beyond which no pod starts at present, and the end of that assumption.
        limits: reasons that kept the number in the latest decisions, as the operator reports them.
        refusals, refused_at: number of refusals in succession, and the workers beyond which pods
            did not start.
    """

    since: float
    last: Sample | None = None
    intervals: tuple[Interval, ...] = ()
    blocks: tuple[Block, ...] = ()
    straddles: bool = False
    noise: float = FIRST_NOISE
    decided_at: float | None = None
    desired: int | None = None
    recommendations: tuple[tuple[float, int], ...] = ()
    moves: tuple[Move, ...] = ()
    verified: int = 0
    growth: float = FIRST_GROWTH
    has_estimate: bool = False
    ready_since: float | None = None
    plateaus: tuple[Plateau, ...] = ()
    saturation: SaturationPoint | None = None
    ceiling: tuple[int, float] | None = None
    refusals: int = 0
    refused_at: int = 0
    doubled_at: float | None = None
    limits: tuple[str, ...] = ()


def take_in(memory: Memory, sample: Sample) -> Memory:
    """Record a sample, and the interval since the one before if both are known."""
    memory = _note_move(memory, sample)
    last = memory.last
    changed = last is None or last.pods.ready != sample.pods.ready
    memory = replace(
        memory,
        last=sample if sample.trainer is not None and sample.workers is not None else last,
        ready_since=sample.at if changed else memory.ready_since,
    )
    if last is not None and last.attempt != sample.attempt:
        return replace(memory, intervals=(), blocks=(), plateaus=(), has_estimate=False)
    interval = measure_between(last, sample) if last is not None else None
    if interval is None:
        return memory
    kept = _keep_recent((*memory.intervals, interval), sample.at - SMOOTHING_SECONDS)
    memory = replace(memory, intervals=kept, blocks=make_blocks(kept))
    return _drop_before_change(memory)


def _note_move(memory: Memory, sample: Sample) -> Memory:
    """Record the effect of the last decision, or a number that a user set."""
    moves = memory.moves
    if memory.desired is not None and memory.desired != sample.desired:
        moves = (*moves, Move(at=sample.at, before=memory.desired, after=sample.desired))
    return replace(memory, moves=moves, desired=sample.desired, decided_at=sample.at)


def _keep_recent(intervals: tuple[Interval, ...], oldest: float) -> tuple[Interval, ...]:
    """Return the intervals that end after `oldest`, and earlier ones until there are enough steps.

    The earlier ones serve scenario "long steps", in which five minutes contain ten steps.
    """
    steps = sum(interval.steps for interval in intervals)
    first = 0
    while intervals[first].end <= oldest and steps - intervals[first].steps >= MIN_STEPS:
        steps -= intervals[first].steps
        first += 1
    return intervals[max(first, len(intervals) - MAX_INTERVALS) :]


def note_recommendation(memory: Memory, at: float, workers: int, window: float) -> Memory:
    """Record a recommendation; drop those that ended before the window (seconds)."""
    kept = memory.recommendations
    if not kept or kept[-1][1] != workers:
        kept = (*kept, (at, workers))
    while len(kept) > 1 and kept[1][0] <= at - window:
        kept = kept[1:]
    return replace(memory, recommendations=kept)


def make_blocks(intervals: Sequence[Interval]) -> tuple[Block, ...]:
    """Return the intervals joined, oldest first, without those that give no rate.

    Rows are counted once per step, so single intervals of scenario "long steps" are too noisy.
    """
    blocks: list[Block] = []
    held: list[Interval] = []
    steps, busy, made = Steps(), 0.0, 0.0
    for interval in intervals:
        held.append(interval)
        steps.add(interval)
        busy += interval.occupied_seconds
        made += interval.made_rows
        if not steps.make_block():
            continue
        (rows, seconds), is_bounded = steps.measured, not interval.is_unbounded
        is_timed = seconds > 0.0 or not is_bounded
        if is_timed and busy > 0.0 and rows > 0.0 and made > 0.0:
            rate = made / busy * interval.readers_per_worker
            demand = rows / seconds if is_bounded else 1.0
            block = Block(intervals=tuple(held), demand=demand, worker_rate=rate)
            if rate > 0.0 and _MIN_REQUIRED < block.required < 1.0 / _MIN_REQUIRED:
                blocks.append(block)
        held = []
        steps, busy, made = Steps(), 0.0, 0.0
    return tuple(blocks)


def _drop_before_change(memory: Memory) -> Memory:
    """Drop the measurements before a change of the required workers, if there was one.

    Guards "row cost x2" and "consumer x2", which five minutes of smoothing would answer late. Two
    blocks must agree, since single blocks of "heavy tail" are outliers. The noise is measured, so
    that both noises of the benchmark are told from changes.
    """
    blocks = memory.blocks
    if memory.straddles and len(blocks) > 2:
        later = tuple(i for i in memory.intervals if i.end > blocks[0].intervals[-1].end)
        return replace(memory, intervals=later, blocks=blocks[1:], straddles=False)
    if len(blocks) < 4:
        return memory
    logs = [math.log(block.required) for block in blocks]
    before, after = logs[:-2], logs[-2:]
    degrees = NOISE_DEGREES + len(before) - 1
    variance = (NOISE_DEGREES * memory.noise**2 + squares_of(before)) / degrees
    error = math.sqrt(variance * (1 / len(before) + 1 / len(after)))
    least = max(_MIN_CHANGE, CHANGE_ERRORS * error)
    distances = [value - mean_of(before) for value in after]
    is_change = abs(sum(distances) / 2) > least and distances[0] * distances[1] > 0
    if is_change and min(map(abs, distances)) > least / 2:
        latest = (*blocks[-2].intervals, *blocks[-1].intervals)
        changed = replace(memory, intervals=latest, blocks=blocks[-2:], straddles=True)
        numbers = {interval.ready for block in blocks[-3:] for interval in block.intervals}
        if len(numbers) > 1 or _is_of_reading(blocks[:-2], blocks[-2:]):
            return changed  # other workers, or a storage at its limit, may have changed the rate
        return replace(changed, plateaus=())
    measured = squares_of(logs) / (len(logs) - 1)
    noise = math.sqrt(memory.noise**2 + _NOISE_SMOOTHING * (measured - memory.noise**2))
    return replace(memory, noise=noise)


def _is_of_reading(before: Sequence[Block], after: Sequence[Block]) -> bool:
    """Return whether the required workers changed only with the time to read rows.

    Then plateaus stay valid: a storage at its limit is not a change (scenario "storage-bound").
    """
    change = math.log(_mean_required(after) / _mean_required(before))
    computed = [_compute_seconds(blocks) for blocks in (before, after)]
    if min(computed) <= 0.0:
        return True  # the workers only read
    demands = [_mean_demand(blocks) for blocks in (before, after)]
    others = math.log(demands[1] * computed[1] / (demands[0] * computed[0]))
    return abs(others) < max(_MIN_CHANGE, abs(change) / 2.0)


def _mean_required(blocks: Sequence[Block]) -> float:
    return math.exp(mean_of([math.log(block.required) for block in blocks]))


def _mean_demand(blocks: Sequence[Block]) -> float:
    return math.exp(mean_of([math.log(block.demand) for block in blocks]))


def _compute_seconds(blocks: Sequence[Block]) -> float:
    """Return the seconds that a worker computes for one row."""
    intervals = [interval for block in blocks for interval in block.intervals]
    computed = sum(interval.compute_seconds for interval in intervals)
    return computed / sum(interval.made_rows for interval in intervals)
