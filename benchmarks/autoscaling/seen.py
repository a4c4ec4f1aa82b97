"""Inputs of the peer policies, from the same simulator and moments as Lastmile's.

Each gets the signals that its own system has, as they would be measured over the last period.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dataset_operator.autoscaling.signals import Sample, measure_between
from dataset_operator.simulation import events
from dataset_operator.simulation.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Signals of one period.

    Attributes:
        busy: share of the ready workers' time, 0 to 1: their CPU use.
        rate: rows per second that the trainers took.
        batch_seconds: from one batch to the next.
        wait_share: share of the trainers' time.
        worker_rate: rows per second of one busy worker.
        fill: fill of the queue, 0 to 1.
        free_units: units that fit into the queue.
        unit_seconds: seconds of one worker for one unit.
    """

    at: float
    desired: int
    ready: int
    busy: float
    rate: float
    batch_seconds: float
    step_seconds: float
    wait_share: float
    worker_rate: float
    fill: float
    free_units: float
    unit_seconds: float
    gpu_utilization: float | None


@dataclass(slots=True)
class Senses:
    """Turns samples into `Seen`; None while a signal is unknown."""

    cluster: Cluster
    _last: Sample | None = field(init=False, default=None)
    _held: tuple[float, float] = field(init=False, default=(0.0, 0.0))

    def _read_held(self) -> tuple[float, float]:
        """Return the seconds in which workers were blocked, and in which they were ready."""
        sums = self.cluster.state.sums
        return float(sums[events.HELD]), float(sums[events.READY_SECONDS])

    def see(self, sample: Sample) -> Seen | None:
        last, self._last = self._last, sample
        interval = measure_between(last, sample) if last is not None else None
        held_before, self._held = self._held, self._read_held()
        if interval is None or interval.made_rows <= 0.0 or interval.steps < 1.0:
            return None
        given, marks = self.cluster.given, self.cluster.state.marks
        queued = float(marks[events.QUEUE_UNITS])
        held, up = (now - then for now, then in zip(self._held, held_before, strict=True))
        rate = interval.made_rows / max(interval.busy_seconds, 1e-9)
        return Seen(
            at=sample.at,
            desired=sample.desired,
            ready=max(sample.pods.ready, 1),
            busy=min(1.0, max(0.0, 1.0 - held / up)) if up > 0.0 else 0.0,
            rate=interval.rows / interval.seconds,
            batch_seconds=interval.loop_seconds / interval.steps,
            step_seconds=interval.unstarved_seconds / interval.steps,
            wait_share=interval.production_share,
            worker_rate=rate,
            fill=queued / given.credit_units,
            free_units=given.credit_units - queued,
            unit_seconds=given.unit_rows / rate,
            gpu_utilization=self._read_gpu(sample),
        )

    def _read_gpu(self, sample: Sample) -> float | None:
        """Return the raw series: only our source knows that a 0 without NVML is not real."""
        return 0.0 if self.cluster.setting.gpu == "zero" else sample.gpu_utilization


@dataclass(slots=True)
class Window:
    """Values of a window of time."""

    seconds: float
    _values: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, at: float, value: float) -> None:
        self._values.append((at, value))
        while self._values[0][0] <= at - self.seconds:
            self._values.popleft()

    @property
    def values(self) -> list[float]:
        return [value for _, value in self._values]
