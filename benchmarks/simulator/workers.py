"""Data workers as the policy requests them: raylets that are started, drained and timed."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from benchmarks.scaling.ray_cluster import Cluster


@dataclass(slots=True)
class Workers:
    """The data nodes of a cluster; times are seconds of one clock.

    Attributes:
        starts: seconds from the request to the first chunk, of each worker that started.
    """

    cluster: Cluster
    starts: list[float] = field(default_factory=list)
    _awaited: list[float] = field(default_factory=list)  # time of each request

    @property
    def desired(self) -> int:
        """Requested workers."""
        return len(self.cluster.nodes)

    @property
    def start_seconds(self) -> float | None:
        """Median start of a worker; None: no worker has started yet."""
        return statistics.median(self.starts) if self.starts else None

    def request(self, wanted: int, now: float) -> None:
        """Request a number of workers: new ones start, the youngest are drained."""
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
            delivering: workers that deliver rows, as the run reports them.
        """
        while self._awaited and delivering > self.desired - len(self._awaited):
            self.starts.append(now - self._awaited.pop(0))
        return min(len(self.cluster.find_up()), delivering)
