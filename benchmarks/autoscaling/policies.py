"""The simulated policies: Lastmile's own, the oracle, constants, and the peers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from benchmarks.autoscaling.peers import Hpa, HpaOnIdleGpus, Keda, RayAutoscaler
from dataset_operator.autoscaling.chain import constrain
from dataset_operator.autoscaling.gpu_only import GpuMemory, decide_by_gpu
from dataset_operator.autoscaling.interface import PERIOD_SECONDS, Rules
from dataset_operator.autoscaling.intervals import (
    FIRST_GROWTH,
    MAX_GROWTH,
    Memory,
    Move,
    note_recommendation,
)
from dataset_operator.autoscaling.policy import decide
from dataset_operator.autoscaling.recommend import WINDOW_SECONDS
from dataset_operator.autoscaling.saved import restore, save
from dataset_operator.autoscaling.signals import Sample
from dataset_operator.simulation.cluster import Cluster
from dataset_operator.simulation.loop import AutoscalingPolicy
from dataset_operator.simulation.setting import Setting
from dataset_operator.simulation.truth import Truth, truth_now

_MOSTLY: Final = 0.5


def rules_of(setting: Setting) -> Rules:
    """Return the rules as the operator derives them from a spec."""
    return Rules(
        min_workers=setting.min_workers,
        max_workers=setting.max_workers,
        is_ordered=setting.is_ordered,
    )


@dataclass(slots=True)
class Lastmile:
    """The operator's policy; after a restart it has the memory in the run's status."""

    cluster: Cluster
    rules: Rules
    _memory: Memory = field(default_factory=lambda: Memory(since=0.0))

    def restart(self) -> None:
        now = self.cluster.time
        self._memory = restore(save(self._memory), now, seen=now - PERIOD_SECONDS)

    def decide(self, sample: Sample) -> int:
        decision, self._memory = decide(self._memory, sample, self.rules)
        return decision.desired


@dataclass(slots=True)
class LastmileByGpu:
    """GPU-only mode; its memory is lost when the operator restarts."""

    cluster: Cluster
    _memory: GpuMemory = field(default_factory=lambda: GpuMemory(chain=Memory(since=0.0)))

    def restart(self) -> None:
        self._memory = GpuMemory(chain=Memory(since=self.cluster.time))

    def decide(self, sample: Sample) -> int:
        rules = rules_of(self.cluster.setting)
        decision, self._memory = decide_by_gpu(self._memory, sample, rules)
        return decision.desired


@dataclass(slots=True)
class LatencyOracle:
    """Knows demand and throughput without noise, a window late; has our bounds and limits."""

    cluster: Cluster
    _memory: Memory = field(default_factory=lambda: Memory(since=0.0))
    _truths: list[tuple[float, Truth]] = field(default_factory=list)
    _verified: int = 0
    _growth: float = FIRST_GROWTH
    _ready: tuple[int, float] = (0, 0.0)

    def restart(self) -> None:
        """Do nothing, since oracles forget nothing."""

    def decide(self, sample: Sample) -> int:
        now, current, rules = sample.at, sample.desired, rules_of(self.cluster.setting)
        self._truths.append((now, truth_now(self.cluster)))
        known = [truth for at, truth in self._truths if at <= now - WINDOW_SECONDS]
        if not known:
            return current
        wanted = known[-1].required(rules.headroom)
        wanted = min(wanted, max(current, self._most(sample)))
        window = rules.down.stabilization_seconds
        memory = note_recommendation(self._memory, now, wanted, window)
        workers, _ = constrain(wanted, current, memory, rules, now)
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
        return math.ceil((1.0 + growth) * max(self._verified, 1))


@dataclass(slots=True)
class Constant:
    """A constant number, within the bounds."""

    workers: int

    def restart(self) -> None:
        """Do nothing."""

    def decide(self, sample: Sample) -> int:
        return self.workers


def _advise(cluster: Cluster) -> Constant:
    """Return the constant that `lastmile profile` advises: ⌈D (1 + h) ÷ μ⌉ without storage."""
    setting = cluster.setting
    phase, rules = setting.phases[0], rules_of(setting)
    demand = setting.batch_rows / (phase.step_seconds + sum(phase.waits.values()))
    workers = math.ceil(demand * phase.row_seconds * (1 + rules.headroom))
    return Constant(min(max(workers, setting.min_workers), setting.max_workers))


OURS: Final = "lastmile"
ORACLE: Final = "latency oracle"
RIVALS: Final[dict[str, Callable[[Cluster], AutoscalingPolicy]]] = {
    "maxReplicas": lambda cluster: Constant(cluster.setting.max_workers),
    "constant of a profile": _advise,
    "HPA on CPU": Hpa,
    "HPA on idle GPUs": HpaOnIdleGpus,
    "KEDA on the queue": Keda,
    "Ray autoscaler": RayAutoscaler,
}
POLICIES: Final[dict[str, Callable[[Cluster], AutoscalingPolicy]]] = {
    OURS: lambda cluster: Lastmile(cluster, rules_of(cluster.setting)),
    "lastmile, GPU only": LastmileByGpu,
    **RIVALS,
    ORACLE: LatencyOracle,
}
