"""Watches a profile on real pods from outside, while the operator decides.

It reads what any user can read: the experiment's status, and the metrics of its driver.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks.harness.errors import BenchmarkError
from benchmarks.simulator.courses import Course, Point
from benchmarks.simulator.observing import Observed
from benchmarks.simulator.paced import write_pace
from benchmarks.simulator.profiles import BATCH_ROWS, UNIT_ROWS, Profile
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Counters, Pods, Sample

_LOOK_SECONDS: Final = 1.5
_FIRST_CHUNK_SECONDS: Final = 600.0  # images, pods, and processes of a run
_MAX_STRETCH: Final = 5.0  # of the duration with rows always ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A run at one moment.

    Attributes:
        desired, ready: data workers by the experiment's status.
        counters: metrics of the driver; None: it did not answer.
    """

    desired: int
    ready: int
    counters: Counters | None


def watch(profile: Profile, pace: Path, look: Callable[[], Look]) -> Observed:
    """Watch a started run to its last row; the pace follows its rows.

    Returns:
        The observations; their profile begins with the operator's first number of workers.

    Raises:
        BenchmarkError: there is no first chunk, or the run takes five times as long as it should.
    """
    first, began = _wait_for_first_chunk(profile, look)
    assert first.counters is not None
    assert first.counters.trainer is not None
    waited = max(
        0.0, first.counters.trainer.loop_seconds - UNIT_ROWS * profile.phases[0].row_seconds
    )
    return _Watch(replace(profile, first_workers=first.desired), pace, look, began, waited).run()


def set_pace(profile: Profile, place: int, pace: Path) -> None:
    """Set the pace of a phase."""
    phase = profile.phases[place]
    write_pace(pace, step_seconds=phase.step_seconds, row_seconds=phase.row_seconds)


def _wait_for_first_chunk(profile: Profile, look: Callable[[], Look]) -> tuple[Look, float]:
    """Return the first look with a chunk, and the start of the first worker: a chunk earlier."""
    deadline = time.monotonic() + _FIRST_CHUNK_SECONDS
    while time.monotonic() < deadline:
        seen = look()
        counters = seen.counters
        if counters is not None and counters.trainer is not None and counters.data_workers:
            return seen, time.monotonic() - UNIT_ROWS * profile.phases[0].row_seconds
        time.sleep(_LOOK_SECONDS)
    raise BenchmarkError(f"{profile.name}: no chunk after {_FIRST_CHUNK_SECONDS:.0f} s")


@dataclass(slots=True)
class _Watch:
    """One run; times are seconds since its first worker began.

    Attributes:
        waited: seconds that the loop had waited until then.
    """

    profile: Profile
    pace: Path
    look: Callable[[], Look]
    began: float
    waited: float
    place: int = 0
    points: list[Point] = field(default_factory=list)
    samples: list[tuple[int, Sample]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    _awaited: list[float] = field(default_factory=list)
    _before: Look | None = None

    def run(self) -> Observed:
        slowest = max(phase.step_seconds for phase in self.profile.phases)
        deadline = _MAX_STRETCH * self.profile.rows / BATCH_ROWS * slowest
        due = PERIOD_SECONDS
        while True:
            time.sleep(_LOOK_SECONDS)
            seen, at = self.look(), time.monotonic() - self.began
            if at > deadline:
                raise BenchmarkError(f"{self.profile.name}: not over after {at:.0f} s")
            self._time_starts(seen, at)
            if seen.counters is None or seen.counters.trainer is None:
                continue
            point = self._point(seen, at)
            self._follow(point.rows)
            is_over = point.rows >= self.profile.rows
            if at >= due or is_over:
                due = at + PERIOD_SECONDS
                self.points.append(point)
                self.samples.append((self.place, self._sample(seen, at)))
            if is_over:
                break
        course = Course(points=tuple(self.points))
        return Observed(
            profile=self.profile, course=course, samples=self.samples, starts=self.starts
        )

    def _time_starts(self, seen: Look, at: float) -> None:
        """Time the starts of requested pods, until they are ready or no longer wanted."""
        before, self._before = self._before or seen, seen
        self._awaited += [at] * (seen.desired - before.desired)
        for _ in range(seen.ready - before.ready):
            if self._awaited:
                self.starts.append(at - self._awaited.pop(0))
        for _ in range(before.desired - seen.desired):
            if self._awaited:
                self._awaited.pop()

    def _follow(self, rows: float) -> None:
        if self.profile.phase_at(rows) > self.place:
            self.place = self.profile.phase_at(rows)
            set_pace(self.profile, self.place, self.pace)

    def _point(self, seen: Look, at: float) -> Point:
        assert seen.counters is not None
        assert seen.counters.trainer is not None
        trainer = seen.counters.trainer
        return Point(
            at=at,
            desired=seen.desired,
            ready=seen.ready,
            rows=trainer.rows,
            idle_seconds=max(0.0, trainer.production_seconds - self.waited),
        )

    def _sample(self, seen: Look, at: float) -> Sample:
        assert seen.counters is not None
        start_seconds = statistics.median(self.starts) if self.starts else None
        return Sample(
            at=at,
            attempt=1,
            desired=seen.desired,
            pods=Pods(ready=seen.ready, start_seconds=start_seconds),
            trainer=seen.counters.trainer,
            workers=seen.counters.workers,
            has_gpus=False,
        )
