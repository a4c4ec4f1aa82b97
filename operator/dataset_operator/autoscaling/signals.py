"""Signals of a run at one moment, and of the interval between two moments.

A source makes a `Sample` every control period; two samples of one attempt make an `Interval`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCounters:
    """All ranks together, since the attempt began; ranks move in lockstep.

    Attributes:
        rows: that all ranks took.
        steps: of each rank.
        loop_seconds: of one rank's training loop, pauses (evaluation, checkpoints) left out.
        production_seconds: of these, waiting for rows that no worker had made: the sum over the
            steps of the longest wait of any rank, since a stall on one looks busy on the others.
        waits: the same for other stages: transfer, batching, collate, ordering, rankSkew.
        is_unbounded: True if no trainer bounds the rows per second, because the data workers store
            the rows themselves; the loop then only waits for production.
    """

    rows: float
    steps: float
    loop_seconds: float
    production_seconds: float
    waits: Mapping[str, float] = field(default_factory=dict)
    is_unbounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCounters:
    """All data workers together, since the attempt began; seconds are those of readers.

    Attributes:
        rows: delivered, in the unit of `TrainerCounters.rows`: after filters.
        blocked_seconds: made ahead as far as the trainers take it.
        idle_seconds: nothing to do.
        readers_per_worker: in the mean over those that have delivered.
    """

    rows: float
    read_seconds: float
    compute_seconds: float
    blocked_seconds: float
    idle_seconds: float
    readers_per_worker: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Values of one reading; None: unknown, or not known of all workers.

    Attributes:
        data_workers: that have delivered rows and answer.
        readers: of these.
    """

    trainer: TrainerCounters | None = None
    workers: WorkerCounters | None = None
    data_workers: float | None = None
    readers: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Data workers as they are; these are always known.

    Attributes:
        ready: that delivered a batch.
        stuck: that are not ready for so long that nobody counts on them any more.
        start_seconds: from asked for to ready, the median of this run's pods; None: none was yet.
    """

    ready: int
    stuck: int = 0
    start_seconds: float | None = None


# Of a pod's start until one was seen.
FIRST_START_SECONDS = 60.0
# Three usual starts, at least five minutes.
_STUCK_STARTS = 3.0
_MIN_STUCK_SECONDS = 300.0


def stuck_after_seconds(start_seconds: float | None) -> float:
    """Return the seconds after which a pending pod counts as stuck, by the usual start."""
    return max(_STUCK_STARTS * (start_seconds or 0.0), _MIN_STUCK_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All that is known at a moment.

    Attributes:
        at: seconds, of a clock that all samples share.
        attempt: counters begin anew with each.
        desired: workers that were asked for; those of them that are not ready are on their way.
        trainer, workers: None if not known: absent, or older than three scrapes.
        gpu_utilization: mean of the trainers' GPUs, 0 to 1; None if not known.
        has_gpus: whether it is theirs; trainers without a GPU tell the share of time they worked.
    """

    at: float
    attempt: int
    desired: int
    pods: Pods
    trainer: TrainerCounters | None = None
    workers: WorkerCounters | None = None
    gpu_utilization: float | None = None
    has_gpus: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The interval between two samples, all of it known.

    Attributes:
        end: when the later sample was taken.
        ready: workers that were ready at both ends; None if their number changed.
        is_unbounded: see `TrainerCounters`.
    """

    end: float
    seconds: float
    ready: int | None
    rows: float
    steps: float
    loop_seconds: float
    production_seconds: float
    waits: Mapping[str, float]
    made_rows: float
    read_seconds: float
    compute_seconds: float
    blocked_seconds: float
    idle_seconds: float
    readers_per_worker: float
    is_unbounded: bool = False

    @property
    def unstarved_seconds(self) -> float:
        """Seconds that the loop would have taken with rows always ready."""
        return self.loop_seconds - self.production_seconds

    @property
    def busy_seconds(self) -> float:
        return self.read_seconds + self.compute_seconds

    @property
    def production_share(self) -> float:
        """b: of the loop's time, 0 to 1; 0 where there was none."""
        share = self.production_seconds / self.loop_seconds if self.loop_seconds > 0.0 else 0.0
        return min(1.0, share)  # a wait is told when it ends, of which a part was before


# Of two readings of a sum of floats the later may be smaller by rounding.
_ROUNDING_SECONDS = 1e-6


def measure_between(before: Sample, after: Sample) -> Interval | None:
    """The interval between two samples; None if an end is not known or counters began anew."""
    first, last = before.trainer, after.trainer
    made, now = before.workers, after.workers
    if first is None or last is None or made is None or now is None:
        return None
    if before.attempt != after.attempt or after.at <= before.at:
        return None
    gone = {stage: last.waits[stage] - first.waits.get(stage, 0.0) for stage in last.waits}
    interval = Interval(
        end=after.at,
        seconds=after.at - before.at,
        ready=after.pods.ready if before.pods.ready == after.pods.ready else None,
        rows=last.rows - first.rows,
        steps=last.steps - first.steps,
        loop_seconds=last.loop_seconds - first.loop_seconds,
        production_seconds=last.production_seconds - first.production_seconds,
        waits=gone,
        made_rows=now.rows - made.rows,
        read_seconds=now.read_seconds - made.read_seconds,
        compute_seconds=now.compute_seconds - made.compute_seconds,
        blocked_seconds=now.blocked_seconds - made.blocked_seconds,
        idle_seconds=now.idle_seconds - made.idle_seconds,
        readers_per_worker=now.readers_per_worker,
        is_unbounded=last.is_unbounded,
    )
    return interval if _is_forward(interval) else None


def _is_forward(interval: Interval) -> bool:
    """Counters only grow; of an exporter that began anew they do not."""
    grown = (
        interval.rows,
        interval.steps,
        interval.loop_seconds,
        interval.production_seconds,
        *interval.waits.values(),
        interval.made_rows,
        interval.read_seconds,
        interval.compute_seconds,
        interval.blocked_seconds,
        interval.idle_seconds,
    )
    return all(value >= -_ROUNDING_SECONDS for value in grown)
