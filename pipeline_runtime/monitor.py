"""The state of a run, as its trainers and data workers report it.

Trainers push a snapshot a few times a second, and the answer says whether to go on. Data workers
report the failure that ends a run. The driver reads the state for the progress display, the
`lastmile_*` metrics, the history and the summary. A run in one process has a `Monitor` there; over
Ray it is an actor beside the driver (`training.ranks.ray_runtime`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Protocol

import pyarrow as pa

from pipeline_runtime.feed.chunk import StepCount

# Lines between two readings of the driver; older ones are only in the logs of their processes.
MAX_OUTPUT_LINES = 10_000


class Order(Enum):
    """The monitor's instruction to a trainer."""

    GO_ON = auto()
    STOP = auto()  # at the next step, with a checkpoint
    ABORT = auto()  # now, whatever the process is doing


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """Metrics at a moment of the run, for the history."""

    seconds: float  # since the trainer started; as stored, since the first attempt's did
    epoch: int
    step: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSnapshot:
    """State of one trainer; numbers count from the start of the run unless noted."""

    rank: int
    seconds: float  # since the trainer started
    epoch: int
    step: int
    samples: int
    attempt_samples: int  # since this attempt started
    batch_bytes: int
    checksum: dict[str, Any]
    waited: dict[str, float]  # seconds, see feed.base.Waited
    counts: tuple[StepCount, ...]  # the read and every step, of rows that reached the trainer
    evaluation_counts: tuple[StepCount, ...]
    queue_length: int
    first_batch_at: float | None  # Unix seconds
    last_step_seconds: float
    dropped_rows: int
    padded_rows: int
    checkpoints: int
    checkpoint_failures: int
    last_checkpoint: str | None
    device: str
    metrics: dict[str, float]  # latest value of each metric
    workers: dict[str, float] = field(default_factory=dict)  # see feed.base.WorkerUsage
    longest: dict[str, float] = field(default_factory=dict)  # seconds, see training.lockstep
    loop_seconds: float = 0.0  # since the first batch was asked for, without pauses
    finished: tuple[int, int, float] = (0, 0, 0.0)  # steps, rows, seconds; see `rank_records`
    kept_until: float = 0.0  # Unix seconds of the newest checkpoint, before that of the beginning
    resident_bytes: int = 0  # of the trainer's process
    gpu_bytes: int | None = None  # of the GPU's memory, held by torch; None on a CPU
    resumed_step: int = 0  # `step` when this attempt started
    resumed_counts: tuple[StepCount, ...] = ()  # `counts` then
    is_finished: bool = False
    # Observations of its rows, once it is finished: see `training.measured`.
    measured: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Metrics of one evaluation."""

    epoch: int
    step: int
    metrics: dict[str, float]


@dataclass(slots=True)
class MonitorState:
    """The data that the monitor holds."""

    ranks: dict[int, RankSnapshot] = field(default_factory=dict)
    history: list[HistoryPoint] = field(default_factory=list)
    evaluations: list[Evaluated] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)  # lines of the user's code in other processes
    failure: str | None = None
    failure_kind: str | None = None


class Recorder(Protocol):
    """Turns reports into the metrics history, see `training.recorder`."""

    evaluations: tuple[Evaluated, ...]  # those of earlier attempts

    def add(
        self, ranks: Collection[RankSnapshot], points: Collection[HistoryPoint]
    ) -> list[HistoryPoint]:
        """Record points; return them as the history stores them."""
        ...

    def drop_known(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return metrics without those that an earlier attempt recorded at this step."""
        ...

    def take(self) -> pa.Table:
        """Return the rows since the last call."""
        ...


class Monitor:
    """Holds the state; threads may share it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._state = MonitorState(evaluations=list(recorder.evaluations))
        self._order = Order.GO_ON
        self._lock = threading.Lock()

    def push(self, snapshot: RankSnapshot, history: list[HistoryPoint]) -> Order:
        """Take a trainer's snapshot and its new points of the history; return what it is to do."""
        with self._lock:
            self._state.ranks[snapshot.rank] = snapshot
            ranks = self._state.ranks.values()
            self._state.history.extend(self._recorder.add(ranks, history))
            return self._order

    def take_history(self) -> pa.Table:
        """Return the rows of the metrics history since the last call, for a checkpoint."""
        with self._lock:
            return self._recorder.take()

    def evaluated(self, evaluation: Evaluated) -> None:
        """Take the metrics of an evaluation, unless an earlier attempt reported it."""
        with self._lock:
            metrics = self._recorder.drop_known(evaluation.step, evaluation.metrics)
            if metrics:
                self._state.evaluations.append(replace(evaluation, metrics=metrics))

    def warn(self, message: str) -> None:
        """Take a warning for the summary; one that was given before is not repeated."""
        with self._lock:
            if message not in self._state.warnings:
                self._state.warnings.append(message)

    def printed(self, lines: list[str]) -> None:
        """Take lines that the user's code printed in another process than the driver's."""
        with self._lock:
            self._state.output.extend(lines)
            del self._state.output[:-MAX_OUTPUT_LINES]

    def fail(self, kind: str, message: str) -> None:
        """Take the first failure; later ones follow from it."""
        with self._lock:
            if self._state.failure is None:
                self._state.failure, self._state.failure_kind = message, kind

    def order(self, order: Order) -> None:
        """Tell all trainers with their next push."""
        self._order = order

    def read(self) -> MonitorState:
        """Return the state; history and output are handed over once."""
        with self._lock:
            state = self._state
            self._state = MonitorState(
                ranks=dict(state.ranks),
                evaluations=list(state.evaluations),
                warnings=list(state.warnings),
                failure=state.failure,
                failure_kind=state.failure_kind,
            )
            return state
