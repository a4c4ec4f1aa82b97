"""The simulator, event by event: workers make units, a queue holds them, ranks take batches.

It uses arrays and scalars, so that numba compiles it where it is installed. Without numba the same
functions run a hundred times slower.

Each worker has a place in the arrays. A place is free, or its worker starts, works, is blocked or
drains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")


def compiled(function: Function) -> Function:
    """Return the function, compiled if numba is installed.

    All functions are inlined into one. Calls would count references to every array of
    `ClusterState`, which takes three times as long as the work itself.
    """
    try:
        import numba
    except ImportError:
        return function
    try:
        made: Function = numba.njit(function, cache=True, inline="always")
    except RuntimeError:  # "no locator available": no folder is writable for the cache
        made = numba.njit(function, inline="always")
    return made


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FREE, STARTING, BUSY, BLOCKED = 0, 1, 2, 3
COMPUTING, WAITING, PAUSED, ENDED = 0, 1, 2, 3
# The first seconds of a worker are not counted, as in the runtime's `lastmile_worker_seconds`.
WARMING_SECONDS = 20.0
# A ring of finished units that wait for an earlier one; longer than any credit.
RING = 4096

# Places in `ClusterState.sums`: counters since the start of the run.
ROWS, STEPS, PRODUCTION, COMPUTE, PAUSED_SECONDS = 0, 1, 2, 3, 4
MADE, READ, WORK, HELD, PAID, READY_SECONDS = 5, 6, 7, 8, 9, 10
NUM_SUMS = 11
# Places in `ClusterState.now`.
TIME, TRAINER_UNTIL, WAIT_SINCE, QUEUE_ROWS, PAUSE_SINCE, STEP_SECONDS = 0, 1, 2, 3, 4, 5
NUM_NOW = 6
# Places in `ClusterState.marks`.
TRAINER, NEXT_UNIT, NEXT_OUT, DRAWS, PHASE = 0, 1, 2, 3, 4
EPOCH_STEP, QUEUE_UNITS, NUM_RETURNED = 5, 6, 7
# All places from this one on are free, so that no loop visits them.
END_PLACE = 8
NUM_MARKS = 9


class Given(NamedTuple):
    """Constants of a run: P phases as arrays, and waits [P, S] in seconds per step and stage."""

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


class ClusterState(NamedTuple):
    """State of a simulated run; `waits` are seconds by stage."""

    activity: Ints
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
def _draw(given: Given, state: ClusterState) -> float:
    state.marks[DRAWS] += 1
    return float(given.normals[state.marks[DRAWS] % len(given.normals)])


@compiled
def _factor(given: Given, state: ClusterState) -> float:
    """Draw a lognormal factor with mean 1 and the run's noise as coefficient of variation."""
    sigma2 = np.log(1.0 + given.noise * given.noise)
    return float(np.exp(np.sqrt(sigma2) * _draw(given, state) - 0.5 * sigma2))


@compiled
def _lease(state: ClusterState) -> int:
    """Return the next unit: first the earliest that lost workers did not finish, as the feed does.

    If order is kept and a later unit came first, all workers could wait for the earliest forever.
    """
    if state.marks[NUM_RETURNED] > 0:
        state.marks[NUM_RETURNED] -= 1
        last = state.marks[NUM_RETURNED]
        place = np.argmin(state.returned[: last + 1])
        earliest = int(state.returned[place])
        state.returned[place] = state.returned[last]
        return earliest
    state.marks[NEXT_UNIT] += 1
    return int(state.marks[NEXT_UNIT] - 1)


@compiled
def _begin_unit(given: Given, state: ClusterState, w: int) -> None:
    """Let a worker lease the next unit; its duration depends on the number of busy readers."""
    t, phase = state.now[TIME], state.marks[PHASE]
    cost = given.unit_rows * given.phase_row[phase] * _factor(given, state)
    cost *= given.tails[state.marks[DRAWS] % len(given.tails)]
    speed = state.speed[w]
    state.is_warm[w] = 1 if t >= state.ready_at[w] + WARMING_SECONDS else 0
    if t < state.ready_at[w] + given.warm_seconds:
        speed *= given.warm_speed
    busy = 0
    for other in range(state.marks[END_PLACE]):
        if state.activity[other] == BUSY:
            busy += 1
    rate = max(1, busy) / given.phase_row[phase]
    slower = max(1.0, rate / given.storage)
    work = cost * (1.0 - given.read_share) / speed
    read = max(cost * given.read_share / speed, cost * slower - work)
    state.read[w], state.work[w] = read, work
    state.unit[w] = _lease(state)
    state.activity[w] = BUSY
    state.until[w] = t + read + work


@compiled
def _has_credit(given: Given, state: ClusterState, unit: int) -> bool:
    if given.is_ordered:
        return bool(unit - state.marks[NEXT_OUT] + state.marks[QUEUE_UNITS] < given.credit_units)
    return bool(state.marks[QUEUE_UNITS] < given.credit_units)


@compiled
def _hand_over(given: Given, state: ClusterState, w: int) -> None:
    """Put a finished unit into the queue; its worker starts another, or ends if it drains."""
    if given.is_ordered:
        state.done[state.unit[w] % RING] = 1
        while state.done[state.marks[NEXT_OUT] % RING] == 1:
            state.done[state.marks[NEXT_OUT] % RING] = 0
            state.marks[NEXT_OUT] += 1
            state.marks[QUEUE_UNITS] += 1
            state.now[QUEUE_ROWS] += given.unit_rows
    else:
        state.marks[QUEUE_UNITS] += 1
        state.now[QUEUE_ROWS] += given.unit_rows
    if state.is_warm[w] == 1:
        state.sums[MADE] += given.unit_rows
    if state.drains[w] == 1:
        state.activity[w] = FREE
        state.drains[w] = 0
    else:
        _begin_unit(given, state, w)


@compiled
def _finish_unit(given: Given, state: ClusterState, w: int) -> None:
    if state.is_warm[w] == 1:
        state.sums[READ] += state.read[w]
        state.sums[WORK] += state.work[w]
    if state.drains[w] == 1 or _has_credit(given, state, state.unit[w]):
        _hand_over(given, state, w)
    else:
        state.activity[w] = BLOCKED
        state.held_since[w] = state.now[TIME]
        state.until[w] = np.inf


@compiled
def _release(given: Given, state: ClusterState) -> None:
    """Let blocked workers hand over units within the credit, the oldest unit first."""
    while True:
        first = -1
        for w in range(state.marks[END_PLACE]):
            if state.activity[w] == BLOCKED and (first < 0 or state.unit[w] < state.unit[first]):
                first = w
        if first < 0 or not _has_credit(given, state, state.unit[first]):
            return
        state.sums[HELD] += state.now[TIME] - state.held_since[first]
        _hand_over(given, state, first)


@compiled
def _take_batch(given: Given, state: ClusterState) -> None:
    """Let the trainers take a batch if it is ready, and wait for it otherwise."""
    t = state.now[TIME]
    if state.sums[ROWS] >= given.rows:
        state.marks[TRAINER] = ENDED
        state.now[TRAINER_UNTIL] = np.inf
        return
    if state.now[QUEUE_ROWS] < given.batch_rows:
        state.marks[TRAINER] = WAITING
        state.now[WAIT_SINCE] = t
        state.now[TRAINER_UNTIL] = np.inf
        return
    state.now[QUEUE_ROWS] -= given.batch_rows
    state.marks[QUEUE_UNITS] = int(np.ceil(state.now[QUEUE_ROWS] / given.unit_rows))
    phase = state.marks[PHASE]
    while phase + 1 < len(given.phase_rows) and state.sums[ROWS] >= given.phase_rows[phase + 1]:
        phase += 1
    state.marks[PHASE] = phase
    seconds = given.phase_step[phase] * _factor(given, state)
    state.sums[COMPUTE] += seconds
    for stage in range(len(state.waits)):
        state.waits[stage] += given.phase_waits[phase, stage]
        seconds += given.phase_waits[phase, stage]
    state.now[STEP_SECONDS] = seconds
    state.sums[ROWS] += given.batch_rows
    state.sums[STEPS] += 1.0
    state.marks[TRAINER] = COMPUTING
    state.now[TRAINER_UNTIL] = t + seconds
    _release(given, state)


@compiled
def _end_wait(state: ClusterState) -> None:
    waited = state.now[TIME] - state.now[WAIT_SINCE]
    state.sums[PRODUCTION] += waited
    state.now[WAIT_SINCE] = state.now[TIME]


@compiled
def _end_step(given: Given, state: ClusterState) -> None:
    """End a step or a pause: take the next batch, or start the pause that is due."""
    if state.marks[TRAINER] == COMPUTING and given.epoch_steps > 0:
        state.marks[EPOCH_STEP] += 1
        if state.marks[EPOCH_STEP] >= given.epoch_steps:
            state.marks[EPOCH_STEP] = 0
            state.marks[TRAINER] = PAUSED
            state.now[PAUSE_SINCE] = state.now[TIME]
            state.now[TRAINER_UNTIL] = state.now[TIME] + given.pause_seconds
            return
    if state.marks[TRAINER] == PAUSED:
        state.sums[PAUSED_SECONDS] += state.now[TIME] - state.now[PAUSE_SINCE]
    _take_batch(given, state)


@compiled
def _find_end_place(state: ClusterState) -> None:
    while state.marks[END_PLACE] > 0 and state.activity[state.marks[END_PLACE] - 1] == FREE:
        state.marks[END_PLACE] -= 1


@compiled
def _pass(state: ClusterState, until: float) -> None:
    """Advance the time to an event, without events in between."""
    paid, ready = 0, 0
    for w in range(state.marks[END_PLACE]):
        if state.activity[w] != FREE:
            paid += 1
            if state.activity[w] != STARTING:
                ready += 1
    seconds = until - state.now[TIME]
    state.sums[PAID] += paid * seconds
    state.sums[READY_SECONDS] += ready * seconds
    state.now[TIME] = until


@compiled
def advance(given: Given, state: ClusterState, until: float) -> None:
    """Simulate all events until a time, or until the run has ended."""
    _find_end_place(state)
    while state.marks[TRAINER] != ENDED:
        first, at = -1, state.now[TRAINER_UNTIL]
        for w in range(state.marks[END_PLACE]):
            if state.activity[w] != FREE and state.until[w] < at:
                first, at = w, state.until[w]
        if at > until:
            break
        _pass(state, at)
        if first < 0:
            _end_step(given, state)
        elif state.activity[first] == STARTING:
            state.ready_at[first] = at
            _begin_unit(given, state, first)
        else:
            _finish_unit(given, state, first)
        if state.marks[TRAINER] == WAITING and state.now[QUEUE_ROWS] >= given.batch_rows:
            _end_wait(state)
            _take_batch(given, state)
    if state.marks[TRAINER] != ENDED:
        _pass(state, until)
