"""Data workers as the law asks for them: raylets that are started, drained and timed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from benchmarks.scaling.ray_cluster import Cluster


@dataclass(slots=True)
class Workers:
    """The data nodes of a cluster; times are seconds of one clock.

    Attributes:
        starts: seconds from asked for to its first chunk, of each that was asked for and came.
    """

    cluster: Cluster
    starts: list[float] = field(default_factory=list)
    _awaited: list[float] = field(default_factory=list)  # when each was asked for

    @property
    def desired(self) -> int:
        """Workers that were asked for."""
        return len(self.cluster.nodes)

    @property
    def start_seconds(self) -> float | None:
        """Their median; None: none was started yet."""
        return statistics.median(self.starts) if self.starts else None

    def ask(self, wanted: int, now: float) -> None:
        """Have so many: new ones are not waited for, the youngest are told to go."""
        up = self.cluster.find_up()
        for node in reversed(self.cluster.nodes[wanted:]):
            if node.serial in up:
                self.cluster.drain(node)
            else:
                self.cluster.end(node)
            if self._awaited:
                self._awaited.pop()
        missing = wanted - self.desired
        self.cluster.add(missing)
        self._awaited += [now] * missing

    def count_ready(self, delivering: int, now: float) -> int:
        """Return the workers that are up and have delivered, as the operator counts them.

        Args:
            delivering: that the run tells of.
        """
        while self._awaited and delivering > self.desired - len(self._awaited):
            self.starts.append(now - self._awaited.pop(0))
        return min(len(self.cluster.find_up()), delivering)
