"""Signals of a run at one time, and of the interval between two samples.

A source makes a `Sample` every control period; two samples of one attempt make an `Interval`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field

from dataset_operator.autoscaling.interface import Bottleneck


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """Totals over some steps.

    Attributes:
        rows: of all ranks.
        seconds: of one rank, without waits for production.
    """

    steps: float
    rows: float
    seconds: float

    def __sub__(self, earlier: StepTotals) -> StepTotals:
        return StepTotals(
            steps=self.steps - earlier.steps,
            rows=self.rows - earlier.rows,
            seconds=self.seconds - earlier.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCounters:
    """Counters of all ranks since the attempt began; ranks move in lockstep.

    Attributes:
        rows: taken by all ranks.
        steps: of each rank.
        loop_seconds: of one rank's training loop, without pauses (evaluation, checkpoints).
        production_seconds: the part of these spent waiting for rows that no worker had made: the
            longest wait of any rank, summed over the steps. A stall on one rank looks busy on the
            others.
        waits: the same for other stages: transfer, batching, collate, ordering, rankSkew.
        is_unbounded: True if no trainer bounds the rows per second, because the data workers store
            the rows themselves; the loop then only waits for production.
        clock: the finished steps by the trainers' own clock; None: the source does not report them.
    """

    rows: float
    steps: float
    loop_seconds: float
    production_seconds: float
    waits: Mapping[str, float] = field(default_factory=dict)
    is_unbounded: bool = False
    clock: StepTotals | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCounters:
    """Counters of all data workers since the attempt began; seconds are those of readers.

    Attributes:
        rows: delivered, in the unit of `TrainerCounters.rows`: after filters.
        blocked_seconds: blocked on output, because enough rows are ready for the trainers.
        idle_seconds: without work.
        inference_seconds: waits for inference workers.
        readers_per_worker: mean over the workers that have delivered rows.
    """

    rows: float
    read_seconds: float
    compute_seconds: float
    blocked_seconds: float
    idle_seconds: float
    inference_seconds: float = 0.0
    readers_per_worker: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Values of one reading; None: unknown, or unknown for some worker.

    Attributes:
        data_workers: number of workers that have delivered rows and answer.
        readers: number of their readers.
    """

    trainer: TrainerCounters | None = None
    workers: WorkerCounters | None = None
    data_workers: float | None = None
    readers: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Pods of the data workers, which are always known.

    Attributes:
        ready: pods that have delivered a batch.
        stuck: pods that have been pending for `stuck_after_seconds`.
        start_seconds: from the request to ready, the median of this run's pods; None: no pod has
            become ready yet.
    """

    ready: int
    stuck: int = 0
    start_seconds: float | None = None


# The assumed start of a pod, until one was measured.
FIRST_START_SECONDS = 60.0
# A pod is stuck after three usual starts, and at least five minutes.
_STUCK_STARTS = 3.0
_MIN_STUCK_SECONDS = 300.0


def stuck_after_seconds(start_seconds: float | None) -> float:
    """Return the seconds after which a pending pod counts as stuck, by the usual start."""
    return max(_STUCK_STARTS * (start_seconds or 0.0), _MIN_STUCK_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All signals at one time.

    Attributes:
        at: seconds on a clock that all samples share.
        attempt: number of the attempt; counters restart with each.
        desired: requested workers; those that are not ready are pending.
        trainer, workers: None if unknown: absent, or older than three scrapes.
        gpu_utilization: mean of the trainers' GPUs, 0 to 1; None if unknown.
        has_gpus: True if the utilisation is that of GPUs; trainers without a GPU report the share
            of time they worked.
        elsewhere: a bottleneck that these signals do not show; None: there is none.
    """

    at: float
    attempt: int
    desired: int
    pods: Pods
    trainer: TrainerCounters | None = None
    workers: WorkerCounters | None = None
    gpu_utilization: float | None = None
    has_gpus: bool = True
    elsewhere: Bottleneck | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Differences between two samples in which all counters are known.

    Attributes:
        end: time of the later sample.
        ready: number of ready workers; None if it changed.
        is_unbounded, clock: see `TrainerCounters`.
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
    inference_seconds: float = 0.0
    is_unbounded: bool = False
    clock: StepTotals | None = None

    @property
    def unstarved_seconds(self) -> float:
        """Seconds that the loop would have taken with rows always ready."""
        return self.loop_seconds - self.production_seconds

    @property
    def busy_seconds(self) -> float:
        """Seconds in which readers read or computed."""
        return self.read_seconds + self.compute_seconds

    @property
    def occupied_seconds(self) -> float:
        """Seconds in which readers could not begin another chunk.

        A wait for an inference worker is no work, but bounds the rows of a reader all the same.
        """
        return self.busy_seconds + self.inference_seconds

    @property
    def production_share(self) -> float:
        """b: share of the loop's time spent waiting for production; 0 where the loop was paused."""
        share = self.production_seconds / self.loop_seconds if self.loop_seconds > 0.0 else 0.0
        return min(1.0, share)  # a wait is recorded when it ends, and may have begun earlier


# By rounding, the later of two readings of a sum may be smaller by this.
_ROUNDING_SECONDS = 1e-6


def measure_between(before: Sample, after: Sample) -> Interval | None:
    """Return the interval between two samples; None if one is unknown or counters restarted."""
    first, last = before.trainer, after.trainer
    made, now = before.workers, after.workers
    if first is None or last is None or made is None or now is None:
        return None
    if before.attempt != after.attempt or after.at <= before.at:
        return None
    waits = {stage: last.waits[stage] - first.waits.get(stage, 0.0) for stage in last.waits}
    interval = Interval(
        end=after.at,
        seconds=after.at - before.at,
        ready=after.pods.ready if before.pods.ready == after.pods.ready else None,
        rows=last.rows - first.rows,
        steps=last.steps - first.steps,
        loop_seconds=last.loop_seconds - first.loop_seconds,
        production_seconds=last.production_seconds - first.production_seconds,
        waits=waits,
        made_rows=now.rows - made.rows,
        read_seconds=now.read_seconds - made.read_seconds,
        compute_seconds=now.compute_seconds - made.compute_seconds,
        blocked_seconds=now.blocked_seconds - made.blocked_seconds,
        idle_seconds=now.idle_seconds - made.idle_seconds,
        inference_seconds=now.inference_seconds - made.inference_seconds,
        readers_per_worker=now.readers_per_worker,
        is_unbounded=last.is_unbounded,
        clock=last.clock - first.clock if last.clock and first.clock else None,
    )
    return interval if _is_forward(interval) else None


def _is_forward(interval: Interval) -> bool:
    """Return whether no counter fell, as counters of a restarted exporter do."""
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
        interval.inference_seconds,
        *(astuple(interval.clock) if interval.clock else ()),
    )
    return all(value >= -_ROUNDING_SECONDS for value in grown)
