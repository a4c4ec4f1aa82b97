"""A run while it runs: one live line on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline_runtime.monitor import MonitorState
from pipeline_runtime.run.prepare import PreparedRun
from pipeline_runtime.run.summarise import time_shares, total_counts

# In a log file or CI a line this often says enough.
LOG_SECONDS = 10.0


@dataclass(slots=True)
class RunProgress:
    """Shows readings of the monitor; use it as a context manager."""

    console: Console
    run: PreparedRun | None = None
    _live: Live | None = None
    _last_line: float = 0.0
    _first: tuple[float, int] | None = None  # (seconds, rows) of the first reading with rows
    _notes: set[str] = field(default_factory=set)

    def __enter__(self) -> RunProgress:
        if self.console.is_terminal:
            self._live = Live(Text("starting Ray …"), console=self.console, transient=True)
            self._live.start()
        return self

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

    def state(self, state: MonitorState) -> None:
        """Show a reading."""
        for warning in state.warnings:
            self.note(f"warning: {warning}")
        if self.run is None or not state.ranks:
            return
        line = self._line(self.run, state)
        if self._live is not None:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._last_line >= LOG_SECONDS:
            self._last_line = time.monotonic()
            self.console.print(line, soft_wrap=True)

    def _line(self, run: PreparedRun, state: MonitorState) -> str:
        ranks = list(state.ranks.values())
        counts = total_counts(ranks)
        rows = counts[0].rows if counts else 0
        seconds = max(rank.seconds for rank in ranks)
        if self._first is None and rows:
            self._first = (seconds, rows)
        rate = self._rate(seconds, rows)
        samples = sum(rank.attempt_samples for rank in ranks) / seconds if seconds else 0.0
        waited = time_shares(ranks).get("production", 0.0)
        parts = [
            f"epoch {ranks[0].epoch + 1}/{run.experiment.spec.training.epochs}",
            f"step {ranks[0].step:,}",
            f"{100 * rows / max(1, run.planned_rows):.0f} %",
            f"{rate:,.0f} rows/s",
            f"{samples:,.0f} samples/s",
            f"waited {100 * waited:.0f} %",
        ]
        loss = ranks[0].metrics.get("loss")
        parts += [f"loss {loss:.4f}"] if loss is not None else []
        parts += [f"ETA {_duration((run.planned_rows - rows) / rate)}"] if rate > 0 else []
        return " · ".join(parts)

    def _rate(self, seconds: float, rows: int) -> float:
        if self._first is None or seconds <= self._first[0]:
            return rows / seconds if seconds else 0.0
        return (rows - self._first[1]) / (seconds - self._first[0])


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
