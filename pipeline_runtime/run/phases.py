"""The seconds of a run by what it does, counted from the moment that a person pressed Enter.

imports → plan → torch (→ Ray) → first batch → training → report         a training
imports → plan (→ Ray) → spooling → merging → committing → report        an output

If a step `materialize` lacks rows: plan (→ Ray) → materializing → plan before either goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

IMPORTS = "imports"
PLAN = "plan"
MATERIALIZING = "materializing"
TORCH = "torch"
RAY = "Ray"
FIRST_BATCH = "first batch"
TRAINING = "training"
REPORT = "report"

# What a phase does, for a person who waits.
_DOING: Mapping[str, str] = {
    IMPORTS: "starting",
    PLAN: "planning: reading the files' footers",
    MATERIALIZING: "computing the rows of the step materialize",
    TORCH: "loading torch and the entrypoint",
    RAY: "starting Ray and its workers",
    FIRST_BATCH: "waiting for the first batch",
    TRAINING: "training",
    REPORT: "writing the report",
}
_STARTTIME_FIELD = 22  # of proc(5), stat; counted from 1


@dataclass(slots=True)
class Phases:
    """Measures the phases, one after another.

    Attributes:
        began: Unix time at which the first phase began.
        on_begin: called when a phase begins.
    """

    began: float = field(default_factory=time.time)
    on_begin: Callable[[], None] = field(default=lambda: None)
    current: str = IMPORTS
    current_since: float = field(init=False)
    seconds: dict[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.current_since = self.began

    def begin(self, name: str, at: float | None = None) -> None:
        """End the current phase, and begin another one.

        Args:
            at: Unix time of the change, if another process noticed it earlier.
        """
        now = time.time() if at is None else min(time.time(), max(self.current_since, at))
        self._add(now)
        self.current = name
        self.on_begin()

    def end(self) -> None:
        """End the last phase."""
        self._add(time.time())

    def _add(self, now: float) -> None:
        """Count the current phase, which may have been there before."""
        before = self.seconds.get(self.current, 0.0)
        self.seconds[self.current] = before + now - self.current_since
        self.current_since = now

    def describe(self) -> str:
        """Return what the run is doing, and for how long."""
        waited = time.time() - self.current_since
        return f"{_DOING.get(self.current, self.current)} … {waited:.0f} s"


_has_started = False


def find_start() -> float:
    """Return the Unix time at which this process started, for the first command that it runs.

    A process that runs more than one, and a system that does not tell, get the current time.
    """
    global _has_started
    if _has_started:
        return time.time()
    _has_started = True
    return find_process_start() or time.time()


def find_process_start() -> float | None:
    """Return the Unix time at which this process started; None if the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[_STARTTIME_FIELD - 3]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (AttributeError, OSError, ValueError, IndexError):
        return None
    return time.time() - max(0.0, age)
