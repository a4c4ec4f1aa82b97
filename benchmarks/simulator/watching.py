"""Watches a real run of a profile to its last row; the pace follows its rows."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from benchmarks.harness.errors import BenchmarkError
from benchmarks.simulator.profiles import BATCH_ROWS, UNIT_ROWS, Profile
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Counters, Pods, Sample, TrainerCounters

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
    """Set the pace of a phase; the file is replaced atomically, so no reader sees a part of it."""
    phase, new = profile.phases[place], pace.with_suffix(".new")
    costs = {"stepSeconds": phase.step_seconds, "secondsPerRow": phase.row_seconds}
    new.write_text(json.dumps(costs))
    new.replace(pace)


def watch(profile: Profile, pace: Path, look: Callable[[], Look]) -> RealRun:
    """Watch a started run to its last row.

    Args:
        pace: file with the pace of trainer and step.

    Raises:
        BenchmarkError: there is no first chunk, or the run takes five times as long as it should.
    """
    before, trainer = next(_look_until(f"{profile.name}: no chunk", look, _FIRST_CHUNK_SECONDS))
    # The first worker began a chunk earlier; what the loop had waited until then does not count.
    chunk_seconds = UNIT_ROWS * profile.phases[0].row_seconds
    began = time.monotonic() - chunk_seconds
    run = RealRun(
        profile=replace(profile, first_workers=before.desired),
        waited=max(0.0, trainer.loop_seconds - chunk_seconds),
    )
    seconds = profile.rows / BATCH_ROWS * max(phase.step_seconds for phase in profile.phases)
    place, due = 0, PERIOD_SECONDS
    awaited: list[float] = []  # times of the requests of workers that are not ready
    for seen, trainer in _look_until(f"{profile.name}: not over", look, _MAX_STRETCH * seconds):
        at = time.monotonic() - began
        awaited += [at] * (seen.desired - before.desired)
        started = max(0, seen.ready - before.ready)
        dropped = max(0, before.desired - seen.desired)
        run.starts += [at - since for since in awaited[:started]]
        awaited = awaited[started : max(0, len(awaited) - dropped)]
        before = seen
        if profile.phase_at(trainer.rows) > place:
            place = profile.phase_at(trainer.rows)
            set_pace(profile, place, pace)
        is_over = trainer.rows >= profile.rows
        if at < due and not is_over:
            continue
        due = at + PERIOD_SECONDS  # as the operator, which never decides sooner by itself
        start_seconds = statistics.median(run.starts) if run.starts else None
        sample = Sample(
            at=at,
            attempt=1,
            desired=seen.desired,
            pods=Pods(ready=seen.ready, start_seconds=start_seconds),
            trainer=trainer,
            workers=seen.counters.workers if seen.counters else None,
            has_gpus=False,
        )
        run.samples.append((place, sample))
        if is_over:
            break
    return run


def _look_until(
    problem: str, look: Callable[[], Look], seconds: float
) -> Iterator[tuple[Look, TrainerCounters]]:
    """Yield the looks at a run whose metrics are known. Raises BenchmarkError in the end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        seen = look()
        counters = seen.counters
        if counters and counters.trainer and counters.data_workers:
            yield seen, counters.trainer
        time.sleep(_LOOK_SECONDS)
    raise BenchmarkError(f"{problem} after {seconds:.0f} s")
