"""Measures how well the data workers keep up with the trainers, for the history of a run.

The shares are defined like those of the whole run (`TimeShares` of the summary): shares of the time
of all trainers, pauses included. `run.session` calls this with each state of the monitor;
`report.supply` draws the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline_runtime.monitor import RankSnapshot
from pipeline_runtime.training.lockstep import STAGES

# Ranks report waits once per step; shares over a shorter time would fluctuate.
SUPPLY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """Seconds of all ranks since the attempt began."""

    waited: float = 0.0
    busy: float = 0.0
    whole: float = 0.0


@dataclass(slots=True)
class SupplyMeter:
    """Measures the supply during one attempt."""

    _before: _Totals | None = None
    _measured: float | None = None  # time of the last measurement, by `clock`

    def measure(self, ranks: Sequence[RankSnapshot], clock: float) -> dict[str, float]:
        """Return values for the history, by name; empty if the last measurement is too recent.

        Args:
            clock: the current Unix time.
        """
        if not ranks or (self._measured is not None and clock - self._measured < SUPPLY_SECONDS):
            return {}
        self._measured = clock
        now, before = _add_up(ranks), self._before or _Totals()
        self._before = now
        return {"unix_seconds": clock, **_shares(before, now), **_count(ranks)}


def _add_up(ranks: Sequence[RankSnapshot]) -> _Totals:
    return _Totals(
        waited=sum(rank.waited[stage] for rank in ranks for stage in STAGES),
        busy=sum(rank.waited["compute"] for rank in ranks),
        whole=sum(sum(rank.waited.values()) for rank in ranks),
    )


def _shares(before: _Totals, now: _Totals) -> dict[str, float]:
    whole = now.whole - before.whole
    if whole <= 0.0:
        return {}
    return {
        "wait_share": _clip((now.waited - before.waited) / whole),
        "busy_share": _clip((now.busy - before.busy) / whole),
    }


def _clip(share: float) -> float:
    """Bound a share: a rank reports a wait when it ends, including the part before `before`."""
    return min(1.0, max(0.0, share))


def _count(ranks: Sequence[RankSnapshot]) -> dict[str, float]:
    """Count the readers: each rank reports those that answer it, and all ranks share them."""
    told = [rank.workers for rank in ranks if any(rank.workers.values())]
    if not told:
        return {}  # no reader yet, or the engine reports none
    return {
        "readers": max(usage["ready"] for usage in told),
        "data_workers": max(usage["workers"] for usage in told),
    }
