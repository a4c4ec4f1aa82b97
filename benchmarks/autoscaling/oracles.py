"""Upper bounds: a policy that knows the means, and one that also knows the future."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from benchmarks.autoscaling.ours import rules_of
from dataset_operator.autoscaling.chain import clamp, constrain
from dataset_operator.autoscaling.interface import PERIOD_SECONDS, Rules
from dataset_operator.autoscaling.intervals import (
    FIRST_GROWTH,
    MAX_GROWTH,
    Memory,
    Move,
    note_recommendation,
)
from dataset_operator.autoscaling.recommend import WINDOW_SECONDS
from dataset_operator.autoscaling.signals import Sample
from dataset_operator.simulation import events
from dataset_operator.simulation.cluster import Cluster
from dataset_operator.simulation.truth import Truth, truth_now, truth_of

_MOSTLY = 0.5


@dataclass(slots=True)
class LatencyOracle:
    """Knows demand and throughput without noise, a window late; has our bounds and limits."""

    cluster: Cluster
    _rules: Rules = field(init=False)
    _memory: Memory = field(init=False)
    _truths: list[tuple[float, Truth]] = field(init=False, default_factory=list)
    _verified: int = field(init=False, default=0)
    _growth: float = field(init=False, default=FIRST_GROWTH)
    _ready: tuple[int, float] = field(init=False, default=(0, 0.0))

    def __post_init__(self) -> None:
        self._rules = rules_of(self.cluster)
        self._memory = Memory(since=0.0)

    def restart(self) -> None:
        """Do nothing, since oracles forget nothing."""

    def decide(self, sample: Sample) -> int:
        now, current = sample.at, sample.desired
        self._truths.append((now, truth_now(self.cluster)))
        known = [truth for at, truth in self._truths if at <= now - WINDOW_SECONDS]
        if not known:
            return current
        truth = known[-1]
        wanted = truth.required(self._rules.headroom)
        wanted = min(wanted, max(current, self._most(sample)))
        window = self._rules.down.stabilization_seconds
        memory = note_recommendation(self._memory, now, wanted, window)
        workers, _ = constrain(wanted, current, memory, self._rules, now)
        if workers != current:
            moved = Move(at=now, before=current, after=workers)
            memory = replace(memory, moves=(*memory.moves, moved))
        self._memory = memory
        return workers

    def _most(self, sample: Sample) -> int:
        """Return the most workers that may be requested, by those ready for a window."""
        ready, since = self._ready
        if sample.pods.ready != ready:
            self._ready = (sample.pods.ready, sample.at)
        elif sample.at - since >= WINDOW_SECONDS and ready > self._verified:
            if self._verified:
                self._growth = min(MAX_GROWTH, 2.0 * self._growth)
            self._verified = ready
        is_reading = self.cluster.setting.read_share > _MOSTLY
        growth = self._growth if is_reading else MAX_GROWTH
        return -int(-(1.0 + growth) * max(self._verified, 1) // 1)


@dataclass(slots=True)
class Clairvoyant:
    """Knows the future: pods are ready when they are required, and leave when they are not."""

    cluster: Cluster

    def restart(self) -> None:
        """Do nothing, since oracles forget nothing."""

    def decide(self, sample: Sample) -> int:
        setting = self.cluster.setting
        ahead = setting.start_seconds + setting.warm_seconds + 2.0 * PERIOD_SECONDS
        rules = rules_of(self.cluster)
        rows = float(self.cluster.state.sums[events.ROWS])
        truth = truth_now(self.cluster)
        needed = truth.required(rules.headroom)
        index = int(self.cluster.state.marks[events.PHASE])
        for phase in setting.phases[index + 1 :]:
            ahead -= (phase.from_row - rows) / truth.demand
            if ahead < 0.0:
                break
            rows, truth = phase.from_row, truth_of(setting, phase)
            needed = max(needed, truth.required(rules.headroom))
        return clamp(needed, rules).workers
