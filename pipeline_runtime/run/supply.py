"""How well data workers keep up with the trainers, over time: what the history says of it.

The same figures as those by which the autoscaler decides (`metrics`), as shares of some seconds.
Runs with every reading of the monitor; `report.scaling` draws what it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline_runtime.monitor import RankSnapshot

# Waits are told by steps and come in lumps; shares of less time jump about.
SUPPLY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """Running seconds since the attempt began."""

    loop: float  # of one rank
    waited: float  # of it, of each step the longest of any rank
    busy: float  # of all ranks, in the entrypoint's steps
    spent: float  # of all ranks, without pauses


@dataclass(slots=True)
class SupplyMeter:
    """Measures one attempt."""

    _before: _Totals | None = None
    _measured: float | None = None  # when, by the clock

    def measure(self, ranks: Sequence[RankSnapshot], clock: float) -> dict[str, float]:
        """Values for the history, by name; empty while it is not time for the next.

        Args:
            clock: Unix time now.
        """
        if not ranks or (self._measured is not None and clock - self._measured < SUPPLY_SECONDS):
            return {}
        self._measured = clock
        now, before = _add_up(ranks), self._before or _Totals(loop=0, waited=0, busy=0, spent=0)
        self._before = now
        return {"unix_seconds": clock, **_shares(before, now), **_count(ranks)}


def _add_up(ranks: Sequence[RankSnapshot]) -> _Totals:
    first = min(ranks, key=lambda rank: rank.rank)
    return _Totals(
        loop=first.loop_seconds,
        waited=first.longest.get("production", 0.0),
        busy=sum(rank.waited["compute"] for rank in ranks),
        spent=sum(sum(rank.waited.values()) - rank.waited["paused"] for rank in ranks),
    )


def _shares(before: _Totals, now: _Totals) -> dict[str, float]:
    loop, spent = now.loop - before.loop, now.spent - before.spent
    shares = {}
    if loop > 0.0:
        shares["wait_share"] = _clip((now.waited - before.waited) / loop)
    if spent > 0.0:
        shares["busy_share"] = _clip((now.busy - before.busy) / spent)
    return shares


def _clip(share: float) -> float:
    """A wait is told when it ends, of which a part was before."""
    return min(1.0, max(0.0, share))


def _count(ranks: Sequence[RankSnapshot]) -> dict[str, float]:
    """Each rank tells of the readers that answer it; the same ones serve all ranks."""
    told = [rank.workers for rank in ranks if any(rank.workers.values())]
    if not told:
        return {}  # none yet, or an engine that does not tell
    return {
        "readers": max(usage["ready"] for usage in told),
        "data_workers": max(usage["workers"] for usage in told),
    }
