"""The plant, event by event: workers make units, a queue holds them, ranks take batches.

Written over arrays and scalars, so that numba compiles it where it is installed; without it the
same function runs, a hundred times slower.

    W workers, by place; a place is free, or its worker starts, works, is blocked or drains
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")


def compiled(function: Function) -> Function:
    """The function, compiled if numba is installed.

    All become one: called as they are, they would count references to every array of `Plant`, which
    takes three times as long as what they do.
    """
    try:
        import numba
    except ImportError:
        return function
    try:
        made: Function = numba.njit(function, cache=True, inline="always")
    except RuntimeError:  # "no locator available": no folder that the cache could be written to
        made = numba.njit(function, inline="always")
    return made


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FREE, STARTING, BUSY, BLOCKED = 0, 1, 2, 3
COMPUTING, WAITING, PAUSED, ENDED = 0, 1, 2, 3
# What a worker makes at first is not counted, as in the runtime's `lastmile_worker_seconds`.
WARMING_SECONDS = 20.0
# Finished units that wait for an earlier one: a ring, longer than credits ever are.
RING = 4096

# Places in `Plant.sums`: counters since the run began.
ROWS, STEPS, PRODUCTION, COMPUTE, PAUSED_SECONDS = 0, 1, 2, 3, 4
MADE, READ, WORK, HELD, PAID, READY_SECONDS = 5, 6, 7, 8, 9, 10
NUM_SUMS = 11
# Places in `Plant.now`.
TIME, TRAINER_UNTIL, WAIT_SINCE, QUEUE_ROWS, PAUSE_SINCE = 0, 1, 2, 3, 4
NUM_NOW = 5
# Places in `Plant.marks`.
TRAINER, NEXT_UNIT, NEXT_OUT, DRAWS, PHASE = 0, 1, 2, 3, 4
EPOCH_STEP, QUEUE_UNITS, NUM_RETURNED = 5, 6, 7
# All places from this one on are free, so that nobody looks there.
END_PLACE = 8
NUM_MARKS = 9


class Given(NamedTuple):
    """Constants of a run; phases as arrays of P, waits [P, S] in seconds per step."""

    rows: float
    batch_rows: float
    unit_rows: float
    credit_units: int
    noise: float
    read_share: float
    storage: float
    is_ordered: bool
    warm_seconds: float
    warm_speed: float
    epoch_steps: int
    pause_seconds: float
    phase_rows: Floats
    phase_step: Floats
    phase_row: Floats
    phase_waits: Floats
    normals: Floats
    tails: Floats


class Plant(NamedTuple):
    """State of a run; `waits` are seconds by stage."""

    state: Ints
    until: Floats
    ready_at: Floats
    held_since: Floats
    unit: Ints
    read: Floats
    work: Floats
    speed: Floats
    drains: Ints
    is_warm: Ints
    done: Ints
    returned: Ints
    sums: Floats
    waits: Floats
    now: Floats
    marks: Ints


@compiled
def _draw(given: Given, plant: Plant) -> float:
    plant.marks[DRAWS] += 1
    return float(given.normals[plant.marks[DRAWS] % len(given.normals)])


@compiled
def _factor(given: Given, plant: Plant) -> float:
    """Mean 1, with the run's noise as coefficient of variation (lognormal)."""
    sigma2 = np.log(1.0 + given.noise * given.noise)
    return float(np.exp(np.sqrt(sigma2) * _draw(given, plant) - 0.5 * sigma2))


@compiled
def _lease(plant: Plant) -> int:
    """The next unit; first the earliest that lost workers did not finish, as the feed does.

    With a later one, in order, all could come to wait for the earliest, which nobody makes.
    """
    if plant.marks[NUM_RETURNED] > 0:
        plant.marks[NUM_RETURNED] -= 1
        last = plant.marks[NUM_RETURNED]
        place = np.argmin(plant.returned[: last + 1])
        earliest = int(plant.returned[place])
        plant.returned[place] = plant.returned[last]
        return earliest
    plant.marks[NEXT_UNIT] += 1
    return int(plant.marks[NEXT_UNIT] - 1)


@compiled
def _begin_unit(given: Given, plant: Plant, w: int) -> None:
    """A worker leases the next unit; how long it takes depends on all that read beside it."""
    t, phase = plant.now[TIME], plant.marks[PHASE]
    cost = given.unit_rows * given.phase_row[phase] * _factor(given, plant)
    cost *= given.tails[plant.marks[DRAWS] % len(given.tails)]
    speed = plant.speed[w]
    plant.is_warm[w] = 1 if t >= plant.ready_at[w] + WARMING_SECONDS else 0
    if t < plant.ready_at[w] + given.warm_seconds:
        speed *= given.warm_speed
    busy = 0
    for other in range(plant.marks[END_PLACE]):
        if plant.state[other] == BUSY:
            busy += 1
    rate = max(1, busy) / given.phase_row[phase]
    slower = max(1.0, rate / given.storage)
    work = cost * (1.0 - given.read_share) / speed
    read = max(cost * given.read_share / speed, cost * slower - work)
    plant.read[w], plant.work[w] = read, work
    plant.unit[w] = _lease(plant)
    plant.state[w] = BUSY
    plant.until[w] = t + read + work


@compiled
def _has_credit(given: Given, plant: Plant, unit: int) -> bool:
    if given.is_ordered:
        return bool(unit - plant.marks[NEXT_OUT] + plant.marks[QUEUE_UNITS] < given.credit_units)
    return bool(plant.marks[QUEUE_UNITS] < given.credit_units)


@compiled
def _hand_over(given: Given, plant: Plant, w: int) -> None:
    """A finished unit goes to the queue; its worker begins another, or ends if it drains."""
    if given.is_ordered:
        plant.done[plant.unit[w] % RING] = 1
        while plant.done[plant.marks[NEXT_OUT] % RING] == 1:
            plant.done[plant.marks[NEXT_OUT] % RING] = 0
            plant.marks[NEXT_OUT] += 1
            plant.marks[QUEUE_UNITS] += 1
            plant.now[QUEUE_ROWS] += given.unit_rows
    else:
        plant.marks[QUEUE_UNITS] += 1
        plant.now[QUEUE_ROWS] += given.unit_rows
    if plant.is_warm[w] == 1:
        plant.sums[MADE] += given.unit_rows
    if plant.drains[w] == 1:
        plant.state[w] = FREE
        plant.drains[w] = 0
    else:
        _begin_unit(given, plant, w)


@compiled
def _finish_unit(given: Given, plant: Plant, w: int) -> None:
    if plant.is_warm[w] == 1:
        plant.sums[READ] += plant.read[w]
        plant.sums[WORK] += plant.work[w]
    if plant.drains[w] == 1 or _has_credit(given, plant, plant.unit[w]):
        _hand_over(given, plant, w)
    else:
        plant.state[w] = BLOCKED
        plant.held_since[w] = plant.now[TIME]
        plant.until[w] = np.inf


@compiled
def _release(given: Given, plant: Plant) -> None:
    """Let blocked workers hand over chunks within the credit, the oldest unit first."""
    while True:
        first = -1
        for w in range(plant.marks[END_PLACE]):
            if plant.state[w] == BLOCKED and (first < 0 or plant.unit[w] < plant.unit[first]):
                first = w
        if first < 0 or not _has_credit(given, plant, plant.unit[first]):
            return
        plant.sums[HELD] += plant.now[TIME] - plant.held_since[first]
        _hand_over(given, plant, first)


@compiled
def _take_batch(given: Given, plant: Plant) -> None:
    """The trainers take a batch if it is there, and wait for it otherwise."""
    t = plant.now[TIME]
    if plant.sums[ROWS] >= given.rows:
        plant.marks[TRAINER] = ENDED
        plant.now[TRAINER_UNTIL] = np.inf
        return
    if plant.now[QUEUE_ROWS] < given.batch_rows:
        plant.marks[TRAINER] = WAITING
        plant.now[WAIT_SINCE] = t
        plant.now[TRAINER_UNTIL] = np.inf
        return
    plant.now[QUEUE_ROWS] -= given.batch_rows
    plant.marks[QUEUE_UNITS] = int(np.ceil(plant.now[QUEUE_ROWS] / given.unit_rows))
    phase = plant.marks[PHASE]
    while phase + 1 < len(given.phase_rows) and plant.sums[ROWS] >= given.phase_rows[phase + 1]:
        phase += 1
    plant.marks[PHASE] = phase
    seconds = given.phase_step[phase] * _factor(given, plant)
    plant.sums[COMPUTE] += seconds
    for stage in range(len(plant.waits)):
        plant.waits[stage] += given.phase_waits[phase, stage]
        seconds += given.phase_waits[phase, stage]
    plant.sums[ROWS] += given.batch_rows
    plant.sums[STEPS] += 1.0
    plant.marks[TRAINER] = COMPUTING
    plant.now[TRAINER_UNTIL] = t + seconds
    _release(given, plant)


@compiled
def _end_wait(plant: Plant) -> None:
    waited = plant.now[TIME] - plant.now[WAIT_SINCE]
    plant.sums[PRODUCTION] += waited
    plant.now[WAIT_SINCE] = plant.now[TIME]


@compiled
def _end_step(given: Given, plant: Plant) -> None:
    """A step ends, or a pause: the next batch, or the pause that is due."""
    if plant.marks[TRAINER] == COMPUTING and given.epoch_steps > 0:
        plant.marks[EPOCH_STEP] += 1
        if plant.marks[EPOCH_STEP] >= given.epoch_steps:
            plant.marks[EPOCH_STEP] = 0
            plant.marks[TRAINER] = PAUSED
            plant.now[PAUSE_SINCE] = plant.now[TIME]
            plant.now[TRAINER_UNTIL] = plant.now[TIME] + given.pause_seconds
            return
    if plant.marks[TRAINER] == PAUSED:
        plant.sums[PAUSED_SECONDS] += plant.now[TIME] - plant.now[PAUSE_SINCE]
    _take_batch(given, plant)


@compiled
def _find_end_place(plant: Plant) -> None:
    while plant.marks[END_PLACE] > 0 and plant.state[plant.marks[END_PLACE] - 1] == FREE:
        plant.marks[END_PLACE] -= 1


@compiled
def _pass(plant: Plant, until: float) -> None:
    """Let time go by in which nothing happens."""
    paid, ready = 0, 0
    for w in range(plant.marks[END_PLACE]):
        if plant.state[w] != FREE:
            paid += 1
            if plant.state[w] != STARTING:
                ready += 1
    seconds = until - plant.now[TIME]
    plant.sums[PAID] += paid * seconds
    plant.sums[READY_SECONDS] += ready * seconds
    plant.now[TIME] = until


@compiled
def advance(given: Given, plant: Plant, until: float) -> None:
    """Let everything happen that happens until then, or until the run has ended."""
    _find_end_place(plant)
    while plant.marks[TRAINER] != ENDED:
        first, at = -1, plant.now[TRAINER_UNTIL]
        for w in range(plant.marks[END_PLACE]):
            if plant.state[w] != FREE and plant.until[w] < at:
                first, at = w, plant.until[w]
        if at > until:
            break
        _pass(plant, at)
        if first < 0:
            _end_step(given, plant)
        elif plant.state[first] == STARTING:
            plant.ready_at[first] = at
            _begin_unit(given, plant, first)
        else:
            _finish_unit(given, plant, first)
        if plant.marks[TRAINER] == WAITING and plant.now[QUEUE_ROWS] >= given.batch_rows:
            _end_wait(plant)
            _take_batch(given, plant)
    if plant.marks[TRAINER] != ENDED:
        _pass(plant, until)
