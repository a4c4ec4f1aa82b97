"""Policies that a user might choose instead, from their published descriptions, with the source.

Each decides every 15 s, as ours does, with the signals that its own system has, measured over that
period. It keeps the number while its signals are unknown. The bounds are those of the setting.
Their settings are those that cost least in a search on a grid over all scenarios: pods in 30 s,
20 % of noise, seeds of its own, and GPUs at the price of 20 workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from dataset_operator.autoscaling.signals import Sample, measure_between
from dataset_operator.simulation import events
from dataset_operator.simulation.cluster import Cluster

# HPA: no move while the ratio is within a tenth of 1; pods leave after 300 s; up by 4 or double.
HPA_TOLERANCE: Final = 0.1
HPA_DOWN_SECONDS: Final = 300.0
HPA_UP_PODS: Final = 4
# Ray's default `idleTimeoutSeconds`.
RAY_IDLE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Signals of one period.

    Attributes:
        busy: share of the ready workers' time, 0 to 1: their CPU use.
        free_units: units that fit into the queue before the trainers.
    """

    at: float
    desired: int
    ready: int
    busy: float
    free_units: float
    gpu_utilization: float | None


class Window:
    """Values of a window of time."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._values = seconds, list[tuple[float, int]]()

    def add(self, at: float, value: int) -> list[int]:
        """Add a value; return those of the window."""
        kept = [one for one in self._values if one[0] > at - self._seconds]
        self._values = [*kept, (at, value)]
        return [value for _, value in self._values]


@dataclass(slots=True)
class Peer:
    """Base of all peer policies, which implement `want`."""

    cluster: Cluster
    _last: Sample | None = field(init=False)
    _held: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._last, self._held = None, (0.0, 0.0)

    def decide(self, sample: Sample) -> int:
        seen = self._see(sample)
        wanted = sample.desired if seen is None else self.want(seen)
        setting = self.cluster.setting
        return min(max(wanted, setting.min_workers), setting.max_workers)

    def want(self, seen: Seen) -> int:
        """Return the number of workers that the policy requests."""
        raise NotImplementedError

    def _see(self, sample: Sample) -> Seen | None:
        """Return the signals of the last period; None while one is unknown."""
        last, self._last = self._last, sample
        interval = measure_between(last, sample) if last is not None else None
        sums, before = self.cluster.state.sums, self._held
        # The seconds in which workers were blocked, and in which they were ready.
        self._held = float(sums[events.HELD]), float(sums[events.READY_SECONDS])
        if interval is None or interval.made_rows <= 0.0 or interval.steps < 1.0:
            return None
        held, up = self._held[0] - before[0], self._held[1] - before[1]
        queued = float(self.cluster.state.marks[events.QUEUE_UNITS])
        # Only our source knows that a 0 of a node without NVML is not real.
        is_zero = self.cluster.setting.gpu == "zero"
        return Seen(
            at=sample.at,
            desired=sample.desired,
            ready=max(sample.pods.ready, 1),
            busy=min(1.0, max(0.0, 1.0 - held / up)) if up > 0.0 else 0.0,
            free_units=self.cluster.given.credit_units - queued,
            gpu_utilization=0.0 if is_zero else sample.gpu_utilization,
        )


@dataclass(slots=True)
class Hpa(Peer):
    """⌈current · metric ÷ target⌉ with the HPA's tolerance, windows and limits of the rate.

    Source: kubernetes.io, «Horizontal Pod Autoscaling», algorithm details and default behavior.
    """

    target: float = 0.9
    _wanted: Window = field(init=False)

    def restart(self) -> None:
        Peer.restart(self)
        self._wanted = Window(HPA_DOWN_SECONDS)

    def ratio(self, seen: Seen) -> float | None:
        """Return the ratio of the metric to its target."""
        return seen.busy / self.target

    def want(self, seen: Seen) -> int:
        ratio = self.ratio(seen)
        if ratio is None:
            return seen.desired
        wanted = seen.desired
        if abs(ratio - 1.0) > HPA_TOLERANCE:
            wanted = math.ceil(seen.ready * ratio)
        recent = self._wanted.add(seen.at, wanted)
        if wanted > seen.desired:
            return min(wanted, max(2 * seen.desired, seen.desired + HPA_UP_PODS))
        return min(seen.desired, max(recent))


@dataclass(slots=True)
class HpaOnIdleGpus(Hpa):
    """The HPA on an inverted metric: target ÷ GPU utilisation, so that idle GPUs add workers.

    Source: as `Hpa`, with a DCGM series that the metrics adapter inverts.
    """

    def ratio(self, seen: Seen) -> float | None:
        if seen.gpu_utilization is None:
            return None
        return self.target / max(seen.gpu_utilization, 0.01)


@dataclass(slots=True)
class Keda(Hpa):
    """KEDA's external metric by AverageValue: ⌈free places of the queue ÷ target⌉.

    Source: keda.sh, «Scaling Deployments», metricType AverageValue; free places, because the queue
    before the trainers should be full.
    """

    target: float = 2.0

    def ratio(self, seen: Seen) -> float | None:
        return seen.free_units / self.target / seen.ready


@dataclass(slots=True)
class RayAutoscaler(Peer):
    """Ray's autoscaler: add nodes for tasks that fit nowhere; remove a node that idles for 60 s.

    Idle nodes are counted as if Ray packed tasks on as few nodes as possible, in its favour.
    Source: docs.ray.io, «KubeRay autoscaling», `idleTimeoutSeconds`, and `upscalingMode`
    `Conservative`, which adds as many as there are.
    """

    _spare: Window = field(init=False)

    def restart(self) -> None:
        Peer.restart(self)
        self._spare = Window(RAY_IDLE_SECONDS)

    def want(self, seen: Seen) -> int:
        spare = self._spare.add(seen.at, math.floor(seen.ready * (1.0 - seen.busy)))
        # Ray Data submits as many tasks as its queue has room for.
        pending = math.ceil(seen.free_units - seen.ready)
        if pending >= 1 and seen.ready >= seen.desired:
            return seen.desired + min(pending, seen.desired)
        return seen.desired - min(spare)
