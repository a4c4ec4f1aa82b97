"""Watches the trainers of a prepared run, and says how it ended.

The trainers run elsewhere: in a thread of this process (`in_process`), or over Ray (`on_ray`). The
main thread watches them, feeds the display, the metrics and the history, and turns Ctrl-C into a
stop with a checkpoint. Whatever happens ends in an `Outcome`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pipeline_runtime.monitor import MonitorState
from pipeline_runtime.run.consumers import Outcome
from pipeline_runtime.run.stop_signals import StopRequest

# How often the driver looks at the monitor.
WATCH_SECONDS = 0.5
# After Ctrl-C the trainers have this long for a step and a checkpoint.
STOP_SECONDS = 60.0


class Trainers(Protocol):
    """The trainers of a run, which have been started."""

    def wait(self, seconds: float) -> bool:
        """Wait for their end, at most so long; return whether they have ended."""
        ...

    def read(self) -> MonitorState:
        """Return what they reported."""
        ...

    def stop(self) -> None:
        """Ask for a checkpoint after the step, and the end."""
        ...

    def abort(self) -> bool:
        """End them now; return whether they have ended."""
        ...

    def explain(self) -> str | None:
        """Return what ended them if they failed without a report of theirs."""
        ...

    def close(self) -> None:
        """End what served them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome(Outcome):
    """The end of a training, and the reports of its trainers."""

    state: MonitorState


def execute(
    start: Callable[[], Trainers], stop: StopRequest, watch: Callable[[MonitorState], None]
) -> TrainingOutcome:
    """Run to the end; `watch` is called with every reading of the monitor, the last included.

    If watching fails, the trainers are aborted, and the error is raised.
    """
    trainers = start()
    try:
        return _watch_to_end(trainers, stop, watch)
    except BaseException:
        with contextlib.suppress(Exception):
            trainers.abort()
        raise
    finally:
        trainers.close()


def _watch_to_end(
    trainers: Trainers, stop: StopRequest, watch: Callable[[MonitorState], None]
) -> TrainingOutcome:
    deadline: float | None = None
    is_aborted = has_ended = False
    while not (has_ended or is_aborted):
        has_ended = trainers.wait(WATCH_SECONDS)
        watch(trainers.read())
        if stop.count and deadline is None:
            deadline = time.monotonic() + STOP_SECONDS
            trainers.stop()
        if deadline is not None and (stop.count > 1 or time.monotonic() > deadline):
            is_aborted, has_ended = True, trainers.abort()
    state = trainers.read()
    watch(state)
    return _judge(trainers.explain(), state, is_aborted=is_aborted, is_running=not has_ended)


def _judge(
    explanation: str | None, state: MonitorState, *, is_aborted: bool, is_running: bool
) -> TrainingOutcome:
    if is_aborted or state.failure_kind == "Interrupted":
        return TrainingOutcome(
            kind="Interrupted",
            error=state.failure,
            error_kind="Interrupted",
            state=state,
            is_running=is_running,
        )
    if explanation is None and state.failure is None:
        return TrainingOutcome(kind="Complete", state=state)
    error = state.failure or explanation
    return TrainingOutcome(
        kind="Failed", error=error, error_kind=state.failure_kind or "FeedError", state=state
    )
