"""The true means at a moment, without noise, which a policy cannot see."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dataset_operator.simulation import events
from dataset_operator.simulation.cluster import Cluster
from dataset_operator.simulation.setting import Phase, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """Attributes:

    demand: rows per second that the trainers would take, without pauses.
    worker_rate: rows per second of one busy worker while storage is not at its limit.
    useful: workers beyond which rows per second do not increase.
    """

    demand: float
    worker_rate: float
    useful: int

    def required(self, headroom: float) -> int:
        """Return ⌈D (1 + h) ÷ μ⌉, and at most the useful workers."""
        return min(math.ceil(self.demand * (1.0 + headroom) / self.worker_rate), self.useful)


def truth_of(setting: Setting, phase: Phase) -> Truth:
    """Return the true means of a phase."""
    step = phase.step_seconds + sum(phase.waits.values())
    mean_speed = 1.0 - setting.slow_share * (1.0 - setting.slow_speed)
    worker_rate = mean_speed / phase.row_seconds
    storage = setting.storage_rows_per_second
    useful = math.ceil(storage / worker_rate) if math.isfinite(storage) else setting.max_workers
    return Truth(
        demand=setting.batch_rows / step,
        worker_rate=worker_rate,
        useful=min(useful, setting.max_workers),
    )


def truth_now(cluster: Cluster) -> Truth:
    """Return the true means at this moment of a simulation."""
    phase = cluster.setting.phases[int(cluster.state.marks[events.PHASE])]
    return truth_of(cluster.setting, phase)
