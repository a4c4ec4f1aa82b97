"""Runs a profile on real processes, with a decision of the policy every period."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError
from benchmarks.scaling.ray_cluster import open_cluster
from benchmarks.simulator.courses import Course, Point
from benchmarks.simulator.live_run import Training, train
from benchmarks.simulator.paced import write_pace
from benchmarks.simulator.profiles import BATCH_ROWS, UNIT_ROWS, Profile, build_rules
from benchmarks.simulator.workers import Workers
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.autoscaling.policy import decide
from dataset_operator.autoscaling.signals import Counters, Pods, Sample

_LOOK_SECONDS = 0.5  # as often as the driver updates its metrics
_FIRST_CHUNK_SECONDS = 240.0  # processes of a run start in half a minute, beside other work later
_MAX_STRETCH = 5.0  # of the duration with rows always ready


@dataclass(slots=True, kw_only=True)
class Observed:
    """Observations of a run.

    Attributes:
        samples: samples of the policy, each with the phase at that time.
        starts: seconds from the request to the first chunk, of each started worker.
    """

    profile: Profile
    course: Course
    samples: list[tuple[int, Sample]]
    starts: list[float]


def observe(profile: Profile, root: Path) -> Observed:
    """Run a profile. Raises BenchmarkError if nodes do not start, or the run fails."""
    with tempfile.TemporaryDirectory(prefix="lm-simulator-") as name, open_cluster(1) as cluster:
        pace = Path(name) / "pace.json"
        _set_pace(profile, 0, pace)
        cluster.resize(profile.first_workers)
        with train(cluster.address, root, pace, Path(name)) as training:
            return _Watch(profile, training, Workers(cluster), pace).run()


def _set_pace(profile: Profile, place: int, pace: Path) -> None:
    phase = profile.phases[place]
    write_pace(pace, step_seconds=phase.step_seconds, row_seconds=phase.row_seconds)


@dataclass(slots=True)
class _Watch:
    """One run, watched to its last row."""

    profile: Profile
    training: Training
    workers: Workers
    pace: Path
    memory: Memory = field(default_factory=lambda: Memory(since=0.0))
    place: int = 0
    points: list[Point] = field(default_factory=list)
    samples: list[tuple[int, Sample]] = field(default_factory=list)

    def run(self) -> Observed:
        began, waited = self._wait_for_first_chunk()
        slowest = max(phase.step_seconds for phase in self.profile.phases)
        deadline = _MAX_STRETCH * self.profile.rows / BATCH_ROWS * slowest
        due = PERIOD_SECONDS
        while True:
            time.sleep(max(0.0, min(_LOOK_SECONDS, due - (time.monotonic() - began))))
            counters, at = self.training.read(), time.monotonic() - began
            if at > deadline:
                raise BenchmarkError(f"{self.profile.name}: not over after {at:.0f} s")
            if counters is None or counters.trainer is None or counters.data_workers is None:
                due = max(due, at + _LOOK_SECONDS)
                continue
            sample, point = self._look(counters, at, waited)
            if self.profile.phase_at(point.rows) > self.place:
                self.place = self.profile.phase_at(point.rows)
                _set_pace(self.profile, self.place, self.pace)
            if point.rows >= self.profile.rows:
                self.points.append(point)
                break
            if at >= due:
                due = at + PERIOD_SECONDS  # as the operator, which never decides sooner by itself
                self.points.append(point)
                self._decide(sample)
        return Observed(
            profile=self.profile,
            course=Course(points=tuple(self.points)),
            samples=self.samples,
            starts=self.workers.starts,
        )

    def _wait_for_first_chunk(self) -> tuple[float, float]:
        """Return when the first worker began, and the loop's waiting time until then.

        It began as long before its first chunk was there as a chunk takes.
        """
        chunk_seconds = UNIT_ROWS * self.profile.phases[0].row_seconds
        deadline = time.monotonic() + _FIRST_CHUNK_SECONDS
        while time.monotonic() < deadline:
            counters = self.training.read()
            if counters is not None and counters.trainer is not None and counters.data_workers:
                waited = counters.trainer.loop_seconds - chunk_seconds
                return time.monotonic() - chunk_seconds, max(0.0, waited)
            time.sleep(_LOOK_SECONDS)
        raise BenchmarkError(f"{self.profile.name}: no chunk after {_FIRST_CHUNK_SECONDS:.0f} s")

    def _look(self, counters: Counters, at: float, waited: float) -> tuple[Sample, Point]:
        """Return the run as the operator reads it, and as it is compared."""
        assert counters.trainer is not None
        assert counters.data_workers is not None
        ready = self.workers.count_ready(int(counters.data_workers), at)
        sample = Sample(
            at=at,
            attempt=1,
            desired=self.workers.desired,
            pods=Pods(ready=ready, start_seconds=self.workers.start_seconds),
            trainer=counters.trainer,
            workers=counters.workers,
            has_gpus=False,
        )
        point = Point(
            at=at,
            desired=sample.desired,
            ready=ready,
            rows=counters.trainer.rows,
            idle_seconds=max(0.0, counters.trainer.production_seconds - waited),
        )
        return sample, point

    def _decide(self, sample: Sample) -> None:
        decision, self.memory = decide(self.memory, sample, build_rules())
        self.samples.append((self.place, sample))
        inputs = {name: round(value, 3) for name, value in decision.inputs.items()}
        print(
            f"{self.profile.name}, {sample.at:.0f} s: {sample.desired} → {decision.desired}: "
            f"{decision.recommended.message} {inputs}",
            file=sys.stderr,
            flush=True,
        )
        if decision.desired != sample.desired:
            self.workers.request(decision.desired, sample.at)
