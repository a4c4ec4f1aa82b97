"""The plant with its pods: asked for, starting, draining, lost; and its counters as a source reads
them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dataset_operator.autoscaling.signals import (
    Pods,
    Sample,
    TrainerCounters,
    WorkerCounters,
    stuck_after_seconds,
)
from dataset_operator.simulation import events
from dataset_operator.simulation.events import Given, Plant
from dataset_operator.simulation.setting import STAGES, Phase, Setting

# Random numbers of a run, drawn once; used round and round.
_NUM_DRAWS = 1 << 16
# Of a pod's start: images and nodes differ.
_START_NOISE = 0.1


@dataclass(slots=True)
class Cluster:
    """Pods of one run on a cluster that places so many; drive it by `ask` and `run`.

    Attributes:
        starts: seconds that its pods took to start, in ascending order.
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
    plant: Plant = field(init=False)
    _random: np.random.Generator = field(init=False)
    _unplaced: list[float] = field(init=False, default_factory=list)  # since when each waits
    _losses: list[tuple[float, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        setting = self.setting
        self.given = _build_given(setting, self._random)
        self.plant = _build_plant(2 * setting.max_workers + 16)
        self._losses = [(loss.at, loss.share) for loss in setting.losses]
        self.ask(setting.first_workers)
        for w in np.flatnonzero(self.plant.state == events.STARTING):
            self.plant.until[w] = self.time  # they were there when the run began

    @property
    def has_ended(self) -> bool:
        """Return whether the run has trained all its rows."""
        return bool(self.plant.marks[events.TRAINER] == events.ENDED)

    @property
    def ready(self) -> int:
        """Workers that are up and not being drained."""
        state, drains = self._places()
        return int(np.count_nonzero((state >= events.BUSY) & (drains == 0)))

    @property
    def pods(self) -> int:
        """Pods that are there, whatever they do; none once the run has ended."""
        return 0 if self.has_ended else int(np.count_nonzero(self._places()[0]))

    @property
    def capacity(self) -> int:
        """Pods that this run could have now."""
        return max(0, self.setting.schedulable - self.others)

    def ask(self, workers: int) -> None:
        """Ask for so many: pods are added, or drained, the youngest first."""
        self.desired = workers
        self._match()

    def run(self, until: float) -> None:
        """Let time go by; pods that are lost meanwhile are replaced, as KubeRay does."""
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
        sums, plant = self.plant.sums, self.plant
        waits = {stage: float(plant.waits[i]) for i, stage in enumerate(STAGES)}
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

    def _loop_seconds(self) -> float:
        """Return the loop's seconds as the runtime reports them: no pauses, but open waits."""
        plant = self.plant
        paused = float(plant.sums[events.PAUSED_SECONDS])
        if plant.marks[events.TRAINER] == events.PAUSED:
            paused += self.time - float(plant.now[events.PAUSE_SINCE])
        return self.time - paused

    def _advance(self, until: float) -> None:
        events.advance(self.given, self.plant, float(until))
        self.time = float(self.plant.now[events.TIME]) if self.has_ended else until

    def _match(self) -> None:
        """Match the pods to the requested number, as far as the cluster places them."""
        state, drains = self._places()
        there = int(np.count_nonzero((state != events.FREE) & (drains == 0)))
        missing = self.desired - there
        if missing < 0:
            self._drain(-missing)
        placeable = max(0, min(missing, self.capacity - there))
        for _ in range(placeable):
            self._start_pod()
        waiting = max(0, missing - placeable)
        self._unplaced = self._unplaced[:waiting]
        self._unplaced += [self.time] * (waiting - len(self._unplaced))

    def _places(self) -> tuple[events.Ints, events.Ints]:
        """Return states and drains of the places that may be taken."""
        end = self.plant.marks[events.END_PLACE]
        return self.plant.state[:end], self.plant.drains[:end]

    def _start_pod(self) -> None:
        plant = self.plant
        w = int(np.flatnonzero(plant.state == events.FREE)[0])
        seconds = self.setting.start_seconds * float(
            np.exp(_START_NOISE * self._random.standard_normal())
        )
        plant.state[w] = events.STARTING
        plant.marks[events.END_PLACE] = max(int(plant.marks[events.END_PLACE]), w + 1)
        plant.until[w] = self.time + seconds
        plant.drains[w] = 0
        is_slow = self._random.random() < self.setting.slow_share
        plant.speed[w] = self.setting.slow_speed if is_slow else 1.0
        insort(self.starts, seconds)

    def _drain(self, number: int) -> None:
        """Drain pending workers first, then the youngest; they hand over their rows."""
        plant = self.plant
        starting = np.flatnonzero((plant.state == events.STARTING) & (plant.drains == 0))
        latest = starting[np.argsort(-plant.until[starting])][:number]
        plant.state[latest] = events.FREE
        is_up = (plant.state == events.BUSY) | (plant.state == events.BLOCKED)
        up = np.flatnonzero(is_up & (plant.drains == 0))
        youngest = up[np.argsort(-plant.ready_at[up])][: number - len(latest)]
        for w in youngest:
            plant.drains[w] = 1
            if plant.state[w] == events.BLOCKED:
                plant.sums[events.HELD] += self.time - plant.held_since[w]
                plant.held_since[w] = self.time
                plant.state[w] = events.BUSY  # it hands over at once, credit or not
                plant.until[w] = self.time
                plant.read[w] = plant.work[w] = 0.0

    def _lose(self, share: float) -> None:
        """Each worker is lost with this probability; its unit is made anew by another."""
        plant = self.plant
        lost = self._random.random(len(plant.state)) < share
        for w in np.flatnonzero((plant.state != events.FREE) & lost):
            if plant.state[w] != events.STARTING:
                count = plant.marks[events.NUM_RETURNED]
                plant.returned[count] = plant.unit[w]
                plant.marks[events.NUM_RETURNED] = count + 1
            plant.state[w], plant.drains[w] = events.FREE, 0

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


def _build_plant(places: int) -> Plant:
    ints, floats = np.zeros(places, dtype=np.int64), np.zeros(places)
    plant = Plant(
        state=ints.copy(),
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
    plant.marks[events.TRAINER] = events.WAITING
    plant.now[events.TRAINER_UNTIL] = np.inf
    return plant
