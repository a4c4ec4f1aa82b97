"""The operator's policy for the simulator."""

from dataclasses import dataclass, field

from dataset_operator.autoscaling import Decision, Memory, Rules, Sample, decide
from dataset_operator.simulation.cluster import Cluster


@dataclass
class Lastmile:
    """The operator's policy, with a log of its decisions."""

    cluster: Cluster
    memory: Memory = field(default_factory=lambda: Memory(since=0.0))
    log: list[tuple[Sample, Decision]] = field(default_factory=list)

    def decide(self, sample: Sample) -> int:
        setting = self.cluster.setting
        rules = Rules(
            min_workers=setting.min_workers,
            max_workers=setting.max_workers,
            is_ordered=setting.is_ordered,
        )
        decision, self.memory = decide(self.memory, sample, rules)
        self.log.append((sample, decision))
        return decision.desired

    def restart(self) -> None:
        self.memory = Memory(since=self.cluster.time)
