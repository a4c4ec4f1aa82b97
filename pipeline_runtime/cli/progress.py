"""Shows a run while it runs: one live line on a terminal, a line now and then in a log.

Before the first batch, the live line says what is loading, and for how long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline_runtime.kernels import loading_seconds
from pipeline_runtime.report.formats import format_duration
from pipeline_runtime.run import phases
from pipeline_runtime.run.phases import Phases

if TYPE_CHECKING:
    from pipeline_runtime.metrics import Pace
    from pipeline_runtime.monitor import MonitorState
    from pipeline_runtime.run.prepare import PreparedRun

# In a log file or CI a line this often says enough.
LOG_SECONDS = 10.0
# Kernels come from numba's cache in a second or two.
COMPILING_SECONDS = 5.0
_COMPILING = (
    "compiling kernels for this machine, once; until they are ready, data work is slower "
    "(python -m pipeline_runtime.kernels compiles them ahead of a run)"
)


@dataclass(slots=True)
class RunProgress:
    """Shows readings of the monitor; use it as a context manager."""

    console: Console
    phases: Phases
    run: PreparedRun | None = None
    _line: str = ""
    _is_trained: bool = False
    _live: Live | None = None
    _last_line: float = 0.0
    _notes: set[str] = field(default_factory=set)

    def __enter__(self) -> RunProgress:
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, transient=True)
            self._live.start()
        return self

    def __rich__(self) -> Text:
        """Return the live line; the display asks for it a few times a second."""
        is_training = self.phases.current == phases.TRAINING and self._line
        line = self._line if is_training else self.phases.describe()
        return Text(line, no_wrap=True, overflow="ellipsis")

    def __exit__(self, *_: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def prepared(self, run: PreparedRun) -> None:
        """Say what is about to run."""
        self.run = run
        metadata, pruning = run.experiment.metadata, run.plan.training.scan.pruning
        self.note(
            f"{metadata.name}: run {run.identity.run_hash}, {pruning.rows_read:,} rows in "
            f"{pruning.row_groups_read} row groups of {pruning.files_read} files, "
            f"{run.experiment.spec.training.epochs} epochs, {run.world_size} trainer(s)"
        )
        if run.resume is not None:
            self.note(
                f"resuming at epoch {run.resume.epoch}, step {run.resume.step}: {run.resume.uri}"
            )
        for warning in (*run.plan.warnings, *run.warnings):
            self.note(f"warning: {warning}")

    def note(self, text: str) -> None:
        """Print a line above the live one, once."""
        if text not in self._notes:
            self._notes.add(text)
            self.console.print(text, soft_wrap=True)

    def state(self, state: MonitorState, pace: Pace | None) -> None:
        """Show a reading."""
        for warning in state.warnings:
            self.note(f"warning: {warning}")
        if loading_seconds() > COMPILING_SECONDS:
            self.note(_COMPILING)
        if self.run is None or not state.ranks:
            return
        if self.phases.current == phases.TRAINING and not self._is_trained:
            self._is_trained = True
            parts = [f"{name} {format_duration(t)}" for name, t in self.phases.seconds.items()]
            whole = format_duration(sum(self.phases.seconds.values()))
            self.note(f"first batch after {whole} ({', '.join(parts)})")
        self._line = line = _describe(self.run, state, pace)
        if self._live is None and time.monotonic() - self._last_line >= LOG_SECONDS:
            self._last_line = time.monotonic()
            self.console.print(line, soft_wrap=True)


def _describe(run: PreparedRun, state: MonitorState, pace: Pace | None) -> str:
    first = state.ranks[min(state.ranks)]
    parts = [
        f"epoch {first.epoch + 1}/{run.experiment.spec.training.epochs}",
        f"step {first.step:,}",
    ]
    if pace is None:
        return " · ".join(parts)
    parts.append(f"{100 * pace.progress_ratio:.0f} %")
    if pace.rows_per_second is not None:
        parts.append(f"{pace.rows_per_second:,.0f} rows/s")
    if pace.samples_per_second is not None:
        parts.append(f"{pace.samples_per_second:,.0f} samples/s")
    if pace.production_wait_ratio is not None:
        parts.append(f"waited {100 * pace.production_wait_ratio:.0f} %")
    if "loss" in first.metrics:
        parts.append(f"loss {first.metrics['loss']:.4f}")
    if pace.remaining_seconds is not None:
        parts.append(f"ETA {_duration(pace.remaining_seconds)}")
    return " · ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
