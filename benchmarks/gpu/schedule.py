"""The order of the measurements, until the deadline leaves no time for more.

A machine with a GPU is lent for minutes. So each cell is measured once before any is measured
again, then each is traced, and measurements become shorter where time is short. The results name
the cells that failed, or for which no time was left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

from benchmarks.dataloading.jobs import Tuning
from benchmarks.dataloading.workloads import FORMS
from benchmarks.gpu.asking import Ask, Busyness, Rate
from benchmarks.gpu.cells import Cell, Scale, list_candidates, list_cells
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.rounds import in_order_of

TUNING_SHARE: Final = 0.25  # of the time, at most
# Seconds beside those on the clock: the first batch of a source, or writing and reading a trace.
_OVERHEAD_SECONDS: Final = 1.0
_MIN_SECONDS: Final = 0.05  # of a measurement


@dataclass(slots=True, kw_only=True)
class Measured:
    """The measurements until now.

    Attributes:
        tuning: rate of each setting of a DataLoader, by the cell that has it.
        rates: of each cell, a round each.
        traces: of each cell.
        failures: why a measurement is missing, each reason once.
    """

    tuning: dict[Cell, Rate] = field(default_factory=dict)
    rates: dict[Cell, list[Rate]] = field(default_factory=dict)
    traces: dict[Cell, Busyness] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def best_tuning(self, form: str) -> Tuning:
        """Return the fastest setting; the default if there was no time to try one."""
        rates = {
            cell.tuning: rate.samples / rate.seconds
            for cell, rate in self.tuning.items()
            if cell.form == form
        }
        return max(rates, key=lambda tuning: rates[tuning], default=Tuning())


class Deadline:
    """The end of the benchmark, and the time that each remaining measurement may take."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._end = clock() + seconds

    @property
    def seconds_left(self) -> float:
        """Seconds until then; below 0 afterwards."""
        return self._end - self.clock()

    def share(
        self, num_remaining: int, max_seconds: float, *, reserve: float = 0.0
    ) -> float | None:
        """Return the seconds of the next of so many measurements; None if there is no time for it.

        Args:
            reserve: seconds to keep for what follows them.
        """
        each = (self.seconds_left - reserve) / num_remaining - _OVERHEAD_SECONDS
        return min(max_seconds, each) if each >= _MIN_SECONDS else None


Run = Callable[[Ask, float], Rate | Busyness]


def measure_all(run: Run, scale: Scale, deadline: Deadline, traces: Path) -> Measured:
    """Tune the DataLoader, then measure and trace all cells.

    Args:
        run: answers a request within so many seconds, or raises BenchmarkError.
        traces: folder for the traces.
    """
    schedule = _Schedule(run, scale, deadline)
    schedule.tune()
    measured = schedule.measured
    cells = list_cells({form: measured.best_tuning(form) for form in FORMS})
    schedule.measure_round(cells, index=0)
    traces.mkdir(parents=True, exist_ok=True)
    schedule.trace(cells, traces)
    for index in range(1, scale.rounds):
        schedule.measure_round(cells, index)
    return measured


class _Schedule:
    """The measurements, one after another."""

    def __init__(self, run: Run, scale: Scale, deadline: Deadline) -> None:
        self.measured = Measured()
        self._run, self._scale, self._deadline = run, scale, deadline

    def tune(self) -> None:
        """Measure each setting of a DataLoader, without a model."""
        candidates = [cell for form in FORMS for cell in list_candidates(self._scale, form)]
        budget = Deadline(self._deadline.seconds_left * TUNING_SHARE, self._deadline.clock)
        for number, cell in enumerate(candidates):
            # Half as long as what is compared: the best is measured again.
            seconds = budget.share(len(candidates) - number, self._scale.max_seconds / 2)
            if seconds is not None:
                found = self._ask(Ask(cell=cell, seconds=seconds, is_last=True))
                if isinstance(found, Rate):
                    self.measured.tuning[cell] = found

    def measure_round(self, cells: Sequence[Cell], index: int) -> None:
        """Measure each cell once; all that are compared with one another, or none of them."""
        remaining = len(cells) * (self._scale.rounds - index)
        reserve = 0.0 if self.measured.traces else len(cells) * _OVERHEAD_SECONDS
        for _, compared in groupby(cells, key=lambda cell: (cell.form, cell.size)):
            together = in_order_of(list(compared), index)
            seconds = self._deadline.share(remaining, self._scale.max_seconds, reserve=reserve)
            remaining -= len(together)
            if seconds is None:
                continue
            for cell in together:
                found = self._ask(Ask(cell=cell, seconds=seconds))
                if isinstance(found, Rate):
                    self.measured.rates.setdefault(cell, []).append(found)

    def trace(self, cells: Sequence[Cell], folder: Path) -> None:
        """Trace each cell that was measured."""
        for cell in cells:
            if cell in self.measured.rates and self._deadline.seconds_left > _OVERHEAD_SECONDS:
                name = f"{cell.form}-{cell.size}-{cell.way}.json"
                path = folder / name.replace(" ", "-").replace(",", "")
                found = self._ask(Ask(cell=cell, trace_path=path))
                if isinstance(found, Busyness):
                    self.measured.traces[cell] = found

    def _ask(self, ask: Ask) -> Rate | Busyness | None:
        """Return the answer, or None if the measurement failed; the others go on."""
        try:
            return self._run(ask, self._deadline.seconds_left)
        except BenchmarkError as error:
            if str(error) not in self.measured.failures:
                self.measured.failures.append(str(error))
            return None
