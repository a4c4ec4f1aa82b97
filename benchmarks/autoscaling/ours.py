"""Lastmile's own policies: the operator's, the GPU-only one, and ablations of the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from dataset_operator.autoscaling.gpu_only import GpuMemory, decide_by_gpu
from dataset_operator.autoscaling.interface import PERIOD_SECONDS, Direction, Rule, Rules
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.autoscaling.policy import decide
from dataset_operator.autoscaling.saved import restore, save
from dataset_operator.autoscaling.signals import Sample
from dataset_operator.simulation.cluster import Cluster

AT_ONCE: Final = Direction(stabilization_seconds=0.0)


def rules_of(cluster: Cluster) -> Rules:
    """Return the rules as the operator derives them from a spec."""
    setting = cluster.setting
    return Rules(
        min_workers=setting.min_workers,
        max_workers=setting.max_workers,
        is_ordered=setting.is_ordered,
    )


@dataclass(slots=True)
class Lastmile:
    """The operator's policy; after a restart it has the memory in the run's status."""

    cluster: Cluster
    change: Callable[[Rules], Rules] = lambda rules: rules
    _rules: Rules = field(init=False)
    _memory: Memory = field(init=False)

    def __post_init__(self) -> None:
        self._rules = self.change(rules_of(self.cluster))
        self._memory = Memory(since=0.0)

    def restart(self) -> None:
        now = self.cluster.time
        self._memory = restore(save(self._memory), now, seen=now - PERIOD_SECONDS)

    def decide(self, sample: Sample) -> int:
        decision, self._memory = decide(self._memory, sample, self._rules)
        return decision.desired


@dataclass(slots=True)
class LastmileByGpu:
    """GPU-only mode; its memory is lost when the operator restarts."""

    cluster: Cluster
    _rules: Rules = field(init=False)
    _memory: GpuMemory = field(init=False)

    def __post_init__(self) -> None:
        self._rules = rules_of(self.cluster)
        self._memory = GpuMemory(chain=Memory(since=0.0))

    def restart(self) -> None:
        self._memory = GpuMemory(chain=Memory(since=self.cluster.time))

    def decide(self, sample: Sample) -> int:
        decision, self._memory = decide_by_gpu(self._memory, sample, self._rules)
        return decision.desired


def _leave_out(rule: Rule) -> Callable[[Rules], Rules]:
    return lambda rules: replace(rules, left_out=frozenset({rule}))


# Changes of the rules that switch one of them off, by its name.
ABLATIONS: Final[dict[str, Callable[[Rules], Rules]]] = {
    "stabilisation": lambda rules: replace(rules, down=AT_ONCE),
    "headroom": lambda rules: replace(rules, headroom=0.0),
    "the cure test": _leave_out("cure"),
    "the saturation point": _leave_out("saturation"),
    "the limit of growth": _leave_out("growth"),
    "change detection": _leave_out("change"),
}
