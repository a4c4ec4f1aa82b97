"""Shows a run while it runs: one live line on a terminal, a line now and then in a log.

Before the consumer has anything to show, the live line says what is loading, and for how long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline_runtime.kernels import loading_seconds
from pipeline_runtime.run.phases import Phases

if TYPE_CHECKING:
    from pipeline_runtime.run.consumers import ConsumerRun, Reading

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
    """Shows readings of a run; use it as a context manager."""

    console: Console
    phases: Phases
    _stopping: str = ""
    _line: str = ""
    _line_phase: str = ""  # in which the line was shown
    _live: Live | None = None
    _last_line: float = 0.0
    _notes: set[str] = field(default_factory=set)

    def __enter__(self) -> RunProgress:
        # Its own lines are no output of the user's code, which is caught on its way to sys.stderr.
        self.console.file = self.console.file
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, transient=True)
            self._live.start()
        return self

    def __rich__(self) -> Text:
        """Return the live line; the display asks for it a few times a second."""
        is_current = self._line and self.phases.current == self._line_phase
        line = self._line if is_current else self.phases.describe()
        return Text(line, no_wrap=True, overflow="ellipsis")

    def __exit__(self, *_: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def prepared(self, run: ConsumerRun) -> None:
        """Say what is about to run."""
        self._stopping = run.stopping
        for line in run.intro:
            self.note(line)
        for warning in (*run.basis.plan.warnings, *run.basis.warnings):
            self.note(f"warning: {warning}")

    def stop(self, count: int) -> None:
        """Say what a signal does."""
        self.note(self._stopping if count == 1 else "stopping at once")

    def note(self, text: str) -> None:
        """Print a line above the live one, once."""
        if text not in self._notes:
            self._notes.add(text)
            self.console.print(text, soft_wrap=True)

    def show(self, reading: Reading) -> None:
        """Show a reading."""
        for note in reading.notes:
            self.note(note)
        if loading_seconds() > COMPILING_SECONDS:
            self.note(_COMPILING)
        self._line, self._line_phase = reading.line, self.phases.current
        now = time.monotonic()
        if reading.line and self._live is None and now - self._last_line >= LOG_SECONDS:
            self._last_line = now
            self.console.print(reading.line, soft_wrap=True)
