"""Progress and pace of a run, from one reading of the trainers to the next.

One computation for everything that shows it: the progress line, the `lastmile_*` metrics, and by
them the status of an experiment on a cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline_runtime.metrics import Pace
from pipeline_runtime.monitor import RankSnapshot
from pipeline_runtime.run.training.totals import total_counts

# Rates are of the last minute: a change of the number of data workers shows, one slow batch does
# not.
WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """Running totals over all ranks."""

    seconds: float  # since the trainers started
    rows: int
    samples: int
    waited_seconds: float  # of all trainers, for rows that no worker had made yet
    spent_seconds: float  # of all trainers
    busy_seconds: float  # of these, in the entrypoint's steps
    paused_seconds: float  # of these, in evaluation, checkpoints and reports


@dataclass(slots=True)
class PaceMeter:
    """Measures one run.

    Attributes:
        planned_rows: rows that the whole run reads, all epochs.
    """

    planned_rows: int
    _window: deque[_Reading] = field(default_factory=deque)

    def measure(self, ranks: Sequence[RankSnapshot]) -> Pace | None:
        """The pace by the newest snapshot of every rank; None before the first row."""
        now = _read(ranks)
        if now is None:
            return None
        self._remember(now)
        first = self._window[0]
        seconds = now.seconds - first.seconds
        rows_per_second = (now.rows - first.rows) / seconds if seconds > 0 else None
        spent = now.spent_seconds - first.spent_seconds
        training = spent - (now.paused_seconds - first.paused_seconds)
        busy = now.busy_seconds - first.busy_seconds
        left = max(0, self.planned_rows - now.rows)
        return Pace(
            progress_ratio=min(1.0, now.rows / max(1, self.planned_rows)),
            rows_per_second=rows_per_second,
            remaining_seconds=left / rows_per_second if rows_per_second else None,
            samples_per_second=(now.samples - first.samples) / seconds if seconds > 0 else None,
            production_wait_ratio=(
                min(1.0, (now.waited_seconds - first.waited_seconds) / spent) if spent > 0 else None
            ),
            busy_ratio=min(1.0, busy / training) if training > 0 else None,
            metrics=dict(min(ranks, key=lambda rank: rank.rank).metrics),
        )

    def _remember(self, now: _Reading) -> None:
        if not self._window or now.seconds > self._window[-1].seconds:
            self._window.append(now)
        while len(self._window) > 2 and now.seconds - self._window[1].seconds >= WINDOW_SECONDS:
            self._window.popleft()


def _read(ranks: Sequence[RankSnapshot]) -> _Reading | None:
    counts = total_counts(ranks)
    rows = counts[0].rows if counts else 0
    if not rows:
        return None
    return _Reading(
        seconds=max(rank.seconds for rank in ranks),
        rows=rows,
        samples=sum(rank.attempt_samples for rank in ranks),
        waited_seconds=sum(rank.waited["production"] for rank in ranks),
        spent_seconds=sum(sum(rank.waited.values()) for rank in ranks),
        busy_seconds=sum(rank.waited["compute"] for rank in ranks),
        paused_seconds=sum(rank.waited["paused"] for rank in ranks),
    )
