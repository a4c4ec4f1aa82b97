"""Intervals since the last change, and what outlives them.

A change of the need (another model phase, dearer rows) makes what was measured before it useless:
it is dropped as soon as two blocks in a row say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dataset_operator.autoscaling.confidence import mean_of, squares_of
from dataset_operator.autoscaling.signals import Interval, Sample, measure_between

# Over how long the need is smoothed.
SMOOTHING_SECONDS = 300.0
# Steps before a demand is believed, however long they take (docs/autoscaling.md).
MIN_STEPS = 20.0
# An interval of fewer steps is joined with the next: rows are counted at the ends of steps.
MIN_BLOCK_STEPS = 5.0
# A change is what two blocks in a row differ by: this many standard errors and a tenth at least.
CHANGE_ERRORS = 3.0
_MIN_CHANGE = math.log(1.1)
# Readers may all wait for one storage: a quarter more, then twice as much as each that brought rows
# in proportion, as many again at most.
FIRST_GROWTH = 0.25
MAX_GROWTH = 1.0
# A need beyond that, or its inverse, comes of nonsense.
_MIN_NEED = 1e-9
# However few steps they hold: of a trainer that makes none there would be ever more.
MAX_INTERVALS = 240
# Of a block's log need, until it was measured; counts as so many degrees of freedom.
FIRST_NOISE = 0.1
NOISE_DEGREES = 4
# How much of it a newly measured variance replaces.
_NOISE_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Intervals joined until they hold enough steps.

    Attributes:
        demand: rows per second that the trainers would take with rows always there; 1 if nothing
            bounds it, so that the need changes only with the rate of the workers.
        worker_rate: rows per second that one busy worker makes.
    """

    intervals: tuple[Interval, ...]
    demand: float
    worker_rate: float

    @property
    def need(self) -> float:
        """Workers, all busy."""
        return self.demand / self.worker_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of the number that was asked for."""

    at: float
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """Throughput of a number of workers in a clean window with the trainers starved.

    Attributes:
        compute_seconds: of a busy worker for one row, reading left out.
        at: when it was last measured.
        num_blocks: that it is the mean of.
    """

    workers: int
    rows_per_second: float
    demand: float
    compute_seconds: float
    at: float
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationPoint:
    """The number of workers beyond which rows per second do not increase.

    Attributes:
        until: when a few more are tried.
        count: how often it was found, one time after another.
        probed_at: since when a few more are tried; None: they are not.
        undone_at: when that was last given up.
    """

    workers: int
    until: float
    rows_per_second: float
    count: int = 1
    probed_at: float | None = None
    undone_at: float | None = None

    @property
    def probe(self) -> int:
        """Workers while more are tried: a tenth more, rounded up, lest nothing can be told."""
        return self.workers + math.ceil(0.1 * self.workers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of the policy; `Memory(since=…)` is that of a policy that starts.

    Attributes:
        since: from when on recommendations were kept: without a whole window of them nothing is
            taken away.
        intervals: since the last change, none older than `SMOOTHING_SECONDS`.
        blocks: of these intervals.
        straddles: whether the first of them may lie on both sides of a change.
        noise: standard deviation of a block's log need.
        decided_at: when the law was last asked, whatever was known.
        desired: workers that were asked for then.
        recommendations: (since when, workers), each until the next, of the longest window.
        moves: that were seen to be carried out, within the longest period of a rate limit.
        verified: the most workers that were seen to help.
        growth: of readers, by how much more may be tried at once.
        has_estimate: whether a demand was known in this attempt.
        ready_since: since when the number of ready workers is what it is.
        ceiling: workers beyond which none is to be had now, and until when that is believed.
        limits: reasons that kept the number in the latest decisions, as the operator tells them.
        refusals, refused_at: how often in a row pods were not to be had, and beyond how many.
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


def take_in(memory: Memory, sample: Sample, *, finds_changes: bool = True) -> Memory:
    """Remember a sample: its interval, unless an end of it is not known."""
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
    return _drop_before_change(memory) if finds_changes else memory


def _note_move(memory: Memory, sample: Sample) -> Memory:
    """Record the effect of the last decision, or a number that somebody else set."""
    moves = memory.moves
    if memory.desired is not None and memory.desired != sample.desired:
        moves = (*moves, Move(at=sample.at, before=memory.desired, after=sample.desired))
    return replace(memory, moves=moves, desired=sample.desired, decided_at=sample.at)


def _keep_recent(intervals: tuple[Interval, ...], oldest: float) -> tuple[Interval, ...]:
    """Return the intervals that end after `oldest`, and earlier ones for enough steps."""
    steps = sum(interval.steps for interval in intervals)
    first = 0
    while intervals[first].end <= oldest and steps - intervals[first].steps >= MIN_STEPS:
        steps -= intervals[first].steps
        first += 1
    return intervals[max(first, len(intervals) - MAX_INTERVALS) :]


def note_recommendation(memory: Memory, at: float, workers: int, window: float) -> Memory:
    """Remember what is recommended from now on; forget what held before the window (seconds)."""
    kept = memory.recommendations
    if not kept or kept[-1][1] != workers:
        kept = (*kept, (at, workers))
    while len(kept) > 1 and kept[1][0] <= at - window:
        kept = kept[1:]
    return replace(memory, recommendations=kept)


def make_blocks(intervals: Sequence[Interval]) -> tuple[Block, ...]:
    """Intervals joined, oldest first; those of which no rate can be told are in none."""
    blocks: list[Block] = []
    held: list[Interval] = []
    steps = unstarved = busy = rows = made = 0.0
    for interval in intervals:
        held.append(interval)
        steps += interval.steps
        unstarved += interval.unstarved_seconds
        busy += interval.busy_seconds
        rows += interval.rows
        made += interval.made_rows
        if steps < MIN_BLOCK_STEPS:
            continue
        is_bounded = not interval.is_unbounded
        if (unstarved > 0.0 or not is_bounded) and busy > 0.0 and rows > 0.0 and made > 0.0:
            rate = made / busy * interval.readers_per_worker
            demand = rows / unstarved if is_bounded else 1.0
            block = Block(intervals=tuple(held), demand=demand, worker_rate=rate)
            if rate > 0.0 and _MIN_NEED < block.need < 1.0 / _MIN_NEED:
                blocks.append(block)
        held = []
        steps = unstarved = busy = rows = made = 0.0
    return tuple(blocks)


def _drop_before_change(memory: Memory) -> Memory:
    blocks = memory.blocks
    if memory.straddles and len(blocks) > 2:
        later = tuple(i for i in memory.intervals if i.end > blocks[0].intervals[-1].end)
        return replace(memory, intervals=later, blocks=blocks[1:], straddles=False)
    if len(blocks) < 4:
        return memory
    logs = [math.log(block.need) for block in blocks]
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
            return changed  # by workers that came or went storage may make all slower
        return replace(changed, plateaus=())
    measured = squares_of(logs) / (len(logs) - 1)
    noise = math.sqrt(memory.noise**2 + _NOISE_SMOOTHING * (measured - memory.noise**2))
    return replace(memory, noise=noise)


def _is_of_reading(before: Sequence[Block], after: Sequence[Block]) -> bool:
    """Return whether the need changed almost only because the time to read rows did."""
    change = math.log(_mean_need(after) / _mean_need(before))
    computed = [_compute_seconds(blocks) for blocks in (before, after)]
    if min(computed) <= 0.0:
        return True  # nothing but reading is done
    demands = [_mean_demand(blocks) for blocks in (before, after)]
    others = math.log(demands[1] * computed[1] / (demands[0] * computed[0]))
    return abs(others) < max(_MIN_CHANGE, abs(change) / 2.0)


def _mean_need(blocks: Sequence[Block]) -> float:
    return math.exp(mean_of([math.log(block.need) for block in blocks]))


def _mean_demand(blocks: Sequence[Block]) -> float:
    return math.exp(mean_of([math.log(block.demand) for block in blocks]))


def _compute_seconds(blocks: Sequence[Block]) -> float:
    """Return a worker's seconds for one row, without reading."""
    intervals = [interval for block in blocks for interval in block.intervals]
    computed = sum(interval.compute_seconds for interval in intervals)
    return computed / sum(interval.made_rows for interval in intervals)
