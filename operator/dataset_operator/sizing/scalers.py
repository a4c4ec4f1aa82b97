"""Policies that set the number of workers in a simulation."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataset_operator.autoscaling import Decision, Memory, Rules, Sample, decide


@dataclass(slots=True)
class Autoscaler:
    """The autoscaling policy as the operator runs it; the last decision is kept."""

    rules: Rules
    last: Decision | None = None
    _memory: Memory = field(default_factory=lambda: Memory(since=0.0))

    def decide(self, sample: Sample) -> int:
        """Return the number of workers to request."""
        self.last, self._memory = decide(self._memory, sample, self.rules)
        return self.last.desired

    def restart(self) -> None:
        """Do nothing, since no simulation restarts it."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant number of workers."""

    workers: int

    def decide(self, sample: Sample) -> int:
        """Return the number of workers to request."""
        return self.workers

    def restart(self) -> None:
        """Do nothing, since there is no memory."""
