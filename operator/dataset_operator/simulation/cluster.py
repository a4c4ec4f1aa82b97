"""The simulated cluster: pods that start, drain and are lost; and the counters of a source."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dataset_operator.autoscaling.signals import (
    Pods,
    Sample,
    StepTotals,
    TrainerCounters,
    WorkerCounters,
    stuck_after_seconds,
)
from dataset_operator.simulation import events
from dataset_operator.simulation.events import ClusterState, Given
from dataset_operator.simulation.setting import STAGES, Phase, Setting

# Random numbers of a run, drawn once and used in a cycle.
_NUM_DRAWS = 1 << 16
# Standard deviation of the log of a pod's start, since images and nodes differ.
_START_NOISE = 0.1


@dataclass(slots=True)
class Cluster:
    """The pods of one simulated run; drive it with `request` and `run`.

    Attributes:
        starts: start durations of its pods in seconds, in ascending order.
        others: pods of other runs that take part of `setting.schedulable`.
    """

    setting: Setting
    seed: int | Sequence[int]
    desired: int = 0
    attempt: int = 1
    time: float = 0.0
    starts: list[float] = field(default_factory=list)
    others: int = 0
    given: Given = field(init=False)
    state: ClusterState = field(init=False)
    _random: np.random.Generator = field(init=False)
    _unplaced: list[float] = field(init=False, default_factory=list)  # the time of each request
    _losses: list[tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        setting = self.setting
        self.given = _build_given(setting, self._random)
        self.state = _build_state(2 * setting.max_workers + 16)
        self._losses = [(loss.at, loss.share) for loss in setting.losses]
        self.request(setting.first_workers)
        for w in np.flatnonzero(self.state.activity == events.STARTING):
            self.state.until[w] = self.time  # they are ready when the run begins

    @property
    def has_ended(self) -> bool:
        """Return whether the run has trained all its rows."""
        return bool(self.state.marks[events.TRAINER] == events.ENDED)

    @property
    def ready(self) -> int:
        """Workers that work and do not drain."""
        activity, drains = self._places()
        return int(np.count_nonzero((activity >= events.BUSY) & (drains == 0)))

    @property
    def pods(self) -> int:
        """All pods, in any state; none once the run has ended."""
        return 0 if self.has_ended else int(np.count_nonzero(self._places()[0]))

    @property
    def capacity(self) -> int:
        """Pods that the cluster could place for this run now."""
        return max(0, self.setting.schedulable - self.others)

    def request(self, workers: int) -> None:
        """Request a number of workers: pods are added, or drained, the youngest first."""
        self.desired = workers
        self._match()

    def run(self, until: float) -> None:
        """Simulate until a time; lost pods are replaced, as KubeRay does."""
        while self._losses and self._losses[0][0] <= until:
            at, share = self._losses.pop(0)
            self._advance(at)
            self._lose(share)
        crash = self.setting.crash_per_minute * (until - self.time) / 60.0
        self._advance(until)
        if crash > 0.0:
            self._lose(crash)
        self._match()

    def read(self, gpu_utilization: float | None = None) -> Sample:
        """Return what a metrics source would report now; `gpu_utilization` is passed on."""
        state = self.state
        sums = state.sums
        waits = {stage: float(state.waits[i]) for i, stage in enumerate(STAGES)}
        loop = self._loop_seconds()
        is_unbounded = self.setting.is_unbounded
        return Sample(
            at=self.time,
            attempt=self.attempt,
            desired=self.desired,
            pods=Pods(ready=self.ready, stuck=self._count_stuck(), start_seconds=self._start()),
            trainer=TrainerCounters(
                rows=float(sums[events.ROWS]),
                steps=float(sums[events.STEPS]),
                loop_seconds=loop,
                production_seconds=loop if is_unbounded else float(sums[events.PRODUCTION]),
                waits=waits,
                is_unbounded=is_unbounded,
                clock=None if is_unbounded else self._read_clock(),
            ),
            workers=WorkerCounters(
                rows=float(sums[events.MADE]),
                read_seconds=float(sums[events.READ]),
                compute_seconds=float(sums[events.WORK]),
                blocked_seconds=float(sums[events.HELD]),
                idle_seconds=0.0,  # there is always a unit to lease
            ),
            gpu_utilization=gpu_utilization,
        )

    def _read_clock(self) -> StepTotals:
        """Return the totals of the finished steps, as the runtime reports them."""
        state, sums = self.state, self.state.sums
        finished = StepTotals(
            steps=float(sums[events.STEPS]),
            rows=float(sums[events.ROWS]),
            seconds=float(sums[events.COMPUTE] + state.waits.sum()),
        )
        if state.marks[events.TRAINER] != events.COMPUTING:
            return finished
        seconds = float(state.now[events.STEP_SECONDS])
        return finished - StepTotals(steps=1.0, rows=self.given.batch_rows, seconds=seconds)

    def _loop_seconds(self) -> float:
        """Return the loop's seconds as the runtime reports them: open waits count, pauses not."""
        state = self.state
        paused = float(state.sums[events.PAUSED_SECONDS])
        if state.marks[events.TRAINER] == events.PAUSED:
            paused += self.time - float(state.now[events.PAUSE_SINCE])
        return self.time - paused

    def _advance(self, until: float) -> None:
        events.advance(self.given, self.state, float(until))
        self.time = float(self.state.now[events.TIME]) if self.has_ended else until

    def _match(self) -> None:
        """Match the pods to the requested number, as far as the cluster places them."""
        activity, drains = self._places()
        present = int(np.count_nonzero((activity != events.FREE) & (drains == 0)))
        missing = self.desired - present
        if missing < 0:
            self._drain(-missing)
        placeable = max(0, min(missing, self.capacity - present))
        for _ in range(placeable):
            self._start_pod()
        waiting = max(0, missing - placeable)
        self._unplaced = self._unplaced[:waiting]
        self._unplaced += [self.time] * (waiting - len(self._unplaced))

    def _places(self) -> tuple[events.Ints, events.Ints]:
        """Return the activities and drains of the places that may be taken."""
        end = self.state.marks[events.END_PLACE]
        return self.state.activity[:end], self.state.drains[:end]

    def _start_pod(self) -> None:
        state = self.state
        w = int(np.flatnonzero(state.activity == events.FREE)[0])
        seconds = self.setting.start_seconds * float(
            np.exp(_START_NOISE * self._random.standard_normal())
        )
        state.activity[w] = events.STARTING
        state.marks[events.END_PLACE] = max(int(state.marks[events.END_PLACE]), w + 1)
        state.until[w] = self.time + seconds
        state.drains[w] = 0
        is_slow = self._random.random() < self.setting.slow_share
        state.speed[w] = self.setting.slow_speed if is_slow else 1.0
        insort(self.starts, seconds)

    def _drain(self, number: int) -> None:
        """Remove pending workers first, then drain the youngest, which hand over their rows."""
        state = self.state
        starting = np.flatnonzero((state.activity == events.STARTING) & (state.drains == 0))
        latest = starting[np.argsort(-state.until[starting])][:number]
        state.activity[latest] = events.FREE
        is_up = (state.activity == events.BUSY) | (state.activity == events.BLOCKED)
        up = np.flatnonzero(is_up & (state.drains == 0))
        youngest = up[np.argsort(-state.ready_at[up])][: number - len(latest)]
        for w in youngest:
            state.drains[w] = 1
            if state.activity[w] == events.BLOCKED:
                state.sums[events.HELD] += self.time - state.held_since[w]
                state.held_since[w] = self.time
                state.activity[w] = events.BUSY  # it hands over at once, even without credit
                state.until[w] = self.time
                state.read[w] = state.work[w] = 0.0

    def _lose(self, share: float) -> None:
        """Lose each worker with this probability; another worker makes its unit again."""
        state = self.state
        lost = self._random.random(len(state.activity)) < share
        for w in np.flatnonzero((state.activity != events.FREE) & lost):
            if state.activity[w] != events.STARTING:
                count = state.marks[events.NUM_RETURNED]
                state.returned[count] = state.unit[w]
                state.marks[events.NUM_RETURNED] = count + 1
            state.activity[w], state.drains[w] = events.FREE, 0

    def _start(self) -> float | None:
        if not self.starts:
            return None
        middle = len(self.starts) // 2
        return (self.starts[middle] + self.starts[~middle]) / 2.0

    def _count_stuck(self) -> int:
        if not self._unplaced:
            return 0
        limit = stuck_after_seconds(self._start())
        return sum(self.time - since > limit for since in self._unplaced)


def _build_given(setting: Setting, random: np.random.Generator) -> Given:
    phases: Sequence[Phase] = setting.phases
    tails = np.ones(1)
    if setting.tail is not None:
        # Pareto with mean 1.
        shape = setting.tail
        tails = (1.0 + random.pareto(shape, _NUM_DRAWS)) * (shape - 1.0) / shape
    # Numba compiles for each combination of types, 15 seconds each: integers become floats.
    return Given(
        rows=float(setting.rows),
        batch_rows=float(setting.batch_rows),
        unit_rows=float(setting.unit_rows),
        credit_units=setting.credit_units,
        noise=float(setting.noise),
        read_share=float(setting.read_share),
        storage=float(setting.storage_rows_per_second),
        is_ordered=setting.is_ordered,
        warm_seconds=float(setting.warm_seconds),
        warm_speed=float(setting.warm_speed),
        epoch_steps=setting.epoch_steps,
        pause_seconds=float(setting.pause_seconds),
        phase_rows=np.array([phase.from_row for phase in phases], dtype=np.float64),
        phase_step=np.array([phase.step_seconds for phase in phases], dtype=np.float64),
        phase_row=np.array([phase.row_seconds for phase in phases], dtype=np.float64),
        phase_waits=np.array([[float(p.waits.get(s, 0.0)) for s in STAGES] for p in phases]),
        normals=random.standard_normal(_NUM_DRAWS),
        tails=tails,
    )


def _build_state(places: int) -> ClusterState:
    ints, floats = np.zeros(places, dtype=np.int64), np.zeros(places)
    state = ClusterState(
        activity=ints.copy(),
        until=floats.copy(),
        ready_at=floats.copy(),
        held_since=floats.copy(),
        unit=ints.copy(),
        read=floats.copy(),
        work=floats.copy(),
        speed=floats + 1.0,
        drains=ints.copy(),
        is_warm=ints.copy(),
        done=np.zeros(events.RING, dtype=np.int64),
        returned=np.zeros(events.RING, dtype=np.int64),
        sums=np.zeros(events.NUM_SUMS),
        waits=np.zeros(len(STAGES)),
        now=np.zeros(events.NUM_NOW),
        marks=np.zeros(events.NUM_MARKS, dtype=np.int64),
    )
    state.marks[events.TRAINER] = events.WAITING
    state.now[events.TRAINER_UNTIL] = np.inf
    return state
