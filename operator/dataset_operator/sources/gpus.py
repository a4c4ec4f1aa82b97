"""Utilisation of a run's GPUs, from the last value of each, if all of them are known.

    absent      fewer GPUs have told something than the trainers have
    stale       a value holds for three scrapes, then it is no longer known
    0           is believed of a GPU that was seen busy: Ray tells 0 where NVML gives nothing
    others      of more GPUs than the trainers have nobody knows which are theirs

Each makes the whole unknown: of the mean over those that are left nobody could tell whether the
GPUs changed or only which of them are counted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from dataset_operator.names import Owner

# Runs that nobody asked for in so long are over.
_FORGET_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """Over the trainers' GPUs, 0 to 1."""

    mean: float
    slowest: float


@dataclass(slots=True)
class _Told:
    """Last values of one run's GPUs, by name."""

    percents: dict[str, tuple[float, float]] = field(default_factory=dict)  # (value, when)
    busy: set[str] = field(default_factory=set)  # that told more than 0
    asked_at: float = -math.inf


@dataclass(slots=True, kw_only=True)
class GpuBook:
    """Values that GPUs reported; times are seconds of any one clock.

    Attributes:
        stale_seconds: for how long a value holds.
    """

    stale_seconds: float
    _runs: dict[Owner, _Told] = field(default_factory=dict)

    def is_due(self, owner: Owner, now: float, every_seconds: float) -> bool:
        """Return whether it is time to query a run's GPUs again."""
        told = self._runs.get(owner)
        return told is None or now - told.asked_at >= every_seconds

    def oldest(self, owner: Owner, prefix: str) -> float:
        """Return the oldest report time of the GPUs with this prefix of their names."""
        told = self._runs.get(owner) or _Told()
        times = [at for name, (_, at) in told.percents.items() if name.startswith(prefix)]
        return min(times, default=-math.inf)

    def take_in(self, owner: Owner, percents: Mapping[str, float], now: float) -> None:
        """Remember what a run's GPUs told just now, by name."""
        told = self._runs.setdefault(owner, _Told())
        told.asked_at = now
        for name, percent in percents.items():
            told.percents[name] = (percent, now)
            if percent > 0.0:
                told.busy.add(name)
        kept = {name: v for name, v in told.percents.items() if now - v[1] <= self.stale_seconds}
        told.percents = kept
        for other in [o for o, t in self._runs.items() if now - t.asked_at > _FORGET_SECONDS]:
            del self._runs[other]

    def judge(
        self, owner: Owner, expected: int, now: float, prefixes: Collection[str] = ("",)
    ) -> tuple[GpuUse | None, str]:
        """Return the utilisation of a run's GPUs, or None and the reason why it is unknown.

        Args:
            expected: GPUs of the trainers.
            prefixes: how the names begin of GPUs that count.
        """
        told = self._runs.get(owner) or _Told()
        begins = tuple(prefixes)
        told.busy = {name for name in told.busy if name.startswith(begins)}
        known = {
            name: percent
            for name, (percent, at) in told.percents.items()
            if name.startswith(begins) and now - at <= self.stale_seconds
        }
        if len(known) != expected:
            return None, f"of the trainers' {expected} GPUs {len(known)} tell how busy they are"
        if any(percent <= 0.0 and name not in told.busy for name, percent in known.items()):
            return None, "a trainer's GPU has told nothing but 0, as it does where NVML gives none"
        ratios = [percent / 100.0 for percent in known.values()]
        return GpuUse(mean=math.fsum(ratios) / expected, slowest=min(ratios)), ""


def is_percent(value: float) -> bool:
    """Return whether a value can be a percentage: NVML's -1 and DCGM's blanks cannot."""
    return 0.0 <= value <= 100.0
