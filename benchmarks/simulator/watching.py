"""Watches a real run of a profile to its last row; the pace follows its rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks.harness.errors import BenchmarkError
from benchmarks.simulator.paced import write_pace
from benchmarks.simulator.profiles import BATCH_ROWS, UNIT_ROWS, Profile
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Counters, Pods, Sample

_LOOK_SECONDS: Final = 0.5  # as often as the driver updates its metrics
_FIRST_CHUNK_SECONDS: Final = 600.0  # images, pods, and processes of a run
_MAX_STRETCH: Final = 5.0  # of the duration with rows always ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A run at one moment.

    Attributes:
        desired, ready: requested data workers, and those that deliver rows.
        counters: metrics of the driver; None: it did not answer.
    """

    desired: int
    ready: int
    counters: Counters | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The compared figures of a run.

    Attributes:
        idle_seconds: time that the trainers have waited for rows that no worker had made.
        workers: workers requested at the end of each phase.
    """

    rows_per_second: float
    idle_seconds: float
    workers: list[int]


@dataclass(slots=True, kw_only=True)
class RealRun:
    """A run that was watched.

    Attributes:
        profile: begins with the first number of workers.
        samples: samples of the policy in every control period, each with the phase at that time.
            Their times count from the start of the first worker.
        starts: seconds from the request to the first chunk, of each worker that was started.
        waited: seconds that the loop had waited when the first worker began.
    """

    profile: Profile
    samples: list[tuple[int, Sample]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    waited: float = 0.0

    @property
    def figures(self) -> Figures:
        """The figures of the whole run."""
        last = self.samples[-1][1]
        assert last.trainer is not None
        return Figures(
            rows_per_second=last.trainer.rows / last.at,
            idle_seconds=max(0.0, last.trainer.production_seconds - self.waited),
            workers=find_last((place, sample.desired) for place, sample in self.samples),
        )


def find_last(desired: Iterable[tuple[int, int]]) -> list[int]:
    """Return the last number of workers in each phase, of pairs of a phase and a number."""
    last = dict(desired)
    return [last[place] for place in sorted(last)]


def set_pace(profile: Profile, place: int, pace: Path) -> None:
    """Set the pace of a phase."""
    phase = profile.phases[place]
    write_pace(pace, step_seconds=phase.step_seconds, row_seconds=phase.row_seconds)


def watch(
    profile: Profile,
    pace: Path,
    look: Callable[[], Look],
    decide: Callable[[Sample], None] = lambda _: None,
) -> RealRun:
    """Watch a started run to its last row.

    Args:
        pace: file with the pace of trainer and step.
        decide: called every control period; does nothing if the operator decides.

    Raises:
        BenchmarkError: there is no first chunk, or the run takes five times as long as it should.
    """
    chunk_seconds = UNIT_ROWS * profile.phases[0].row_seconds
    first = _wait_for_first_chunk(profile, look)
    began = time.monotonic() - chunk_seconds
    assert first.counters is not None
    assert first.counters.trainer is not None
    # The first worker began a chunk earlier; what the loop had waited until then does not count.
    waited = max(0.0, first.counters.trainer.loop_seconds - chunk_seconds)
    run = RealRun(profile=replace(profile, first_workers=first.desired), waited=waited)
    starts = _Starts(first, run.starts)
    slowest = max(phase.step_seconds for phase in profile.phases)
    deadline = _MAX_STRETCH * profile.rows / BATCH_ROWS * slowest
    place, due = 0, PERIOD_SECONDS
    while True:
        time.sleep(max(0.0, min(_LOOK_SECONDS, began + due - time.monotonic())))
        seen, at = look(), time.monotonic() - began
        if at > deadline:
            raise BenchmarkError(f"{profile.name}: not over after {at:.0f} s")
        starts.note(seen, at)
        if seen.counters is None or seen.counters.trainer is None:
            due = max(due, at + _LOOK_SECONDS)
            continue
        rows = seen.counters.trainer.rows
        if profile.phase_at(rows) > place:
            place = profile.phase_at(rows)
            set_pace(profile, place, pace)
        is_over = rows >= profile.rows
        if at >= due or is_over:
            due = at + PERIOD_SECONDS  # as the operator, which never decides sooner by itself
            sample = _sample(seen, seen.counters, at, run.starts)
            run.samples.append((place, sample))
            if is_over:
                return run
            decide(sample)


def _wait_for_first_chunk(profile: Profile, look: Callable[[], Look]) -> Look:
    deadline = time.monotonic() + _FIRST_CHUNK_SECONDS
    while time.monotonic() < deadline:
        seen = look()
        if (counters := seen.counters) and counters.trainer and counters.data_workers:
            return seen
        time.sleep(_LOOK_SECONDS)
    raise BenchmarkError(f"{profile.name}: no chunk after {_FIRST_CHUNK_SECONDS:.0f} s")


def _sample(seen: Look, counters: Counters, at: float, starts: Sequence[float]) -> Sample:
    """Return a run as the operator reads it."""
    return Sample(
        at=at,
        attempt=1,
        desired=seen.desired,
        pods=Pods(ready=seen.ready, start_seconds=statistics.median(starts) if starts else None),
        trainer=counters.trainer,
        workers=counters.workers,
        has_gpus=False,
    )


@dataclass(slots=True)
class _Starts:
    """Times the starts of requested workers, until they are ready or no longer wanted."""

    before: Look
    starts: list[float]
    _awaited: list[float] = field(default_factory=list)

    def note(self, seen: Look, at: float) -> None:
        before, self.before = self.before, seen
        self._awaited += [at] * (seen.desired - before.desired)
        for _ in range(seen.ready - before.ready):
            if self._awaited:
                self.starts.append(at - self._awaited.pop(0))
        for _ in range(before.desired - seen.desired):
            if self._awaited:
                self._awaited.pop()
