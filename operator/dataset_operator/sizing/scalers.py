"""Policies that set the number of workers in a simulation."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataset_operator.autoscaling import Decision, Memory, Rules, Sample, decide


@dataclass(slots=True)
class Autoscaler:
    """The operator's law, as it runs there; its last answer is kept."""

    rules: Rules
    last: Decision | None = None
    _memory: Memory = field(default_factory=lambda: Memory(since=0.0))

    def decide(self, sample: Sample) -> int:
        """The number to ask for from now on."""
        self.last, self._memory = decide(self._memory, sample, self.rules)
        return self.last.desired

    def restart(self) -> None:
        """Do nothing: no simulation restarts it."""


@dataclass(frozen=True, slots=True)
class Constant:
    """So many workers, always."""

    workers: int

    def decide(self, sample: Sample) -> int:
        """The number to ask for from now on."""
        return self.workers

    def restart(self) -> None:
        """Do nothing: it has no memory."""
